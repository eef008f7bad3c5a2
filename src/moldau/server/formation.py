"""Finds the cluster of a broker without one, among the initial members that it was given.

A broker with an empty directory is either new, or lost its disk, and cannot know which. So the
first of the initial members bootstraps only when every other one says that it is new as well; if
one belongs to a cluster, the broker joins it; and while one does not respond, it waits. Until it
has a cluster it serves this information itself (edge/http/newcomer.py).
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from enum import Enum, auto
from typing import TYPE_CHECKING, Final

from moldau.client.errors import ClientError
from moldau.edge.http.listener import HttpListener
from moldau.model.errors import ConfigError
from moldau.model.topology import Endpoint
from moldau.net.tls.contexts import TlsContexts
from moldau.server.config.scalars import parse_address
from moldau.server.config.schema import ServerConfig
from moldau.server.machine import Machine
from moldau.server.ports import ReservedPort

if TYPE_CHECKING:
    from starlette.types import ASGIApp

log = logging.getLogger(__name__)

_CALL_SECONDS_MAX: Final = 2.0
_PAUSE_SECONDS: Final = 0.5
_LOG_SECONDS: Final = 10.0
_GRACE_SECONDS: Final = 1.0


class _State(Enum):
    MEMBER = auto()
    NEW = auto()
    UNKNOWN = auto()


def initial_members(config: ServerConfig) -> tuple[Endpoint, ...]:
    """The addresses of the setting. Raises ValueError."""
    given = (config.initial_members or "").split(",")
    return tuple(parse_address(one) for one in given if one.strip())


class Formation:
    """How one broker finds its cluster; `state` says what it waits for."""

    def __init__(self, config: ServerConfig, me: Endpoint, machine: Machine) -> None:
        """`me`: the HTTP address that this broker advertises."""
        self._members = initial_members(config)
        self._me = me
        self._machine = machine
        # Another way to the cluster, as an address of several members; it proves no broker new.
        self._more = () if config.join_addr is None else (config.join_addr,)
        self.state = "the broker has no cluster yet"

    @property
    def me(self) -> str:
        return str(self._me)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(str(member) for member in self._members)

    async def find(self, *, may_bootstrap: bool) -> Endpoint | None:
        """The address of a member to join; None: this broker has to bootstrap the cluster.

        Waits without limit. Raises ConfigError if another broker has other initial members.
        """
        others = [member for member in self._members if member != self._me]
        asked: tuple[Endpoint, ...] = (*others, *self._more)
        may_bootstrap = may_bootstrap and self._members[0] == self._me
        log_at = float("-inf")
        while True:
            known = await asyncio.gather(*map(self._ask, asked))
            for address, (state, _) in zip(asked, known, strict=True):
                if state is _State.MEMBER:
                    return address
            missing = [
                f"{address}: {text}"
                for address, (state, text) in zip(others, known, strict=False)
                if state is not _State.NEW
            ]
            if may_bootstrap and not missing:
                return None
            self.state = self._waiting_for(missing, may_bootstrap)
            now = self._machine.clock.monotonic()
            if now >= log_at:
                log_at = now + _LOG_SECONDS
                log.info("%s", self.state)
            await asyncio.sleep(_PAUSE_SECONDS)

    def _waiting_for(self, missing: Sequence[str], may_bootstrap: bool) -> str:
        if may_bootstrap:
            return (
                "the data directory is empty: a cluster is bootstrapped when all initial members "
                f"are new, or joined when one has it; waiting for {'; '.join(missing)}"
            )
        first = self._members[0]
        if first != self._me:
            return (
                f"the broker has no cluster yet: waiting until {first} has bootstrapped one, or "
                f"another initial member has it (this broker is {self._me})"
            )
        return (
            "this data directory was about to join a cluster, which no initial member has now: "
            "waiting for one; if there is no such cluster, empty the directory"
        )

    async def _ask(self, address: Endpoint) -> tuple[_State, str]:
        try:
            offered = await self._machine.member(address, _CALL_SECONDS_MAX).join_challenge()
        except ClientError as error:
            return _State.UNKNOWN, str(error)
        if offered.initial_members is None:
            return _State.MEMBER, ""
        if address in self._members and offered.initial_members != self.names:
            raise ConfigError(
                f"the initial members must be the same for all brokers: here they are "
                f"{','.join(self.names)}, and at {address} {','.join(offered.initial_members)}"
            )
        if offered.newcomer != str(address):
            # An outdated name, or a service: nothing is known of the member itself.
            return _State.UNKNOWN, f"{offered.newcomer or 'another broker'} responds there"
        return _State.NEW, ""


@asynccontextmanager
async def served_as_newcomer(
    formation: Formation,
    port: ReservedPort,
    machine: Machine,
    tls: TlsContexts | None,
    *,
    is_new: bool,
) -> AsyncIterator[None]:
    """While it lasts, others can ask whether this broker is new, and probes whether it runs."""

    def make_app() -> "ASGIApp":
        from moldau.edge.http.newcomer import build_newcomer_app

        return build_newcomer_app(formation.me, formation.names, is_new, lambda: formation.state)

    listener = HttpListener(
        loop=asyncio.get_running_loop(),
        make_app=make_app,
        sockets=machine.sockets,
        tls=tls,
        clock=machine.clock,
    )
    port.bind(listener)
    port.listen(listener.start)
    try:
        yield
    finally:
        await listener.stop(_GRACE_SECONDS)
