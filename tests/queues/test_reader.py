"""What a queue reads of its partition: once, committed, within bounds."""

import asyncio
from pathlib import Path

import pytest
from memory_log import MemoryLog
from msgspec.structs import replace
from queue_world import LIMITS

from moldau.data import stored_batches
from moldau.leases.commands import LogMessage
from moldau.log.disk_log import open_disk_log
from moldau.log.interface import LogConfig
from moldau.log.os_filesystem import OsFiles
from moldau.model.errors import CorruptionError, ErrorCode, RefusedError
from moldau.model.flush import FlushPolicy
from moldau.model.ids import NO_TIMESTAMP, Offset, TimestampMs
from moldau.model.queue_headers import ONLY_GROUP_HEADER
from moldau.queues.limits import QueueLimits
from moldau.queues.reader import QueueReader, decode_entries, deliver_at
from moldau.records.batch import read_header
from moldau.records.compression import Codec
from moldau.records.record import Record, build_batch
from moldau.replica.replica import Replica
from moldau.testing.replicas import lead_replica, make_flusher
from moldau.testing.waiting import until

NOW = TimestampMs(1_000)


def batch_of(*values: bytes, codec: Codec = Codec.NONE) -> bytes:
    return build_batch([Record(Offset(0), NOW, b"k", value, []) for value in values], codec=codec)


def append(replica: Replica, batch: bytes) -> None:
    data = bytearray(batch)
    replica.propose(data, [read_header(data)])


async def make(
    *batches: bytes, limits: QueueLimits = LIMITS, directory: Path | None = None
) -> tuple[QueueReader, Replica]:
    config = LogConfig(flush=FlushPolicy.NEVER)
    log = MemoryLog(config) if directory is None else _disk_log(directory, config)
    replica = await lead_replica(log, make_flusher(threads=0))
    for batch in batches:
        append(replica, batch)
    await until(lambda: replica.high_watermark >= replica.log.end_offset, "all is committed")
    return QueueReader(asyncio.get_running_loop(), replica, limits), replica


def _disk_log(directory: Path, config: LogConfig):
    return open_disk_log(OsFiles(directory), "t-0", config)


@pytest.mark.parametrize("on_disk", [False, True])
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
async def test_it_reads_on_from_where_it_was(on_disk: bool, codec: Codec, tmp_path: Path) -> None:
    batches = [batch_of(b"a", b"b", codec=codec), batch_of(bytes(300_000), codec=codec)]
    reader, _ = await make(*batches, directory=tmp_path if on_disk else None)
    reader.align(Offset(1))
    await reader.read_on(10)
    offered = reader.offer(10, 1 << 20, NOW, is_first=True)
    assert (offered.read.first, offered.read.end) == (1, 3)
    assert offered.read.messages == (LogMessage(Offset(1)), LogMessage(Offset(2)))
    taken = reader.take(Offset(2))
    assert [(offset, entry.record.value) for offset, entry in taken.items()] == [(1, b"b")]
    assert len(reader._ahead) == 1


async def test_an_offer_ends_before_what_is_too_much_and_holds_what_is_not_due() -> None:
    later = Record(Offset(0), NOW, None, b"later", [("moldau-deliver-at", b"2000")])
    reader, _ = await make(batch_of(*[bytes(1_000)] * 5), build_batch([later]))
    await reader.read_on(10)
    assert reader.offer(2, 1 << 20, NOW, is_first=True).read.end == 2
    assert reader.offer(5, 2_500, NOW, is_first=True).ready_count == 2
    assert reader.offer(5, 10, NOW, is_first=True).ready_count == 1
    none = reader.offer(5, 10, NOW, is_first=False)
    assert (none.ready_count, none.is_size_limited, none.read.end) == (0, True, 0)
    reader.take(Offset(5))
    delayed = reader.offer(5, 1 << 20, NOW, is_first=True)
    assert (delayed.ready_count, delayed.read.messages) == (
        0,
        (LogMessage(Offset(5), TimestampMs(2_000)),),
    )


async def test_what_is_kept_is_bounded_and_what_is_not_is_read_again() -> None:
    limits = replace(LIMITS, cache_bytes_max=2_500)
    reader, replica = await make(*[batch_of(bytes(1_000)) for _ in range(3)], limits=limits)
    await reader.read_on(3)
    entries = reader.take(Offset(3))
    for entry in entries.values():
        reader.keep_all([entry])
    reader.shrink()
    assert [reader.get(Offset(offset)) is not None for offset in range(3)] == [False, True, True]
    found = await reader.load([Offset(0), Offset(1)], lambda offset: offset == 0)
    assert found == {0: entries[Offset(0)], 1: entries[Offset(1)]}
    assert reader.get(Offset(0)) is not None
    with pytest.raises(RefusedError) as caught:
        await reader.load([replica.high_watermark], lambda _: True)
    assert caught.value.code is ErrorCode.OFFSET_NOT_AVAILABLE


async def test_a_queue_that_is_set_to_another_offset_reads_there() -> None:
    reader, _ = await make(batch_of(b"a", b"b"), batch_of(b"c"))
    await reader.read_on(10)
    reader.take(Offset(3))
    reader.align(Offset(1))
    await reader.read_on(10)
    assert [
        message.offset for message in reader.offer(9, 99_999, NOW, is_first=True).read.messages
    ] == [1, 2]


def test_one_message_without_content_stands_for_an_unreadable_batch(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored_batches, "BATCH_RECORDS_MAX", 2)
    data = batch_of(b"a", b"b", b"c") + build_batch(
        [Record(Offset(3), NOW, None, b"d", [])], base_offset=Offset(3)
    )
    entries = decode_entries(data, (), Offset(0))
    assert [entry.record.value for entry in entries] == [None, b"d"]
    assert [entry.message.offset for entry in entries] == [0, 3]
    assert entries[0].message.fault.startswith(
        "offsets 0 to 2 cannot be read: the batch has 3 records"
    )
    assert "offsets 0 to 2" in caplog.text
    assert decode_entries(data, (), Offset(2))[0].message.offset == 2
    assert [entry.message.offset for entry in decode_entries(data, (), Offset(3))] == [3]


def test_a_batch_that_is_not_what_was_stored_is_no_message_that_is_passed() -> None:
    data = bytearray(batch_of(b"abcdef"))
    data[-3] ^= 1
    with pytest.raises(CorruptionError):
        decode_entries(bytes(data), (), Offset(0))


def test_the_last_time_that_a_message_names_counts() -> None:
    name = "moldau-deliver-at"
    assert deliver_at([(name, b"5"), ("x", b"7"), (name, b"6")]) == 6
    assert deliver_at([(name, b"5"), (name, b"soon")]) == NO_TIMESTAMP
    assert deliver_at([(name, b"9" * 19)]) == 2**63 - 1


def test_a_message_for_one_group_is_passed_by_the_others() -> None:
    data = build_batch(
        [
            Record(Offset(0), NOW, None, b"mine", [(ONLY_GROUP_HEADER, b"g")]),
            Record(Offset(1), NOW, None, b"another's", [("h", b"v"), (ONLY_GROUP_HEADER, b"o")]),
            Record(Offset(2), NOW, None, b"everybody's", [("h", b"v")]),
        ]
    )
    entries = decode_entries(bytes(data), (), Offset(0), b"g")
    assert [entry.record.value for entry in entries] == [b"mine", b"everybody's"]
