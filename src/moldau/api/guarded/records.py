"""Records: append them, read them, and find their offsets."""

from collections.abc import Callable, Iterable, Sequence
from typing import Final, Protocol

from moldau.api.broker import Broker
from moldau.api.guard import REFUSAL_CODES, Guard
from moldau.api.quotas import bytes_of
from moldau.api.record_producer import RecordProducer
from moldau.data.append_forwarding import AppendResult
from moldau.data.fetch import ParkedFetch, PartitionFetch, PartitionFetchResult
from moldau.data.fetch_session import FetchSession, NameOf, SessionPartition
from moldau.data.offsets import DescribedProducer, FoundOffset
from moldau.data.record_reader import ReadPage, RecordFilter, offset_at, read_page
from moldau.data.transactional_produce import AppendOutcome, TransactionalWrite
from moldau.metadata.image import Topic
from moldau.model.ids import Epoch, Offset
from moldau.records.compression import Codec
from moldau.records.record import Record
from moldau.replica.raft_replica import Proposal
from moldau.security.acl import ResourceType
from moldau.security.quotas import QuotaKey

_TOPIC: Final = ResourceType.TOPIC
_NOT_GIVEN: Final = -1


class Produce(Protocol):
    """Appends the batches of one partition."""

    def append(self, topic: str, partition: int, data: memoryview, acks: int) -> Proposal:
        """Raises RefusedError; nothing is appended then."""
        ...


class GuardedProduce:
    """The hot path of producers: one lookup in a set for each partition."""

    __slots__ = ("_broker", "_granted", "_guard", "_service")

    def __init__(self, guard: Guard, broker: Broker) -> None:
        self._guard = guard
        self._broker = broker
        self._service = broker.produce
        self._granted = guard.granted_topics("produce.append")

    def append(self, topic: str, partition: int, data: memoryview, acks: int) -> Proposal:
        """Raises RefusedError; nothing is appended then."""
        self._guard.refresh()
        if topic not in self._granted:
            self._guard.check("produce.append", _TOPIC, topic)
            # Not one that a client made up: it may be long, and there are many.
            if self._broker.image.topic(topic) is not None:
                self._guard.remember("produce.append", topic)
        return self._service.append(topic, partition, data, acks)


def guarded_produce(guard: Guard, broker: Broker) -> Produce:
    """The service itself if everything is allowed: un-batched producers notice one more call."""
    return broker.produce if guard.is_open else GuardedProduce(guard, broker)


class GuardedTransactionalProduce:
    __slots__ = ("_guard", "_service")

    def __init__(self, guard: Guard, broker: Broker) -> None:
        self._guard = guard
        self._service = broker.transactional_produce

    def append(self, write: TransactionalWrite, on_done: Callable[[AppendOutcome], None]) -> None:
        """Appends now, or when the coordinator has confirmed; `on_done` is called once."""
        guard, use_case = self._guard, "transactional_produce.append"
        for kind, name in (
            (ResourceType.TRANSACTIONAL_ID, write.transactional_id),
            (_TOPIC, write.topic),
        ):
            if not guard.is_open and not guard.allows(use_case, kind, name):
                on_done(guard.refusal(use_case, kind, name))
                return
        self._service.append(write, on_done)


class GuardedAppends:
    """Stores records of HTTP and gRPC clients."""

    __slots__ = ("_guard", "_producer")

    def __init__(self, guard: Guard, producer: RecordProducer) -> None:
        self._guard = guard
        self._producer = producer

    def check(self, topic: str) -> None:
        """For a request whose records are not read yet. Raises RefusedError if it is in vain."""
        self._check("appends.check", topic)

    def partitions_for(
        self, topic: Topic, requested: Iterable[tuple[int | None, bytes | None]]
    ) -> list[int]:
        """The partition of each record, given its requested partition and its key.

        Raises RefusedError.
        """
        self._check("appends.partitions_for", topic.name)
        return self._producer.partitions_for(topic, requested)

    async def store(
        self,
        topic: Topic,
        records: list[Record],
        partitions: list[int],
        *,
        acks: int,
        timeout_seconds: float,
        codec: Codec = Codec.NONE,
    ) -> dict[int, AppendResult]:
        """The result of each partition; `partitions` has the partition of each record.

        Raises RefusedError.
        """
        self._check("appends.store", topic.name)
        if (meter := self._guard.meter()) is not None:
            meter.check(QuotaKey.PRODUCE)
            meter.take(QuotaKey.PRODUCE, bytes_of(records))
        return await self._producer.store(
            topic, records, partitions, acks=acks, timeout_seconds=timeout_seconds, codec=codec
        )

    def _check(self, use_case: str, topic: str) -> None:
        if not self._guard.is_open:
            self._guard.check(use_case, _TOPIC, topic)


