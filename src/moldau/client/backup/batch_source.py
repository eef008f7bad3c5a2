"""Reads a partition's batches from the brokers as they are stored, by offset, without a gap."""

from collections.abc import Iterator
from typing import Final

from moldau.client.errors import ClientError, RejectedError
from moldau.client.wire.client import OFFSET_EARLIEST, KafkaClient
from moldau.model.errors import ErrorCode
from moldau.model.ids import Offset
from moldau.records.batch import HEADER_BYTES, BatchFormatError, BatchHeader, read_header
from moldau.records.compact import is_filler, split_empty

FETCH_BYTES: Final = 4 * 1024 * 1024
_TRIES_MAX: Final = 20

StoredBatch = tuple[BatchHeader, bytes]


class StartMovedError(ClientError):
    """Records that were to be read are deleted: retention, or a trim. `start` is the new one."""

    def __init__(self, start: int) -> None:
        super().__init__(f"the log begins at offset {start} now")
        self.start = start


def stored_batches(
    client: KafkaClient,
    topic: str,
    partition: int,
    start: int,
    end: int,
    *,
    bytes_max: int = FETCH_BYTES,
) -> Iterator[StoredBatch]:
    """All batches with offsets from `start` to before `end`, all of which are committed.

    The first may begin before `start`. Batches are as compaction leaves them: it may divide or
    merge only those without records, of which parts are returned. Each fetch returns about
    `bytes_max`, and at least a batch. Raises StartMovedError.
    """
    is_first = True
    tries = 0
    while start < end:
        try:
            data = client.fetch(topic, partition, start, bytes_max=bytes_max)
        except RejectedError as error:
            if error.code != ErrorCode.OFFSET_OUT_OF_RANGE:
                raise
            begin = client.list_offset(topic, partition, OFFSET_EARLIEST)
            if begin <= start:
                raise ClientError(
                    f"{topic}-{partition} has lost offsets that were committed: it ends before "
                    f"offset {start}"
                ) from None
            raise StartMovedError(begin) from None
        position = 0
        before = start
        while position + HEADER_BYTES <= len(data) and start < end:
            try:
                header = read_header(data, position)
            except BatchFormatError as error:
                raise ClientError(f"{topic}-{partition} at offset {start}: {error}") from None
            if position + header.size > len(data):
                break
            batch = data[position : position + header.size]
            position += header.size
            if header.next_offset <= start:
                continue
            header, batch = _cut(header, batch, start, end)
            if header.base_offset != start and not (is_first and header.base_offset < start):
                raise ClientError(
                    f"{topic}-{partition}: the batch after offset {start - 1} begins at "
                    f"{header.base_offset}"
                )
            is_first = False
            yield header, batch
            start = header.next_offset
        tries = 0 if start > before else tries + 1
        if tries > _TRIES_MAX:
            raise ClientError(f"{topic}-{partition} returns no records from offset {start} on")


def _cut(header: BatchHeader, batch: bytes, start: int, end: int) -> StoredBatch:
    """The part of a filler that is wanted; another batch is left whole."""
    if is_filler(header):
        if header.base_offset < start:
            batch = split_empty(header, Offset(start))[1]
            header = read_header(batch)
        if header.next_offset > end:
            batch = split_empty(header, Offset(end))[0]
            header = read_header(batch)
    return header, batch
