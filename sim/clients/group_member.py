"""What members of a group do by either protocol: read what they are given, and commit."""

import asyncio
import random
from collections.abc import Iterable, Sequence
from typing import Any, Final

from moldau.model.errors import ErrorCode
from moldau.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from moldau.wire.messages.metadata import MetadataRequest
from moldau.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from moldau.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestGroupTopic,
    OffsetFetchRequestTopic,
)
from moldau.wire.schema import Request
from sim.clients.group_book import Claim, GroupBook
from sim.clients.reader import values_of
from sim.clients.wire import COORDINATOR_GONE, LEADER_GONE, Kafka, Lost, Place
from sim.process import ClientProcess
from sim.scene import Scene

GROUPS: Final = 0
"""The kind of coordinator."""
FETCH_SECONDS: Final = 3.0
REFUSED: Final = frozenset(
    {
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.FENCED_MEMBER_EPOCH,
        ErrorCode.STALE_MEMBER_EPOCH,
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    }
)
"""A commit that surely was not stored."""
UNSURE: Final = COORDINATOR_GONE | {
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.UNKNOWN_TOPIC_ID,
}
_PASSING: Final = LEADER_GONE | {ErrorCode.OFFSET_NOT_AVAILABLE, ErrorCode.REQUEST_TIMED_OUT}
_LATER: Final = COORDINATOR_GONE | {
    ErrorCode.UNSTABLE_OFFSET_COMMIT,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
}


def at_least(kafka: Kafka, kind: type[Request], least: int) -> None:
    """Draw a version that has what is needed."""
    kafka.pin(kind, kafka.rng.randint(least, kind.VERSIONS[1]))


async def committed_offsets(
    kafka: Kafka,
    group: str,
    places: Iterable[Place] | None,
    *,
    member: tuple[str, int] | None = None,
    version: int | None = None,
    broker: int | None = None,
) -> tuple[ErrorCode, dict[Place, int]]:
    """By OffsetFetch, of all if none are named; from that broker, or from the coordinator. Raises
    Lost."""
    by_topic: dict[str, list[int]] | None = None
    if places is not None:
        by_topic = {}
        for topic, index in places:
            by_topic.setdefault(topic, []).append(index)
    known = (by_topic or {}).items()
    if any(topic not in kafka.topic_ids for topic, _ in known):
        await kafka.refresh()
    asked = OffsetFetchRequestGroup(
        group_id=group,
        member_id=member[0] if member else None,
        member_epoch=member[1] if member else -1,
        topics=None
        if by_topic is None
        else [
            OffsetFetchRequestGroupTopic(
                name=topic,
                topic_id=kafka.topic_ids.get(topic, bytes(16)),
                partition_indexes=indexes,
            )
            for topic, indexes in known
        ],
    )
    older = [OffsetFetchRequestTopic(name=topic, partition_indexes=some) for topic, some in known]
    used = kafka.version_of(OffsetFetchRequest()) if version is None else version
    request = OffsetFetchRequest(
        group_id=group if used < 8 else "",
        topics=[] if used >= 8 else (None if by_topic is None else older),
        groups=[asked] if used >= 8 else [],
        require_stable=used >= 7 and kafka.rng.random() < 0.5,
    )
    if broker is None:
        answer = await kafka.ask_coordinator(GROUPS, group, request, version=used)
    else:
        answer = await kafka.ask(broker, request, version=used)
    return _read_offsets(kafka, answer, used)


def _read_offsets(kafka: Kafka, answer: Any, version: int) -> tuple[ErrorCode, dict[Place, int]]:
    reported = answer.groups[0] if version >= 8 else answer
    names = {topic_id: name for name, topic_id in kafka.topic_ids.items()}
    found: dict[Place, int] = {}
    code = ErrorCode(reported.error_code)
    for topic in reported.topics:
        name = names.get(topic.topic_id) if version >= 10 else topic.name
        if name is None:
            # The broker does not know the topic yet, or any more.
            code = code or ErrorCode.UNKNOWN_TOPIC_ID
            continue
        for partition in topic.partitions:
            found[name, partition.partition_index] = partition.committed_offset
            code = code or ErrorCode(partition.error_code)
    return code, found