class _Parking:
    """A fetch that may have to wait: the rights of its client may end meanwhile."""

    __slots__ = ("_on_ready", "_refused", "_requests", "is_parked")

    def __init__(
        self,
        refused: Callable[[Sequence[PartitionFetch]], set[int]],
        requests: Sequence[PartitionFetch],
        on_ready: Callable[[list[PartitionFetchResult]], None],
    ) -> None:
        self._refused = refused
        self._requests = requests
        self._on_ready = on_ready
        self.is_parked = False

    def deliver(self, results: list[PartitionFetchResult]) -> None:
        if self.is_parked and (gone := self._refused(self._requests)):
            results = [_REFUSED if at in gone else result for at, result in enumerate(results)]
        self._on_ready(results)


SessionResult = tuple[SessionPartition, PartitionFetchResult]


class GuardedFetch:
    __slots__ = ("_broker", "_guard", "_service")

    def __init__(self, guard: Guard, broker: Broker) -> None:
        self._guard = guard
        self._broker = broker
        self._service = broker.fetch

    def fetch(
        self,
        requests: Sequence[PartitionFetch],
        *,
        bytes_min: int,
        bytes_max: int,
        wait_ms_max: int,
        on_ready: Callable[[list[PartitionFetchResult]], None],
    ) -> ParkedFetch | None:
        """Calls `on_ready`, now or later; a parked fetch can be cancelled.

        As in Kafka, refused partitions are reported with the others, and do not end the wait.
        """
        if not self._guard.is_open:
            refused = self._refused(requests)
            if len(refused) == len(requests) and requests:
                on_ready([_REFUSED] * len(requests))
                return None
            if refused:
                requests, on_ready = _without(requests, refused, on_ready)
            parking = _Parking(self._refused, requests, on_ready)
            on_ready = parking.deliver
        else:
            parking = None
        parked = self._service.fetch(
            requests,
            bytes_min=bytes_min,
            bytes_max=bytes_max,
            wait_ms_max=wait_ms_max,
            on_ready=on_ready,
        )
        if parking is not None:
            parking.is_parked = parked is not None
        return parked

    def fetch_in_session(
        self,
        session: FetchSession,
        *,
        name_of: NameOf,
        reads_committed: bool,
        bytes_min: int,
        bytes_max: int,
        wait_ms_max: int,
        on_ready: Callable[[list[SessionResult]], None],
    ) -> ParkedFetch | None:
        """As `fetch`, of what changed in the session. `on_ready` gets what is news for the client.

        Rights are checked for all that is read, and for all partitions when ACLs have changed.
        """
        is_open = self._guard.is_open
        session.judge(self._guard.rights())
        reading, requests = session.begin(name_of, reads_committed=reads_committed)
        without: list[SessionPartition] = []
        use_case = "fetch.fetch_in_session"
        if not is_open and (refused := self._refused(requests, use_case)):
            without = session.leave_out(refused)

        def deliver(results: list[PartitionFetchResult]) -> None:
            if not is_open and session.parked is not None:
                gone = self._refused(requests, use_case)
                results = [_REFUSED if at in gone else result for at, result in enumerate(results)]
            found = list(zip(reading, results, strict=False))
            found += [(each, _REFUSED) for each in without]
            session.ended()
            on_ready(session.settle(found))

        if without and len(without) == len(session):
            deliver([])
            return None
        parked = self._service.fetch(
            requests,
            bytes_min=bytes_min,
            bytes_max=bytes_max,
            wait_ms_max=wait_ms_max,
            on_ready=deliver,
            in_session=True,
        )
        session.parked = parked
        return parked

    def _refused(
        self, requests: Sequence[PartitionFetch], use_case: str = "fetch.fetch"
    ) -> set[int]:
        """The positions of requests that are not allowed."""
        guard = self._guard
        guard.refresh()
        granted = guard.granted_topics(use_case)
        refused = set()
        denied: set[str] = set()
        for position, request in enumerate(requests):
            topic = request.topic
            # None: an unknown id, which the service refuses.
            if topic is None or topic in granted:
                continue
            if topic not in denied and guard.allows(use_case, _TOPIC, topic):
                if self._broker.image.topic(topic) is not None:
                    guard.remember(use_case, topic)
            else:
                # Once in the audit log, not for each of its partitions.
                denied.add(topic)
                refused.add(position)
        return refused

    async def read_page(
        self,
        topic: str,
        partition: int,
        offset: int,
        *,
        limit: int,
        wants: RecordFilter | None = None,
        wait_ms_max: int = 0,
        is_stream: bool = False,
    ) -> ReadPage:
        """The next records of a partition that this broker leads. Raises RefusedError.

        A stream over its quota waits, and goes on.
        """
        self._guard.check("fetch.read_page", _TOPIC, topic)
        if (meter := self._guard.meter()) is not None:
            if is_stream:
                await meter.admitted(QuotaKey.FETCH)
                await meter.admitted(QuotaKey.REQUEST)
            else:
                meter.check(QuotaKey.FETCH)
        page = await read_page(
            self._service,
            topic,
            partition,
            offset,
            limit=limit,
            wants=wants,
            wait_ms_max=wait_ms_max,
        )
        # Rights may have ended while it waited.
        self._guard.check("fetch.read_page", _TOPIC, topic)
        if meter is not None:
            meter.take(QuotaKey.FETCH, page.bytes_decoded)
        return page


