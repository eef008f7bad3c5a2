"""Brokers announce the partitions they lead, and their in-sync replicas, to all other brokers.

Only changes are sent. Once a second each peer reports its version; a peer that missed an
announcement, or restarted, gets all entries. The result is a hint, good enough to answer Metadata
requests on any broker.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final, NamedTuple

import msgspec

from moldau.metadata.image import Image
from moldau.metadata.leaders import Leader, LeaderAnnouncement, Leaders
from moldau.model.errors import RefusedError
from moldau.model.ids import BrokerId, Epoch, PartitionIndex, TopicId
from moldau.model.limits import PARTITIONS_PER_TOPIC_MAX
from moldau.model.malformed import MALFORMED
from moldau.net.peers.caller import PeerCaller, decode_request
from moldau.net.peers.methods import PeerMethod

log = logging.getLogger(__name__)

_ANNOUNCE_SECONDS = 1.0
_GATHER_SECONDS = 0.005
_CALL_SECONDS_MAX = 5.0
_ENTRIES_PER_CALL_MAX = 10_000

Key = tuple[TopicId, PartitionIndex]


class LedPartition(NamedTuple):
    topic_id: bytes
    partition: int
    epoch: int
    in_sync: tuple[int, ...]


class _Announcement(msgspec.Struct, frozen=True, array_like=True):
    """One announcement. `base`: the version that the receiver must have."""

    session: int
    base: int
    version: int
    led: list[LedPartition]


_decode: Final = msgspec.msgpack.Decoder(_Announcement).decode


class LeaderAnnouncements:
    """The partitions that this broker leads, and the leaders announced by others."""

    def __init__(
        self,
        *,
        me: BrokerId,
        session: int,
        caller: PeerCaller,
        peers: Callable[[], Iterable[BrokerId]],
    ) -> None:
        """`session` is unique per start; `peers` returns the connected brokers."""
        self._me = me
        self._session = session
        self._caller = caller
        self._peers = peers
        self._mine: dict[Key, tuple[int, LedPartition]] = {}
        self._version = 0
        self._known: dict[BrokerId, int] = {}
        self._received: dict[BrokerId, tuple[int, int]] = {}
        self._announcing: dict[BrokerId, asyncio.Task[None]] = {}
        self._news = asyncio.Event()
        self.leaders = Leaders()
        self._in_sync: dict[Key, tuple[Leader, tuple[BrokerId, ...]]] = {}
        self._topics: Mapping[TopicId, object] = {}
        self.on_news: Callable[[], None] = lambda: None
        self.changes = 0
        """Rises when leaders or in-sync replicas may have changed."""
        self.on_elected: Callable[[Key, BrokerId], None] = lambda key, leader: None
        """Called when another broker than before leads a partition."""

    # ---- partitions led by this broker

    def lead(self, key: Key, epoch: Epoch, in_sync: tuple[BrokerId, ...]) -> None:
        """This broker leads a partition, with these replicas in sync."""
        known = self._mine.get(key)
        # The usual case, every few seconds for each partition: without an object.
        if known is not None and known[1].epoch == epoch and known[1].in_sync == in_sync:
            return
        led = LedPartition(key[0], key[1], epoch, in_sync)
        self._version += 1
        self._mine[key] = (self._version, led)
        self._note(self._me, (led,))
        self._news.set()

    def unlead(self, key: Key) -> None:
        """This broker no longer leads it. The next leader announces itself."""
        self._mine.pop(key, None)
        self.changes += 1

    def remove_deleted_topics(self, image: Image) -> None:
        """Remove topics that were deleted since the last image."""
        topics = image.topics_by_id
        before, self._topics = self._topics, topics
        if before is topics or before.keys() <= topics.keys():
            return
        self.leaders = self.leaders.restricted_to(image)
        deleted = [key for key in self._in_sync if key[0] not in topics]
        for key in deleted:
            del self._in_sync[key]
            self._mine.pop(key, None)
        if any(key[0] not in before for key in deleted):
            # Perhaps a topic that is not in this image yet: request all announcements again.
            self._received.clear()

    def in_sync(self, key: Key, leader: Leader) -> tuple[BrokerId, ...]:
        """The in-sync replicas, if announced by that leader."""
        announced_by, brokers = self._in_sync.get(key, (None, ()))
        return brokers if announced_by == leader else ()

    # ---- sending and receiving

    async def run(self) -> None:
        """Until cancelled."""
        try:
            while True:
                try:
                    async with asyncio.timeout(_ANNOUNCE_SECONDS):
                        await self._news.wait()
                    # Elections come in groups: send them together.
                    await asyncio.sleep(_GATHER_SECONDS)
                    self._news.clear()
                except TimeoutError:
                    pass
                for peer in self._peers():
                    if peer not in self._announcing:
                        task = asyncio.create_task(self._announce(peer))
                        self._announcing[peer] = task
                        task.add_done_callback(partial(self._announced, peer))
        finally:
            for task in list(self._announcing.values()):
                task.cancel()

    def _announced(self, peer: BrokerId, task: asyncio.Task[None]) -> None:
        del self._announcing[peer]

    async def _announce(self, peer: BrokerId) -> None:
        while True:
            base = self._known.get(peer, 0)
            news = sorted(
                (entry for entry in self._mine.values() if entry[0] > base),
                key=lambda entry: entry[0],
            )
            part = news[:_ENTRIES_PER_CALL_MAX]
            version = part[-1][0] if len(part) < len(news) else self._version
            announcement = _Announcement(self._session, base, version, [led for _, led in part])
            try:
                reply = await self._caller.call(
                    peer,
                    PeerMethod.ANNOUNCE_LEADERS,
                    msgspec.msgpack.encode(announcement),
                    _CALL_SECONDS_MAX,
                )
                self._known[peer] = msgspec.msgpack.decode(reply, type=int)
            except (RefusedError, *MALFORMED) as error:
                log.debug("announcing leaders to broker %d failed, retrying: %s", peer, error)
                return
            if self._known[peer] >= self._version:
                return

    async def on_announcement(self, sender: BrokerId, payload: bytes) -> bytes:
        """Handle an announcement. Returns the version that this broker has of the sender."""
        announcement = decode_request(_decode, payload)
        session, version = self._received.get(sender, (announcement.session, 0))
        if session != announcement.session:
            version = 0
        if announcement.base <= version:
            self._note(sender, announcement.led)
            version = (
                max(version, announcement.version) if announcement.base else announcement.version
            )
        self._received[sender] = (announcement.session, version)
        return msgspec.msgpack.encode(version)

    def _note(self, sender: BrokerId, led: Iterable[LedPartition]) -> None:
        announcements = []
        for entry in led:
            if not 0 <= entry.partition < PARTITIONS_PER_TOPIC_MAX:
                continue
            key = (TopicId(entry.topic_id), PartitionIndex(entry.partition))
            leader = Leader(sender, Epoch(entry.epoch))
            announcements.append(LeaderAnnouncement(*key, leader))
            known = self._in_sync.get(key)
            if known is None or known[0].epoch <= leader.epoch:
                self._in_sync[key] = (leader, tuple(BrokerId(b) for b in entry.in_sync))
                if known is not None and known[0].broker != sender:
                    self.on_elected(key, sender)
        self.changes += len(announcements)
        before, self.leaders = self.leaders, self.leaders.announced(announcements)
        if self.leaders is not before:
            self.on_news()
