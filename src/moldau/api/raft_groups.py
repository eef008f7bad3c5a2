"""The Raft groups of the cluster: who leads, how far each member is, what happened lately.

Only its leader knows a group: each is asked by RPC about those of a page that it leads. Of a group
without a leader, this broker says what it knows itself.
"""

import asyncio
import logging
from bisect import bisect_left
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Final, NamedTuple

import msgspec
from msgspec import Struct

from moldau.api.asking import ask_each
from moldau.control.cluster_service import ClusterService
from moldau.data.leader_queries import PartitionKey
from moldau.metadata.image import Partition, Topic
from moldau.metadata.leaders import NO_LEADER_ID
from moldau.model.clock import Clock
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import BrokerId
from moldau.net.peers.caller import PeerCaller, decode_request
from moldau.net.peers.methods import PeerMethod
from moldau.replica.driver import RaftDriver
from moldau.replica.peer_codec import METADATA_GROUP
from moldau.replica.raft_group import RaftGroup
from moldau.replica.replica import LAG_MS_MAX

log = logging.getLogger(__name__)

METADATA: Final = "metadata"
"""What the group of the cluster's metadata is called; a partition's is TOPIC/PARTITION."""
PAGE_MAX: Final = 1000
_CALL_SECONDS_MAX: Final = 3.0
_TOPICS_PER_TURN: Final = 500
_GROUPS_PER_TURN: Final = 100


class RaftMember(Struct, frozen=True, kw_only=True):
    """One broker of a group."""

    broker: int
    role: str
    match: int | None
    """Below this index, its log is on its disk and the same as the leader's."""
    lag: int | None
    """Entries that it does not have yet. null, as `match`, while the leader is not known."""
    is_in_sync: bool


class RaftEvent(Struct, frozen=True, kw_only=True):
    at_ms: int
    text: str


class RaftGroupShown(Struct, frozen=True, kw_only=True):
    """One group, by its leader."""

    group: str
    leader: int
    """-1 while there is none, or it does not respond."""
    term: int | None
    commit: int | None
    """Index of the first entry that is not committed."""
    members: list[RaftMember]
    recent: list[RaftEvent]
    """What the broker that answered saw of it since its start; the newest first."""


class RaftGroupList(Struct, frozen=True, kw_only=True):
    groups: list[RaftGroupShown]
    next: str | None
    """Pass as `after` to get the next page; null on the last one."""
    silent: list[int]
    """Leaders that did not respond."""


class _Known(NamedTuple):
    """A group of the image, before anybody was asked."""

    name: str
    key: PartitionKey
    leader: int
    partition: Partition | None
    """None: of the metadata."""


class After(NamedTuple):
    """The last group of the page before."""

    topic: str
    """Empty: the metadata."""
    partition: int


def parse_after(text: str) -> After:
    """Raises RefusedError."""
    if text == METADATA:
        return After("", 0)
    topic, _, number = text.rpartition("/")
    if not topic or not (number.isascii() and number.isdigit()) or len(number) > 10:
        raise RefusedError(
            ErrorCode.INVALID_REQUEST, f"after must be {METADATA} or TOPIC/PARTITION, not {text!r}"
        )
    return After(topic, int(number))


_Reply = list[RaftGroupShown | None]
_decode_keys: Final = msgspec.msgpack.Decoder(list[PartitionKey]).decode
_decode_reply: Final = msgspec.msgpack.Decoder(_Reply).decode


