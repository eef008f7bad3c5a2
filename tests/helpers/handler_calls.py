"""Owns calls of Kafka handlers without sockets: a broker's facade with what a test puts there.

A question goes through the codec on its way in and its answer on the way out, so that a test sees
what a client of that version would see.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, TypeVar, cast

from harness.virtual_loop import run_virtually
from moldau.api.broker import Broker
from moldau.api.session import Session, Sessions
from moldau.edge.kafka.deadlines import Deadlines
from moldau.edge.kafka.handler import Api, Call
from moldau.edge.kafka.turn_order import TURNS, LargeRequests, Turns
from moldau.metadata.image import Broker as RegisteredBroker
from moldau.metadata.image import Image, Partition, Topic
from moldau.metadata.leaders import NO_LEADER, Leader
from moldau.model.histogram import Histogram
from moldau.model.ids import BrokerId, Epoch, PartitionIndex, TimestampMs, TopicId
from moldau.model.slices import Chunk, FileSlice
from moldau.net.connection import ALL_OVERLAP, Connection
from moldau.net.replies import DeferredReply
from moldau.net.traffic import Traffic
from moldau.wire.framing import read_response_header
from moldau.wire.registry import RESPONSES
from moldau.wire.schema import Request, Response

R = TypeVar("R", bound=Response)


def brokers(*numbers: int) -> dict[BrokerId, RegisteredBroker]:
    return {
        BrokerId(number): RegisteredBroker(
            id=BrokerId(number), host=f"host-{number}", port=9000 + number, rack=f"rack-{number}"
        )
        for number in numbers
    }


def topic(name: str, *replicas: Sequence[int]) -> Topic:
    """A topic with one partition for each list of replicas; its id is its name."""
    return Topic(
        name=name,
        topic_id=TopicId(name.encode().ljust(16, b"-")),
        partitions=tuple(
            Partition(PartitionIndex(index), tuple(BrokerId(number) for number in numbers))
            for index, numbers in enumerate(replicas)
        ),
    )


def image(known: Mapping[BrokerId, RegisteredBroker], *topics: Topic) -> Image:
    return Image(
        cluster_id="a-cluster",
        brokers=known,
        topics={each.name: each for each in topics},
        topics_by_id={each.topic_id: each for each in topics},
    )


class FakeCluster:
    """What a broker knows of its cluster, as a test says it."""

    def __init__(self, seen: Image) -> None:
        self.image = seen
        self.alive = frozenset(seen.brokers)
        self.is_cut_off = False
        self.controller_id = -1
        self.led: dict[tuple[str, int], Leader] = {}
        self.synced: dict[tuple[str, int], tuple[int, ...]] = {}

    def lead(self, name: str, index: int, broker: int, epoch: int) -> None:
        self.led[name, index] = Leader(BrokerId(broker), Epoch(epoch))

    def leader_of(self, found: Topic, index: int) -> Leader:
        return self.led.get((found.name, index), NO_LEADER)

    def leaders_and_in_sync(
        self, found: Topic, partitions: Iterable[Partition]
    ) -> Iterator[tuple[Leader, tuple[int, ...]]]:
        for partition in partitions:
            leader = self.leader_of(found, partition.index)
            if leader.broker not in self.image.brokers:
                leader = NO_LEADER
            yield leader, self.synced.get((found.name, partition.index), ())


class LoopClock:
    """The time of the loop that the handler runs on; it begins at 0."""

    def monotonic(self) -> float:
        try:
            return asyncio.get_running_loop().time()
        except RuntimeError:
            return 0.0

    def wall_ms(self) -> TimestampMs:
        return TimestampMs(int(self.monotonic() * 1000))


class FakeConnection:
    """Keeps what is answered."""

    address = "127.0.0.1:1"
    is_closed = False

    def __init__(self) -> None:
        self.replies: list[bytes] = []
        self.closed_because: str | None = None
        self.user = ""
        self.muted: list[float] = []
        self.state: object = None
        self.overlaps = ALL_OVERLAP
        self.deferred: DeferredReply | None = None
        self.traffic = Traffic(0.0)

    def reply(self, chunks: Sequence[Chunk]) -> None:
        self.replies.append(b"".join(_bytes_of(chunk) for chunk in chunks))

    def defer(self) -> DeferredReply:
        self.deferred = DeferredReply(cast("Connection", self), 0)
        return self.deferred

    def reply_completed(self) -> None:
        if self.deferred is not None and self.deferred.chunks is not None:
            self.reply(self.deferred.chunks)

    def no_reply(self) -> None:
        pass

    def set_user(self, user: str) -> None:
        self.user = user

    def mute(self, seconds: Callable[[], float]) -> None:
        self.muted.append(seconds())

    def close(self, reason: str, **_: object) -> None:
        self.closed_because = reason

    def drain(self) -> None:
        self.close("drained")


def _bytes_of(chunk: Chunk) -> bytes:
    if isinstance(chunk, FileSlice):
        raise TypeError("no handler test reads files")
    return bytes(chunk)


class Asked:
    """A question that was put to a handler."""

    def __init__(self, api: Api, facade: Session, request: Request, version: int) -> None:
        self.connection = FakeConnection()
        self.deadlines = Deadlines()
        opened = cast("Connection", self.connection)
        # What the dispatcher would do.
        TURNS.set(Turns(LargeRequests(), opened, "127.0.0.1", facade.clock))
        self.call = Call(facade, opened, api.key, version, 7, "test", self.deadlines, Histogram())
        sent = memoryview(b"".join(_bytes_of(chunk) for chunk in request.encode(version)))
        read = None if api.shortcut is None else api.shortcut(sent, version, 0)
        if read is None:
            read = api.request.decode(sent, version)
        self.result = api.handle(self.call, read)

    def answer(self, kind: type[R]) -> R:
        """The answer that has come by now."""
        (frame,) = self.connection.replies
        body = memoryview(frame)[4:]
        _, position = read_response_header(body, self.call.api_key, self.call.version)
        found = RESPONSES[self.call.api_key].decode(body, self.call.version, position)
        if not isinstance(found, kind):
            raise TypeError(f"{found!r} is no {kind.__name__}")
        return found


def ask(
    api: Api, facade: Session, request: Request, kind: type[R], version: int | None = None
) -> R:
    """What a client of this version is answered; of the newest version that is served if none."""

    async def run() -> R:
        asked = Asked(api, facade, request, api.versions[1] if version is None else version)
        result = asked.result
        if asyncio.iscoroutine(result):
            result = await result
        if isinstance(result, Response):
            asked.call.reply(result)
        return asked.answer(kind)

    return run_virtually(run())


def facade(cluster: FakeCluster, *, me: int = 1, **parts: Any) -> Session:
    """A session that may do everything; see `broker_of`."""
    return Sessions(broker_of(cluster, me=me, **parts)).anonymous("127.0.0.1")


def broker_of(cluster: FakeCluster, *, me: int = 1, **parts: Any) -> Broker:
    """A broker of this cluster; `parts` are those of its services that the test needs."""
    missing = {name: service() for name in Broker.__struct_fields__}
    return cast(
        "Broker",
        SimpleNamespace(
            **{
                **missing,
                "broker_id": BrokerId(me),
                "image": cluster.image,
                "cluster": cluster,
                "clock": LoopClock(),
                "auto_create_topics": False,
                **parts,
            },
        ),
    )


def service(**calls: Callable[..., Any]) -> Any:
    """A service that has only these calls."""
    return SimpleNamespace(**calls)
