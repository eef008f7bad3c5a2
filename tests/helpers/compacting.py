"""Owns small ways to write keyed logs, to compact them and to look at what is left."""

import itertools
from collections.abc import Callable
from pathlib import Path

from memory_log import MemoryLog

from moldau.log.compaction.job import CompactionRequest
from moldau.log.disk_log import open_disk_log
from moldau.log.interface import LogConfig, PartitionLog
from moldau.log.os_filesystem import OsFiles
from moldau.model.ids import (
    Epoch,
    Offset,
    ProducerEpoch,
    ProducerId,
    TimestampMs,
)
from moldau.records.batch import BatchHeader, read_header
from moldau.records.compression import Codec
from moldau.records.record import Record, build_batch, read_records
from moldau.testing.logs import flush, headers_of
from sim.simdisk import SimDisk

CONFIG = LogConfig(
    segment_bytes_max=700,
    index_interval_bytes=100,
    compact=True,
    delete_expired=False,
    dirty_ratio_min=0.0,
    delete_retention_ms=100,
)
NOW = TimestampMs(10_000)
Make = Callable[..., PartitionLog]


def open_log(kind: str, directory: Path, config: LogConfig = CONFIG) -> PartitionLog:
    """In memory, on a disk, on a simulated one."""
    if kind == "memory":
        return MemoryLog(config)
    files = OsFiles(directory) if kind == "disk" else SimDisk()
    return open_disk_log(files, "log", config)


def write(
    log: PartitionLog,
    *pairs: tuple[str | None, str | None],
    epoch: int = 1,
    time: int = 1000,
    codec: Codec = Codec.NONE,
    producer: tuple[int, int, int] = (-1, -1, -1),
    transactional: bool = False,
    control: bool = False,
) -> list[Record]:
    """Append one batch of keys and values; returns its records."""
    base = log.end_offset
    records = [
        Record(
            Offset(base + place),
            TimestampMs(time + place),
            None if key is None else key.encode(),
            None if value is None else value.encode(),
            [("h", b"x")] if place % 2 else [],
        )
        for place, (key, value) in enumerate(pairs)
    ]
    data = build_batch(
        records,
        codec=codec,
        base_offset=base,
        leader_epoch=Epoch(epoch),
        producer_id=ProducerId(producer[0]),
        producer_epoch=ProducerEpoch(producer[1]),
        base_sequence=producer[2],
        transactional=transactional,
        control=control,
    )
    log.append(data, headers_of(data))
    return records


def roll(log: PartitionLog) -> None:
    """Make sure that all so far lies in closed segments."""
    base = log.end_offset
    write(log, (f"filler {base} " + "x" * 700, None))
    write(log, (f"filler {base} " + "y" * 700, None))
    flush(log)
    assert log.end_offset == base + 2


def clean(
    log: PartitionLog,
    *,
    now: int = NOW,
    end: int | None = None,
    held: int | None = None,
    **asked: object,
) -> list[str] | None:
    """Clean in one go; returns the files that are left over, None if there was nothing to do."""
    request = CompactionRequest(
        now=TimestampMs(now),
        end_offset=log.end_offset if end is None else Offset(end),
        replicated_offset=log.end_offset if held is None else Offset(held),
        **asked,  # type: ignore[arg-type]
    )
    task = log.begin_compaction(request)
    if task is None:
        return None
    assert log.end_compaction(task, task.run())
    return log.take_stale_files()


def records_of(log: PartitionLog, start: int = 0) -> list[Record]:
    """All data records from `start` on, as a consumer sees them."""
    found = []
    for batch in log.batches(Offset(start)):
        if not read_header(batch).is_control:
            found += [record for record in read_records(batch) if record.offset >= start]
    return found


def producers_of(log: PartitionLog) -> dict[int, tuple[int, list[tuple[int, int, int, int]]]]:
    """What a table of producers built from the headers knows: epoch, and the last five batches."""
    table: dict[int, tuple[int, list[tuple[int, int, int, int]]]] = {}
    for header in log.headers(log.start_offset):
        if header.producer_id < 0:
            continue
        known = table.get(header.producer_id)
        if known is None or header.producer_epoch > known[0]:
            known = table[header.producer_id] = (header.producer_epoch, [])
        if not header.is_control:
            known[1].append(
                (
                    header.base_sequence,
                    header.last_sequence,
                    header.base_offset,
                    header.last_offset,
                )
            )
            del known[1][:-5]
    return table


def check_dense(log: PartitionLog) -> list[BatchHeader]:
    """Batches follow each other without gaps, epochs agree, none reaches over a control entry."""
    headers = list(log.headers(log.start_offset))
    barriers = {entry.offset for entry in log.controls()}
    for before, header in itertools.pairwise(headers):
        assert header.base_offset == before.next_offset
    for header in headers:
        assert log.epoch_at(max(header.base_offset, log.start_offset)) == header.leader_epoch
        assert log.epoch_at(header.last_offset) == header.leader_epoch
        inside = range(header.base_offset + 1, header.last_offset + 1)
        assert not barriers.intersection(inside)
    if headers:
        assert headers[-1].next_offset == log.end_offset
    return headers


def keys_at(log: PartitionLog) -> list[tuple[int, bytes | None]]:
    return [
        (record.offset, record.key)
        for record in records_of(log)
        if record.key is None or not record.key.startswith(b"filler")
    ]