class GroupMember:
    """One incarnation: after a crash it is another one."""

    def __init__(
        self,
        scene: Scene,
        process: ClientProcess,
        book: GroupBook,
        *,
        number: int,
        instance_id: str | None,
        topics: Sequence[str],
    ) -> None:
        """`topics`: those that it wants to read, if the broker assigns."""
        self._scene = scene
        self._topics = list(topics)
        self._process = process
        self._book = book
        self._group = book.group
        self.name = f"{process.name}.{number}"
        self._rng: random.Random = process.rng
        self._kafka: Kafka = scene.kafka(process)
        self._kafka.rng = random.Random(f"{self.name}/{self._rng.random()}")
        self._instance_id = instance_id
        self.member_id = ""
        self.epoch = -1
        self.owned: dict[Place, Claim] = {}
        self.given_up: list[Claim] = []
        """What it had once."""
        self._commits: asyncio.Task[None] | None = None
        self._pin()

    def _pin(self) -> None:
        at_least(self._kafka, MetadataRequest, 10)
        if self._instance_id is not None:
            at_least(self._kafka, OffsetCommitRequest, 7)

    # ---- its life

    async def run(self) -> None:
        await self._know_topics()
        while True:
            try:
                await self._keep_up()
                await self._work()
            except Lost:
                await self._scene.pause(self._rng, 0.1)

    async def _know_topics(self) -> None:
        while any(place[0] not in self._kafka.topic_ids for place in self._book.places):
            try:
                await self._kafka.refresh()
            except Lost:
                await self._scene.pause(self._rng, 0.2)

    async def _keep_up(self) -> None:
        """Join, or say that it lives, if it is time. Raises Lost."""
        raise NotImplementedError

    async def leave(self) -> None:
        """Raises Lost."""
        raise NotImplementedError

    def die(self) -> None:
        """The broker does not learn of it."""
        self._let_go(list(self.owned))
        self._kafka.close()

    async def finish_commits(self) -> None:
        if self._commits is not None:
            await asyncio.wait([self._commits])

    async def _ask(self, request: Request, seconds: float = 5.0) -> Any:
        return await self._kafka.ask_coordinator(GROUPS, self._group, request, seconds=seconds)

    def _look_again(self, code: ErrorCode) -> None:
        if code in COORDINATOR_GONE:
            self._kafka.forget_coordinator(GROUPS, self._group)

    def _unexpected(self, what: str, code: ErrorCode) -> None:
        self._scene.violation(
            f"{self.name} ({self.member_id}, {self.epoch}) of {self._group}: {what}: {code.name}"
        )

    # ---- what it has

    def _take(self, places: Iterable[Place], sent_at: int) -> None:
        for place in sorted(places):
            if place not in self.owned:
                self.owned[place] = self._book.claim(
                    self.name, self.member_id, self.epoch, place, sent_at
                )

    def _let_go(self, places: Iterable[Place]) -> None:
        for place in places:
            claim = self.owned.pop(place, None)
            if claim is not None:
                self._book.release(claim)
                self.given_up = [*self.given_up[-5:], claim]

    # ---- what it does with it

    async def _work(self) -> None:
        if not self.owned:
            await self._scene.pause(self._rng, 0.05)
            return
        claim = self._rng.choice(list(self.owned.values()))
        if claim.position is None:
            await self._find_position(claim)
        if claim.position is not None:
            await self._fetch(claim, claim.position)
        if self._rng.random() < (0.6 if self._scene.is_over else 0.2):
            await self.commit(waits=self._rng.random() < 0.5)
        if self._rng.random() < 0.1:
            await self._look(claim.place)
        if self._rng.random() < 0.05:
            await self._rest()

    async def _rest(self) -> None:
        """Stand still for a while, as a process that is stopped."""
        if not self._scene.is_over:
            seconds = self._rng.choice((0.1, 1.0, 1.0, 9.0)) * self._rng.random()
            self._process.loop.paused_until = self._scene.scheduler.now + seconds
            await asyncio.sleep(0)

    async def _look(self, place: Place) -> None:
        """At what is committed, without being anybody."""
        floor = self._book.floor(place)
        code, found = await committed_offsets(self._kafka, self._group, [place])
        self._look_again(code)
        if code is ErrorCode.NONE:
            self._book.judge(self.name, place, found[place], floor)

    async def _find_position(self, claim: Claim) -> None:
        place = claim.place
        floor = self._book.floor(place)
        code, found = await committed_offsets(
            self._kafka, self._group, [place], member=self._fetching_as()
        )
        if code is ErrorCode.NONE:
            self._book.judge(self.name, place, found[place], floor)
            claim.position = claim.committed = max(found[place], 0)
            return
        self._look_again(code)
        if code not in _LATER and code not in REFUSED:
            self._unexpected("OffsetFetch", code)
        await self._scene.pause(self._rng, 0.1)

    def _fetching_as(self) -> tuple[str, int] | None:
        """Whom it says it is when it asks for offsets."""
        return None

    async def _fetch(self, claim: Claim, position: int) -> None:
        kafka, (topic, index) = self._kafka, claim.place
        try:
            leader = await kafka.leader(claim.place)
            request = FetchRequest(
                max_wait_ms=100,
                min_bytes=1,
                topics=[
                    FetchTopic(
                        topic=topic,
                        topic_id=kafka.topic_ids[topic],
                        partitions=[
                            FetchPartition(
                                partition=index,
                                fetch_offset=position,
                                partition_max_bytes=self._rng.choice((1, 4096, 1 << 20)),
                            )
                        ],
                    )
                ],
            )
            answer = await kafka.ask(leader, request, seconds=FETCH_SECONDS)
        except Lost:
            kafka.forget_leader(claim.place)
            raise
        if answer.error_code or not answer.topics:
            kafka.forget_leader(claim.place)
            await self._scene.pause(self._rng, 0.1)
            return
        reported = answer.topics[0].partitions[0]
        code = ErrorCode(reported.error_code)
        if code is not ErrorCode.NONE:
            kafka.forget_leader(claim.place)
            if code not in _PASSING:
                self._unexpected(f"a fetch of {claim.place} at {position}", code)
            await self._scene.pause(self._rng, 0.1)
            return
        found, claim.position = values_of(reported, position, isolation=0)
        if found:
            self._scene.count("group polls")
            who = f"{claim.owner}#{claim.number}"
            self._scene.add("poll", c=who, tp=f"{topic}/{index}", r=found, g=self._group)
        else:
            await self._scene.pause(self._rng, 0.03)

    # ---- commits

    async def commit(self, *, waits: bool = True) -> None:
        """What it has read; one commit after the other."""
        if self._commits is not None:
            await asyncio.wait([self._commits])
        offsets = [
            (claim, claim.position)
            for claim in self.owned.values()
            if claim.position is not None and claim.position > claim.committed
        ]
        if not offsets:
            return
        work = self.commit_as(self.member_id, self.epoch, offsets)
        self._commits = asyncio.get_running_loop().create_task(work)
        if waits:
            await asyncio.wait([self._commits])

    async def commit_as(self, member_id: str, epoch: int, offsets: list[tuple[Claim, int]]) -> None:
        sent_at = self._book.now()
        for claim, offset in offsets:
            self._book.attempt(claim, offset)
        reported: dict[int, ErrorCode] = {}
        try:
            answer = await self._ask(self._commit_request(member_id, epoch, offsets))
            for partition in answer.topics[0].partitions:
                reported[partition.partition_index] = ErrorCode(partition.error_code)
        except Lost:
            pass
        finally:
            for claim, offset in offsets:
                code = reported.get(claim.place[1])
                if code is ErrorCode.NONE:
                    self._book.acked(claim, offset, sent_at)
                elif code is None or code not in REFUSED:
                    self._book.lost(claim, offset, sent_at, (member_id, epoch))
        for code in reported.values():
            self._look_again(code)
            if code and code not in REFUSED and code not in UNSURE:
                self._unexpected("OffsetCommit", code)

    def _commit_request(
        self, member_id: str, epoch: int, offsets: list[tuple[Claim, int]]
    ) -> OffsetCommitRequest:
        topic = self._book.places[0][0]
        return OffsetCommitRequest(
            group_id=self._group,
            generation_id_or_member_epoch=epoch,
            member_id=member_id,
            group_instance_id=self._instance_id,
            topics=[
                OffsetCommitRequestTopic(
                    name=topic,
                    topic_id=self._kafka.topic_ids[topic],
                    partitions=[
                        OffsetCommitRequestPartition(
                            partition_index=claim.place[1],
                            committed_offset=offset,
                            committed_metadata=self._rng.choice((None, "", "x" * 20)),
                        )
                        for claim, offset in offsets
                    ],
                )
            ],
        )

    async def commit_as_zombie(self) -> None:
        """Commit as it was once, where others have been given its partitions: that is refused."""
        now = self._book.now()
        for claim in self.given_up:
            if claim.position is not None and self._book.successor(claim, now) is not None:
                self._scene.count("zombie commits")
                await self.commit_as(claim.member_id, claim.epoch, [(claim, claim.position)])
                return
