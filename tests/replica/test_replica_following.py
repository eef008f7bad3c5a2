"""A replica that follows does what its leader says, and vouches only for what is committed."""

import threading

import pytest
from replica_brokers import make_batch
from replica_world import HeldLog, turns

from moldau.log.interface import ControlKind, LogConfig
from moldau.model.errors import StorageError
from moldau.model.ids import (
    FIRST_LOG,
    BrokerId,
    Epoch,
    LogId,
    Offset,
    ProducerId,
    RaftIndex,
    TimestampMs,
)
from moldau.raft.membership import Members, encode_members
from moldau.records.batch import stamp
from moldau.replica.peer_codec import encode_append, encode_batches_head, encode_control
from moldau.testing.replicas import (
    ME,
    ManualClock,
    RecordingListener,
    make_driver,
    make_flusher,
    open_replica,
)
from moldau.testing.waiting import until

pytestmark = pytest.mark.inprocess


class Follower:
    """Broker 1 of a group, and broker 2's messages as the test writes them."""

    def __init__(self, first: Members, log_id: LogId = FIRST_LOG) -> None:
        self.log = HeldLog(LogConfig(), log_id)
        self.failures: list[StorageError] = []
        self.clock = ManualClock(wall_ms=1_700_000_000_000)
        self.flusher = make_flusher(self.clock, self.failures.append)
        self.driver = make_driver(self.flusher, clock=self.clock)
        self.listener = RecordingListener()
        self.driver.add_peer(OTHER, ("127.0.0.1", 9))
        self.replica = open_replica(
            self.log,
            self.flusher,
            self.driver,
            clock=self.clock,
            members=first,
            listener=self.listener,
        )

    def receive(self, *parts: bytes, commit: int) -> None:
        """An Append of epoch 3 that continues the log."""
        core = self.replica.group.core
        head = encode_append(
            self.replica.group.wire,
            Epoch(3),
            self.log.end_index,
            core.last_epoch,
            RaftIndex(commit),
            sum(map(len, parts)),
        )
        self.driver.on_raft(OTHER, memoryview(head + b"".join(parts)))

    def stop(self) -> None:
        self.driver.remove_peer(OTHER)
        self.driver.stop()
        self.flusher.stop()


OTHER = BrokerId(2)


def control(kind: ControlKind, payload: bytes = b"") -> bytes:
    return encode_control(kind, Epoch(3), payload)


def entries(base: int, *values: bytes, producer: int = -1, sequence: int = -1) -> bytes:
    data = make_batch(*values, producer=producer, sequence=sequence)
    stamp(data, 0, Offset(base), Epoch(3))
    return encode_batches_head(len(data)) + bytes(data)


async def test_a_membership_gives_the_vote_to_the_log_that_it_names_and_to_no_other() -> None:
    follower = Follower(Members((OTHER,), (ME,)), log_id=LogId(7))
    core = follower.replica.group.core
    follower.receive(control(ControlKind.NOOP), entries(0, b"a"), commit=0)
    # Of the time before this broker lost its log.
    before = encode_members(Members((ME, OTHER)))
    follower.receive(control(ControlKind.MEMBERSHIP, before), entries(1, b"b"), commit=3)
    assert (core.is_voter, core.commit) == (False, 3)
    now = encode_members(Members((ME, OTHER), (), ((ME, LogId(7)),)))
    follower.receive(control(ControlKind.MEMBERSHIP, now), entries(2, b"c"), commit=3)
    assert core.is_voter
    follower.stop()


async def test_nothing_is_read_beyond_what_is_committed() -> None:
    follower = Follower(Members((ME, OTHER)))
    sent = [entries(n, b"v") for n in range(3)]
    follower.receive(control(ControlKind.NOOP), *sent, commit=3)
    read = follower.replica.log.read(Offset(0), 1 << 20, follower.replica.high_watermark)
    assert (follower.log.end_offset, read.next_offset) == (3, 2)
    follower.stop()


async def test_a_learner_has_no_vote_however_much_is_committed() -> None:
    follower = Follower(Members((OTHER,), (ME,)))
    follower.receive(control(ControlKind.NOOP), entries(0, b"a"), commit=2)
    await until(lambda: follower.replica.high_watermark == 1, "it is committed")
    await turns()
    assert follower.replica.high_watermark == 1
    assert not follower.replica.group.core.is_voter
    follower.stop()


async def test_a_follower_knows_producers_from_what_it_stores_committed_or_not() -> None:
    follower = Follower(Members((ME, OTHER)))
    follower.receive(
        control(ControlKind.NOOP),
        entries(0, b"a", b"b", producer=4, sequence=0),
        entries(2, b"c"),
        commit=1,
    )
    state = follower.replica.producers.get(ProducerId(4))
    assert state is not None
    assert [(one.base_sequence, one.base_offset, one.last_offset) for one in state.batches] == [
        (0, 0, 1)
    ]
    assert (len(follower.replica.producers), state.seen_at) == (1, follower.clock.wall)
    assert follower.replica.high_watermark == 0
    follower.stop()


async def test_a_trim_is_done_when_it_is_committed_and_on_this_disk() -> None:
    follower = Follower(Members((ME, OTHER)))
    gate = follower.log.gate = threading.Event()
    trim = control(ControlKind.TRIM, (2).to_bytes(8, "big"))
    follower.receive(control(ControlKind.NOOP), *(entries(n, b"v") for n in range(3)), commit=4)
    follower.receive(trim, entries(3, b"v"), commit=5)
    await until(lambda: follower.replica.high_watermark == 3, "it is committed")
    await turns()
    assert (follower.replica.high_watermark, follower.log.start_offset) == (3, 0)
    gate.set()
    await until(lambda: follower.log.start_offset == 2, "it is trimmed")
    # Not beyond what is committed here, whatever it says.
    follower.receive(control(ControlKind.TRIM, (99).to_bytes(8, "big")), commit=7)
    await until(lambda: follower.log.start_offset == 4, "it is trimmed")
    assert follower.listener.failures == []
    follower.stop()


async def test_retention_deletes_nothing_that_is_not_committed_and_on_this_disk() -> None:
    follower = Follower(Members((ME, OTHER)))
    follower.log.reconfigure(LogConfig(retention_ms=1))
    gate = follower.log.gate = threading.Event()
    later = TimestampMs(1 << 50)
    follower.receive(control(ControlKind.NOOP), *(entries(n, b"v") for n in range(3)), commit=3)
    await until(lambda: follower.replica.high_watermark == 2, "it is committed")
    await turns()
    assert (follower.replica.high_watermark, follower.log.flushed_offset) == (2, 0)
    assert follower.replica.retain(later) is False
    gate.set()
    await until(lambda: follower.log.flushed_offset == 3, "it is flushed")
    assert follower.replica.retain(later) is True
    assert follower.log.start_offset == 2
    follower.stop()
