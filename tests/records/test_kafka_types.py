"""Kafka's primitive types are read as they were written, and nothing beyond the end is read."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.model.errors import CorruptionError
from moldau.records.kafka_types import (
    Reader,
    blob_bytes,
    compact_array,
    compact_bytes,
    compact_string,
    string_bytes,
    tagged_fields_bytes,
)

texts = st.none() | st.text(max_size=200)
tags = st.dictionaries(st.integers(0, 2**31 - 1), st.binary(max_size=200), max_size=5)


@given(texts, st.binary(max_size=300))
def test_fixed_lengths(text: str | None, data: bytes) -> None:
    reader = Reader(string_bytes(text) + blob_bytes(data))
    assert reader.nullable_string() == text
    assert reader.blob() == data
    assert reader.is_at_end


@given(texts, st.binary(max_size=300), st.lists(st.text(max_size=9)), tags)
def test_flexible_lengths(
    text: str | None, data: bytes, items: list[str], fields: dict[int, bytes]
) -> None:
    reader = Reader(
        compact_string(text)
        + compact_bytes(data)
        + compact_array(compact_string(item) for item in items)
        + tagged_fields_bytes(list(fields.items()))
    )
    reader.flexible = True
    assert reader.nullable_string() == text
    assert reader.blob() == data
    assert [reader.string() for _ in range(reader.array_length())] == items
    assert reader.tagged_fields() == fields
    assert reader.is_at_end


@given(st.binary(max_size=40), st.booleans())
def test_other_bytes_are_refused_or_read(data: bytes, flexible: bool) -> None:
    for read in ("nullable_string", "blob", "nullable_blob", "array_length", "tagged_fields"):
        reader = Reader(data)
        reader.flexible = flexible
        with suppress(CorruptionError):
            getattr(reader, read)()


@pytest.mark.parametrize("flexible", [False, True])
def test_an_array_that_claims_more_than_is_there_is_refused(flexible: bool) -> None:
    reader = Reader(b"\x7f\xff\xff\xff" + bytes(4))
    reader.flexible = flexible
    with pytest.raises(CorruptionError):
        reader.array_length()
