"""The markers of transactions are Kafka's, byte for byte."""

import struct

import pytest
from aiokafka.record.default_records import DefaultRecordBatch

from moldau.model.ids import Offset, ProducerEpoch, ProducerId, TimestampMs
from moldau.records.batch import BatchFormatError, crc_matches, read_header
from moldau.records.compact import emptied_batch
from moldau.records.control import EndMarker, build_end_marker, read_end_marker
from moldau.records.record import Record, build_batch

NOW = TimestampMs(1_700_000_000_123)


def marker(is_commit: bool, coordinator_epoch: int = 7) -> bytes:
    return build_end_marker(
        ProducerId(4711), ProducerEpoch(3), EndMarker(is_commit, coordinator_epoch), NOW
    )


def control(key: bytes | None, value: bytes | None) -> bytes:
    return build_batch(
        [Record(Offset(0), NOW, key, value, [])],
        producer_id=ProducerId(1),
        producer_epoch=ProducerEpoch(0),
        transactional=True,
        control=True,
    )


@pytest.mark.parametrize(("is_commit", "kind"), [(False, 0), (True, 1)])
def test_a_marker_is_laid_out_as_kafka_lays_it_out(is_commit: bool, kind: int) -> None:
    batch = marker(is_commit)
    after_crc = struct.pack(
        ">hiqqqhii",
        0x30,  # transactional, control
        0,
        NOW,
        NOW,
        4711,
        3,
        -1,
        1,
    ) + bytes.fromhex(f"20 00 00 00 08 0000 {kind:04x} 0c 0000 00000007 00")
    assert batch[21:] == after_crc
    assert batch[:17] == struct.pack(">qiib", 0, len(batch) - 12, -1, 2)
    header = read_header(batch)
    assert crc_matches(batch, 0, header.size, header.crc)


@pytest.mark.parametrize("is_commit", [False, True])
def test_a_client_reads_the_marker_as_what_it_is(is_commit: bool) -> None:
    batch = DefaultRecordBatch(bytearray(marker(is_commit)))
    assert (batch.is_control_batch, batch.is_transactional) == (True, True)
    (record,) = list(batch)
    assert struct.unpack(">hh", record.key) == (0, is_commit)


@pytest.mark.parametrize("is_commit", [False, True])
@pytest.mark.parametrize("coordinator_epoch", [-1, 0, 2**31 - 1])
def test_a_marker_is_read_back(is_commit: bool, coordinator_epoch: int) -> None:
    batch = b"before" + marker(is_commit, coordinator_epoch) + b"after"
    assert read_end_marker(batch, 6) == EndMarker(is_commit, coordinator_epoch)
    assert read_end_marker(memoryview(batch), 6) == EndMarker(is_commit, coordinator_epoch)


def test_a_later_version_that_says_more_is_still_understood() -> None:
    key, value = struct.pack(">hhi", 1, 1, 99), struct.pack(">hiq", 1, 5, 99)
    assert read_end_marker(control(key, value)) == EndMarker(True, 5)


def test_a_control_batch_that_ends_no_transaction_is_passed_over() -> None:
    assert read_end_marker(control(struct.pack(">hh", 0, 2), struct.pack(">hi", 0, 5))) is None
    assert read_end_marker(emptied_batch(read_header(marker(True)))) is None


@pytest.mark.parametrize("batch", [control(None, b""), control(b"\0\0\0", b"")])
def test_a_control_record_without_a_type_is_damage(batch: bytes) -> None:
    with pytest.raises(BatchFormatError):
        read_end_marker(batch)


def test_a_batch_of_records_is_no_marker() -> None:
    plain = build_batch([Record(Offset(0), NOW, b"\0\0\0\1", b"\0\0\0\0\0\1", [])])
    with pytest.raises(BatchFormatError):
        read_end_marker(plain)
