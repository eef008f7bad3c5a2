"""The send queue to one peer: messages of all groups, collected into frames."""

from moldau.model.ids import BrokerId
from moldau.model.slices import Chunk
from moldau.net.peers.frames import FrameKind
from moldau.net.peers.link import PeerLink
from moldau.raft.events import SendAppend, SendSnapshot
from moldau.replica.peer_heartbeat import PeerHeartbeat
from moldau.replica.raft_group import RaftGroup

FRAME_BYTES_TARGET = 1024 * 1024
"""A frame is closed once it holds this much."""
_WAITING_BYTES_MAX = 8 * 1024 * 1024


class Peer:
    """The send queue to one other broker."""

    def __init__(self, broker: BrokerId, link: PeerLink, heartbeat: PeerHeartbeat) -> None:
        self.id = broker
        self.link = link
        self.heartbeat = heartbeat
        self.waiting: dict[RaftGroup, SendAppend | SendSnapshot] = {}
        """Bulk to send when the link has room; at most one per group."""
        self.cold: dict[RaftGroup, SendAppend] = {}
        """Bulk that a thread prefetches first (cold_sends.py); not in `waiting` meanwhile."""
        self.reading: set[RaftGroup] = set()
        """Groups for which a prefetch runs."""
        self.warm: dict[RaftGroup, SendAppend] = {}
        """The part of `waiting` that was prefetched."""
        self.sliced: set[RaftGroup] = set()
        """Groups whose file slices were sent on this connection."""
        self.has_exited = False
        """Its process has exited, as far as known."""
        self._chunks: list[Chunk] = []
        self._size = 0

    def send_later(self, group: RaftGroup, bulk: SendAppend | SendSnapshot) -> None:
        """Send it when there is room; replaces the group's earlier bulk. Groups take turns."""
        self.forget(group)
        self.waiting[group] = bulk

    def forget(self, group: RaftGroup) -> None:
        """Drop what the group has queued for this peer."""
        self.waiting.pop(group, None)
        if self.cold:
            self.cold.pop(group, None)
        if self.warm:
            self.warm.pop(group, None)

    def post(self, data: bytes) -> None:
        """Queue a small message, sent at the end of this loop turn."""
        if not self.link.is_connected or self._size > _WAITING_BYTES_MAX:
            # Safe to drop: Raft repeats every request that gets no response.
            return
        self._chunks.append(data)
        self._size += len(data)

    def post_bulk(self, chunks: list[Chunk], size: int) -> None:
        """Queue bulk; call only when the link has room."""
        self._chunks += chunks
        self._size += size
        if self._size >= FRAME_BYTES_TARGET:
            self.flush()

    def flush(self) -> None:
        """Hand everything to the link, as one frame."""
        if self._chunks:
            chunks, self._chunks, self._size = self._chunks, [], 0
            self.link.send(FrameKind.RAFT, chunks)

    def drop(self) -> None:
        """The link is lost."""
        self._chunks, self._size = [], 0
        self.waiting.clear()
        self.cold.clear()
        self.warm.clear()
        self.sliced.clear()
