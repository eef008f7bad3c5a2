"""What the queue commands share: connecting over gRPC, option types, and completion."""

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from moldau.cli.connection.current import current_security, security_in
from moldau.cli.options import Brokers, ParamType, address_option, completions
from moldau.model.errors import MoldauError

if TYPE_CHECKING:
    from moldau.client.queue.client import AsyncQueueClient
    from moldau.client.queue.message import StoredMessage
    from moldau.client.security import Security


GRPC_DEFAULT = "localhost:8000"
GRPC_PORT = 8000

START_HINT = (
    "no broker running? start one: moldau dev · other address: --grpc HOST:PORT or MOLDAU_GRPC"
)

PORT_HINT = (
    "use the gRPC address of a broker (grpc.addr, port 8000 by default), not its Kafka, HTTP or "
    "Raft address: --grpc HOST:PORT or MOLDAU_GRPC · with TLS: --tls or --cafile FILE"
)

_COMPLETE_SECONDS_MAX = 1.0
_PROBE_SECONDS_MAX: Final = 1.0

_CLOSE_SECONDS_MAX: Final = 5.0
_F = TypeVar("_F", bound=Callable[..., Any])


class GrpcAddresses(Brokers):
    """As of brokers, but the port may be missing; also http:// or https://HOST:PORT."""

    name = "addresses"

    def check(self, addresses: str) -> None:
        from moldau.client.addresses import split_brokers

        bare = addresses.replace("https://", "").replace("http://", "")
        split_brokers(bare, port_default=GRPC_PORT)


class TimestampParam(ParamType[int]):
    """A time, as 2026-11-15T08:00 or as milliseconds since 1970."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        from moldau.cli.start_position import parse_position

        if isinstance(value, int):
            return value
        position = parse_position("@" + str(value).strip().removeprefix("@"))
        if position is None or position.time_ms is None:
            self.fail(f"{value!r} is not a valid time; write 2026-11-15T08:00", param, ctx)
        return position.time_ms


def grpc_option(function: _F) -> _F:
    return address_option(
        "--grpc",
        "addresses",
        kind=GrpcAddresses(),
        variable="MOLDAU_GRPC",
        default=GRPC_DEFAULT,
        help_text="gRPC addresses of brokers or a proxy",
    )(function)


def group_option(function: _F) -> _F:
    return click.option(
        "-g",
        "--group",
        required=True,
        shell_complete=complete_queue_groups,
        help="The queue group.",
    )(function)


def queue_topic_argument(function: _F) -> _F:
    return click.argument("topic", shell_complete=complete_queue_topics)(function)


@asynccontextmanager
async def connected(
    addresses: str, seconds_max: float | None = None, *, security: "Security | None" = None
) -> "AsyncIterator[AsyncQueueClient]":
    """A client of the cluster. Raises UnreachableError at once if nothing listens there."""
    # gRPC's core would log a line for every handshake that fails; we report the error.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    from moldau.client.queue.client import TIMEOUT_SECONDS, AsyncQueueClient

    given = current_security() if security is None else security
    await asyncio.to_thread(probe_grpc, addresses, has_tls=given.tls is not None)
    timeout = TIMEOUT_SECONDS if seconds_max is None else seconds_max
    client = AsyncQueueClient(
        addresses,
        timeout=timeout,
        client_id="moldau-cli",
        security=given,
    )
    await client.start()
    try:
        yield client
    finally:
        # Busy brokers must not delay a command that ends, as after Ctrl-C.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_SECONDS_MAX):
                await client.close()


def probe_grpc(addresses: str, *, has_tls: bool) -> None:
    """Report an unreachable address or a wrong port at once; the client itself would retry.

    What the listener is, is found in plain text: not `has_tls`.
    """
    from moldau.client.addresses import split_brokers
    from moldau.client.errors import UnreachableError
    from moldau.client.protocols import Protocol, mismatch, protocol_at
    from moldau.client.retry import connect_failure
    from moldau.model.topology import Endpoint

    if "://" in addresses:
        return
    reasons: list[str] = []
    wrong = ""
    pairs = split_brokers(addresses, port_default=GRPC_PORT)
    for host, port in pairs:
        try:
            if has_tls:
                socket.create_connection((host, port), timeout=_PROBE_SECONDS_MAX).close()
                return
            is_wrong = mismatch(
                protocol_at(host, port, Protocol.GRPC, _PROBE_SECONDS_MAX), Protocol.GRPC
            )
        except OSError as error:
            reasons.append(connect_failure(error, _PROBE_SECONDS_MAX))
            continue
        if not is_wrong:
            return
        wrong = wrong or f"{Endpoint(host, port)} is {is_wrong}"
    if wrong:
        raise UnreachableError(wrong, hint=PORT_HINT)
    where = ",".join(str(Endpoint(host, port)) for host, port in pairs)
    why = ", ".join(dict.fromkeys(reasons))
    raise UnreachableError(f"cannot reach {where} ({why})", hint=START_HINT)


def complete_queue_topics(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
    async def names(client: "AsyncQueueClient") -> list[str]:
        return [topic.name for topic in (await client.topology()).topics]

    shows_internal = incomplete.startswith("_")
    return _completed(ctx, incomplete, names, lambda name: shows_internal or name[:2] != "__")


def complete_queue_groups(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
    async def names(client: "AsyncQueueClient") -> list[str]:
        return [each.group for each in await client.groups()]

    return _completed(ctx, incomplete, names, lambda name: True)


def _completed(
    ctx: click.Context,
    incomplete: str,
    names: "Callable[[AsyncQueueClient], Coroutine[Any, Any, list[str]]]",
    is_shown: Callable[[str], bool],
) -> list[Any]:
    """Completions; empty if no broker responds."""

    async def fetch() -> list[str]:
        addresses = str(ctx.params.get("addresses") or GRPC_DEFAULT)
        security = security_in(ctx, ask=False)
        async with connected(addresses, _COMPLETE_SECONDS_MAX, security=security) as client:
            return await names(client)

    try:
        found = asyncio.run(fetch())
    except MoldauError:
        return []
    return completions(incomplete, {name: "" for name in sorted(found) if is_shown(name)})


class PrintableMessage:
    """Adapts a queue message to the formatters of consume."""

    __slots__ = ("_message",)

    def __init__(self, message: "StoredMessage") -> None:
        self._message = message

    def topic(self) -> str:
        return self._message.topic

    def partition(self) -> int:
        return self._message.partition

    def offset(self) -> int:
        return self._message.offset

    def timestamp(self) -> tuple[int, int]:
        return (1, self._message.timestamp)

    def key(self) -> bytes | None:
        return self._message.key

    def value(self) -> bytes | None:
        return self._message.value

    def headers(self) -> list[tuple[str, bytes | None]]:
        return self._message.headers
