"""Requests of other brokers that cannot be decoded are refused."""

import msgspec
import pytest

from moldau.model.errors import ErrorCode, RefusedError
from moldau.net.peers.caller import decode_request


@pytest.mark.parametrize("payload", [b"", b"\xa1\xff", b"\x05"])
def test_a_payload_that_is_no_text_is_refused(payload: bytes) -> None:
    with pytest.raises(RefusedError) as refused:
        decode_request(msgspec.msgpack.Decoder(str).decode, payload)
    assert refused.value.code == ErrorCode.INVALID_REQUEST
