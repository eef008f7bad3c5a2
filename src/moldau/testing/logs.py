"""Helpers to build batches and use a log, for tests and simulations."""

from moldau.log.disk_log import read_slice
from moldau.log.interface import PartitionLog
from moldau.model.ids import Epoch, Offset, TimestampMs
from moldau.records.batch import BatchHeader, read_header
from moldau.records.record import Record, build_batch


def make_batch(
    base: int, *, count: int = 1, epoch: int = 1, value: bytes = b"v", time: int = 1000
) -> bytes:
    """A stamped batch of `count` records; record i has timestamp time + i."""
    records = [
        Record(Offset(base + i), TimestampMs(time + i), None, value, []) for i in range(count)
    ]
    return build_batch(records, base_offset=Offset(base), leader_epoch=Epoch(epoch))


def headers_of(data: bytes) -> list[BatchHeader]:
    headers = []
    position = 0
    while position < len(data):
        header = read_header(data, position)
        headers.append(header)
        position += header.size
    return headers


def append(
    log: PartitionLog,
    *,
    count: int = 1,
    epoch: int = 1,
    value: bytes = b"v",
    time: int = 1000,
) -> bytes:
    data = make_batch(log.end_offset, count=count, epoch=epoch, value=value, time=time)
    log.append(data, headers_of(data))
    return data


def flush(log: PartitionLog) -> None:
    task = log.begin_flush()
    if task is not None:
        task.run()
        log.end_flush(task)


def read_bytes(
    log: PartitionLog, offset: int, bytes_max: int = 1 << 20, end: int | None = None
) -> bytes:
    read = log.read(Offset(offset), bytes_max, log.end_offset if end is None else Offset(end))
    data = read_slice(read.data)
    if len(data) != read.size:
        raise AssertionError(f"read {len(data)} bytes, expected {read.size}")
    return data
