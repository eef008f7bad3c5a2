"""Arbitrary requests, completions in any order, crashes: what must hold whatever happens.

A world draws its habits from its seed: how often writes fail, how often markers do, how often the
coordinator is lost. The log is the truth; a coordinator that loads it must come to the same state.
The mutants below plant the mistakes that are easiest to make, and each must be caught.
"""

import random
import re
from typing import Any

import msgspec
import pytest
from effort import seeds

from moldau.model.coordinator_events import Persist, Persisted, PersistFailed, Reply, Tick
from moldau.model.errors import ErrorCode
from moldau.model.ids import Epoch, PartitionIndex, TimestampMs, TopicPartition
from moldau.model.invariants import InvariantError
from moldau.transactions import coordinator as coordinator_module
from moldau.transactions import decide
from moldau.transactions.config import TransactionConfig
from moldau.transactions.coordinator import TransactionCoordinator
from moldau.transactions.decisions import WriteState
from moldau.transactions.events import (
    AddPartitions,
    EndTransaction,
    InitProducer,
    MarkersFailed,
    MarkersWritten,
    VerifyPartitions,
)
from moldau.transactions.records import TransactionState, decode
from moldau.transactions.records import encode as honest_encode
from moldau.transactions.results import NeedsProducerId, ProducerResult, WriteMarkers

S = TransactionState
NAMES = ("a", "b", "c")
PARTITIONS = [TopicPartition("t", PartitionIndex(index)) for index in range(4)]
FOLLOWERS: dict[S | None, set[S | None]] = {
    None: {S.EMPTY},
    S.EMPTY: {S.EMPTY, S.ONGOING, S.PREPARE_ABORT, None},
    S.ONGOING: {S.ONGOING, S.PREPARE_COMMIT, S.PREPARE_ABORT},
    S.PREPARE_COMMIT: {S.COMPLETE_COMMIT},
    S.PREPARE_ABORT: {S.COMPLETE_ABORT},
    S.COMPLETE_COMMIT: {S.EMPTY, S.ONGOING, S.PREPARE_ABORT, None},
    S.COMPLETE_ABORT: {S.EMPTY, S.ONGOING, S.PREPARE_ABORT, None},
}