_REFUSED: Final = PartitionFetchResult(REFUSAL_CODES[_TOPIC], -1, -1, None, 0)


def _without(
    requests: Sequence[PartitionFetch],
    refused: set[int],
    on_ready: Callable[[list[PartitionFetchResult]], None],
) -> tuple[Sequence[PartitionFetch], Callable[[list[PartitionFetchResult]], None]]:
    """The allowed requests, and a callback that puts the refusals where they were."""
    count = len(requests)

    def complete(results: list[PartitionFetchResult]) -> None:
        left = iter(results)
        on_ready([_REFUSED if each in refused else next(left) for each in range(count)])

    allowed = [each for position, each in enumerate(requests) if position not in refused]
    return allowed, complete


class GuardedOffsets:
    """Methods raise RefusedError."""

    __slots__ = ("_guard", "_service")

    def __init__(self, guard: Guard, broker: Broker) -> None:
        self._guard = guard
        self._service = broker.offsets

    def list_offset(
        self,
        topic: str,
        partition: int,
        timestamp: int,
        leader_epoch: int = _NOT_GIVEN,
        *,
        reads_committed: bool = False,
    ) -> FoundOffset:
        """The offset for a timestamp, or for a special one like LATEST."""
        self._guard.check("offsets.list_offset", _TOPIC, topic)
        return self._service.list_offset(
            topic, partition, timestamp, leader_epoch, reads_committed=reads_committed
        )

    def at(self, topic: str, partition: int, timestamp: int) -> int:
        """The first offset at or after a timestamp, or a special one."""
        self._guard.check("offsets.at", _TOPIC, topic)
        return offset_at(self._service, topic, partition, timestamp)

    def epoch_end(
        self, topic: str, partition: int, epoch: int, leader_epoch: int = _NOT_GIVEN
    ) -> tuple[Epoch, Offset]:
        """The last epoch not above `epoch` and its end; (-1, -1) for a future epoch."""
        self._guard.check("offsets.epoch_end", _TOPIC, topic)
        return self._service.epoch_end(topic, partition, epoch, leader_epoch)

    def producers(self, topic: str, partition: int) -> list[DescribedProducer]:
        """All known producers."""
        self._guard.check("offsets.producers", _TOPIC, topic)
        return self._service.producers(topic, partition)
