"""The audit log: who did what from where, allowed or denied, as one JSON object per line.

Denials are always recorded, what was allowed only if it changes more than records and positions.
Logins are recorded, too; those of a client that succeed again and again, once a minute.
The rate is bounded, so that a client in a loop cannot fill the disk; the next line that is written
says how many were left out. Denials, changes and logins have a rate each, of which one client can
use up a part only: it cannot hide what others do, nor what it does by what it may not do. A change
of many parts, as of rules, has a line for each part, so that none of them hides another.
"""

import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final, Generic, NamedTuple, TypeVar

import msgspec

from moldau.model.clock import Clock
from moldau.model.errors import ErrorCode, RefusedError
from moldau.net.networks import network_of
from moldau.security.acl import Operation, Resource
from moldau.security.principal import ANONYMOUS, Principal

LOGGER_NAME: Final = "moldau.audit"


class Rate(NamedTuple):
    """How many lines of a kind are written."""

    per_second: int
    burst: int
    client_per_second: int
    """Of one client, the same."""
    client_burst: int


CHANGES: Final = Rate(100, 1000, client_per_second=50, client_burst=500)
"""A short burst, e.g. a script that creates topics, is recorded in full."""
OTHERS: Final = Rate(50, 500, client_per_second=10, client_burst=100)
"""Of denials, of logins, and of failed logins, each. The lines of hours fit into the files."""
LOGIN_SECONDS: Final = 60.0
"""Between two lines about logins of a client by the same mechanism: HTTP clients log in with each
request."""
LOGIN: Final = "login"
CLIENTS_MAX: Final = 1024
"""Whose rates are remembered, of each kind."""
LOGINS_MAX: Final = 8192
"""Whose last lines are remembered."""
_NAME_CHARACTERS_MAX: Final = 300
"""Names come from clients, and may be long."""
_ABOUT_CHARACTERS_MAX: Final = 2000
PARTS_MAX: Final = 1000
"""Of one request, which is refused if it has more: so each part of a change has its line."""
_DENIED_PARTS_MAX: Final = 20

VALIDATED: Final = "only validated: "
"""Heads what was not carried out, because the client did not want it to be."""

Part = TypeVar("Part")


class Parts(Generic[Part]):
    """What a request of many parts does; `text_of` is called only if it is written.

    A change has a line for each of them. What is denied changed nothing, and anyone can ask for it:
    it has one line, with some of them.
    """

    __slots__ = ("_heading", "_parts", "_text_of")

    def __init__(
        self, parts: Sequence[Part], text_of: Callable[[Part], str] = str, heading: str = ""
    ) -> None:
        """`heading` is on each line."""
        self._parts = parts
        self._text_of = text_of
        self._heading = heading

    def check_count(self) -> None:
        """Raises RefusedError."""
        if len(self._parts) > PARTS_MAX:
            raise RefusedError(
                ErrorCode.INVALID_REQUEST,
                f"One request can have {PARTS_MAX} changes, and this one has {len(self._parts)}",
            )

    def lines(self) -> list[str]:
        """At least one."""
        return [self._heading + each for each in self._texts(PARTS_MAX) or [""]]

    def __str__(self) -> str:
        return self._heading + "; ".join(self._texts(_DENIED_PARTS_MAX))

    def _texts(self, count_max: int) -> list[str]:
        texts = [self._text_of(each) for each in self._parts[:count_max]]
        left = len(self._parts) - len(texts)
        return [*texts, f"(and {left} more)"] if left else texts


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    time_ms: int
    principal: str
    host: str
    use_case: str
    operation: str = ""
    resource_type: str = ""
    resource: str = ""
    mechanism: str = ""
    """Of a login, which has no operation and no resource."""
    allowed: bool
    about: str = ""
    """What it does, where the resource does not say it: a user, a broker, rules. Of a login, why it
    failed."""
    listener: str = ""
    left_out: int = 0
    """Entries before this one that were not written because there were too many."""


_encode: Final = msgspec.json.Encoder().encode


class _Bucket:
    """How many lines may still be written."""

    __slots__ = ("_burst", "_filled_at", "_left", "_per_second")

    def __init__(self, per_second: float, burst: float) -> None:
        self._per_second = per_second
        self._burst = burst
        self._left = burst
        self._filled_at = float("-inf")

    def has_room(self, now: float) -> bool:
        refilled = self._left + (now - self._filled_at) * self._per_second
        self._left = min(self._burst, refilled)
        self._filled_at = now
        return self._left >= 1

    def take(self) -> None:
        self._left -= 1


