"""What a broker asks the leader of a partition for in a search, and what it gets.

They go between brokers as MessagePack arrays: append fields only.
"""

from typing import Final

from msgspec import Struct

from moldau.data.search.filters import SearchFilter

RECORD: Final = 0
COMMIT: Final = 1
ABORT: Final = 2


class Hit(Struct, frozen=True, array_like=True):
    """A message that matches."""

    offset: int
    timestamp: int
    rank: int
    """Its place in the merge: its timestamp, but never beyond those of batches that come before it
    in this direction."""
    reached: int | None
    """The rank up to its batch: with it, a search goes on at this message."""
    key: bytes | None
    value: bytes | None
    """Its start, if it is cut."""
    headers: list[tuple[bytes, bytes | None]]
    kind: int
    value_bytes: int
    is_cut: bool
    size: int
    """Bytes of all this."""


class Unreadable(Struct, frozen=True, array_like=True):
    """Messages that were left out: they cannot be decoded, or are too large for it."""

    first: int
    last: int
    reason: str


class Start(Struct, frozen=True, array_like=True):
    """Where a search begins in each partition; neither: at the end, or at the start."""

    offset: int | None = None
    time: int | None = None


class PieceWanted(Struct, frozen=True, array_like=True):
    """The next piece of a search through one partition."""

    partition: int
    position: int | None
    """Newest first: all below it are left. Oldest first: all from it on. None: from the start of
    the search, which the leader finds."""
    stop: int
    """Newest first: the start of the log as it was; oldest first: where the search ends."""
    reached: int | None
    """The rank of the batches that were searched; None: there was none."""
    limit: int


class SearchWanted(Struct, frozen=True, array_like=True):
    topic: str
    topic_id: bytes
    newest: bool
    start: Start
    wanted: SearchFilter
    value_max: int
    bytes_max: int
    """Of all hits."""
    budget_ms: int
    pieces: list[PieceWanted]
    """In the order of their importance: for the last ones there may be no time."""


class Piece(Struct, frozen=True, array_like=True):
    """What was searched of a partition."""

    partition: int
    begin: int
    """Where it began: the position wanted, or what the leader found."""
    position: int
    """Where it goes on."""
    start: int
    """The start of the log by now."""
    stop: int
    reached: int | None
    hits: list[Hit]
    bytes_searched: int
    """As stored."""
    bytes_read: int
    """Decompressed, of batches that were opened."""
    unreadable: list[Unreadable]
    gone: int = 0
    """Messages that retention removed before they were searched."""
    error: int = 0
    """Nothing was searched."""
    message: str = ""
