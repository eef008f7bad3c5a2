"""Owns a partition in memory that hands out its batches, and what a backup has of it."""

from typing import Any

from moldau.client.backup.manifests import PartitionCopy
from moldau.client.backup.stores import DirectoryStore
from moldau.client.backup.verify import backup_batches
from moldau.client.errors import RejectedError
from moldau.client.wire.client import OFFSET_EARLIEST, OFFSET_LATEST, KafkaClient
from moldau.model.errors import ErrorCode
from moldau.model.ids import Offset, ProducerEpoch, ProducerId, TimestampMs
from moldau.records.batch import read_header, stamp
from moldau.records.control import EndMarker, build_end_marker
from moldau.records.record import Record, build_batch

TIME = TimestampMs(1)


class Log(KafkaClient):
    """A partition in memory; a fetch returns `limit` batches.

    It stands for a client, and has no connections.
    """

    def __init__(self, start: int = 0) -> None:
        self.batches: list[bytes] = []
        self.start = self.end = start
        self.limit = 2
        self.fetched: list[int] = []
        """From where; without single batches, by which the log is known again."""

    def close(self) -> None:
        pass

    def add(self, batch: bytes) -> None:
        data = bytearray(batch)
        stamp(data, 0, self.end, 1)
        self.batches.append(bytes(data))
        self.end = read_header(data).next_offset

    def write(self, count: int = 1, producer: int = -1) -> None:
        record = Record(Offset(0), TIME, b"k", b"v%d" % self.end, [])
        options: dict[str, Any] = {}
        if producer >= 0:
            options = {
                "producer_id": ProducerId(producer),
                "producer_epoch": ProducerEpoch(0),
                "base_sequence": 0,
                "transactional": True,
            }
        self.add(build_batch([record] * count, **options))

    def mark(self, producer: int, *, is_commit: bool = True) -> None:
        marker = EndMarker(is_commit, 0)
        self.add(build_end_marker(ProducerId(producer), ProducerEpoch(0), marker, TIME))

    def fetch(
        self,
        topic: str,
        partition: int,
        offset: int,
        *,
        wait_ms_max: int = 500,
        bytes_max: int = 1 << 20,
        read_committed: bool = False,
    ) -> bytes:
        if bytes_max > 1:
            self.fetched.append(offset)
        if offset < self.start or offset > self.end:
            raise RejectedError("out of range", ErrorCode.OFFSET_OUT_OF_RANGE)
        found = [each for each in self.batches if read_header(each).next_offset > offset]
        return b"".join(found[: self.limit])

    def list_offset(
        self,
        topic: str,
        partition: int,
        timestamp: int = OFFSET_LATEST,
        *,
        read_committed: bool = False,
    ) -> int:
        return self.start if timestamp == OFFSET_EARLIEST else self.end


def stored(store: DirectoryStore, made: PartitionCopy) -> list[bytes]:
    return [batch for _, batch in backup_batches(store, made)]
