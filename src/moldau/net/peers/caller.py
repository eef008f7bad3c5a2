"""The interface for RPCs to other brokers."""

from typing import Protocol

from moldau.model.ids import BrokerId


class PeerCaller(Protocol):
    """Calls a method of a peer, see `replica.transport`."""

    async def call(
        self, peer: BrokerId, method: int, payload: bytes, timeout_seconds: float
    ) -> bytes:
        """Raises RefusedError."""
        ...
