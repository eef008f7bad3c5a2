"""Transactions in a partition against a naive model: the whole history, looked at from scratch.

Random producers write, with and without transactions, and coordinators end them; leader and
follower are cut, restarted from snapshots or from their logs alone, trimmed, and begun anew from
the leader's snapshot. After each step both know how far all is stable, and a consumer that reads
committed is given what the model says.
"""

import random
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import pytest
from effort import seeds
from memory_log import MemoryLog

from moldau.log.interface import ControlKind, LogConfig, LogStart
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.flush import FlushPolicy
from moldau.model.ids import (
    BrokerId,
    Epoch,
    Offset,
    PartitionIndex,
    ProducerEpoch,
    ProducerId,
    RaftIndex,
    TimestampMs,
    TopicId,
    TopicPartition,
)
from moldau.raft.events import Role
from moldau.raft.membership import Members
from moldau.records.batch import read_header
from moldau.records.control import EndMarker, read_end_marker
from moldau.records.record import Record, build_batch
from moldau.replica.producers import ProducerState
from moldau.replica.replica import Replica
from moldau.testing.replicas import ManualClock, RecordingListener

PRODUCERS = 4
EPOCH = Epoch(1)


class Entry(NamedTuple):
    """A batch of the history."""

    base: int
    size: int
    producer: int
    epoch: int
    sequence: int
    is_transactional: bool
    marker: EndMarker | None = None

    @property
    def end(self) -> int:
        return self.base + self.size


class Span(NamedTuple):
    """A transaction of the history; `marker` is None while it is open."""

    producer: int
    first: int
    marker: int | None
    is_commit: bool


def spans(history: list[Entry]) -> list[Span]:
    found: list[Span] = []
    open_at: dict[int, int] = {}
    for entry in history:
        if entry.marker is not None:
            if entry.producer in open_at:
                first = open_at.pop(entry.producer)
                found.append(Span(entry.producer, first, entry.base, entry.marker.is_commit))
        elif entry.is_transactional:
            open_at.setdefault(entry.producer, entry.base)
    return found + [Span(producer, first, None, False) for producer, first in open_at.items()]


def stable_end(history: list[Entry], watermark: int) -> int:
    unsettled = (
        span.first for span in spans(history) if span.marker is None or span.marker >= watermark
    )
    return min(watermark, min(unsettled, default=watermark))


def committed(history: list[Entry], start: int, end: int) -> list[int]:
    """Offsets of the records in this range that a consumer is to get."""
    aborted = [span for span in spans(history) if span.marker is not None and not span.is_commit]
    return [
        offset
        for entry in history
        if entry.marker is None
        and not any(
            entry.is_transactional
            and entry.producer == span.producer
            and span.first <= entry.base < cast(int, span.marker)
            for span in aborted
        )
        for offset in range(entry.base, entry.end)
        if start <= offset < end
    ]


def consume(replica: Replica, start: int, bytes_max: int) -> list[int]:
    """What a client delivers that reads from there to the end of what is stable, as Kafka's do."""
    delivered: list[int] = []
    position = start
    end = replica.last_stable_offset
    while position < end:
        read = replica.log.read(Offset(position), bytes_max, end)
        assert isinstance(read.data, bytes)
        listed = replica.producers.aborted.between(Offset(position), read.next_offset)
        waiting = sorted(listed, key=lambda each: each.first)
        skipped: set[int] = set()
        at = 0
        while at < len(read.data):
            header = read_header(read.data, at)
            while waiting and waiting[0].first <= header.last_offset:
                skipped.add(waiting.pop(0).producer_id)
            if header.is_control:
                marker = read_end_marker(read.data, at)
                assert marker is not None
                if not marker.is_commit:
                    skipped.discard(header.producer_id)
            elif not (header.is_transactional and header.producer_id in skipped):
                delivered += range(max(header.base_offset, position), header.next_offset)
            at += header.size
        position = read.next_offset
    return delivered


class FakeDriver:
    """Lets a replica lead, or not, without a group."""

    me = BrokerId(1)
    now = 0

    def add_group(self, *_: object, **__: object) -> Any:
        core = SimpleNamespace(epoch=EPOCH, leader=self.me, is_ready=True)
        return SimpleNamespace(core=core, is_leader=True)

    def check_leadership(self, group: object) -> None: ...

    def appended(self, group: object, size: int) -> None: ...

    def remove_group(self, group: object, **_: object) -> None: ...


