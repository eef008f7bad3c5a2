"""All that msgspec raises for bytes that are not a message is one group of errors."""

import msgspec
import pytest

from moldau.model.malformed import MALFORMED


@pytest.mark.parametrize(
    "data", [b"", b"\xa1\xff", b"\x81\xa1\xff\x00", b"\x01", b"\x91" * 100_000, b"\xc1"]
)
def test_bytes_that_are_no_message(data: bytes) -> None:
    with pytest.raises(MALFORMED):
        msgspec.msgpack.decode(data, type=dict[str, list[str]])
    with pytest.raises(MALFORMED):
        msgspec.json.decode(b'"' + data, type=str)