class _Buckets:
    """Of one kind of lines: of all clients together, and of each."""

    def __init__(self, rate: Rate) -> None:
        self._rate = rate
        self._all = _Bucket(rate.per_second, rate.burst)
        self._clients: OrderedDict[tuple[Principal, str], _Bucket] = OrderedDict()

    def take(self, principal: Principal, host: str, now: float) -> bool:
        client = (principal, network_of(host))
        bucket = self._clients.get(client)
        if bucket is None:
            if not self._all.has_room(now):
                # Forgets no other client for one that gets no line.
                return False
            bucket = _Bucket(self._rate.client_per_second, self._rate.client_burst)
            self._clients[client] = bucket
            if len(self._clients) > CLIENTS_MAX:
                self._clients.popitem(last=False)
        else:
            self._clients.move_to_end(client)
        if not bucket.has_room(now) or not self._all.has_room(now):
            return False
        bucket.take()
        self._all.take()
        return True


class AuditLog:
    """Writes entries by `write`, which gets one line of JSON without its end."""

    def __init__(self, clock: Clock, write: Callable[[str], None]) -> None:
        self._clock = clock
        self._write = write
        self._changes = _Buckets(CHANGES)
        self._denials = _Buckets(OTHERS)
        self._logins = _Buckets(OTHERS)
        self._failed_logins = _Buckets(OTHERS)
        self._logged_in_at: OrderedDict[tuple[Principal, str, str], float] = OrderedDict()
        """When a login of a client by a mechanism was written."""
        self._left_out = 0

    def record(
        self,
        principal: Principal,
        host: str,
        listener: str,
        use_case: str,
        operation: Operation,
        resource: Resource,
        *,
        is_allowed: bool,
        about: object = "",
    ) -> None:
        """`about` is made into text only if it is written; of `Parts`, see there."""
        buckets = self._changes if is_allowed else self._denials
        if not buckets.take(principal, host, self._clock.monotonic()):
            self._left_out += 1
            return
        for text in about.lines() if is_allowed and isinstance(about, Parts) else [str(about)]:
            entry = AuditEntry(
                time_ms=self._clock.wall_ms(),
                principal=_short(str(principal), _NAME_CHARACTERS_MAX),
                host=host,
                use_case=use_case,
                operation=operation.name,
                resource_type=resource.type.name,
                resource=_short(resource.name, _NAME_CHARACTERS_MAX),
                allowed=is_allowed,
                about=_short(text, _ABOUT_CHARACTERS_MAX),
                listener=listener,
                left_out=self._left_out,
            )
            self._put(entry)

    def record_login(self, principal: Principal, host: str, mechanism: str) -> None:
        now = self._clock.monotonic()
        key = (principal, network_of(host), mechanism)
        if now - self._logged_in_at.get(key, float("-inf")) < LOGIN_SECONDS:
            return
        if not self._logins.take(principal, host, now):
            self._left_out += 1
            return
        self._logged_in_at[key] = now
        self._logged_in_at.move_to_end(key)
        if len(self._logged_in_at) > LOGINS_MAX:
            self._logged_in_at.popitem(last=False)
        self._put_login(principal, host, mechanism, "", is_allowed=True)

    def record_failed_login(
        self, claimed: Principal, host: str, mechanism: str, reason: str
    ) -> None:
        # By the address alone: anyone can make up names.
        if not self._failed_logins.take(ANONYMOUS, host, self._clock.monotonic()):
            self._left_out += 1
            return
        self._put_login(claimed, host, mechanism, reason, is_allowed=False)

    def _put_login(
        self, principal: Principal, host: str, mechanism: str, about: str, *, is_allowed: bool
    ) -> None:
        self._put(
            AuditEntry(
                time_ms=self._clock.wall_ms(),
                principal=_short(str(principal), _NAME_CHARACTERS_MAX),
                host=host,
                use_case=LOGIN,
                mechanism=mechanism,
                allowed=is_allowed,
                about=_short(about, _ABOUT_CHARACTERS_MAX),
                left_out=self._left_out,
            )
        )

    def _put(self, entry: AuditEntry) -> None:
        self._left_out = 0
        self._write(_encode(entry).decode())


def _short(text: str, length_max: int) -> str:
    return text if len(text) <= length_max else text[: length_max - 1] + "…"


def to_logger(line: str) -> None:
    """Writes a line to the logger of audits, whose handlers the operator chooses."""
    logging.getLogger(LOGGER_NAME).info("%s", line)