class Broker:
    """One replica, and what it is told to survive."""

    def __init__(self, leads: bool) -> None:
        self.log = MemoryLog(LogConfig(flush=FlushPolicy.NEVER))
        self.leads = leads
        self.replica = self.open()

    def open(self) -> Replica:
        flusher = SimpleNamespace(fencing=lambda: nullcontext())
        replica = Replica(
            partition=TopicPartition("t", PartitionIndex(0)),
            topic_id=TopicId(bytes(16)),
            log=self.log,
            members=Members((BrokerId(1),)),
            driver=cast(Any, FakeDriver()),
            flusher=cast(Any, flusher),
            clock=ManualClock(wall_ms=1_000),
            listener=RecordingListener(),
        )
        if self.leads:
            replica.on_role(replica.group, Role.LEADER, EPOCH, BrokerId(1))
        return replica

    def restart(self, *, with_snapshots: bool) -> None:
        watermark = self.replica.high_watermark
        if not with_snapshots:
            self.log._snapshots.clear()
        self.replica = self.open()
        self.commit(watermark)

    def commit(self, watermark: int) -> None:
        self.replica.on_commit(self.replica.group, Offset(watermark))

    def cut(self, offset: int) -> None:
        self.log.truncate(self.log.index_of(Offset(offset)))
        self.replica.on_truncated(self.replica.group, self.log.end_offset)

    def trim(self, offset: int) -> None:
        payload = offset.to_bytes(8, "big")
        self.replica.on_control(self.replica.group, ControlKind.TRIM, payload, RaftIndex(0))


