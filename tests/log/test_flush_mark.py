"""Flush marks are read as they were written, and never from other bytes."""

from hypothesis import given
from hypothesis import strategies as st

from moldau.log.flush_mark import HEADER_BYTES, SLOT_BYTES, FlushMark, decode_mark, encode_mark
from moldau.model.ids import Offset

numbers = st.integers(-(2**63), 2**63 - 1)
marks = st.builds(
    FlushMark,
    st.integers(0, 2**16 - 1),
    *[numbers] * 9,
    st.integers(0, 2**32 - 1),
)


def page(*slots: bytes) -> bytes:
    return b"".join(slot.ljust(SLOT_BYTES, b"\0") for slot in slots).ljust(HEADER_BYTES, b"\0")


@given(marks, marks)
def test_the_newest_mark_of_two_slots_is_read(first: FlushMark, second: FlushMark) -> None:
    second = second._replace(base_offset=first.base_offset)
    newest = second if second.sequence > first.sequence else first
    found, free = decode_mark(page(encode_mark(first), encode_mark(second)), first.base_offset)
    assert found == newest
    # The next one must not overwrite it.
    assert free == (0 if newest is second else SLOT_BYTES)


@given(marks, st.data())
def test_a_mark_with_any_changed_byte_is_not_read(mark: FlushMark, data: st.DataObject) -> None:
    encoded = bytearray(encode_mark(mark))
    place = data.draw(st.integers(0, len(encoded) - 1))
    encoded[place] ^= data.draw(st.integers(1, 255))
    assert decode_mark(page(bytes(encoded)), mark.base_offset) == (None, 0)


@given(st.binary(max_size=200), numbers.map(Offset))
def test_other_bytes_are_never_a_mark(data: bytes, base: Offset) -> None:
    assert decode_mark(page(data, data), base) == (None, 0)
