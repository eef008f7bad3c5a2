"""Replies of a connection that are not sent yet."""

from collections.abc import Callable, Sequence
from typing import Protocol

from moldau.model.slices import Chunk


class ReplyOrder(Protocol):
    """Sends replies in the order of their requests: a connection."""

    def reply_completed(self) -> None: ...


class DeferredReply:
    """A reply that is completed later, or waits for earlier ones; it keeps its position."""

    __slots__ = ("_connection", "chunks", "held_bytes", "on_abandoned")

    def __init__(self, connection: ReplyOrder, held_bytes: int) -> None:
        self._connection = connection
        self.held_bytes = held_bytes
        """Counted as in flight until it is sent: the request's size, or that of a ready reply."""
        self.chunks: Sequence[Chunk] | None = None
        self.on_abandoned: Callable[[], None] | None = None
        """Called instead of a reply when the connection closes first."""

    def complete(self, chunks: Sequence[Chunk]) -> None:
        """Set the reply; an empty sequence means that none is sent."""
        if self.chunks is None:
            self.chunks = chunks
            self.on_abandoned = None
            self._connection.reply_completed()
