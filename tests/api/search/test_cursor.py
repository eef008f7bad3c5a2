"""Cursors: what comes back is what was given, and nothing else is taken."""

import base64
from typing import Any

import msgspec
import pytest
from effort import EXAMPLES
from hypothesis import given, settings
from hypothesis import strategies as st

from moldau.api.search.cursor import decode_cursor, encode_cursor
from moldau.api.search.merge import Row
from moldau.model.errors import ErrorCode, RefusedError

ID, ASKED = b"i" * 16, b"a" * 12
LONG_MAX = (1 << 63) - 1


def packed(*fields: Any) -> str:
    return base64.urlsafe_b64encode(msgspec.msgpack.encode(fields)).rstrip(b"=").decode()


def refused(text: str, *, newest: bool = True) -> RefusedError:
    with pytest.raises(RefusedError) as error:
        decode_cursor(text, ID, ASKED, 8, newest=newest)
    assert error.value.code is ErrorCode.INVALID_REQUEST
    assert error.value.hint
    return error.value


def test_rows_come_back() -> None:
    rows = [Row(0, 5, 0, None), Row(7, LONG_MAX, 3, -(1 << 63))]
    text = encode_cursor(ID, ASKED, rows)
    assert decode_cursor(text, ID, ASKED, 8, newest=True) == rows


@pytest.mark.parametrize(
    "text",
    [
        "",
        "%",
        "ü",
        "AAAA",
        "A" * 40_000,
        packed(),
        packed(2, ID, ASKED, [(0, 5, 0, None)]),
        packed(1, b"x" * 16, ASKED, [(0, 5, 0, None)]),
        packed(1, ID, b"x", [(0, 5, 0, None)]),
        packed(1, ID, ASKED, []),
        packed(1, ID, ASKED, [(0, 5, 0)]),
        packed(1, ID, ASKED, [(8, 5, 0, None)]),
        packed(1, ID, ASKED, [(-1, 5, 0, None)]),
        packed(1, ID, ASKED, [(1, 5, 0, None), (1, 5, 0, None)]),
        packed(1, ID, ASKED, [(1, 5, 0, None), (0, 5, 0, None)]),
        packed(1, ID, ASKED, [(0, 5, 5, None)]),
        packed(1, ID, ASKED, [(0, 5, -1, None)]),
        packed(1, ID, ASKED, [(0, 1 << 63, 0, None)]),
        packed(1, ID, ASKED, [(0, 5, 0, 1 << 63)]),
        packed(1, ID, ASKED, [(0, "5", 0, None)]),
        packed(1, ID, ASKED, [(0, 5, 0, None)], 1),
    ],
)
def test_nothing_else_is_taken(text: str) -> None:
    refused(text)


def test_a_cursor_of_the_other_direction_is_not_taken() -> None:
    refused(packed(1, ID, ASKED, [(0, 5, 0, None)]), newest=False)


@settings(max_examples=EXAMPLES * 4)
@given(st.binary(max_size=200))
def test_any_bytes_are_refused(data: bytes) -> None:
    refused(base64.urlsafe_b64encode(data).rstrip(b"=").decode())
