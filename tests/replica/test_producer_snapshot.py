"""Snapshots of producers are read again, and other bytes are corrupt."""

from contextlib import suppress

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.model.errors import CorruptionError
from moldau.replica.producer_snapshot import decode_producers, encode_producers

numbers = st.integers(0, 2**62)
batches = st.tuples(st.integers(0, 2**31 - 1), st.integers(0, 2**31 - 1), numbers, numbers, numbers)
rows = st.tuples(numbers, st.integers(0, 2**15 - 1), numbers, st.lists(batches, max_size=5))


@given(st.lists(rows, max_size=5, unique_by=lambda row: row[0]))
def test_a_table_stays_the_same_when_it_is_stored_again(found) -> None:
    # As versions without transactions stored it.
    once = encode_producers(decode_producers(msgspec.msgpack.encode((1, found))))
    assert encode_producers(decode_producers(once)) == once
    assert len(msgspec.msgpack.decode(once)[1][0]) == len(found)


@given(st.binary(max_size=60))
def test_other_bytes_are_corrupt(data: bytes) -> None:
    with suppress(CorruptionError):
        decode_producers(data)


@pytest.mark.parametrize("version", [0, 9, -1])
def test_an_unknown_version_is_corrupt(version: int) -> None:
    with pytest.raises(CorruptionError, match="version"):
        decode_producers(msgspec.msgpack.encode((version, [])))
