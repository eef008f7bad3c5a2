"""A small Kafka client for the simulated world: connections, metadata, coordinators.

It does what every client does: learn the leader from any broker, send to it, and look again if
the response is that another broker leads.
"""

import asyncio
import random
import struct
from collections.abc import Sequence
from typing import Any, Final, TypeVar

from moldau.model.errors import ErrorCode
from moldau.wire.framing import frame_request, read_response_header
from moldau.wire.messages.find_coordinator import FindCoordinatorRequest
from moldau.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from moldau.wire.registry import RESPONSES
from moldau.wire.schema import Request

_LENGTH: Final = struct.Struct(">i")
ASK_SECONDS: Final = 10.0
CONNECT_SECONDS: Final = 5.0
_MANY_KEYS_FROM: Final = 4

T = TypeVar("T")

Place = tuple[str, int]
"""A topic and the index of a partition."""

LEADER_GONE: Final = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.REPLICA_NOT_AVAILABLE,
    }
)
COORDINATOR_GONE: Final = frozenset(
    {
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    }
)


class Lost(Exception):
    """No answer: nobody knows whether what was asked for has been done."""


class OutOfOrder(Exception):
    """A response came before that to an earlier request: most clients take it for the earlier."""


class _Connection(asyncio.Protocol):
    """One connection; answers come in the order of the requests."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._transport: asyncio.Transport | None = None
        self._waiting: dict[int, tuple[int, int, asyncio.Future[Any]]] = {}
        self._numbers = 0
        self.is_closed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer
        buffer += data
        while len(buffer) >= _LENGTH.size:
            (size,) = _LENGTH.unpack_from(buffer)
            if len(buffer) < _LENGTH.size + size:
                return
            frame = bytes(buffer[_LENGTH.size : _LENGTH.size + size])
            del buffer[: _LENGTH.size + size]
            self._received(frame)

    def _received(self, frame: bytes) -> None:
        (number,) = _LENGTH.unpack_from(frame)
        key, version, future = self._waiting.pop(number)
        for earlier, (_, _, other) in self._waiting.items():
            # Who gave up does not wait any more, nor does one that asked for no answer.
            if earlier < number and not other.done():
                raise OutOfOrder(f"number {number} is answered, and {earlier} is not")
        view = memoryview(frame)
        _, position = read_response_header(view, key, version)
        if not future.done():
            future.set_result(RESPONSES[key].decode(view, version, position))

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_closed = True
        waiting, self._waiting = self._waiting, {}
        for _, _, future in waiting.values():
            if not future.done():
                future.set_exception(Lost(f"the connection is lost: {exc}"))

    def close(self) -> None:
        self.is_closed = True
        if self._transport is not None:
            self._transport.abort()

    def send(self, request: Request, version: int, client_id: str) -> "asyncio.Future[Any]":
        """Sent in the order of the calls; the answer comes later."""
        self._numbers += 1
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if self.is_closed or self._transport is None:
            future.set_exception(Lost("the connection is closed"))
            return future
        self._waiting[self._numbers] = (request.API_KEY, version, future)
        chunks = frame_request(request, version, self._numbers, client_id)
        self._transport.write(b"".join(bytes(chunk) for chunk in chunks))  # type: ignore[arg-type]
        return future


class Kafka:
    """A client of one cluster, as one process has it."""

    def __init__(self, name: str, bootstrap: Sequence[tuple[str, int]], rng: random.Random) -> None:
        """`bootstrap` may change: it is what somebody keeps up to date."""
        self.name = name
        self.rng = rng
        self._bootstrap = bootstrap
        self._connections: dict[tuple[str, int], _Connection] = {}
        self._opening: dict[tuple[str, int], asyncio.Task[_Connection]] = {}
        self.brokers: dict[int, tuple[str, int]] = {}
        self.controller = -1
        self.leaders: dict[Place, tuple[int, int]] = {}
        """Broker and epoch."""
        self.topic_ids: dict[str, bytes] = {}
        self.partitions: dict[str, list[int]] = {}
        self._coordinators: dict[tuple[int, str], int] = {}
        self._versions: dict[int, int] = {}

    # ---- connections

    def version_of(self, request: Request) -> int:
        """One for each API, drawn: clients of all ages are about."""
        key = request.API_KEY
        version = self._versions.get(key)
        if version is None:
            first, last = request.VERSIONS
            version = last if self.rng.random() < 0.5 else self.rng.randint(first, last)
            self._versions[key] = version
        return version

    def pin(self, kind: type[Request], version: int) -> None:
        self._versions[kind.API_KEY] = version

    @property
    def known(self) -> list[tuple[str, int]]:
        """Where somebody may be asked."""
        return list(dict.fromkeys([*self.brokers.values(), *self._bootstrap]))

    async def connection(self, address: tuple[str, int]) -> _Connection:
        """Raises Lost."""
        found = self._connections.get(address)
        if found is not None and not found.is_closed:
            return found
        opening = self._opening.get(address)
        if opening is None:
            opening = asyncio.get_running_loop().create_task(self._open(address))
            self._opening[address] = opening
            opening.add_done_callback(lambda task: self._opened(address, task))
        return await asyncio.shield(opening)

    def _opened(self, address: tuple[str, int], task: "asyncio.Task[_Connection]") -> None:
        del self._opening[address]
        if not task.cancelled():
            # The caller may have ended, and nothing would check what went wrong.
            task.exception()

    async def _open(self, address: tuple[str, int]) -> _Connection:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                _, connection = await loop.create_connection(_Connection, *address)
        except (OSError, TimeoutError) as error:
            raise Lost(f"{address} cannot be reached: {error}") from None
        self._connections[address] = connection
        return connection

    async def ask_at(
        self,
        address: tuple[str, int],
        request: Request,
        *,
        version: int | None = None,
        seconds: float = ASK_SECONDS,
    ) -> Any:
        """Raises Lost."""
        connection = await self.connection(address)
        used = self.version_of(request) if version is None else version
        future = connection.send(request, used, self.name)
        try:
            async with asyncio.timeout(seconds):
                return await future
        except TimeoutError:
            # As clients do: who does not answer in time is cut off, and asked on a new connection.
            connection.close()
            raise Lost(f"{address} did not respond") from None

    async def ask(self, broker: int, request: Request, **named: Any) -> Any:
        """Raises Lost."""
        address = self.brokers.get(broker)
        if address is None:
            await self.refresh()
            address = self.brokers.get(broker)
        if address is None:
            raise Lost(f"broker {broker} is not known")
        return await self.ask_at(address, request, **named)

    async def ask_any(self, request: Request, **named: Any) -> Any:
        """Raises Lost."""
        known = self.known
        self.rng.shuffle(known)
        failure = Lost("no broker is known")
        for address in known[:3]:
            try:
                return await self.ask_at(address, request, **named)
            except Lost as error:
                failure = error
        raise failure

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()

    # ---- who leads

    async def refresh(self, topics: Sequence[str] | None = None) -> None:
        """Raises Lost."""
        asked = None if topics is None else [MetadataRequestTopic(name=name) for name in topics]
        answer = await self.ask_any(
            MetadataRequest(topics=asked, allow_auto_topic_creation=False),
            # From 10 on it has the ids of topics, which newer requests name them by.
            version=max(10, self.version_of(MetadataRequest(topics=None))),
        )
        self.brokers = {broker.node_id: (broker.host, broker.port) for broker in answer.brokers}
        self.controller = answer.controller_id
        for topic in answer.topics:
            if topic.error_code or topic.name is None:
                continue
            self.topic_ids[topic.name] = topic.topic_id
            self.partitions[topic.name] = sorted(p.partition_index for p in topic.partitions)
            for partition in topic.partitions:
                place = (topic.name, partition.partition_index)
                if partition.leader_id >= 0:
                    self.leaders[place] = (partition.leader_id, partition.leader_epoch)
                else:
                    self.leaders.pop(place, None)

    async def leader(self, place: Place) -> int:
        """Raises Lost if nobody is known to lead."""
        found = self.leaders.get(place)
        if found is None:
            await self.refresh([place[0]])
            found = self.leaders.get(place)
        if found is None:
            raise Lost(f"{place} has no leader")
        return found[0]

    def forget_leader(self, place: Place) -> None:
        self.leaders.pop(place, None)

    # ---- who coordinates

    async def coordinator(self, kind: int, key: str) -> int:
        """`kind`: 0 for groups, 1 for transactions. Raises Lost."""
        found = self._coordinators.get((kind, key))
        if found is None:
            version = max(kind, self.version_of(FindCoordinatorRequest(key=key)))
            if version >= _MANY_KEYS_FROM:
                request = FindCoordinatorRequest(key_type=kind, coordinator_keys=[key])
            else:
                request = FindCoordinatorRequest(key=key, key_type=kind)
            answer = await self.ask_any(request, version=version)
            reported = answer.coordinators[0] if answer.coordinators else answer
            if reported.error_code:
                raise Lost(f"no coordinator of {key}: {ErrorCode(reported.error_code).name}")
            self.brokers[reported.node_id] = (reported.host, reported.port)
            found = self._coordinators[kind, key] = reported.node_id
        return found

    def forget_coordinator(self, kind: int, key: str) -> None:
        self._coordinators.pop((kind, key), None)

    async def ask_coordinator(self, kind: int, key: str, request: Request, **named: Any) -> Any:
        """Raises Lost; a caller that finds in the response that it is the wrong one forgets it."""
        broker = await self.coordinator(kind, key)
        try:
            return await self.ask(broker, request, **named)
        except Lost:
            self.forget_coordinator(kind, key)
            raise
