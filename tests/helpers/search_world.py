"""Owns partitions of stored batches, leaders that search them, and what a search has to find."""

import random
from collections.abc import Sequence
from typing import Final, NamedTuple

from moldau.data.search.filters import Matcher, SearchFilter
from moldau.data.search.scan import Scan, Stored
from moldau.data.search.types import Piece, PieceWanted, SearchWanted
from moldau.metadata.image import Topic
from moldau.model.ids import Epoch, Offset, ProducerEpoch, ProducerId, TimestampMs
from moldau.records.batch import read_header
from moldau.records.compact import empty_batch, keep_records, scan_records
from moldau.records.compression import Codec
from moldau.records.control import EndMarker, build_end_marker
from moldau.records.record import Headers, Record, build_batch, open_body, read_records
from moldau.replica.aborted_transactions import AbortedTransaction
from moldau.testing.replicas import ManualClock

HEADERS: Final[list[Headers]] = [[], [], [("h", b"1")], [("h", None), ("g", b"2")]]


class Expected(NamedTuple):
    """A message that the model finds."""

    partition: int
    offset: int


class StoredPartition:
    """Batches as a log holds them."""

    def __init__(self) -> None:
        self.batches: list[bytes] = []
        self.aborted: list[AbortedTransaction] = []
        self.start = self.end = 0

    def grow(self, rng: random.Random, batches: int) -> None:
        """Random batches: any codec, times, gaps, tombstones, transactions."""
        for _ in range(batches):
            kind = rng.random()
            if kind < 0.1:
                self._add(
                    empty_batch(Offset(0), Offset(rng.randint(1, 3)), Epoch(1), TimestampMs(5))
                )
            elif kind < 0.25:
                self._transaction(rng)
            else:
                self._add(self._records(rng))

    def grow_evenly(self, *, step: int) -> None:
        """Twenty messages whose times ascend."""
        for first in range(0, 20, 4):
            times = [TimestampMs((first + number) * step) for number in range(4)]
            self._add(build_batch([Record(Offset(0), time, None, b"", []) for time in times]))

    def _add(self, batch: bytes) -> None:
        header = read_header(batch)
        moved = bytearray(batch)
        moved[0:8] = self.end.to_bytes(8, "big")
        self.batches.append(bytes(moved))
        self.end += header.last_offset_delta + 1

    def _records(self, rng: random.Random, producer: int = -1) -> bytes:
        now = self.end * 10 + rng.choice((0, 0, 0, -200, 300))
        records = [
            Record(
                Offset(0),
                TimestampMs(max(0, now + rng.randint(-5, 5))),
                rng.choice((None, b"a", b"b", b"key")),
                rng.choice((None, b"", b"needle", b"hay", b'{"a": {"b": [1, 2]}}', b"x" * 200)),
                rng.choice(HEADERS),
            )
            for _ in range(rng.randint(1, 6))
        ]
        batch = build_batch(
            records,
            codec=rng.choice(list(Codec)),
            append_time=TimestampMs(now + 1000) if rng.random() < 0.1 else None,
            producer_id=ProducerId(producer),
            producer_epoch=ProducerEpoch(0 if producer >= 0 else -1),
            base_sequence=0 if producer >= 0 else -1,
            transactional=producer >= 0,
        )
        if len(records) > 1 and rng.random() < 0.3:
            header = read_header(batch)
            body = open_body(batch, header)
            kept = sorted(rng.sample(range(len(records)), rng.randint(1, len(records) - 1)))
            batch = keep_records(header, body, scan_records(body, header), kept)
        return batch

    def _transaction(self, rng: random.Random) -> None:
        producer, first = rng.randint(1, 3), self.end
        for _ in range(rng.randint(1, 2)):
            self._add(self._records(rng, producer))
        is_commit = rng.random() < 0.5
        marker = EndMarker(is_commit, 0)
        time = TimestampMs(self.end * 10)
        last = self.end
        self._add(build_end_marker(ProducerId(producer), ProducerEpoch(0), marker, time))
        if not is_commit:
            self.aborted.append(
                AbortedTransaction(ProducerId(producer), Offset(first), Offset(last), Offset(last))
            )

    def visible(self, *, markers: bool) -> list[list[Record]]:
        """The records of each batch that a reader sees."""
        found = []
        for batch in self.batches:
            header = read_header(batch)
            aborted = any(
                span.producer_id == header.producer_id
                and span.first <= header.base_offset <= span.last
                for span in self.aborted
            )
            if header.is_control:
                if markers:
                    found.append(read_records(batch))
            elif header.record_count and not (header.is_transactional and aborted):
                found.append(read_records(batch))
        return found


