"""Reads committed records in pages, for HTTP and gRPC clients and queues.

Batches are decompressed and decoded in a thread, so that the event loop is not blocked.
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
"""Stored bytes per read; one batch may exceed it."""
PAGE_BYTES_MAX: Final = 4 * 1024 * 1024
"""Keys, values and headers of one page; its first record may exceed it."""
# Few compressed bytes can hold any number of records, which a filter may all skip. So a page also
# ends when it has decoded as much as the largest batch may hold.
_DECODED_BYTES_MAX: Final = BATCH_BYTES_MAX
_DECODED_RECORDS_MAX: Final = BATCH_RECORDS_MAX

# A small pool of its own: each thread may use as much memory as the limits above allow, and other
# work in threads does not wait for it.
_threads: Final = ThreadPoolExecutor(2, thread_name_prefix="read")

RecordFilter = Callable[[Record], bool]


class ReadPage(Struct, frozen=True, kw_only=True):
    """Records from an offset on, and where to continue."""

    records: list[Record]
    next_offset: int
    start_offset: int
    end_offset: int
    """The last stable offset."""
    bytes_decoded: int
    """Keys, values and headers of all records that were looked at, also of those left out."""


async def await_fetch(
    fetch: FetchService, requests: Sequence[PartitionFetch], bytes_max: int, wait_ms_max: int
) -> list[PartitionFetchResult]:
    """The results, as soon as one of them has data, or after the wait; both end with the caller."""
    ready: asyncio.Future[list[PartitionFetchResult]]
    ready = asyncio.get_running_loop().create_future()

    def on_ready(results: list[PartitionFetchResult]) -> None:
        if not ready.done():
            ready.set_result(results)

    parked = fetch.fetch(
        requests, bytes_min=1, bytes_max=bytes_max, wait_ms_max=wait_ms_max, on_ready=on_ready
    )
    try:
        return await ready
    finally:
        if parked is not None:
            parked.cancel()


async def read_page(
    fetch: FetchService,
    topic: str,
    partition: int,
    offset: int,
    *,
    limit: int,
    wants: RecordFilter | None = None,
    wait_ms_max: int = 0,
) -> ReadPage:
    """The next records of a partition that this broker leads. Raises RefusedError.

    A page may have fewer records than `limit`, or none, before the end: continue at `next_offset`.
    """
    request = PartitionFetch(topic, partition, Offset(offset), READ_BYTES_MAX, -1, True)
    (result,) = await await_fetch(fetch, [request], READ_BYTES_MAX, wait_ms_max)
    if result.error is not ErrorCode.NONE:
        raise _refusal(topic, partition, offset, result)
    records: list[Record] = []
    next_offset, decoded = offset, 0
    if result.size and result.data is not None:
        records, next_offset, decoded = await asyncio.get_running_loop().run_in_executor(
            _threads, _decode, result.data, result.aborted or (), offset, limit, wants
        )
    return ReadPage(
        records=records,
        next_offset=next_offset,
        start_offset=result.log_start_offset,
        end_offset=result.last_stable_offset,
        bytes_decoded=decoded,
    )


def offset_at(offsets: OffsetService, topic: str, partition: int, timestamp: int) -> int:
    """The first offset at or after a timestamp, or a special one. Raises RefusedError."""
    found = offsets.list_offset(topic, partition, timestamp, reads_committed=True)
    if found == NOT_FOUND:
        # All records are older: start at the end.
        found = offsets.list_offset(topic, partition, LATEST, reads_committed=True)
    return found.offset


def _refusal(topic: str, partition: int, offset: int, result: PartitionFetchResult) -> RefusedError:
    if result.error is ErrorCode.OFFSET_OUT_OF_RANGE:
        return RefusedError(
            result.error,
            f"Offset {offset} is out of range of {topic}-{partition}, which has "
            f"{result.log_start_offset} to {result.high_watermark}",
        )
    return RefusedError(
        result.error, f"{topic}-{partition} is temporarily unavailable on this broker"
    )


def _decode(
    data: FileSlice | bytes,
    aborted: Sequence[AbortedTransaction],
    offset: int,
    limit: int,
    wants: RecordFilter | None,
) -> tuple[list[Record], int, int]:
    """In a thread: the selected records, the offset after the last decoded one, and the bytes of
    all that were decoded."""
    found: list[Record] = []
    bytes_left = PAGE_BYTES_MAX
    decoded, records_to_decode = 0, _DECODED_RECORDS_MAX
    for header, batch in stored_batches(bytes_of(data), aborted):
        if batch is not None:
            try:
                records = open_batch(header, batch)
            except BatchFormatError as error:
                if found:
                    # Return the records before it; the next page raises.
                    return found, offset, decoded
                refusal = RefusedError(
                    ErrorCode.INVALID_RECORD,
                    f"The batch at offset {header.base_offset} cannot be decoded: {error}",
                )
                refusal.hint = f"continue at offset {header.next_offset}"
                raise refusal from None
            sizes = [bytes_in(record) for record in records]
            decoded += sum(sizes)
            records_to_decode -= len(records)
            for record, size in zip(records, sizes, strict=True):
                if record.offset < offset or not (wants is None or wants(record)):
                    continue
                bytes_left -= size
                if bytes_left < 0 and found:
                    return found, record.offset, decoded
                found.append(record)
                if len(found) == limit:
                    return found, record.offset + 1, decoded
        offset = max(offset, header.next_offset)
        if decoded >= _DECODED_BYTES_MAX or records_to_decode <= 0:
            break
    return found, offset, decoded
