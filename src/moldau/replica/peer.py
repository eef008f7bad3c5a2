"""Owns what is on its way to one peer: messages of all groups, gathered into frames."""

from typing import Final

from moldau.model.ids import BrokerId
from moldau.model.slices import Chunk
from moldau.net.peers.frames import FrameKind
from moldau.net.peers.link import PeerLink
from moldau.raft.events import SendAppend, SendSnapshot
from moldau.replica.peer_heartbeat import PeerHeartbeat
from moldau.replica.raft_group import RaftGroup

FRAME_BYTES_TARGET: Final = 1024 * 1024
"""A frame is closed once it holds this much."""
_WAITING_BYTES_MAX: Final = 8 * 1024 * 1024


class Peer:
    """One other broker."""

    __slots__ = (
        "_chunks",
        "_size",
        "beat",
        "cold",
        "dropped_total",
        "id",
        "is_ended",
        "link",
        "reading",
        "sliced",
        "waiting",
        "warm",
    )

    def __init__(self, broker: BrokerId, link: PeerLink, beat: PeerHeartbeat) -> None:
        self.id = broker
        self.link = link
        self.beat = beat
        self.waiting: dict[RaftGroup, SendAppend | SendSnapshot] = {}
        """Bulk that goes out when the link has room; never more than one of a group."""
        self.cold: dict[RaftGroup, SendAppend] = {}
        """Bulk that a thread reads first (cold_sends.py); it does not wait at the same time."""
        self.reading: set[RaftGroup] = set()
        """Groups for which a thread reads now."""
        self.warm: dict[RaftGroup, SendAppend] = {}
        """Of what waits, that which was read."""
        self.sliced: set[RaftGroup] = set()
        """Groups of which slices of files were sent on this connection."""
        self.is_ended = False
        """Its process is gone, as far as can be told."""
        self._chunks: list[Chunk] = []
        self._size = 0
        self.dropped_total = 0

    def ask(self, group: RaftGroup, bulk: SendAppend | SendSnapshot) -> None:
        """Send it when there is room, instead of what else the group has; groups take turns."""
        self.forget(group)
        self.waiting[group] = bulk

    def forget(self, group: RaftGroup) -> None:
        """What the group has for this peer is not to be sent any more."""
        self.waiting.pop(group, None)
        if self.cold:
            self.cold.pop(group, None)
        if self.warm:
            self.warm.pop(group, None)

    def post(self, data: bytes) -> None:
        """A small message, sent at the end of this turn of the loop."""
        if not self.link.is_connected or self._size > _WAITING_BYTES_MAX:
            # Nobody waits for ever for an answer: all of them are asked again.
            self.dropped_total += 1
            return
        self._chunks.append(data)
        self._size += len(data)

    def post_bulk(self, chunks: list[Chunk], size: int) -> None:
        """Only when the link has room."""
        self._chunks += chunks
        self._size += size
        if self._size >= FRAME_BYTES_TARGET:
            self.flush()

    def flush(self) -> None:
        """Hand everything to the link, as one frame."""
        if self._chunks:
            chunks, self._chunks, self._size = self._chunks, [], 0
            if not self.link.send(FrameKind.RAFT, chunks):
                self.dropped_total += 1

    def drop(self) -> None:
        """The link is lost."""
        self._chunks, self._size = [], 0
        self.waiting.clear()
        self.cold.clear()
        self.warm.clear()
        self.sliced.clear()
