"""Unsigned varints at their edges."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.model.errors import PeerProtocolError
from moldau.wire.varint import read_tags_end, read_uvarint, write_uvarint


@given(st.integers(0, 0xFFFFFFFF))
def test_what_is_written_is_read(value: int) -> None:
    data = write_uvarint(value)
    assert read_uvarint(memoryview(b"x" + data + b"y"), 1) == (value, 1 + len(data))


@pytest.mark.parametrize(
    ("value", "data"),
    [(0, b"\0"), (127, b"\x7f"), (128, b"\x80\x01"), (0xFFFFFFFF, b"\xff\xff\xff\xff\x0f")],
)
def test_known_encodings(value: int, data: bytes) -> None:
    assert write_uvarint(value) == data


@pytest.mark.parametrize("data", [b"\xff\xff\xff\xff\x10", b"\x80" * 5 + b"\0", b"\xff" * 10])
def test_more_than_32_bits_or_five_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(PeerProtocolError):
        read_uvarint(memoryview(data), 0)


def test_too_large_a_number_is_not_written() -> None:
    with pytest.raises(ValueError, match="32 bits"):
        write_uvarint(1 << 32)


def test_a_section_of_tags_is_skipped() -> None:
    assert read_tags_end(memoryview(b"\0rest"), 0) == 1
    assert read_tags_end(memoryview(b"\x01\x07\x02abrest"), 0) == 5


def test_a_tag_longer_than_the_data_is_refused() -> None:
    with pytest.raises(PeerProtocolError):
        read_tags_end(memoryview(b"\x01\x07\x09ab"), 0)