class World:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.history: list[Entry] = []
        self.leader = Broker(leads=True)
        self.follower = Broker(leads=False)
        self.answers: list[ErrorCode] = []

    # ---- the model's idea of producers

    def of(self, producer: int) -> list[Entry]:
        return [entry for entry in self.history if entry.producer == producer]

    def told(self, producer: int) -> ProducerState | None:
        """What the leader knows, once its log was trimmed: what is gone it may have forgotten."""
        if not self.leader.log.start_offset:
            return None
        known = self.leader.replica.producers.get(ProducerId(producer))
        # A producer itself never goes back to an earlier epoch.
        last = max((entry.epoch for entry in self.of(producer)), default=0)
        return known or ProducerState(ProducerEpoch(last), TimestampMs(0))

    def epoch_of(self, producer: int) -> int:
        if (told := self.told(producer)) is not None:
            return told.epoch
        return max((entry.epoch for entry in self.of(producer)), default=0)

    def coordinator_of(self, producer: int) -> int:
        epochs = [entry.marker.coordinator_epoch for entry in self.of(producer) if entry.marker]
        return epochs[-1] if epochs else 0

    def next_sequence(self, producer: int) -> int:
        if (told := self.told(producer)) is not None:
            return told.batches[-1].last_sequence + 1 if told.batches else 0
        epoch = self.epoch_of(producer)
        data = [each for each in self.of(producer) if each.marker is None and each.epoch == epoch]
        return data[-1].sequence + data[-1].size if data else 0

    def is_open(self, producer: int) -> bool:
        if (told := self.told(producer)) is not None:
            return told.first >= 0
        return any(span.marker is None for span in spans(self.of(producer)))

    @property
    def end(self) -> int:
        return self.history[-1].end if self.history else 0

    # ---- steps

    def write(self) -> None:
        producer = self.rng.randrange(PRODUCERS + 1)
        count = self.rng.randrange(1, 4)
        records = [Record(Offset(0), TimestampMs(1), None, b"v", []) for _ in range(count)]
        if producer == PRODUCERS:
            self.propose(Entry(self.end, count, -1, -1, -1, False), records)
            return
        epoch, sequence = self.epoch_of(producer), self.next_sequence(producer)
        is_transactional = self.is_open(producer) or self.rng.random() < 0.7
        self.propose(Entry(self.end, count, producer, epoch, sequence, is_transactional), records)

    def propose(self, entry: Entry, records: list[Record]) -> None:
        data = bytearray(
            build_batch(
                records,
                producer_id=ProducerId(entry.producer),
                producer_epoch=ProducerEpoch(entry.epoch),
                base_sequence=entry.sequence,
                transactional=entry.is_transactional,
            )
        )
        header = read_header(data)
        replica = self.leader.replica
        guard = replica.guard_for(header, "tx") if entry.is_transactional else None
        assert replica.propose(data, [header], guard=guard).base_offset == entry.base
        self.history.append(entry)

    def intrude(self) -> None:
        """Write as a producer outside of its open transaction, in whatever epoch."""
        producer = self.rng.randrange(PRODUCERS)
        later = self.rng.choice((0, 1, 1000))
        if not self.is_open(producer):
            return
        data = bytearray(
            build_batch(
                [Record(Offset(0), TimestampMs(1), None, b"x", [])],
                producer_id=ProducerId(producer),
                producer_epoch=ProducerEpoch(self.epoch_of(producer) + later),
                base_sequence=0 if later else self.next_sequence(producer),
            )
        )
        with pytest.raises(RefusedError) as caught:
            self.leader.replica.propose(data, [read_header(data)])
        assert caught.value.code is ErrorCode.INVALID_TXN_STATE

    def mark(self) -> None:
        """End a transaction as either kind of client, or repeat an end, or come late with one."""
        producer = self.rng.randrange(PRODUCERS)
        version = self.rng.choice((0, 2))
        epoch = self.epoch_of(producer) + (version == 2) + self.rng.choice((0, 0, 0, -1))
        epoch = max(0, epoch)
        coordinator = max(0, self.coordinator_of(producer) + self.rng.choice((0, 0, 0, 1, -1)))
        marker = EndMarker(self.rng.random() < 0.5, coordinator)
        expected = self.verdict(producer, epoch, coordinator, version)
        refusal = ErrorCode.NONE
        try:
            self.leader.replica.write_marker(
                ProducerId(producer),
                ProducerEpoch(epoch),
                marker,
                self.answers.append,
                transaction_version=version,
            )
        except RefusedError as error:
            refusal = error.code
        is_written = self.leader.log.end_offset > self.end
        if self.told(producer) is None:
            assert expected is (None if is_written else refusal)
        if is_written:
            self.history.append(Entry(self.end, 1, producer, epoch, -1, True, marker))

    def verdict(
        self, producer: int, epoch: int, coordinator: int, version: int
    ) -> ErrorCode | None:
        """None: the marker is written; NONE: it is there; or the refusal."""
        known = self.of(producer)
        if not known:
            return None
        if epoch < self.epoch_of(producer):
            return ErrorCode.INVALID_PRODUCER_EPOCH
        markers = [entry.marker for entry in known if entry.marker is not None]
        last = markers[-1].coordinator_epoch if markers else -1
        if coordinator < last:
            return ErrorCode.TRANSACTION_COORDINATOR_FENCED
        if epoch > self.epoch_of(producer):
            return None
        if not self.is_open(producer):
            return None if coordinator > last else ErrorCode.NONE
        return ErrorCode.INVALID_PRODUCER_EPOCH if version == 2 else None

    def replicate(self) -> None:
        source, target = self.leader.log, self.follower
        for _ in range(self.rng.randrange(1, 4)):
            place = target.log.end_offset
            if place >= source.end_offset:
                return
            batch = next(source.batches(place))
            header = read_header(batch)
            if header.base_offset != place:
                return
            target.log.append(batch, [header])
            marker = read_end_marker(batch) if header.is_control else None
            markers = {} if marker is None else {header.base_offset: marker}
            target.replica.on_stored(target.replica.group, [header], markers)

    def commit(self) -> None:
        for broker in (self.leader, self.follower):
            if self.rng.random() < 0.7:
                low, high = broker.replica.high_watermark, broker.log.end_offset
                ends = [entry.end for entry in self.history if low <= entry.end <= high]
                broker.commit(self.rng.choice(ends or [low]))

    def cut(self) -> None:
        """A leader that did not know of it loses what was not committed; its follower as well."""
        low = max(broker.replica.high_watermark for broker in (self.leader, self.follower))
        bounds = [entry.base for entry in self.history if entry.base >= low]
        if not bounds:
            return
        offset = self.rng.choice(bounds)
        self.history = [entry for entry in self.history if entry.base < offset]
        for broker in (self.leader, self.follower):
            if broker.log.end_offset > offset:
                broker.cut(offset)

    def restart(self) -> None:
        broker = self.rng.choice((self.leader, self.follower))
        broker.restart(with_snapshots=self.rng.random() < 0.6)

    def snapshot(self) -> None:
        self.rng.choice((self.leader, self.follower)).replica._save_snapshot()

    def trim(self) -> None:
        broker = self.rng.choice((self.leader, self.follower))
        if broker.replica.high_watermark > broker.log.start_offset:
            broker.trim(self.rng.randint(broker.log.start_offset, broker.replica.high_watermark))

    def begin_anew(self) -> None:
        """The follower is given the leader's snapshot, and a log that begins where the leader's
        does."""
        log, target = self.leader.log, self.follower
        first = next(log.headers(log.start_offset), None)
        offset = log.start_offset if first is None else min(first.base_offset, log.start_offset)
        if offset <= target.replica.high_watermark:
            return
        payload = self.leader.replica.snapshot(self.leader.replica.group, offset)
        target.log.reset(LogStart(offset, 0, EPOCH, b""), payload)
        target.replica.on_reset(target.replica.group, offset, payload)

    # ---- what must hold

    def check(self) -> None:
        for broker in (self.leader, self.follower):
            replica, start = broker.replica, broker.log.start_offset
            history = [entry for entry in self.history if entry.base < broker.log.end_offset]
            watermark = replica.high_watermark
            stable = replica.last_stable_offset
            assert stable >= min(watermark, max(start, stable_end(history, watermark)))
            # Of what lies below the start of a log, it need not know.
            visible = [entry for entry in history if entry.end > start]
            assert stable <= max(start, stable_end(visible, watermark))
            if not start:
                assert stable == stable_end(history, watermark)
                listed = replica.producers.aborted.all()
                assert [(each.producer_id, each.first, each.last) for each in listed] == [
                    (span.producer, span.first, span.marker)
                    for span in spans(history)
                    if span.marker is not None and not span.is_commit
                ]
            for producer in range(PRODUCERS):
                self.check_producer(broker, [each for each in history if each.producer == producer])
            place = self.rng.randint(start, max(start, stable))
            assert consume(replica, place, self.rng.choice((1, 200, 100_000))) == committed(
                history, place, stable
            )

    def check_producer(self, broker: Broker, entries: list[Entry]) -> None:
        """The last batches of the newest epoch; of what was trimmed, some may be forgotten."""
        visible = [entry for entry in entries if entry.end > broker.log.start_offset]
        if not visible:
            return
        state = broker.replica.producers.get(ProducerId(visible[0].producer))
        assert state is not None
        assert state.epoch == max(entry.epoch for entry in visible)
        of_epoch = [each for each in entries if each.epoch == state.epoch and each.marker is None]
        seen = [each.base for each in of_epoch if each.end > broker.log.start_offset]
        listed = [each.base_offset for each in state.batches]
        # A cut may leave fewer than were there.
        assert bool(listed) or not seen
        assert listed == [each.base for each in of_epoch][len(of_epoch) - len(listed) :]


STEPS = {
    World.write: 40,
    World.intrude: 6,
    World.mark: 18,
    World.replicate: 22,
    World.commit: 12,
    World.cut: 3,
    World.restart: 3,
    World.snapshot: 3,
    World.trim: 1,
    World.begin_anew: 1,
}


@pytest.mark.parametrize("seed", seeds(15))
def test_a_partition_knows_of_transactions_what_its_history_says(seed: int) -> None:
    world = World(seed)
    # Some histories are never trimmed, so that all must be equal to the end.
    steps = {step: weight for step, weight in STEPS.items() if seed % 3 or step is not World.trim}
    for step in world.rng.choices(list(steps), list(steps.values()), k=200):
        step(world)
        world.check()
    assert set(world.answers) <= {ErrorCode.NONE}
