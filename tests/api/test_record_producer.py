"""Single records: which partition they go to, and which offset each of them has."""

from types import SimpleNamespace

import pytest
from fakes import Fake

from moldau.api.record_producer import RecordProducer, offsets_of
from moldau.data.append_forwarding import AppendResult
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import Offset, TimestampMs
from moldau.records.batch import check_batches, read_header
from moldau.records.compression import Codec
from moldau.records.murmur2 import partition_of
from moldau.records.record import Record, read_records

NO_LEADER = AppendResult(ErrorCode.LEADER_NOT_AVAILABLE, "none")


def topic(partitions: int):
    return SimpleNamespace(name="t", partitions=[None] * partitions)


class World(Fake):
    """A broker that leads some partitions, and keeps what is appended."""

    def __init__(self, *led: int, bytes_max: int = 10**6) -> None:
        self.led = led
        self.bytes_max = bytes_max
        self.appended: dict[int, bytes] = {}
        self.replicas = self.appends = self
        self.sender = RecordProducer(self)

    def is_leader(self, name, index):
        return index in self.led

    def message_bytes_max(self, name):
        return self.bytes_max

    async def append(self, topic, partition, data, *, acks, timeout_seconds):
        self.appended[partition] = data
        return AppendResult(ErrorCode.NONE, "", 10 * partition)


def records_in(data: bytes) -> list[Record]:
    found, position = [], 0
    while position < len(data):
        size = read_header(data, position).size
        found += read_records(data[position : position + size])
        position += size
    return found


def record(value: bytes) -> Record:
    return Record(Offset(0), TimestampMs(0), None, value, [])


def test_records_go_where_they_ask_to_or_where_their_key_says():
    sender = World(0).sender
    asked = [(2, b"k"), (None, b"k"), (None, b"other"), (0, None)]
    expected = [2, partition_of(b"k", 3), partition_of(b"other", 3), 0]
    assert sender.partitions_for(topic(3), asked) == expected
    assert sender.partitions_for(topic(1), [(None, b"k"), (None, None)]) == [0, 0]


def test_records_without_a_key_stay_together_and_here_each_time_in_another_partition():
    sender = World(0, 2).sender
    places = [sender.partitions_for(topic(3), [(None, None)] * 2) for _ in range(6)]
    assert all(first == second for first, second in places)
    assert {first for first, _ in places} == {0, 2}
    assert len(World().sender.partitions_for(topic(3), [(None, None)])) == 1


@pytest.mark.parametrize("partition", [-1, 3])
def test_a_partition_that_is_not_there_is_refused(partition):
    with pytest.raises(RefusedError, match="has no partition"):
        World(0).sender.partitions_for(topic(3), [(partition, b"k")])


async def test_each_partition_gets_its_records_in_their_order():
    world = World(0, 1)
    records = [record(b"%d" % number) for number in range(4)]
    places = [0, 1, 0, 1]
    answers = await world.sender.store(topic(2), records, places, acks=-1, timeout_seconds=1.0)
    assert [r.value for r in read_records(world.appended[0])] == [b"0", b"2"]
    assert [r.value for r in read_records(world.appended[1])] == [b"1", b"3"]
    assert offsets_of(places, answers) == [0, 10, 1, 11]


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("size", [1, 50_000])
async def test_batches_are_compressed_here_or_in_a_thread(codec, size):
    world = World(0, bytes_max=120_000)
    records = [record(b"%d" % number * size) for number in range(4)]
    await world.sender.store(topic(1), records, [0] * 4, acks=-1, timeout_seconds=1.0, codec=codec)
    (stored,) = world.appended.values()
    headers = check_batches(memoryview(stored), bytes_max=120_000)
    assert {header.codec for header in headers} == {codec}
    # Batches are cut by the size of what is in them: compressed or not, they are as many.
    assert [header.record_count for header in headers] == ([4] if size == 1 else [2, 2])
    assert [r.value for r in records_in(stored)] == [r.value for r in records]
    assert codec is Codec.NONE or size == 1 or len(stored) < 20_000


def test_what_was_not_stored_has_no_offset():
    stored = AppendResult(ErrorCode.NONE, "", 5)
    assert offsets_of([0, 1, 0], {0: stored, 1: NO_LEADER}) == [5, -1, 6]
    assert offsets_of([1, 1], {1: NO_LEADER}) == [-1, -1]
    assert offsets_of([0, 0], {0: stored}) == [5, 6]