def ranked(
    partition: StoredPartition, wanted: SearchFilter, end: int, *, newest: bool
) -> list[tuple[int, int]]:
    """Rank and offset of all matches below `end`, in the order of their partition."""
    matcher = Matcher(wanted)
    reached: int | None = None
    found: list[tuple[int, int]] = []
    batches = partition.visible(markers=wanted.shows_markers)
    headers = {
        record.offset: read_header(batch)
        for batch in partition.batches
        for record in read_records(batch)
    }
    for records in reversed(batches) if newest else batches:
        header = headers[records[0].offset]
        for record in reversed(records) if newest else records:
            if not partition.start <= record.offset < end:
                continue
            if header.is_control or matcher.matches(record):
                rank: int = record.timestamp
                if reached is not None:
                    rank = min(rank, reached) if newest else max(rank, reached)
                found.append((rank, record.offset))
        if header.base_offset >= end or header.next_offset <= partition.start:
            continue
        if newest:
            time: int = header.max_timestamp
            reached = time if reached is None else min(reached, time)
        else:
            time = header.max_timestamp if header.is_append_time else header.base_timestamp
            reached = time if reached is None else max(reached, time)
    return found


def merged(
    partitions: Sequence[StoredPartition],
    wanted: SearchFilter,
    ends: Sequence[int],
    *,
    newest: bool,
) -> list[Expected]:
    """All that a search has to find, in order: of all heads, always the first."""
    heads = [
        ranked(partition, wanted, end, newest=newest)
        for partition, end in zip(partitions, ends, strict=True)
    ]
    found = []
    while any(heads):
        choices = [
            ((-head[0][0], -at) if newest else (head[0][0], at), at)
            for at, head in enumerate(heads)
            if head
        ]
        _, at = min(choices)
        found.append(Expected(at, heads[at].pop(0)[1]))
    return found


class StoredLeaders:
    """Leaders that search as little as they want at once."""

    def __init__(
        self, partitions: Sequence[StoredPartition], rng: random.Random, clock: ManualClock
    ) -> None:
        self.partitions = partitions
        self.rng = rng
        self.clock = clock

    async def search(
        self, topic: Topic, wanted: SearchWanted, pieces: Sequence[PieceWanted]
    ) -> list[Piece]:
        found = []
        # Some pages end for want of time.
        self.clock.steady += self.rng.choice((0.0, 0.0, 0.2, 1.0))
        for number, each in enumerate(pieces):
            if each.position is None or not number or self.rng.random() < 0.6:
                found.append(self._piece(wanted, each))
        return found

    def _piece(self, wanted: SearchWanted, each: PieceWanted) -> Piece:
        partition = self.partitions[each.partition]
        position, stop = each.position, each.stop
        gone = 0
        if position is None:
            position, stop = partition.start, partition.end
            if wanted.newest:
                position, stop = stop, position
        if wanted.newest:
            gone = max(0, min(partition.start, position) - stop)
            stop = max(stop, partition.start)
        else:
            gone = max(0, min(partition.start, stop) - position)
            position = max(position, partition.start)
        calls = self.rng.randint(1, 4)

        def is_over() -> bool:
            nonlocal calls
            calls -= 1
            return calls <= 0

        scan = Scan(
            Matcher(wanted.wanted),
            newest=wanted.newest,
            position=position,
            stop=stop,
            reached=each.reached,
            limit=each.limit,
            bytes_max=self.rng.choice((1, 300, 1 << 20)),
            value_max=wanted.value_max,
            is_over=is_over,
        )
        if scan.run(Stored(b"".join(partition.batches), partition.aborted)):
            scan.position = stop
        return Piece(
            partition=each.partition,
            begin=position,
            position=scan.position,
            start=partition.start,
            stop=stop,
            reached=scan.reached,
            hits=scan.hits,
            bytes_searched=scan.bytes_searched,
            bytes_read=scan.bytes_read,
            unreadable=scan.unreadable,
            gone=gone,
        )
