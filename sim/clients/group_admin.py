"""Who looks at groups: now and then while all goes on, and at the end until all is done."""

import asyncio
import random
from collections.abc import Callable
from typing import Any, Final

from moldau.model.errors import ErrorCode
from moldau.wire.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from moldau.wire.messages.delete_groups import DeleteGroupsRequest
from moldau.wire.messages.describe_groups import DescribeGroupsRequest
from moldau.wire.messages.list_groups import ListGroupsRequest
from moldau.wire.messages.metadata import MetadataRequest
from moldau.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from moldau.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from moldau.wire.messages.offset_fetch import OffsetFetchRequest
from sim.clients.group_book import GroupBook
from sim.clients.group_member import GROUPS, at_least, committed_offsets
from sim.clients.group_wrong import GroupWrong
from sim.clients.reader import LATEST, list_offset
from sim.clients.wire import COORDINATOR_GONE, Kafka, Lost, Place
from sim.process import ClientProcess
from sim.scene import Scene

_LATER: Final = COORDINATOR_GONE | {
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.UNSTABLE_OFFSET_COMMIT,
}
_YOUNG_SECONDS: Final = 40.0
"""So long an offset is kept in any world."""
_STATES: Final = {
    "Stable", "PreparingRebalance", "CompletingRebalance", "Empty", "Dead", "Assigning",
    "Reconciling",
}  # fmt: skip


