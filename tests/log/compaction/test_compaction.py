"""Compaction of random histories against a model, on all kinds of logs."""

import random
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from compacting import (
    CONFIG,
    NOW,
    check_dense,
    clean,
    open_log,
    producers_of,
    records_of,
    write,
)

from moldau.log.compaction.run import remove_files
from moldau.log.disk_log import DiskLog, open_disk_log
from moldau.log.interface import ControlKind, PartitionLog
from moldau.model.ids import (
    Epoch,
    Offset,
    TimestampMs,
)
from moldau.records.batch import read_header
from moldau.records.compression import Codec
from moldau.records.record import Record, read_records
from moldau.testing.logs import flush, read_bytes

CASES = [(kind, seed) for kind in ("memory", "simulated disk") for seed in range(10)]
CASES += [("disk", 0), ("disk", 1)]


@dataclass
class History:
    """What was ever written."""

    records: list[Record] = field(default_factory=list)
    sequences: dict[int, tuple[int, int]] = field(default_factory=dict)
    epoch: int = 1
    time: int = 1000

    def last_values(self, start: int) -> dict[bytes, bytes]:
        """Of the keys that were not deleted, by a tombstone or with all before `start`."""
        last = {record.key: record for record in self.records}
        return {
            key: record.value
            for key, record in last.items()
            if key is not None and record.value is not None and record.offset >= start
        }


def write_some(log: PartitionLog, history: History, rng: random.Random, keys: int) -> None:
    if rng.random() < 0.1:
        history.epoch += 1
        log.append_control(Epoch(history.epoch), ControlKind.NOOP, b"")
    elif rng.random() < 0.1:
        log.append_control(Epoch(history.epoch), ControlKind.MEMBERSHIP, b"m")
    pairs = [
        (
            f"key-{rng.randrange(keys)}",
            None if rng.random() < 0.2 else "v" * rng.choice((1, 5, 90, 200)),
        )
        for _ in range(rng.choice((1, 1, 2, 5)))
    ]
    producer = (-1, -1, -1)
    if rng.random() < 0.5:
        name = rng.randrange(3)
        epoch, sequence = history.sequences.get(name, (0, 0))
        if rng.random() < 0.1:
            epoch, sequence = epoch + 1, 0
        producer = (name, epoch, sequence)
        history.sequences[name] = (epoch, sequence + len(pairs))
    history.time += rng.randrange(5)
    codec = rng.choice(list(Codec)) if rng.random() < 0.4 else Codec.NONE
    history.records += write(
        log, *pairs, epoch=history.epoch, time=history.time, codec=codec, producer=producer
    )


def check(log: PartitionLog, history: History, dropped_before: set[Offset]) -> set[Offset]:
    """The log against its history; returns the offsets that are gone."""
    check_dense(log)
    start = log.start_offset
    found = records_of(log, start)
    written = {record.offset: record for record in history.records if record.offset >= start}
    # Offsets and contents never change, and the order stays.
    assert [record.offset for record in found] == sorted(record.offset for record in found)
    for record in found:
        assert record == written[record.offset]
    gone = set(written) - {record.offset for record in found}
    assert gone >= {offset for offset in dropped_before if offset >= start}
    # Every key's last value is there.
    values: dict[bytes, bytes | None] = {}
    for record in found:
        assert record.key is not None
        values[record.key] = record.value
    assert {key: value for key, value in values.items() if value is not None} == (
        history.last_values(start)
    )
    return gone


def check_reads(log: PartitionLog, rng: random.Random) -> None:
    """From every offset a consumer gets what filtering the whole log gives."""
    everything = records_of(log, log.start_offset)
    for start in range(log.start_offset, log.end_offset, rng.choice((1, 3, 7))):
        expected = [record for record in everything if record.offset >= start]
        got: list[Record] = []
        offset = start
        while offset < log.end_offset:
            data = read_bytes(log, offset, bytes_max=rng.choice((1, 150, 2000)))
            position = 0
            while position < len(data):
                header = read_header(data, position)
                got += read_records(data[position : position + header.size])
                position += header.size
                assert header.next_offset > offset
                offset = header.next_offset
        assert [record for record in got if record.offset >= start] == expected


@pytest.mark.parametrize(("kind", "seed"), CASES)
@pytest.mark.parametrize("merges", [True, False])
def test_random_histories_keep_the_last_value_of_every_key(
    kind: str, seed: int, merges: bool, tmp_path: Path
) -> None:
    rng = random.Random(seed)
    log = open_log(kind, tmp_path)
    history = History()
    gone: set[Offset] = set()
    now = NOW
    for _ in range(rng.choice((20, 70))):
        if rng.random() < 0.03:
            flush(log)
            log.delete_before(Offset(rng.randint(log.start_offset, log.end_offset)))
        if rng.random() < 0.15:
            now = TimestampMs(now + rng.choice((1, 60, 200)))
            flush(log)
            before = producers_of(log)
            offsets = range(log.start_offset, log.end_offset)
            epochs = [log.epoch_at(Offset(offset)) for offset in offsets]
            indexes = [log.index_of(Offset(offset)) for offset in offsets]
            left = clean(
                log,
                now=now,
                end=rng.randint(0, log.end_offset),
                merges=merges,
                map_bytes_max=rng.choice((1, 1 << 20)),
            )
            gone = check(log, history, gone)
            assert producers_of(log) == before
            assert epochs == [log.epoch_at(Offset(offset)) for offset in offsets]
            assert indexes == [log.index_of(Offset(offset)) for offset in offsets]
            if left and isinstance(log, DiskLog):
                remove_files(log.files, left)
        write_some(log, history, rng, keys=rng.choice((3, 30)))
    check(log, history, gone)
    check_reads(log, rng)
    if isinstance(log, DiskLog):
        log.close()
        again = open_disk_log(log.files, "log", CONFIG)
        assert list(again.batches(again.start_offset)) == list(log.batches(log.start_offset))
