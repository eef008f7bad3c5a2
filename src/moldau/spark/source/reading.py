"""Responsible for what a task does: the records of its ranges as Arrow batches of a good size."""

import contextlib
import ctypes
import functools
import gc
from collections.abc import Iterable, Iterator
from typing import Any, Final

import pyarrow as pa

from moldau.client.kafka.client import KafkaClient
from moldau.records.batch import BatchFormatError
from moldau.spark.hints import hints_told
from moldau.spark.source.cluster import client_for
from moldau.spark.source.decoding import record_batch
from moldau.spark.source.fetching import RangesFetcher, damaged
from moldau.spark.source.planning import OffsetRange
from moldau.spark.source.read_options import ReadOptions

ROWS_MIN: Final = 10_000
BYTES_MIN: Final = 1024 * 1024
"""What is smaller than both is held back and joined with what follows: a batch costs Spark about
as much as some thousand rows."""
ROWS_MAX: Final = 50_000
KEPT_BYTES_MAX: Final = 32 * 1024 * 1024
"""Of memory that was freed, for the next buffers; glibc takes no larger number."""
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3

_clients: Final[dict[tuple[object, ...], KafkaClient]] = {}


def read_ranges(options: ReadOptions, ranges: Iterable[OffsetRange]) -> Iterator[Any]:
    """The rows of some ranges, as pyarrow.RecordBatch. Raises ClientError."""
    settle_once()
    held: list[Any] = []
    row_count = size = 0
    with hints_told():
        for rows in _rows(options, tuple(ranges)):
            held.append(rows)
            row_count += rows.num_rows
            size += rows.get_total_buffer_size()
            if row_count >= ROWS_MIN or size >= BYTES_MIN:
                yield from _joined(held)
                held.clear()
                row_count = size = 0
        yield from _joined(held)


def _rows(options: ReadOptions, ranges: tuple[OffsetRange, ...]) -> Iterator[Any]:
    """As they are fetched; never an empty batch."""
    # Connections outlive a task, as Spark's worker processes do: small batches are the rule.
    key = (options.bootstrap, options.security, options.client_id, options.timeout_seconds)
    client = _clients.get(key) or _clients.setdefault(key, client_for(options))
    for planned, found in RangesFetcher(client, ranges, options):
        try:
            rows = record_batch(
                found,
                topic=planned.topic,
                partition=planned.partition,
                end=planned.end,
                include_headers=options.include_headers,
            )
        except BatchFormatError as error:
            raise damaged(planned, found.start, error) from error
        if rows.num_rows:
            yield rows


def _joined(held: list[Any]) -> Iterator[Any]:
    """One batch, or several where a batch of tiny records would have too many rows."""
    # More than one of them where bytes are too many for one column.
    wholes = held if len(held) < 2 else pa.Table.from_batches(held).combine_chunks().to_batches()
    for whole in wholes:
        for first in range(0, whole.num_rows, ROWS_MAX):
            yield whole.slice(first, ROWS_MAX)


@functools.cache
def settle_once() -> None:
    """Make a worker of Spark one that reads: it lives long, and handles buffers of megabytes."""
    # Workers collect garbage after every task: spare them what was imported for good.
    gc.freeze()
    # Buffers are freed and taken again at once. By default their memory goes back to the system
    # each time, and getting it anew takes longer than to decode what goes into it.
    with contextlib.suppress(AttributeError, OSError):  # Only glibc has it, and needs it.
        for setting in (_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD):
            ctypes.CDLL(None).mallopt(setting, KEPT_BYTES_MAX)
