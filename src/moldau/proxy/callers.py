"""The client for which a call is made: its credentials, and clients that use them."""

import hashlib
from functools import cached_property

from moldau.client.queue.rpc import RpcClient
from moldau.client.queue.settler import Settler


class Caller:
    """Whom a call is made for. The proxy adds no rights of its own."""

    def __init__(self, rpc: RpcClient, authorization: str) -> None:
        self._rpc = rpc
        self._authorization = authorization

    @cached_property
    def rpc(self) -> RpcClient:
        return self._rpc.as_caller(self._authorization)

    @property
    def settler(self) -> Settler:
        return Settler(self.rpc, settled_counts_as_done=False)

    @cached_property
    def key(self) -> bytes:
        """Equal for the same credentials; does not contain them."""
        return hashlib.sha256(self._authorization.encode()).digest()
