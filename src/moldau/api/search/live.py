"""Follows all partitions of a topic from now on, for a live view.

One task per leader asks it for what is new, and gets it as soon as it is committed. Positions are
offsets: when a leader changes, its successor is asked for what follows. What is more than a view
can show is skipped, and counted; who does not respond is named.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import msgspec
from msgspec import Struct

from moldau.api.quotas import charged
from moldau.api.search.hearing import Hearing, Silent
from moldau.data.search.filters import SearchFilter
from moldau.data.search.follow import (
    PARTITIONS_MAX,
    Followed,
    FollowPartitions,
    FollowWanted,
)
from moldau.data.search.types import Hit
from moldau.metadata.image import Topic
from moldau.metadata.leaders import NO_LEADER_ID, Leader
from moldau.model.clock import Clock
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import BrokerId
from moldau.model.malformed import MALFORMED
from moldau.net.peers.caller import PeerCaller
from moldau.net.peers.methods import PeerMethod

EVENT_RECORDS_MAX: Final = 200
EVENT_BYTES_MAX: Final = 256 * 1024
"""The last message of an event may exceed it."""
EVENT_SECONDS_MIN: Final = 0.2
"""Between two events of one view."""
FOLLOWED_MAX: Final = 4096
"""Partitions that all views of this broker follow, together."""
BEGIN_SECONDS_MAX: Final = 5.0
_WAIT_MS: Final = 2000
_CALL_SECONDS: Final = 3.0
_CHECK_SECONDS: Final = 0.5
"""After which a view notices that its topic is gone, or has more partitions."""
_LEADERS_SECONDS: Final = 1.0
"""After which leaders are looked up again although no change was announced."""
_RETRY_SECONDS: Final = 0.1
"""After the first failure; twice as long after each further one."""
_RETRY_SECONDS_MAX: Final = 2.0
_OLD_SECONDS: Final = 10.0
"""Between requests to a leader of an older version."""
_DOUBLINGS_MAX: Final = 8
_POLL_SECONDS: Final = 0.5
"""Between requests to a leader with too many waiting ones."""

_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(list[Followed]).decode


class LiveWanted(Struct, frozen=True, kw_only=True):
    wanted: SearchFilter
    partitions: list[int] | None
    """None: all, also new ones."""
    value_max: int


class LiveBatch(NamedTuple):
    hits: list[tuple[int, Hit]]
    """With their partitions, by time; in each partition by offset."""
    skipped: int
    """Messages that were not looked at, or that match and were too many."""
    bytes_read: int
    silent: list[Silent] | None = None
    """The partitions that do not respond; None: the same as before."""


class LiveViews:
    """Makes feeds."""

    def __init__(
        self,
        *,
        me: BrokerId,
        clock: Clock,
        leader_of: Callable[[Topic, int], Leader],
        leaders_version: Callable[[], object],
        topic_of: Callable[[str], Topic | None],
        follow: FollowPartitions,
        caller: PeerCaller,
    ) -> None:
        """`leaders_version`: equal as long as nobody announced another leader."""
        self.me = me
        self.clock = clock
        self.leader_of = leader_of
        self.leaders_version = leaders_version
        self.topic_of = topic_of
        self.follow = follow
        self.caller = caller
        self.followed = 0
        """Partitions, of all views."""

    def feed(self, topic: Topic, wanted: LiveWanted) -> "LiveFeed":
        """Raises RefusedError."""
        count = len(topic.partitions)
        for index in wanted.partitions or ():
            if index >= count:
                raise RefusedError(
                    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                    f"Topic '{topic.name}' has no partition {index}",
                )
        check_count(topic, wanted)
        return LiveFeed(self, topic, wanted)

    async def next(self, feed: "LiveFeed", seconds_max: float) -> "LiveBatch | None":
        """What came; None after some time without anything. Raises RefusedError."""
        return await feed.next(seconds_max)


def check_count(topic: Topic, wanted: LiveWanted) -> None:
    """Raises RefusedError if it is too many partitions for one view."""
    count = len(wanted.partitions or topic.partitions)
    if count > PARTITIONS_MAX:
        error = RefusedError(
            ErrorCode.INVALID_REQUEST,
            f"{count} partitions; a live view follows at most {PARTITIONS_MAX} of them",
        )
        error.hint = "name some with partition=0&partition=1…"
        raise error


class LiveFeed:
    """What one view gets. Close it."""

    def __init__(self, views: LiveViews, topic: Topic, wanted: LiveWanted) -> None:
        self._views = views
        self._topic = topic
        self._wanted = wanted
        partitions = wanted.partitions or range(len(topic.partitions))
        self._positions: dict[int, int | None] = dict.fromkeys(partitions)
        self._pulls: dict[BrokerId, asyncio.Task[None]] = {}
        self._news = asyncio.Event()
        self._hits: list[tuple[int, Hit]] = []
        self._bytes = 0
        self._skipped = 0
        self._bytes_read = 0
        self._sent_at = float("-inf")
        self._counted = 0
        self._led: dict[BrokerId, list[int]] = {}
        self._led_key: tuple[object, int] | None = None
        self._led_at = 0.0
        self._hearing = Hearing()
        self._silent: list[Silent] | None = None
        self._heard_at = float("-inf")

    async def begin(self) -> None:
        """Returns when it knows where all partitions end by now, or after some seconds. Raises
        RefusedError."""
        views = self._views
        # Before the first await, so that concurrent requests cannot exceed the limit.
        if views.followed + len(self._positions) > FOLLOWED_MAX:
            error = RefusedError(
                ErrorCode.THROTTLING_QUOTA_EXCEEDED,
                f"The limit of {FOLLOWED_MAX} partitions that live views of a broker follow "
                "is reached",
            )
            error.hint = "name fewer with partition=0&partition=1…, or ask another broker"
            raise error
        self._count()
        now = views.clock.monotonic()
        self._hearing.expect(self._positions, now)
        self._follow_leaders()
        while self._is_beginning() and views.clock.monotonic() < now + BEGIN_SECONDS_MAX:
            await asyncio.sleep(_RETRY_SECONDS / 4)
            self._check()

    def _is_beginning(self) -> bool:
        """Whether some partition that may respond has not done so."""
        return any(
            self._positions[partition] is None
            for leader, partitions in self._by_leader().items()
            if not self._hearing.is_old(leader)
            for partition in partitions
        )

    async def next(self, seconds_max: float) -> LiveBatch | None:
        """What came; None after some time without anything. Raises RefusedError."""
        clock = self._views.clock
        deadline = clock.monotonic() + seconds_max
        while True:
            self._check()
            now = clock.monotonic()
            pause = self._sent_at + EVENT_SECONDS_MIN - now
            if (self._news.is_set() or self._silent is not None) and pause <= 0:
                self._sent_at = now
                return self._take()
            if now >= deadline:
                return None
            try:
                # First what comes together, then what comes at all.
                async with asyncio.timeout(min(_CHECK_SECONDS, deadline - now)):
                    if self._news.is_set():
                        await asyncio.sleep(pause)
                    else:
                        await self._news.wait()
            except TimeoutError:
                pass

    def wake(self) -> None:
        """Ends a wait early: the broker is stopping."""
        self._news.set()

    def close(self) -> None:
        self._views.followed -= self._counted
        self._counted = 0
        for task in self._pulls.values():
            task.cancel()

    def _count(self) -> None:
        self._views.followed += len(self._positions) - self._counted
        self._counted = len(self._positions)

    # ---- what came

    def _take(self) -> LiveBatch:
        batch = LiveBatch(_in_order(self._hits), self._skipped, self._bytes_read, self._silent)
        self._news.clear()
        self._silent = None
        self._hits, self._bytes, self._skipped, self._bytes_read = [], 0, 0, 0
        return batch

    def _add(self, followed: Followed) -> None:
        self._skipped += followed.skipped
        self._bytes_read += followed.bytes_read
        for number, hit in enumerate(followed.hits):
            if len(self._hits) >= EVENT_RECORDS_MAX or self._bytes >= EVENT_BYTES_MAX:
                self._skipped += len(followed.hits) - number
                break
            self._hits.append((followed.partition, hit))
            self._bytes += hit.size
        if self._hits or self._skipped:
            self._news.set()

    # ---- leaders

    def _check(self) -> None:
        """Raises RefusedError if the topic is gone, or has too many partitions by now."""
        for task in self._pulls.values():
            if task.done() and not task.cancelled():
                task.result()
        topic = self._views.topic_of(self._topic.name)
        if topic is None or topic.topic_id != self._topic.topic_id:
            # A new topic of the same name has other records at the same offsets.
            raise RefusedError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Topic '{self._topic.name}' was deleted"
            )
        now = self._views.clock.monotonic()
        self._topic = topic
        if self._wanted.partitions is None and len(topic.partitions) > len(self._positions):
            check_count(topic, self._wanted)
            new = range(len(self._positions), len(topic.partitions))
            # All that is in them came from now on.
            self._positions.update(dict.fromkeys(new, 0))
            self._hearing.expect(new, now)
            self._count()
        self._follow_leaders()
        if now >= self._heard_at + _CHECK_SECONDS:
            self._heard_at = now
            changed = self._hearing.changed(self._by_leader(), now)
            self._silent = self._silent if changed is None else changed

    def _follow_leaders(self) -> None:
        for leader in self._by_leader():
            if leader not in self._pulls and leader != NO_LEADER_ID:
                self._pulls[leader] = asyncio.create_task(charged(self._pull(leader)))

    def _by_leader(self) -> dict[BrokerId, list[int]]:
        """Those without a leader under NO_LEADER_ID. Looked up only after something changed."""
        views, now = self._views, self._views.clock.monotonic()
        key = (views.leaders_version(), len(self._positions))
        if key != self._led_key or now >= self._led_at + _LEADERS_SECONDS:
            self._led_key, self._led_at, self._led = key, now, {}
            for partition in self._positions:
                leader = views.leader_of(self._topic, partition).broker
                self._led.setdefault(leader, []).append(partition)
        return self._led

    async def _pull(self, leader: BrokerId) -> None:
        """Asks one broker again and again, for the partitions that it leads by then."""
        clock = self._views.clock
        failures = 0
        while True:
            partitions = self._by_leader().get(leader)
            if not partitions:
                await asyncio.sleep(_CHECK_SECONDS)
                continue
            began = clock.monotonic()
            asked = [(partition, self._positions[partition]) for partition in partitions]
            try:
                found = await self._ask(leader, asked)
            except (RefusedError, *MALFORMED) as error:
                # Its partitions get another leader, or it comes back.
                self._hearing.failed(leader, error)
                is_old = self._hearing.is_old(leader)
                failures += 1
                await asyncio.sleep(
                    _OLD_SECONDS if is_old else _retry_seconds(failures, _RETRY_SECONDS_MAX)
                )
                continue
            moved = self._accept(dict(asked), found)
            errors = {each.partition: each.message for each in found if each.error}
            self._hearing.answered(leader, partitions, errors, clock.monotonic())
            seconds = clock.monotonic() - began
            failures = failures + 1 if errors else 0
            if moved:
                pause = EVENT_SECONDS_MIN - seconds
            elif errors:
                pause = _retry_seconds(failures, _POLL_SECONDS)
            else:
                pause = _RETRY_SECONDS if found else _POLL_SECONDS - seconds
            if pause > 0:
                await asyncio.sleep(pause)

    async def _ask(
        self, leader: BrokerId, asked: Sequence[tuple[int, int | None]]
    ) -> list[Followed]:
        """Raises RefusedError."""
        wanted = FollowWanted(
            topic=self._topic.name,
            topic_id=self._topic.topic_id,
            wanted=self._wanted.wanted,
            value_max=self._wanted.value_max,
            limit=EVENT_RECORDS_MAX,
            bytes_max=EVENT_BYTES_MAX,
            wait_ms=_WAIT_MS,
            positions=list(asked),
        )
        views = self._views
        if leader == views.me:
            return await views.follow.follow(wanted)
        seconds = _WAIT_MS / 1000 + _CALL_SECONDS
        method = PeerMethod.FOLLOW_PARTITIONS
        return _decode(await views.caller.call(leader, method, _encode(wanted), seconds))

    def _accept(self, asked: dict[int, int | None], found: Sequence[Followed]) -> bool:
        """Whether anything came."""
        moved = False
        for each in found:
            position = asked.get(each.partition, -1)
            # Of an earlier and a later leader, only one response counts.
            if each.error or self._positions.get(each.partition, -1) != position:
                continue
            moved = moved or each.position != position
            self._positions[each.partition] = each.position
            self._add(each)
        return moved


def _retry_seconds(failures: int, most: float) -> float:
    return min(_RETRY_SECONDS * (1 << min(failures - 1, _DOUBLINGS_MAX)), most)


def _in_order(hits: Sequence[tuple[int, Hit]]) -> list[tuple[int, Hit]]:
    """By time, without changing the order within a partition."""
    reached: dict[int, int] = {}
    ranked = []
    for number, (partition, hit) in enumerate(hits):
        rank = max(hit.timestamp, reached.get(partition, hit.timestamp))
        reached[partition] = rank
        ranked.append((rank, partition, number))
    return [hits[number] for _, _, number in sorted(ranked)]