class GroupAdmin:
    """Of one group; it has a second one of its own, without members, to commit to and delete."""

    def __init__(
        self,
        scene: Scene,
        process: ClientProcess,
        book: GroupBook,
        *,
        are_others_done: Callable[[], bool],
    ) -> None:
        self._scene = scene
        self._book = book
        self._group = book.group
        self._own_count = 1
        self._own = f"{book.group}-own1"
        self._own_offset: int | None = None
        """What is committed there; None: nobody knows."""
        self._own_at = 0.0
        self._name = process.name
        self._rng: random.Random = process.rng
        self._kafka: Kafka = scene.kafka(process)
        self._are_others_done = are_others_done
        self._wrong = GroupWrong(scene, self._kafka, book.group)
        at_least(self._kafka, MetadataRequest, 10)

    async def run(self) -> None:
        looks = [
            self._wrong.do,
            self._list,
            self._describe,
            self._offsets,
            self._use_own,
            self._delete_own,
        ]
        if self._rng.random() < 0.3:
            looks.append(self._delete_offsets)
        while not self._scene.is_over:
            await self._scene.pause(self._rng, 1.0)
            try:
                if not self._kafka.topic_ids:
                    await self._kafka.refresh()
                await self._rng.choice(looks)()
            except Lost:
                # What was asked for may be done later: nothing is known of that group any more.
                self._own_count += 1
                self._own, self._own_offset = f"{self._group}-own{self._own_count}", None
        await self._close()

    async def _close(self) -> None:
        """When nobody writes any more, the group has to come to the end of everything."""
        while not self._are_others_done():
            await self._scene.pause(self._rng, 0.3)
        left = list(self._book.places)
        while left or not self._book.is_shared():
            try:
                left = await self._left()
            except Lost:
                left = list(self._book.places)
            await self._scene.pause(self._rng, 0.3)
        self._book.is_drained = True

    async def _left(self) -> list[Place]:
        places = self._book.places
        floors = {place: self._book.floor(place) for place in places}
        code, reported = await committed_offsets(self._kafka, self._group, places)
        if not self._is_fine("OffsetFetch", code):
            return places
        left: list[Place] = []
        for place in places:
            self._book.judge(self._name, place, reported[place], floors[place])
            end = await list_offset(self._kafka, place, LATEST)
            if end is None or max(reported[place], 0) < end:
                left.append(place)
            elif reported[place] > end:
                self._scene.violation(f"{self._group}: {reported[place]} of {place} ends at {end}")
        if not left:
            for place in places:
                self._book.last(place, max(reported[place], 0))
        return left

    def _is_fine(self, what: str, code: int, *others: ErrorCode) -> bool:
        error = ErrorCode(code)
        if error in COORDINATOR_GONE:
            self._kafka.forget_coordinator(GROUPS, self._group)
            self._kafka.forget_coordinator(GROUPS, self._own)
        if error and error not in _LATER and error not in others:
            self._scene.violation(f"{self._name}: {what}: {error.name}")
        return not error

    async def _ask(self, group: str, request: Any) -> Any:
        return await self._kafka.ask_coordinator(GROUPS, group, request)

    # ---- looks

    async def _list(self) -> None:
        version = self._kafka.version_of(ListGroupsRequest())
        states = self._rng.choice(((), ("Stable",), ("Empty", "stable"))) if version >= 4 else ()
        types = self._rng.choice(((), ("classic",), ("consumer",))) if version >= 5 else ()
        answer = await self._kafka.ask_any(
            ListGroupsRequest(states_filter=list(states), types_filter=list(types))
        )
        if self._is_fine("ListGroups", answer.error_code):
            for group in answer.groups:
                if version >= 4 and group.group_state not in _STATES:
                    self._scene.violation(f"{group.group_id} is listed as {group.group_state}")

    async def _describe(self) -> None:
        request = DescribeGroupsRequest(groups=[self._group])
        reported = (await self._ask(self._group, request)).groups[0]
        fine = self._is_fine("DescribeGroups", reported.error_code, ErrorCode.GROUP_ID_NOT_FOUND)
        if fine and reported.group_state not in _STATES:
            self._scene.violation(f"{self._group} is described as {reported.group_state}")
        newer = ConsumerGroupDescribeRequest(group_ids=[self._group])
        reported = (await self._ask(self._group, newer)).groups[0]
        what = "ConsumerGroupDescribe"
        if self._is_fine(what, reported.error_code, ErrorCode.GROUP_ID_NOT_FOUND):
            taken: dict[tuple[bytes, int], str] = {}
            for member in reported.members:
                for topic in member.assignment.topic_partitions:
                    for index in topic.partitions:
                        other = taken.setdefault((topic.topic_id, index), member.member_id)
                        if other != member.member_id:
                            self._scene.violation(
                                f"{self._group}: {index} is of {other} and {member.member_id}"
                            )

    async def _offsets(self) -> None:
        """Of all that the group has committed."""
        book = self._book
        floors = {place: book.floor(place) for place in book.places}
        version = max(2, self._kafka.version_of(OffsetFetchRequest()))
        code, reported = await committed_offsets(self._kafka, self._group, None, version=version)
        if self._is_fine("OffsetFetch", code):
            for place in book.places:
                book.judge(self._name, place, reported.get(place, -1), floors[place])

    async def ask_all(self) -> None:
        """Each broker what is committed: one that does not coordinate the group, or no more, says
        so, and does not tell what it remembers."""
        asked: dict[int, asyncio.Task[None]] = {}
        while not self._scene.is_over:
            await self._scene.pause(self._rng, 0.5)
            for broker in sorted(self._kafka.brokers):
                if broker not in asked or asked[broker].done():
                    asked[broker] = asyncio.create_task(self._ask_one(broker))
        for task in asked.values():
            await task

    async def _ask_one(self, broker: int) -> None:
        book = self._book
        floors = {place: book.floor(place) for place in book.places}
        try:
            code, reported = await committed_offsets(
                self._kafka, self._group, book.places, broker=broker
            )
        except Lost:
            return
        if not code:
            for place in book.places:
                book.judge(
                    f"{self._name} by broker {broker}", place, reported[place], floors[place]
                )

    # ---- its own group

    async def _use_own(self) -> None:
        """Commit without being a member, and read that."""
        place = self._book.places[0]
        before, self._own_offset = self._own_offset, None
        code, reported = await committed_offsets(self._kafka, self._own, [place])
        if not self._is_fine("OffsetFetch", code):
            self._own_offset = before
            return
        is_young = self._scene.scheduler.now - self._own_at < _YOUNG_SECONDS
        if before is not None and is_young and reported[place] != before:
            self._scene.violation(
                f"{self._own}: {reported[place]} is committed, {before} was acked"
            )
        offset = self._rng.randrange(1000)
        partition = OffsetCommitRequestPartition(
            partition_index=place[1], committed_offset=offset, committed_metadata=""
        )
        topic = OffsetCommitRequestTopic(
            name=place[0], topic_id=self._kafka.topic_ids[place[0]], partitions=[partition]
        )
        request = OffsetCommitRequest(group_id=self._own, member_id="", topics=[topic])
        answer = await self._ask(self._own, request)
        if self._is_fine("OffsetCommit", answer.topics[0].partitions[0].error_code):
            self._own_offset, self._own_at = offset, self._scene.scheduler.now

    async def _delete_own(self) -> None:
        self._own_offset = None
        if self._rng.random() < 0.5:
            code = await self._delete_offsets_of(self._own)
            if code is None:
                return
        else:
            request = DeleteGroupsRequest(groups_names=[self._own])
            answer = await self._ask(self._own, request)
            code = answer.results[0].error_code
        self._is_fine("a deletion", code, ErrorCode.GROUP_ID_NOT_FOUND)

    async def _delete_offsets(self) -> None:
        """Of the group itself: they stay while anybody is subscribed."""
        self._book.deleting()
        code = await self._delete_offsets_of(self._group)
        if code is not None and self._is_fine(
            "OffsetDelete",
            code,
            ErrorCode.GROUP_ID_NOT_FOUND,
            ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,
            ErrorCode.NON_EMPTY_GROUP,
        ):
            self._book.deleted()

    async def _delete_offsets_of(self, group: str) -> int | None:
        places = self._book.places
        topic = OffsetDeleteRequestTopic(
            name=places[0][0],
            partitions=[OffsetDeleteRequestPartition(partition_index=at) for _, at in places],
        )
        answer = await self._ask(group, OffsetDeleteRequest(group_id=group, topics=[topic]))
        if answer.error_code:
            return int(answer.error_code)
        reported = [one.error_code for topic in answer.topics for one in topic.partitions]
        return int(max(reported, default=0))
