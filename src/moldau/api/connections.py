"""The connections of clients, of this broker or of another one: who they are, and what they do.

The protocol servers count, each in its own way; this asks them, and other brokers by RPC.
"""

from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Final, Protocol

import msgspec
from msgspec import Struct

from moldau.control.cluster_service import ClusterService
from moldau.model.clock import Clock
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import BrokerId
from moldau.model.malformed import MALFORMED
from moldau.net.peers.caller import PeerCaller
from moldau.net.peers.methods import PeerMethod

SHOWN_MAX: Final = 1000
_CALL_SECONDS_MAX: Final = 3.0


class ConnectionShown(Struct, frozen=True, kw_only=True):
    """One connection. Names are what the client says of itself."""

    client_id: str | None
    """Of its last request; only Kafka clients have one."""
    software: str
    version: str
    user: str
    """Empty for a client that did not say who it is."""
    address: str
    listener: str
    protocol: str
    opened_at_ms: int
    requests: int
    bytes_in: int | None
    """null where it is not counted: gRPC."""
    bytes_out: int | None
    throttled_ms: int
    errors: int
    """Requests that were answered with an error."""
    idle_ms: int


class ConnectionList(Struct, frozen=True, kw_only=True):
    """The connections of a broker; those that are open for longest, if there are too many."""

    broker: int
    connections: list[ConnectionShown]
    count: int
    """Of all."""
    is_cut: bool


class ConnectionSource(Protocol):
    """A protocol server."""

    def open_connections(self, most: int, wall_ms: int) -> tuple[int, list[ConnectionShown]]:
        """How many there are, and the oldest ones. `wall_ms`: the time."""
        ...


_decode: Final = msgspec.msgpack.Decoder(ConnectionList).decode


class Connections:
    """Lists connections, and responds to other brokers."""

    def __init__(
        self,
        *,
        me: BrokerId,
        cluster: ClusterService,
        caller: PeerCaller,
        clock: Clock,
        sources: Callable[[], Iterable[ConnectionSource | None]],
    ) -> None:
        """`sources`: the protocol servers; None for one that this broker does not have (yet)."""
        self._me = me
        self._cluster = cluster
        self._caller = caller
        self._clock = clock
        self._sources = sources

    async def of(self, broker: int) -> ConnectionList:
        """Raises RefusedError."""
        asked = BrokerId(broker)
        if asked == self._me:
            return self._own()
        if asked not in self._cluster.image.brokers:
            raise RefusedError(ErrorCode.BROKER_ID_NOT_REGISTERED, f"Unknown broker {broker}")
        if asked not in self._cluster.alive:
            raise RefusedError(ErrorCode.BROKER_NOT_AVAILABLE, f"Broker {broker} is not reachable")
        method = PeerMethod.LIST_CONNECTIONS
        try:
            return _decode(await self._caller.call(asked, method, b"", _CALL_SECONDS_MAX))
        except MALFORMED as error:
            raise RefusedError(
                ErrorCode.UNKNOWN_SERVER_ERROR, f"Broker {broker} sent an invalid list: {error}"
            ) from None

    async def on_request(self, sender: BrokerId, payload: bytes) -> bytes:
        return msgspec.msgpack.encode(self._own())

    def _own(self) -> ConnectionList:
        wall_ms = self._clock.wall_ms()
        shown: list[ConnectionShown] = []
        total = 0
        for source in self._sources():
            if source is None:
                continue
            count, found = source.open_connections(SHOWN_MAX, wall_ms)
            total += count
            shown += found
        shown.sort(key=attrgetter("opened_at_ms"))
        del shown[SHOWN_MAX:]
        return ConnectionList(
            broker=self._me, connections=shown, count=total, is_cut=total > len(shown)
        )
