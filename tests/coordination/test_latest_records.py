"""Which records of a log count, also those that were written within transactions."""

import random

import pytest
from effort import seeds

from moldau.coordination.latest_records import LatestRecords
from moldau.model.errors import CorruptionError
from moldau.model.ids import Offset, TimestampMs
from moldau.records.batch import read_header
from moldau.records.record import Record, build_batch, read_records


class Log:
    """Batches one after the other, as the loader would read them."""

    def __init__(self) -> None:
        self.latest = LatestRecords()
        self.end = 0

    def _append(self, records: list[tuple[bytes | None, bytes | None]], **fields: object) -> None:
        batch = build_batch(
            [Record(Offset(0), TimestampMs(1), key, value, []) for key, value in records],
            base_offset=Offset(self.end),
            **fields,  # type: ignore[arg-type]
        )
        self.end += len(records)
        header = read_header(batch)
        for record in read_records(batch):
            self.latest.add(header, record)

    def write(self, key: bytes, value: bytes | None, producer: int = -1) -> None:
        if producer < 0:
            self._append([(key, value)])
        else:
            self._append([(key, value)], producer_id=producer, producer_epoch=3, transactional=True)

    def end_transaction(self, producer: int, *, commit: bool) -> None:
        key = b"\0\0\0\1" if commit else b"\0\0\0\0"
        fields = {"producer_id": producer, "producer_epoch": 3}
        self._append([(key, b"\0\0\0\0\0\0")], transactional=True, control=True, **fields)

    @property
    def items(self) -> dict[bytes, bytes]:
        return dict(self.latest.items())

    @property
    def pending(self) -> list[tuple[int, bytes, bytes | None]]:
        return [(one.producer_id, one.key, one.value) for one in self.latest.pending()]


def test_the_last_record_of_a_key_counts_and_a_deleted_key_does_not():
    log = Log()
    log.write(b"k", b"1")
    log.write(b"k", b"2")
    log.write(b"gone", b"1")
    log.write(b"gone", None)
    assert log.items == {b"k": b"2"}


def test_records_of_a_transaction_count_once_it_is_committed():
    log = Log()
    log.write(b"k", b"1")
    log.write(b"k", b"2", producer=7)
    assert log.items == {b"k": b"1"}
    assert log.pending == [(7, b"k", b"2")]
    log.end_transaction(7, commit=True)
    assert log.items == {b"k": b"2"}
    assert log.pending == []


def test_records_of_an_aborted_transaction_never_count():
    log = Log()
    log.write(b"k", b"1")
    log.write(b"k", b"2", producer=7)
    log.write(b"k", b"3", producer=8)
    log.end_transaction(7, commit=False)
    assert log.items == {b"k": b"1"}
    assert log.pending == [(8, b"k", b"3")]


@pytest.mark.parametrize("value", [b"later", None])
def test_a_later_record_wins_over_a_transaction_that_is_committed_after_it(value):
    log = Log()
    log.write(b"k", b"1", producer=7)
    log.write(b"k", value)
    log.end_transaction(7, commit=True)
    assert log.items == ({} if value is None else {b"k": value})


def test_of_two_transactions_the_later_record_wins_whichever_is_committed_last():
    log = Log()
    log.write(b"k", b"1", producer=7)
    log.write(b"k", b"2", producer=8)
    log.end_transaction(8, commit=True)
    log.end_transaction(7, commit=True)
    assert log.items == {b"k": b"2"}


def test_a_marker_without_a_type_is_corrupt():
    log = Log()
    with pytest.raises(CorruptionError):
        log._append([(b"\0", b"")], producer_id=7, producer_epoch=3, control=True)


@pytest.mark.parametrize("seed", seeds(20))
def test_it_comes_to_what_a_look_at_the_whole_log_would(seed):
    rng = random.Random(seed)
    log = Log()
    written: list[tuple[int, bytes, bytes | None, int]] = []
    outcomes: dict[int, bool] = {}
    transaction = {7: 100, 8: 200}
    for number in range(60):
        producer = rng.choice([-1, 7, 8])
        if producer >= 0 and rng.random() < 0.3:
            commit = rng.random() < 0.5
            outcomes[transaction[producer]] = commit
            transaction[producer] += 1
            log.end_transaction(producer, commit=commit)
            continue
        key = rng.choice([b"a", b"b", b"c"])
        value = rng.choice([None, b"%d" % number])
        log.write(key, value, producer)
        written.append((number, key, value, -1 if producer < 0 else transaction[producer]))
    expected: dict[bytes, bytes | None] = {}
    for _, key, value, inside in written:
        if inside < 0 or outcomes.get(inside):
            expected[key] = value
    assert log.items == {key: value for key, value in expected.items() if value is not None}
