"""A transaction coordinator with a log, partitions and a notebook of replies, driven by hand."""

from itertools import count
from typing import Any

import pytest

from moldau.model.coordinator_events import Persist, Persisted, PersistFailed, Reply, Tick
from moldau.model.errors import ErrorCode
from moldau.model.ids import Epoch, PartitionIndex, TimestampMs, TopicPartition
from moldau.transactions.config import TransactionConfig
from moldau.transactions.coordinator import TransactionCoordinator
from moldau.transactions.events import (
    AddPartitions,
    EndTransaction,
    InitProducer,
    MarkersFailed,
    MarkersWritten,
    VerifyPartitions,
)
from moldau.transactions.results import NeedsProducerId, WriteMarkers

WALL_START_MS = 1_700_000_000_000


def tp(topic: str, partition: int = 0) -> TopicPartition:
    return TopicPartition(topic, PartitionIndex(partition))


class World:
    """Persists and markers complete at once, unless held; then the test decides."""

    tp = staticmethod(tp)

    def __init__(self, log=None, now=0.0, epoch=1, spare=1000, **config) -> None:
        self.now = now
        self.log = [] if log is None else log
        self.epoch = epoch
        self.spare = count(spare)
        self.config = TransactionConfig(**{"busy_wait_ms_max": 0, "complete_wait_ms": 0, **config})
        self.coordinator = TransactionCoordinator(self.config, Epoch(epoch), self.wall_ms)
        self.requests = count(1)
        self.replies: dict[int, Any] = {}
        self.writes: dict[int, Persist] = {}
        self.markers: dict[int, WriteMarkers] = {}
        self.asked: list[WriteMarkers] = []
        self.hold_writes = self.hold_markers = False
        for key, value in self.log:
            self.coordinator.replay(key, value)

    def wall_ms(self) -> TimestampMs:
        return TimestampMs(WALL_START_MS + int(self.now * 1000))

    def load(self) -> "World":
        self.run(self.coordinator.finish_loading(self.now))
        return self

    def run(self, effects) -> None:
        for effect in effects:
            match effect:
                case Reply():
                    assert effect.request_id not in self.replies
                    self.replies[effect.request_id] = effect.result
                case Persist():
                    self.writes[effect.token] = effect
                    if not self.hold_writes:
                        self.store(effect.token)
                case WriteMarkers():
                    self.asked.append(effect)
                    self.markers[effect.token] = effect
                    if not self.hold_markers:
                        self.mark(effect.token)
        self.coordinator.check_invariants()

    def handle(self, event) -> None:
        self.run(self.coordinator.handle(self.now, event))

    def store(self, token=None) -> None:
        token = min(self.writes) if token is None else token
        self.log.extend(self.writes.pop(token).records)
        self.handle(Persisted(token=token))

    def refuse(self, token=None, error=ErrorCode.NOT_ENOUGH_REPLICAS) -> None:
        token = min(self.writes) if token is None else token
        del self.writes[token]
        self.handle(PersistFailed(token=token, error=error))

    def mark(self, token=None, partitions=None) -> None:
        token = min(self.markers) if token is None else token
        partitions = frozenset(self.markers[token].partitions if partitions is None else partitions)
        self.handle(MarkersWritten(token=token, partitions=partitions))

    def fail_marks(self, token=None) -> None:
        token = min(self.markers) if token is None else token
        effect = self.markers.pop(token)
        self.handle(MarkersFailed(token=token, partitions=frozenset(effect.partitions)))

    def tick(self, seconds=0.0) -> None:
        self.now += seconds
        self.handle(Tick())

    def crash(self, **config) -> "World":
        """Another broker takes over with what is in the log."""
        return World(self.log, self.now, self.epoch + 1, next(self.spare) + 100, **config).load()

    def ask(self, kind, **fields):
        """The result, or the request id if there is none yet."""
        request_id = next(self.requests)
        self.handle(kind(request_id=request_id, **fields))
        return self.replies.get(request_id, request_id)

    def init(self, name="t", timeout_ms=60_000, **fields):
        result = self.ask(InitProducer, transactional_id=name, timeout_ms=timeout_ms, **fields)
        if isinstance(result, NeedsProducerId):
            fields["new_producer_id"] = next(self.spare)
            return self.init(name, timeout_ms, **fields)
        return result

    def add(self, producer, *partitions, name="t", version=0):
        result = self.ask(
            AddPartitions,
            transactional_id=name,
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            partitions=frozenset(partitions or [tp("a")]),
            client_version=version,
        )
        return result if isinstance(result, int) else _only(result)

    def verify(self, producer, *partitions, name="t"):
        result = self.ask(
            VerifyPartitions,
            transactional_id=name,
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            partitions=frozenset(partitions),
        )
        return result if isinstance(result, int) else result.errors

    def end(self, producer, is_commit=True, name="t", version=0, **fields):
        result = self.ask(
            EndTransaction,
            transactional_id=name,
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            is_commit=is_commit,
            client_version=version,
            **fields,
        )
        if isinstance(result, NeedsProducerId):
            fields["new_producer_id"] = next(self.spare)
            return self.end(producer, is_commit, name, version, **fields)
        return result

    def state(self, name="t") -> str:
        return self.coordinator.describe(name).state


def _only(result):
    errors = set(result.errors.values())
    assert len(errors) == 1
    return errors.pop()


@pytest.fixture
def world() -> World:
    return World().load()


@pytest.fixture
def make_world():
    return lambda **config: World(**config).load()