class RaftGroups:
    def __init__(
        self,
        *,
        me: BrokerId,
        cluster: ClusterService,
        driver: RaftDriver,
        caller: PeerCaller,
        clock: Clock,
    ) -> None:
        self._me = me
        self._cluster = cluster
        self._driver = driver
        self._caller = caller
        self._clock = clock

    async def page(
        self, sees: Callable[[str], bool], *, search: str, after: After | None, limit: int
    ) -> RaftGroupList:
        """Groups by name, the one of the metadata first; of topics that the client `sees`."""
        wanted: list[_Known] = []
        async for known in self._walk(sees, search.lower(), after):
            wanted.append(known)
            if len(wanted) > limit:
                break
        page, has_more = wanted[:limit], len(wanted) > limit
        shown, silent = await self._describe(page)
        return RaftGroupList(
            groups=shown, next=page[-1].name if has_more else None, silent=sorted(silent)
        )

    # ---- which groups

    async def _walk(
        self, sees: Callable[[str], bool], search: str, after: After | None
    ) -> AsyncIterator[_Known]:
        if after is None and search in METADATA:
            topic_id, index = METADATA_GROUP
            key = (METADATA, int(index), bytes(topic_id))
            yield _Known(METADATA, key, self._cluster.controller_id, None)
        # The image never changes: a newer one is another object.
        topics = {topic.name: topic for topic in self._cluster.image.topics.values()}
        names = sorted(topics)
        first = 0 if after is None else bisect_left(names, after.topic)
        for number in range(first, len(names)):
            if number % _TOPICS_PER_TURN == _TOPICS_PER_TURN - 1:
                await asyncio.sleep(0)
            topic = topics[names[number]]
            start = after.partition + 1 if after is not None and after.topic == topic.name else 0
            found = _matching(topic, search, start)
            one = next(found, None)
            if one is None or not sees(topic.name):
                continue
            yield self._known(topic, one)
            for one in found:
                yield self._known(topic, one)

    def _known(self, topic: Topic, partition: Partition) -> _Known:
        index = partition.index
        return _Known(
            f"{topic.name}/{index}",
            (topic.name, index, topic.topic_id),
            self._cluster.leader_of(topic, index).broker,
            partition,
        )

    # ---- asking leaders

    async def _describe(self, page: Sequence[_Known]) -> tuple[list[RaftGroupShown], set[int]]:
        by_leader: dict[int, list[_Known]] = defaultdict(list)
        for known in page:
            by_leader[known.leader].append(known)
        by_leader.pop(NO_LEADER_ID, None)
        replies = await ask_each(
            self._caller,
            PeerMethod.DESCRIBE_RAFT_GROUPS,
            {
                BrokerId(leader): [one.key for one in theirs]
                for leader, theirs in by_leader.items()
                if leader in self._cluster.alive
            },
            _decode_reply,
            _CALL_SECONDS_MAX,
            me=self._me,
            here=self._answer,
        )
        found = {
            known.name: shown
            for leader, reply in replies.items()
            for known, shown in zip(by_leader[leader], reply, strict=False)
            if shown is not None
        }
        silent = by_leader.keys() - replies.keys()
        return [found.get(known.name) or self._guess(known) for known in page], silent

    async def on_request(self, sender: BrokerId, payload: bytes) -> bytes:
        keys = decode_request(_decode_keys, payload)
        if len(keys) > PAGE_MAX:
            raise RefusedError(ErrorCode.INVALID_REQUEST, f"more than {PAGE_MAX} groups at once")
        return msgspec.msgpack.encode(await self._answer(keys))

    # ---- the groups of this broker

    async def _answer(self, keys: Sequence[PartitionKey]) -> _Reply:
        """None for a group that this broker does not lead."""
        found: _Reply = []
        for number, key in enumerate(keys, 1):
            group = self._group(key)
            leads = group is not None and group.is_running and group.is_leader
            found.append(self._show(_name(key), group) if leads and group is not None else None)
            if number % _GROUPS_PER_TURN == 0:
                await asyncio.sleep(0)
        return found

    def _group(self, key: PartitionKey) -> RaftGroup | None:
        _, index, topic_id = key
        return self._driver.groups.get(f"{topic_id.hex()}-{index}")

    def _show(self, name: str, group: RaftGroup) -> RaftGroupShown:
        """Of a group that this broker leads."""
        core = group.core
        in_sync = set(self._driver.in_sync(group, LAG_MS_MAX))
        members = []
        for broker in sorted(core.members.everyone):
            progress = core.progress.get(broker)
            match = core.flushed if progress is None else progress.match
            members.append(
                RaftMember(
                    broker=broker,
                    role=_role(broker in core.members.voters),
                    match=match,
                    lag=max(0, core.end - match),
                    is_in_sync=broker in in_sync,
                )
            )
        return RaftGroupShown(
            group=name,
            leader=self._me,
            term=core.epoch,
            commit=core.commit,
            members=members,
            recent=self._recent(group),
        )

    def _recent(self, group: RaftGroup) -> list[RaftEvent]:
        now, wall_ms = self._clock.monotonic(), self._clock.wall_ms()
        return [
            RaftEvent(at_ms=wall_ms - int((now - event.at) * 1000), text=event.words)
            for event in reversed(group.events)
        ]

    def _guess(self, known: _Known) -> RaftGroupShown:
        """What is known here of a group whose leader says nothing."""
        group = self._group(known.key)
        if group is not None:
            voters, everyone = group.core.members.voters, group.core.members.everyone
        elif known.partition is not None:
            everyone = known.partition.replicas
            voters = tuple(each for each in everyone if each not in known.partition.adding)
        else:
            voters = everyone = ()
        return RaftGroupShown(
            group=known.name,
            leader=NO_LEADER_ID,
            term=None if group is None else group.core.epoch,
            commit=None if group is None else group.core.commit,
            members=[
                RaftMember(
                    broker=broker,
                    role=_role(broker in voters),
                    match=None,
                    lag=None,
                    is_in_sync=False,
                )
                for broker in sorted(everyone)
            ],
            recent=[] if group is None else self._recent(group),
        )


def _matching(topic: Topic, search: str, start: int) -> Iterator[Partition]:
    """Partitions from `start` on whose group has `search` in its name, in lower case."""
    name = topic.name.lower()
    if search in name:
        return iter(topic.partitions[start:])
    head, slash, number = search.rpartition("/")
    if not slash or not name.endswith(head):
        return iter(())
    return (one for one in topic.partitions[start:] if str(one.index).startswith(number))


def _name(key: PartitionKey) -> str:
    topic, index, topic_id = key
    return METADATA if topic_id == METADATA_GROUP.topic_id else f"{topic}/{index}"


def _role(is_voter: bool) -> str:
    return "voter" if is_voter else "learner"
