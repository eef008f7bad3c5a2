"""Replication between logs that were compacted each for itself."""

import random
from functools import partial
from pathlib import Path

import pytest
from effort import seeds
from memory_log import MemoryLog
from raft_brokers import PATIENT
from replica_brokers import ReplicaBroker, ReplicaCluster

from moldau.log.compaction.job import CompactionRequest
from moldau.log.disk_log import open_disk_log, read_slice
from moldau.log.interface import ControlKind, LogConfig, PartitionLog
from moldau.log.os_filesystem import OsFiles
from moldau.model.ids import BrokerId, Epoch, Offset, RaftIndex, TimestampMs
from moldau.model.slices import FileSlice
from moldau.raft.membership import Members
from moldau.raft.messages import AppendRequest
from moldau.records.batch import read_header
from moldau.records.compact import is_filler
from moldau.records.record import Record, build_batch, read_records
from moldau.replica.filler_batches import split_fillers
from moldau.replica.log_view import GroupLog
from moldau.replica.peer_codec import METADATA_GROUP, RaftEnvelope, decode_frame, encode_append
from moldau.testing.logs import flush, headers_of
from moldau.testing.waiting import until

pytestmark = pytest.mark.inprocess

MEMBERS = Members((BrokerId(1), BrokerId(2)))
CONFIG = LogConfig(segment_bytes_max=500, compact=True, dirty_ratio_min=0.0, delete_expired=False)


def keyed(base: int, *, epoch: int, key: bytes, size: int = 40, count: int = 1) -> bytes:
    records = [
        Record(Offset(base + place), TimestampMs(5), key, bytes(size), []) for place in range(count)
    ]
    return build_batch(records, base_offset=Offset(base), leader_epoch=Epoch(epoch))


def write(log: PartitionLog, rng: random.Random, epoch: int) -> None:
    data = keyed(
        log.end_offset,
        epoch=epoch,
        key=b"%d" % rng.randrange(3),
        size=rng.choice((10, 200)),
        count=rng.randint(1, 3),
    )
    log.append(data, headers_of(data))


def clean(log: PartitionLog, now: int = 1000) -> None:
    flush(log)
    task = log.begin_compaction(
        CompactionRequest(
            now=TimestampMs(now), end_offset=log.end_offset, replicated_offset=log.end_offset
        )
    )
    if task is not None:
        assert log.end_compaction(task, task.run())


def copy_of(log: PartitionLog, end: RaftIndex) -> MemoryLog:
    """The entries below `end`, as they were before any was cleaned."""
    view, copy = GroupLog(log, MEMBERS), GroupLog(MemoryLog(CONFIG), MEMBERS)
    while copy.end_index < end:
        copy.store(carry(view, copy.end_index, 1).parts, copy.end_index)
    assert copy.end_index == end
    assert isinstance(copy.log, MemoryLog)
    return copy.log


def carry(view: GroupLog, start: RaftIndex, bytes_max: int) -> RaftEnvelope:
    reading = view.read(start, bytes_max)
    entries = b"".join(
        read_slice(chunk) if isinstance(chunk, FileSlice) else bytes(chunk)
        for chunk in reading.chunks
    )
    assert len(entries) == reading.size
    head = encode_append(
        METADATA_GROUP.wire, Epoch(99), start, Epoch(0), RaftIndex(0), reading.size
    )
    (parcel,) = decode_frame(memoryview(head + entries))
    assert not parcel.corruption
    assert isinstance(parcel.message, AppendRequest)
    assert parcel.message.entries[-1].end == reading.end
    return parcel


def take_in(log: PartitionLog, parcel: RaftEnvelope) -> None:
    """As a follower's core does: what it has is skipped, what contradicts it is cut."""
    parcel = split_fillers(parcel, log)
    assert isinstance(parcel.message, AppendRequest)
    for entry in parcel.message.entries:
        if entry.start >= log.end_index or log.epoch_of(entry.start) != entry.epoch:
            if entry.start < log.end_index:
                log.truncate(entry.start)
            assert log.end_index == entry.start
            GroupLog(log, MEMBERS).store(parcel.parts, entry.start)
            return


def live(log: PartitionLog) -> dict[bytes | None, tuple[Offset, bytes | None]]:
    """The last record of every key."""
    found = {}
    for batch in log.batches(log.start_offset):
        for record in read_records(batch):
            found[record.key] = (record.offset, record.value)
    return found


