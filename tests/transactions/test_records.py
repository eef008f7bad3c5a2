"""The bytes of `__transaction_state`."""

import struct
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.model.errors import CorruptionError
from moldau.model.ids import PartitionIndex, ProducerEpoch, ProducerId, TimestampMs, TopicPartition
from moldau.records.kafka_types import tagged_fields_bytes
from moldau.transactions.records import (
    StoredTransaction,
    TransactionRecord,
    TransactionState,
    decode,
    encode,
)

_epochs = st.integers(-1, 2**15 - 1)
_ids = st.integers(-1, 2**63 - 1)
stored_transactions = st.builds(
    StoredTransaction,
    producer_id=_ids,
    producer_epoch=_epochs,
    last_epoch=_epochs,
    previous_producer_id=_ids,
    next_producer_id=_ids,
    timeout_ms=st.integers(0, 2**31 - 1),
    state=st.sampled_from(TransactionState),
    partitions=st.frozensets(
        st.builds(
            TopicPartition,
            st.text(min_size=1, max_size=20),
            st.integers(0, 2**31 - 1).map(PartitionIndex),
        )
    ),
    started_at=_ids,
    updated_at=_ids,
    client_version=st.integers(0, 2),
)


@given(st.text(min_size=1), st.none() | stored_transactions)
def test_what_is_written_is_read(name, value):
    record = TransactionRecord(transactional_id=name, value=value)
    assert decode(*encode(record)) == record


PARTITIONS = [TopicPartition("ab", PartitionIndex(index)) for index in (0, 1)]


def test_the_bytes_are_those_of_kafka():
    value = StoredTransaction(
        producer_id=ProducerId(7),
        producer_epoch=ProducerEpoch(3),
        next_producer_id=ProducerId(9),
        timeout_ms=60_000,
        state=TransactionState.PREPARE_COMMIT,
        partitions=frozenset(PARTITIONS),
        started_at=TimestampMs(5),
        updated_at=TimestampMs(6),
        client_version=2,
    )
    key, data = encode(TransactionRecord(transactional_id="me", value=value))
    assert key == bytes.fromhex("0000 0002 6d65")
    assert data == bytes.fromhex(
        "0001 0000000000000007 0003 0000ea60 02"  # version, id, epoch, timeout, status
        "02 03 6162 03 00000000 00000001 00"  # one topic, its name, two partitions, no tags
        "0000000000000006 0000000000000005"  # last update, start
        "02 01 08 0000000000000009 02 02 0002"  # next producer id, client's version
    )


def test_the_oldest_version_is_read():
    value = struct.pack(">hqhib", 0, 7, 3, 60_000, 1)
    value += struct.pack(">ih2siii", 1, 2, b"ab", 2, 0, 1) + struct.pack(">qq", 6, 5)
    record: Any = decode(b"\0\0\0\2me", value)
    assert record.value.partitions == set(PARTITIONS)
    assert record.value.state is TransactionState.ONGOING
    assert (record.value.updated_at, record.value.started_at) == (6, 5)


def test_no_partitions_may_be_null():
    value = struct.pack(">hqhibi", 0, 7, 3, 60_000, 0, -1) + struct.pack(">qq", 6, -1)
    record: Any = decode(b"\0\0\0\2me", value)
    assert record.value.partitions == frozenset()


def test_keys_of_another_kind_are_skipped():
    assert decode(b"\0\1\0\2me", b"whatever") is None


@given(st.binary(max_size=64), st.none() | st.binary(max_size=128))
def test_arbitrary_bytes_are_read_or_refused_as_corrupt(key, value):
    with suppress(CorruptionError):
        decode(key, value)


@given(st.text(min_size=1, max_size=5), stored_transactions, st.data())
def test_a_value_that_was_cut_is_corrupt(name, value, data):
    key, whole = encode(TransactionRecord(transactional_id=name, value=value))
    assert whole is not None
    cut = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(CorruptionError):
        decode(key, whole[:cut])


def test_an_unknown_state_is_corrupt():
    with pytest.raises(CorruptionError, match="state 6"):
        decode(b"\0\0\0\2me", struct.pack(">hqhibi", 0, 7, 3, 60_000, 6, -1) + bytes(16))


@pytest.mark.parametrize(("tag", "size"), [(0, 9), (1, 7), (2, 1), (10_000, 8)])
def test_a_tagged_number_of_another_size_is_corrupt(tag: int, size: int) -> None:
    value = StoredTransaction(
        producer_id=ProducerId(7),
        producer_epoch=ProducerEpoch(3),
        timeout_ms=1,
        state=TransactionState.EMPTY,
        updated_at=TimestampMs(6),
    )
    key, data = encode(TransactionRecord(transactional_id="me", value=value))
    assert data is not None
    with pytest.raises(CorruptionError, match=f"{size} bytes in its field {tag}"):
        decode(key, data[:-1] + tagged_fields_bytes([(tag, bytes(size))]))
