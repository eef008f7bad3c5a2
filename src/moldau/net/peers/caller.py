"""The interface for RPCs to other brokers, and the decoding of their requests."""

from collections.abc import Callable
from typing import Protocol, TypeVar

from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import BrokerId
from moldau.model.malformed import MALFORMED

T = TypeVar("T")


class PeerCaller(Protocol):
    """Calls a method of a peer, see `replica.transport`."""

    async def call(
        self, peer: BrokerId, method: int, payload: bytes, timeout_seconds: float
    ) -> bytes:
        """Raises RefusedError."""
        ...


def decode_request(decode: Callable[[bytes], T], payload: bytes) -> T:
    """Raises RefusedError."""
    try:
        return decode(payload)
    except MALFORMED as error:
        raise RefusedError(
            ErrorCode.INVALID_REQUEST, f"invalid request of another broker: {error}"
        ) from None