class Chaos:
    """One coordinator after another over one log, and clients that ask for anything."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        self.fail_rate = rng.choice([0.0, 0.1, 0.5])
        self.crash_rate = rng.choice([0.0, 0.02, 0.1])
        self.config = TransactionConfig(
            timeout_ms_max=rng.choice([1_000, 30_000]),
            busy_wait_ms_max=rng.choice([0, 200]),
            complete_wait_ms=rng.choice([0, 20]),
            id_expiry_ms=rng.choice([5_000, 10**9]),
            id_expiry_check_ms=1_000,
        )
        self.now = 0.0
        self.log: list[tuple[bytes, bytes | None]] = []
        self.states: dict[str, Any] = dict.fromkeys(NAMES)
        self.handed_out: dict[str, list[tuple[int, int]]] = {name: [] for name in NAMES}
        self.epochs_seen: dict[int, int] = {}
        self.marked: dict[str, set[TopicPartition]] = {}
        self.waiting: dict[int, object] = {}
        self.request_ids = 0
        self.spare = 100
        self.epoch = 0
        self.begin()

    def wall_ms(self) -> TimestampMs:
        return TimestampMs(1_000_000 + int(self.now * 1000))

    def begin(self) -> None:
        self.epoch += 1
        self.writes: dict[int, Persist] = {}
        self.markers: list[WriteMarkers] = []
        self.asked_for: dict[int, object] = {}
        self.waiting.clear()
        self.coordinator = TransactionCoordinator(self.config, Epoch(self.epoch), self.wall_ms)
        for key, value in self.log:
            self.coordinator.replay(key, value)
        self.run(self.coordinator.finish_loading(self.now))
        for name, stored in self.states.items():
            shown = self.coordinator.describe(name)
            assert shown.state == ("" if stored is None else stored.state.value)
            if stored is not None:
                assert shown.producer_epoch == stored.producer_epoch
                assert shown.partitions == stored.partitions

    def run(self, effects) -> None:
        for effect in effects:
            match effect:
                case Reply():
                    event = self.waiting.pop(effect.request_id)
                    self.heard(event, effect.result)
                case Persist():
                    self.writes[effect.token] = effect
                case WriteMarkers():
                    self.check_markers(effect)
                    self.asked_for[effect.token] = self.states[effect.transactional_id]
                    self.markers.append(effect)
        self.coordinator.check_invariants()

    def handle(self, event) -> None:
        if isinstance(event, InitProducer | AddPartitions | VerifyPartitions | EndTransaction):
            self.waiting[event.request_id] = event
        self.run(self.coordinator.handle(self.now, event))

    # ---- what must hold

    def appended(self, effect: Persist) -> None:
        for key, value in effect.records:
            record = decode(key, value)
            assert record is not None
            name, new = record.transactional_id, record.value
            old = self.states[name]
            followers = FOLLOWERS[None if old is None else old.state]
            assert (None if new is None else new.state) in followers, (old, new)
            self.log.append((key, value))
            self.states[name] = new
            if new is None:
                continue
            assert self.epochs_seen.get(new.producer_id, -1) <= new.producer_epoch
            self.epochs_seen[new.producer_id] = new.producer_epoch
            if new.state.is_prepared:
                self.marked[name] = set()
                if old.state is S.ONGOING:
                    assert new.partitions == old.partitions
                else:
                    assert not new.partitions
            elif old is not None and old.state.is_prepared:
                assert self.marked[name] >= old.partitions, "every partition has its marker"

    def check_markers(self, effect: WriteMarkers) -> None:
        """What partitions are told is what the log says, and nothing else."""
        stored = self.states[effect.transactional_id]
        assert stored is not None
        assert stored.state.is_prepared
        assert effect.is_commit == (stored.state is S.PREPARE_COMMIT)
        assert effect.producer_epoch == stored.producer_epoch
        assert effect.coordinator_epoch == self.epoch
        assert set(effect.partitions) <= stored.partitions

    def heard(self, event, result) -> None:
        if isinstance(result, NeedsProducerId):
            self.spare += 1
            self.request_ids += 1
            again = msgspec.structs.replace(
                event, request_id=self.request_ids, new_producer_id=self.spare
            )
            self.waiting[again.request_id] = again
            # Its effects come within those of the first one; nothing else is under way here.
            self.run(self.coordinator.handle(self.now, again))
        elif isinstance(result, ProducerResult) and result.error is ErrorCode.NONE:
            pair = (result.producer_id, result.producer_epoch)
            known = self.handed_out[event.transactional_id]
            if isinstance(event, InitProducer) and event.producer_id < 0:
                assert pair not in known, "two producers never share an epoch"
            stored = self.states[event.transactional_id]
            assert stored is not None
            if isinstance(event, InitProducer):
                assert pair == (stored.producer_id, stored.producer_epoch)
            else:
                assert stored.state in (
                    (S.PREPARE_COMMIT, S.COMPLETE_COMMIT)
                    if event.is_commit
                    else (S.PREPARE_ABORT, S.COMPLETE_ABORT)
                ), "an end that is answered is decided"
            known.append(pair)

    # ---- what may happen

    def step(self) -> None:
        rng = self.rng
        if rng.random() < self.crash_rate:
            self.crash()
            return
        choice = rng.random()
        if choice < 0.45:
            self.request()
        elif choice < 0.7 and self.writes:
            self.settle_write()
        elif choice < 0.9 and self.markers:
            self.settle_markers()
        else:
            self.now += rng.choice([0.001, 0.05, 0.3, 2.0])
            self.handle(Tick())

    def crash(self) -> None:
        """What was on its way is in the log, or not; in the order of its writing."""
        kept = list(self.writes.values())[: self.rng.randrange(len(self.writes) + 1)]
        for effect in kept:
            self.appended(effect)
        self.begin()

    def request(self) -> None:
        rng = self.rng
        name = rng.choice(NAMES)
        self.request_ids += 1
        known = self.handed_out[name]
        pair = rng.choice(known[-3:]) if known and rng.random() < 0.95 else (rng.randrange(200), 0)
        fields: dict[str, Any] = {"request_id": self.request_ids, "transactional_id": name}
        producer: dict[str, Any] = {"producer_id": pair[0], "producer_epoch": pair[1]}
        partitions = frozenset(rng.sample(PARTITIONS, rng.randrange(1, 4)))
        version = rng.choice([0, 2])
        kind = rng.randrange(8)
        if kind == 0:
            timeout_ms = rng.choice([500, 20_000, 0])
            expected = producer if rng.random() < 0.4 else {}
            self.handle(InitProducer(**fields, timeout_ms=timeout_ms, **expected))
        elif kind < 4:
            self.handle(
                AddPartitions(**fields, **producer, partitions=partitions, client_version=version)
            )
        elif kind == 4:
            self.handle(VerifyPartitions(**fields, **producer, partitions=partitions))
        else:
            is_commit = rng.random() < 0.6
            self.handle(
                EndTransaction(**fields, **producer, is_commit=is_commit, client_version=version)
            )

    def settle_write(self) -> None:
        # The log has one order, and so have its commits; refusals come whenever they like.
        token = min(self.writes)
        if self.rng.random() < self.fail_rate:
            token = self.rng.choice(list(self.writes))
            del self.writes[token]
            self.handle(PersistFailed(token=token, error=ErrorCode.NOT_ENOUGH_REPLICAS))
            return
        self.appended(self.writes.pop(token))
        self.handle(Persisted(token=token))
        if self.rng.random() < 0.1:
            self.handle(Persisted(token=token))

    def mark(self, effect: WriteMarkers, partitions: frozenset[TopicPartition]) -> None:
        # An answer to the question about an earlier transaction marks nothing of this one.
        if self.asked_for[effect.token] is self.states[effect.transactional_id]:
            self.marked[effect.transactional_id] |= partitions
        self.handle(MarkersWritten(token=effect.token, partitions=partitions))

    def settle_markers(self, *, fails: bool = True) -> None:
        effect = self.rng.choice(self.markers)
        some = frozenset(self.rng.sample(effect.partitions, len(effect.partitions) // 2 + 1))
        if fails and self.rng.random() < self.fail_rate:
            self.handle(MarkersFailed(token=effect.token, partitions=some))
        else:
            self.mark(effect, some)
        left = tuple(one for one in effect.partitions if one not in some)
        # Late and double answers happen too: sometimes it is kept as it is.
        if effect in self.markers and self.rng.random() < 0.9:
            self.markers.remove(effect)
            if left:
                self.markers.append(msgspec.structs.replace(effect, partitions=left))

    def come_to_rest(self) -> None:
        """All goes well from now on: every transaction ends, and everybody is answered."""
        for _ in range(2_000):
            if self.writes:
                token = min(self.writes)
                self.appended(self.writes.pop(token))
                self.handle(Persisted(token=token))
            elif self.markers:
                effect = self.markers.pop()
                self.mark(effect, frozenset(effect.partitions))
            else:
                self.now += 1.0
                self.handle(Tick())
                ends = all(
                    stored is None or not (stored.state.is_prepared or stored.state is S.ONGOING)
                    for stored in self.states.values()
                )
                if ends and not self.waiting and not self.writes and not self.markers:
                    return
        raise AssertionError("transactions stay open for ever")


def run(seed: int, steps: int = 400) -> None:
    chaos = Chaos(seed)
    for _ in range(steps):
        chaos.step()
    chaos.come_to_rest()
    chaos.begin()


@pytest.mark.parametrize("seed", seeds(30))
def test_whatever_happens_the_log_is_right_and_everything_ends(seed):
    run(seed)


def run_all() -> None:
    for seed in range(60):
        run(seed)


# ---- planted mistakes


def _commit_follows_the_request(monkeypatch):
    """An abort of a prepared commit is accepted."""
    monkeypatch.setattr(decide, "_agrees", lambda stored, event: True)


def _prepared_may_be_decided_anew(monkeypatch):
    honest = decide.decide_end

    def decide_end(stored, event, now_ms):
        if stored is not None and stored.state.is_prepared:
            stored = msgspec.structs.replace(stored, state=S.ONGOING)
        return honest(stored, event, now_ms)

    monkeypatch.setattr(decide, "decide_end", decide_end)


def _states_change_before_they_are_stored(monkeypatch):
    honest = TransactionCoordinator._write

    def write(self, one):
        honest(self, one)
        one.entry.stored = one.states[-1]

    monkeypatch.setattr(TransactionCoordinator, "_write", write)


def _markers_are_not_asked_for_after_loading(monkeypatch):
    honest = TransactionCoordinator.finish_loading

    def finish_loading(self, now):
        return [e for e in honest(self, now) if not isinstance(e, WriteMarkers)]

    monkeypatch.setattr(TransactionCoordinator, "finish_loading", finish_loading)


def _failed_markers_are_forgotten(monkeypatch):
    def markers_failed(self, now, event):
        entry = self._asked.get(event.token)
        if entry is not None:
            self._heard_of(entry, event.token, entry.asked[event.token] - event.partitions)

    monkeypatch.setattr(TransactionCoordinator, "_markers_failed", markers_failed)


def _one_marker_is_enough(monkeypatch):
    honest = TransactionCoordinator._markers_written

    def markers_written(self, now, event):
        entry = self._asked.get(event.token)
        if entry is not None:
            entry.unmarked.clear()
        honest(self, now, event)

    monkeypatch.setattr(TransactionCoordinator, "_markers_written", markers_written)


def _markers_before_the_decision_is_stored(monkeypatch):
    honest = TransactionCoordinator._execute

    def carry_out(self, now, entry, event, verdict):
        if isinstance(verdict, WriteState) and verdict.stored.state.is_prepared:
            before, entry.stored = entry.stored, verdict.stored
            entry.unmarked = set(verdict.stored.partitions)
            self._finish_or_send_markers(now, entry, waits=False)
            entry.stored = before
        honest(self, now, entry, event, verdict)

    monkeypatch.setattr(TransactionCoordinator, "_execute", carry_out)


def _fencing_keeps_the_epoch(monkeypatch):
    honest = decide._initialize

    def initialize(event, now_ms, *, epoch, **fields):
        return honest(event, now_ms, epoch=max(0, epoch - 1), **fields)

    monkeypatch.setattr(decide, "_initialize", initialize)


def _timeouts_are_forgotten(monkeypatch):
    monkeypatch.setattr(TransactionCoordinator, "_time_out", lambda self, now, entry: None)


def _a_second_write_of_an_id_begins(monkeypatch):
    honest = TransactionCoordinator._request

    def request(self, now, event):
        entry = self._entries.get(event.transactional_id)
        if entry is not None:
            entry.writing = None
        honest(self, now, event)

    monkeypatch.setattr(TransactionCoordinator, "_request", request)


def _waiting_requests_are_dropped(monkeypatch):
    def park(self, now, entry, event):
        pass

    monkeypatch.setattr(TransactionCoordinator, "_park", park)


def _answers_to_old_questions_count(monkeypatch):
    honest = TransactionCoordinator._markers_written

    def markers_written(self, now, event):
        for entry in self._entries.values():
            entry.unmarked -= event.partitions
        honest(self, now, event)

    monkeypatch.setattr(TransactionCoordinator, "_markers_written", markers_written)


def _the_last_epoch_is_not_stored(monkeypatch):
    def encode(record):
        if record.value is not None:
            value = msgspec.structs.replace(record.value, producer_epoch=0)
            record = msgspec.structs.replace(record, value=value)
        return honest_encode(record)

    monkeypatch.setattr(coordinator_module, "encode", encode)


def _a_failed_end_is_taken_for_done(monkeypatch):
    def persist_failed(self, now, token, error):
        self._persisted(now, token)

    monkeypatch.setattr(TransactionCoordinator, "_persist_failed", persist_failed)


def _tombstones_are_ignored(monkeypatch):
    honest = TransactionCoordinator._persisted

    def persisted(self, now, token):
        write = self._writes.get(token)
        if write is not None and write.states[-1] is None:
            self._writes[token] = write._replace(states=[write.entry.stored])
        honest(self, now, token)

    monkeypatch.setattr(TransactionCoordinator, "_persisted", persisted)


MUTANTS = [
    value
    for name, value in list(globals().items())
    # Python 3.14 gives a module with annotations a function __annotate__.
    if re.match("_[a-z]", name) and callable(value)
]


@pytest.mark.parametrize("plant", MUTANTS, ids=lambda plant: plant.__name__.strip("_"))
def test_a_planted_mistake_is_caught(monkeypatch, plant):
    plant(monkeypatch)
    with pytest.raises((AssertionError, InvariantError, KeyError, AttributeError)):
        run_all()
