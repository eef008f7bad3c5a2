"""Owns how stored batches become records for doors that show them: committed ones only, a bounded
lot at a time.

Batches are decompressed and taken apart in a thread: clients of the broker do not wait for it.
"""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from msgspec import Struct

from moldau.data.fetch import FetchService, PartitionFetch, PartitionFetchResult
from moldau.data.offsets import LATEST, NOT_FOUND, OffsetService
from moldau.data.stored_batches import (
    BATCH_BYTES_MAX,
    BATCH_RECORDS_MAX,
    bytes_in,
    bytes_of,
    open_batch,
    stored_batches,
)
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import Offset
from moldau.model.slices import FileSlice
from moldau.records.batch import BatchFormatError
from moldau.records.record import Record
from moldau.replica.aborted_transactions import AbortedTransaction

READ_BYTES_MAX: Final = 1024 * 1024
"""Of stored bytes at once; one batch may exceed it."""
PAGE_BYTES_MAX: Final = 4 * 1024 * 1024
"""Of keys, values and headers in one page; its first record may exceed it."""
# What compresses well makes any amount of work out of few stored bytes, also where a filter wants
# none of it. So a page also ends when it has looked at as much as one batch may hold.
_LOOKED_AT_BYTES_MAX: Final = BATCH_BYTES_MAX
_LOOKED_AT_RECORDS_MAX: Final = BATCH_RECORDS_MAX

# Few threads of their own: each may take as much memory as the bounds above allow, and nobody else
# who works in a thread has to wait for them.
_threads: Final = ThreadPoolExecutor(2, thread_name_prefix="read")

Wants = Callable[[Record], bool]


class ReadPage(Struct, frozen=True, kw_only=True):
    """Records from one place on, and where to go on."""

    records: list[Record]
    next_offset: int
    start_offset: int
    end_offset: int
    """Records at and above it are not committed yet, or of an open transaction."""


async def read_page(
    fetch: FetchService,
    topic: str,
    partition: int,
    offset: int,
    *,
    limit: int,
    wants: Wants | None = None,
    wait_ms_max: int = 0,
) -> ReadPage:
    """The next records of a partition that is led here. Raises RefusedError.

    Less than `limit`, or none, says nothing: `next_offset` moves on past what was not wanted.
    """
    request = PartitionFetch(topic, partition, Offset(offset), READ_BYTES_MAX, -1, True)
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[list[PartitionFetchResult]] = loop.create_future()

    def on_ready(results: list[PartitionFetchResult]) -> None:
        if not ready.done():
            ready.set_result(results)

    parked = fetch.fetch(
        (request,),
        bytes_min=1,
        bytes_max=READ_BYTES_MAX,
        wait_ms_max=wait_ms_max,
        on_ready=on_ready,
    )
    try:
        (result,) = await ready
    finally:
        if parked is not None:
            parked.cancel()
    if result.error is not ErrorCode.NONE:
        raise _refusal(topic, partition, offset, result)
    records: list[Record] = []
    next_offset = offset
    if result.size and result.data is not None:
        records, next_offset = await loop.run_in_executor(
            _threads, _decode, result.data, result.aborted or (), offset, limit, wants
        )
    return ReadPage(
        records=records,
        next_offset=next_offset,
        start_offset=result.log_start_offset,
        end_offset=result.last_stable_offset,
    )


def offset_at(offsets: OffsetService, topic: str, partition: int, place: int) -> int:
    """Where a time begins, or one of the special places. Raises RefusedError."""
    found = offsets.list_offset(topic, partition, place, reads_committed=True)
    if found == NOT_FOUND:
        # All records are older: what comes next is the first that is not.
        found = offsets.list_offset(topic, partition, LATEST, reads_committed=True)
    return found.offset


def _refusal(topic: str, partition: int, offset: int, result: PartitionFetchResult) -> RefusedError:
    if result.error is ErrorCode.OFFSET_OUT_OF_RANGE:
        return RefusedError(
            result.error,
            f"Offset {offset} is not in {topic}-{partition}, which has "
            f"{result.log_start_offset} to {result.high_watermark}",
        )
    return RefusedError(result.error, f"{topic}-{partition} cannot be read here now")


def _decode(
    data: FileSlice | bytes,
    aborted: Sequence[AbortedTransaction],
    offset: int,
    limit: int,
    wants: Wants | None,
) -> tuple[list[Record], int]:
    """In a thread: the wanted records, and the offset after the last that was looked at."""
    found: list[Record] = []
    bytes_left = PAGE_BYTES_MAX
    bytes_to_look_at, records_to_look_at = _LOOKED_AT_BYTES_MAX, _LOOKED_AT_RECORDS_MAX
    for header, batch in stored_batches(bytes_of(data), aborted):
        if batch is not None:
            try:
                records = open_batch(header, batch)
            except BatchFormatError as error:
                if found:
                    # What comes before it is good: the next question meets it first.
                    return found, offset
                refusal = RefusedError(
                    ErrorCode.INVALID_RECORD,
                    f"The batch at offset {header.base_offset} cannot be shown: {error}",
                )
                refusal.hint = f"go on at offset {header.next_offset}"
                raise refusal from None
            bytes_to_look_at -= sum(len(record.value or b"") for record in records)
            records_to_look_at -= len(records)
            for record in records:
                if record.offset < offset or not (wants is None or wants(record)):
                    continue
                bytes_left -= bytes_in(record)
                if bytes_left < 0 and found:
                    return found, record.offset
                found.append(record)
                if len(found) == limit:
                    return found, record.offset + 1
        offset = max(offset, header.next_offset)
        if bytes_to_look_at <= 0 or records_to_look_at <= 0:
            break
    return found, offset
