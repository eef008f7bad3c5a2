"""Transactions in a compacted log: what a replica knows of producers is the same as before."""

import random
from pathlib import Path

import pytest
from compacting import check_dense, open_log
from effort import seeds

from moldau.log.compaction.job import AbortedRange, CompactionRequest
from moldau.log.interface import PartitionLog
from moldau.model.ids import Epoch, Offset, ProducerEpoch, ProducerId, TimestampMs
from moldau.records.batch import BatchHeader, read_header, stamp
from moldau.records.control import EndMarker, build_end_marker, read_end_marker
from moldau.records.record import Record, build_batch, read_records
from moldau.replica.producers import ProducerTable
from moldau.testing.logs import flush, headers_of

NOW = TimestampMs(10_000)
PRODUCERS = 4


class History:
    """Transactions of a few producers, interleaved, some of them aborted, some left open."""

    def __init__(self, log: PartitionLog, rng: random.Random) -> None:
        self.log = log
        self.rng = rng
        self.states = [(0, 0) for _ in range(PRODUCERS)]
        """Epoch and next sequence."""
        self.open: dict[int, list[Record]] = {}
        self.committed: list[Record] = []

    def step(self) -> None:
        producer = self.rng.randrange(PRODUCERS)
        epoch, sequence = self.states[producer]
        if producer in self.open and self.rng.random() < 0.4:
            self._end(producer, is_commit=self.rng.random() < 0.5)
            if self.rng.random() < 0.3:
                self.states[producer] = (epoch + 1, 0)
            return
        records = [
            Record(
                Offset(self.log.end_offset + place),
                TimestampMs(1000),
                b"key-%d" % self.rng.randrange(5),
                self.rng.choice((None, self.rng.randbytes(80), b"v")),
                [],
            )
            for place in range(self.rng.choice((1, 2)))
        ]
        is_plain = producer == 0
        data = build_batch(
            records,
            base_offset=self.log.end_offset,
            leader_epoch=Epoch(1),
            producer_id=ProducerId(producer),
            producer_epoch=ProducerEpoch(epoch),
            base_sequence=sequence,
            transactional=not is_plain,
        )
        self.log.append(data, headers_of(data))
        self.states[producer] = (epoch, sequence + len(records))
        if is_plain:
            self.committed += records
        else:
            self.open.setdefault(producer, []).extend(records)

    def _end(self, producer: int, *, is_commit: bool) -> None:
        epoch = ProducerEpoch(self.states[producer][0])
        marker = EndMarker(is_commit, 3)
        data = bytearray(build_end_marker(ProducerId(producer), epoch, marker, TimestampMs(1000)))
        stamp(data, 0, self.log.end_offset, 1)
        self.log.append(bytes(data), headers_of(bytes(data)))
        records = self.open.pop(producer)
        if is_commit:
            self.committed += records

    def last_values(self, below: int) -> dict[bytes | None, bytes | None]:
        """By offset, as a consumer of committed records sees it, below the first open one."""
        found = sorted(record for record in self.committed if record.offset < below)
        values = {record.key: record.value for record in found}
        return {key: value for key, value in values.items() if value is not None}


def table_of(log: PartitionLog) -> ProducerTable:
    """As a replica builds it at a start without a snapshot."""

    def read_marker(header: BatchHeader) -> EndMarker | None:
        return read_end_marker(next(log.batches(header.base_offset)))

    table = ProducerTable()
    table.replay(log.headers(log.start_offset), NOW, read_marker)
    table.settle(log.end_offset)
    return table


def facts(table: ProducerTable) -> dict[int, object]:
    return {
        producer: (state.epoch, state.first, [batch[:4] for batch in state.batches])
        for producer, state in table
    }


def committed_values(log: PartitionLog, table: ProducerTable) -> dict[bytes | None, bytes | None]:
    """What a client that asks for committed records ends up with."""
    end = log.end_offset if table.first_unstable is None else table.first_unstable
    values: dict[bytes | None, bytes | None] = {}
    aborted = table.aborted.all()
    for batch in log.batches(log.start_offset):
        header = read_header(batch)
        if header.base_offset >= end:
            break
        if header.is_control or any(
            header.is_transactional
            and span.producer_id == header.producer_id
            and span.first <= header.base_offset <= span.last
            for span in aborted
        ):
            continue
        for record in read_records(batch):
            values[record.key] = record.value
    return {key: value for key, value in values.items() if value is not None}


@pytest.mark.parametrize("kind", ["memory", "simulated disk"])
@pytest.mark.parametrize("seed", seeds(8))
def test_producers_and_committed_values_are_the_same_after_any_compaction(
    kind: str, seed: int, tmp_path: Path
) -> None:
    rng = random.Random(seed)
    log = open_log(kind, tmp_path)
    history = History(log, rng)
    live = table_of(log)
    now = NOW
    cleanings = 0
    for _ in range(150):
        end = log.end_offset
        history.step()
        for batch in log.batches(end):
            header = read_header(batch)
            live.appended(header, NOW, read_end_marker(batch) if header.is_control else None)
        live.settle(log.end_offset)
        if rng.random() > 0.1:
            continue
        flush(log)
        now = TimestampMs(now + rng.choice((1, 60, 150)))
        task = log.begin_compaction(
            CompactionRequest(
                now=now,
                end_offset=log.end_offset,
                replicated_offset=log.end_offset,
                first_unstable=live.first_unstable,
                aborted=[AbortedRange(*span[:3]) for span in live.aborted.all()],
                producers=[producer for producer, _ in live],
            )
        )
        if task is not None:
            assert log.end_compaction(task, task.run())
            cleanings += 1
        check_dense(log)
        rebuilt = table_of(log)
        assert facts(rebuilt) == facts(live)
        assert rebuilt.first_unstable == live.first_unstable
        stable = log.end_offset if live.first_unstable is None else live.first_unstable
        for table in (rebuilt, live):
            assert committed_values(log, table) == history.last_values(stable)
    assert cleanings > 3