@pytest.mark.parametrize("kind", ["memory", "disk"])
@pytest.mark.parametrize("seed", seeds(8))
def test_a_log_is_continued_from_one_that_was_compacted(
    kind: str, seed: int, tmp_path: Path
) -> None:
    rng = random.Random(seed)
    leader: PartitionLog = MemoryLog(CONFIG)
    if kind == "disk":
        leader = open_disk_log(OsFiles(tmp_path), "log", CONFIG)
    epoch = 1
    boundaries = [RaftIndex(0)]
    for _ in range(60):
        chance = rng.random()
        if chance < 0.06:
            epoch += 2
            leader.append_control(Epoch(epoch), ControlKind.NOOP, b"")
        elif chance < 0.1:
            leader.append_control(Epoch(epoch), ControlKind.TRIM, b"")
        else:
            write(leader, rng, epoch)
        boundaries.append(leader.end_index)
    followers = []
    for _ in range(6):
        follower = copy_of(leader, rng.choice(boundaries))
        if rng.random() < 0.5:
            clean(follower)
        if rng.random() < 0.6:
            # Entries that nobody else got, of an epoch that the leader does not know.
            own = follower.last_epoch + 1
            if rng.random() < 0.5:
                follower.append_control(Epoch(own), ControlKind.NOOP, b"")
            for _ in range(rng.randint(1, 12)):
                write(follower, rng, own)
        followers.append(follower)
    leader.append_control(Epoch(epoch + 5), ControlKind.NOOP, b"")
    expected = live(leader)
    clean(leader)
    assert any(is_filler(header) for header in leader.headers(Offset(0)))
    view = GroupLog(leader, MEMBERS)
    for follower in followers:
        start = RaftIndex(0)
        while start < view.end_index:
            parcel = carry(view, start, rng.choice((1, 300, 5000)))
            take_in(follower, parcel)
            assert isinstance(parcel.message, AppendRequest)
            # Sent twice, or from a little before, as after a lost connection.
            start = RaftIndex(
                max(start + 1, parcel.message.entries[-1].end - rng.choice((0, 0, 1, 3)))
            )
            start = view.boundary(start) if start < view.end_index else start
        assert follower.end_index == leader.end_index
        assert live(follower) == expected
        for index in range(leader.end_index):
            assert follower.epoch_of(RaftIndex(index)) == leader.epoch_of(RaftIndex(index))
        assert [entry.offset for entry in follower.controls()] == [
            entry.offset for entry in leader.controls()
        ]


async def settle(cluster: ReplicaCluster) -> None:
    def is_settled() -> bool:
        ends = {broker.replica.log.end_index for broker in cluster.running}
        marks = {broker.group().core.commit for broker in cluster.running}
        return len(ends) == 1 and ends == marks

    await until(is_settled, "ends are equal")


def put(broker: ReplicaBroker, key: bytes, value: bytes) -> None:
    data = bytearray(build_batch([Record(Offset(0), TimestampMs(5), key, value, [])]))
    broker.replica.propose(data, [read_header(bytes(data))], append_time=False)


@pytest.mark.parametrize("kind", ["memory", "disk"])
async def test_a_broker_that_was_away_catches_up_with_compacted_logs(
    kind: str, tmp_path: Path
) -> None:
    rng = random.Random(7)
    async with ReplicaCluster(
        3, config=PATIENT, directory=tmp_path if kind == "disk" else None
    ) as cluster:
        cluster.add_group()
        for broker in cluster.all:
            broker.replica.log.reconfigure(CONFIG)
        for turn in range(4):
            leader = await cluster.ready()
            for number in range(30):
                put(leader, b"%d" % rng.randrange(4), b"%d-%d" % (turn, number) * 20)
            await settle(cluster)
            away = rng.choice([broker for broker in cluster.running if broker is not leader])
            away.stop()
            for number in range(30):
                put(leader, b"%d" % rng.randrange(4), b"%d+%d" % (turn, number) * 20)
            await settle(cluster)
            for broker in rng.sample(cluster.running, rng.randint(1, 2)):
                clean(broker.replica.log, now=1000 * (turn + 1))
            away.start()
            cluster.introduce()
            away.replica.log.reconfigure(CONFIG)
            await cluster.ready()
            await settle(cluster)
            states = [live(broker.replica.log) for broker in cluster.running]
            assert states[0] == states[1] == states[2]
            if rng.random() < 0.5:
                await cluster.lead(int(away.id))


def steps_down(broker: ReplicaBroker) -> bool:
    return not broker.replica.is_leader


def all_committed(brokers: list[ReplicaBroker]) -> bool:
    ends = {broker.replica.log.end_offset for broker in brokers}
    return len(ends) == 1 and {broker.replica.high_watermark for broker in brokers} == ends


async def test_a_deposed_leader_gives_up_what_no_other_has_for_a_compacted_log() -> None:
    rng = random.Random(8)
    async with ReplicaCluster(3) as cluster:
        cluster.add_group()
        for broker in cluster.all:
            broker.replica.log.reconfigure(CONFIG)
        for turn in range(3):
            old = await cluster.ready()
            for number in range(20):
                put(old, b"%d" % rng.randrange(3), b"%d-%d" % (turn, number))
            await settle(cluster)
            old = await cluster.ready()
            cluster.cut_off(old)
            for number in range(rng.randint(1, 40)):
                put(old, b"lost", b"%d" % number)
            await until(partial(steps_down, old), "the old leader steps down")
            new = await cluster.ready(other_than=int(old.id))
            for number in range(rng.randint(1, 60)):
                put(new, b"%d" % rng.randrange(3), b"%d+%d" % (turn, number))
            others = [broker for broker in cluster.running if broker is not old]
            await until(partial(all_committed, others), "the two agree")
            for broker in others:
                clean(broker.replica.log, now=1000 * (turn + 1))
            cluster.introduce()
            await settle(cluster)
            states = [live(broker.replica.log) for broker in cluster.running]
            assert states[0] == states[1] == states[2]
            assert b"lost" not in states[0]
