"""Owns how brokers learn who leads what: each tells all others what it leads, and who is in sync.

What is led changes a few entries at a time, and a peer is told only those. Once a second each peer
is asked which version it has; one that missed something, or was started anew, is told everything.
The result is a hint, good enough to answer Metadata on any broker.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final, NamedTuple, Protocol

import msgspec

from moldau.metadata.image import Image
from moldau.metadata.leaders import Leader, LeaderAnnouncement, Leaders
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import BrokerId, Epoch, PartitionIndex, TopicId
from moldau.model.limits import PARTITIONS_PER_TOPIC_MAX

log = logging.getLogger(__name__)

ANNOUNCE_METHOD: Final = 2
_TELL_SECONDS = 1.0
_GATHER_SECONDS = 0.005
_CALL_SECONDS_MAX = 5.0
_ENTRIES_PER_CALL_MAX = 10_000

Key = tuple[TopicId, PartitionIndex]


class LedPartition(NamedTuple):
    """One partition that a broker leads."""

    topic_id: bytes
    partition: int
    epoch: int
    in_sync: tuple[int, ...]


class _Told(msgspec.Struct, frozen=True, array_like=True):
    """One announcement. `base`: the version that the receiver must have for it to fit."""

    session: int
    base: int
    version: int
    led: list[LedPartition]


_decoder: Final = msgspec.msgpack.Decoder(_Told)


class PeerCaller(Protocol):
    """The part of the transport that is needed here."""

    async def call(
        self, peer: BrokerId, method: int, payload: bytes, timeout_seconds: float
    ) -> bytes: ...


class LeaderAnnouncements:
    """What this broker leads, and what the others say that they do."""

    def __init__(
        self,
        *,
        me: BrokerId,
        session: int,
        caller: PeerCaller,
        peers: Callable[[], Iterable[BrokerId]],
    ) -> None:
        """`session` is another one at each start; `peers` are those that can be reached now."""
        self._me = me
        self._session = session
        self._caller = caller
        self._peers = peers
        self._mine: dict[Key, tuple[int, LedPartition]] = {}
        self._version = 0
        self._known: dict[BrokerId, int] = {}
        self._heard: dict[BrokerId, tuple[int, int]] = {}
        self._telling: dict[BrokerId, asyncio.Task[None]] = {}
        self._news = asyncio.Event()
        self.leaders = Leaders()
        self._in_sync: dict[Key, tuple[Leader, tuple[BrokerId, ...]]] = {}
        self._topics: Mapping[TopicId, object] = {}
        self.on_news: Callable[[], None] = lambda: None

    # ---- what this broker leads

    def lead(self, key: Key, epoch: Epoch, in_sync: tuple[BrokerId, ...]) -> None:
        """This broker leads a partition, with these replicas in sync."""
        known = self._mine.get(key)
        led = LedPartition(key[0], key[1], epoch, in_sync)
        if known is not None and known[1] == led:
            return
        self._version += 1
        self._mine[key] = (self._version, led)
        self._note(self._me, (led,))
        self._news.set()

    def unlead(self, key: Key) -> None:
        """It does no longer. Whoever is elected next says so."""
        self._mine.pop(key, None)

    def only(self, image: Image) -> None:
        """Forget topics that were deleted since the last image."""
        topics = image.topics_by_id
        before, self._topics = self._topics, topics
        if before is topics or before.keys() <= topics.keys():
            return
        self.leaders = self.leaders.only(image)
        gone = [key for key in self._in_sync if key[0] not in topics]
        for key in gone:
            del self._in_sync[key]
            self._mine.pop(key, None)
        if any(key[0] not in before for key in gone):
            # Of a topic that this broker has not heard of yet, perhaps: let all be told again.
            self._heard.clear()

    # ---- asking

    def in_sync(self, key: Key, leader: Leader) -> tuple[BrokerId, ...]:
        """Who is in sync, if that leader has said so."""
        said_by, brokers = self._in_sync.get(key, (None, ()))
        return brokers if said_by == leader else ()

    # ---- telling and being told

    async def run(self) -> None:
        """Until cancelled."""
        try:
            while True:
                try:
                    async with asyncio.timeout(_TELL_SECONDS):
                        await self._news.wait()
                    # Elections come in flocks.
                    await asyncio.sleep(_GATHER_SECONDS)
                    self._news.clear()
                except TimeoutError:
                    pass
                for peer in self._peers():
                    if peer not in self._telling:
                        task = asyncio.create_task(self._tell(peer))
                        self._telling[peer] = task
                        task.add_done_callback(partial(self._told, peer))
        finally:
            for task in list(self._telling.values()):
                task.cancel()

    def _told(self, peer: BrokerId, task: asyncio.Task[None]) -> None:
        del self._telling[peer]

    async def _tell(self, peer: BrokerId) -> None:
        while True:
            base = self._known.get(peer, 0)
            news = sorted(
                (entry for entry in self._mine.values() if entry[0] > base),
                key=lambda entry: entry[0],
            )
            part = news[:_ENTRIES_PER_CALL_MAX]
            version = part[-1][0] if len(part) < len(news) else self._version
            told = _Told(self._session, base, version, [led for _, led in part])
            try:
                reply = await self._caller.call(
                    peer, ANNOUNCE_METHOD, msgspec.msgpack.encode(told), _CALL_SECONDS_MAX
                )
                self._known[peer] = msgspec.msgpack.decode(reply, type=int)
            except (RefusedError, msgspec.MsgspecError) as error:
                log.debug("broker %d was not told of leaders: %s", peer, error)
                return
            if self._known[peer] >= self._version:
                return

    async def answer(self, sender: BrokerId, payload: bytes) -> bytes:
        """For the peers. Answers the version that this broker has of the sender's list."""
        try:
            told = _decoder.decode(payload)
        except msgspec.MsgspecError as error:
            raise RefusedError(ErrorCode.INVALID_REQUEST, f"an announcement: {error}") from None
        session, version = self._heard.get(sender, (told.session, 0))
        if session != told.session:
            version = 0
        if told.base <= version:
            self._note(sender, told.led)
            version = max(version, told.version) if told.base else told.version
        self._heard[sender] = (told.session, version)
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
        before, self.leaders = self.leaders, self.leaders.announced(announcements)
        if self.leaders is not before:
            self.on_news()
