"""A group of workers whose life is written down step by step, with the answer to each step.

Members of the other groups do what consumers do. These do what is rarely done: they come back under
their old name while all is stable, ask twice, stay silent in the middle of a rebalance, take an id
and never join, and are of another kind than other members.
"""

import asyncio
import random
from collections.abc import Coroutine
from typing import Any, Final

from moldau.model.errors import ErrorCode
from moldau.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from moldau.wire.messages.delete_groups import DeleteGroupsRequest
from moldau.wire.messages.describe_groups import DescribeGroupsRequest
from moldau.wire.messages.heartbeat import HeartbeatRequest
from moldau.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from moldau.wire.messages.leave_group import LeaveGroupMember, LeaveGroupRequest
from moldau.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from moldau.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from moldau.wire.schema import Request
from sim.clients.wire import COORDINATOR_GONE, Kafka, Lost, Place
from sim.process import ClientProcess
from sim.scene import Scene

E = ErrorCode
_GROUPS: Final = 0
_KIND: Final = "connect"
_SESSION_MS: Final = 30_000
_REBALANCE_MS: Final = 1_500
_OFFSETS: Final = "__consumer_offsets"
_NEWS_SECONDS: Final = 4.0
"""So long it takes at most until all know who leads."""
_STEP_SECONDS_MAX: Final = _REBALANCE_MS / 1000 / 2.2
"""A member that waits longer for a response may have expired: two steps in a row take less
than a rebalance may."""


class _Disturbed(Exception):
    """The coordinator moved or was slow: the rest of the script is worth nothing."""


async def _all(*steps: Coroutine[Any, Any, Any]) -> list[Any]:
    """At the same time; if one cannot go on, none of them does."""
    tasks = [asyncio.create_task(step) for step in steps]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class GroupScript:
    """Plays scripts, each with a group of its own."""

    def __init__(
        self, scene: Scene, process: ClientProcess, name: str, *, is_soon_gone: bool
    ) -> None:
        """`is_soon_gone`: a group that nobody is in, and that has no offsets, goes by itself."""
        self._scene = scene
        self._deleted = (E.NONE, E.GROUP_ID_NOT_FOUND) if is_soon_gone else (E.NONE,)
        self._kafka: Kafka = scene.kafka(process)
        self._second: Kafka = scene.kafka(process)
        """What waits for its answer on a connection holds up all that comes after it there."""
        self._rng: random.Random = process.rng
        self._name = name
        self._count = 0
        self._group = ""
        self._before: dict[Place, tuple[int, int]] = {}

    async def run(self) -> None:
        scripts = (self._life, self._statics, self._silent, self._pending)
        while not self._scene.is_over:
            self._count += 1
            self._group = f"{self._name}-script{self._count}"
            try:
                self._before = await self._coordinators()
                await self._rng.choice(scripts)()
                self._scene.count("group scripts")
            except (Lost, _Disturbed):
                self._scene.count("group scripts disturbed")
            await self._scene.pause(self._rng, 0.5)

    # ---- the words

    async def _ask(self, request: Request, version: int, kafka: Kafka | None = None) -> Any:
        began = self._scene.scheduler.now
        answer = await (kafka or self._kafka).ask_coordinator(
            _GROUPS, self._group, request, version=version, seconds=10.0
        )
        if self._scene.scheduler.now - began > _STEP_SECONDS_MAX:
            raise _Disturbed
        return answer

    async def _expect(self, what: str, number: int, *expected: ErrorCode) -> None:
        code = ErrorCode(number)
        if code in expected:
            return
        self._kafka.forget_coordinator(_GROUPS, self._group)
        self._second.forget_coordinator(_GROUPS, self._group)
        if code not in COORDINATOR_GONE and not await self._has_moved():
            self._scene.violation(f"{self._group}: {what}: {code.name}, not {expected[0].name}")
        raise _Disturbed

    async def _has_moved(self) -> bool:
        """Whether some group got another coordinator meanwhile; it may be the same broker again,
        which has forgotten who was about to join. Raises Lost."""
        await asyncio.sleep(_NEWS_SECONDS)
        return await self._coordinators() != self._before

    async def _coordinators(self) -> dict[Place, tuple[int, int]]:
        await self._kafka.refresh([_OFFSETS])
        leaders = self._kafka.leaders
        return {place: reported for place, reported in leaders.items() if place[0] == _OFFSETS}

    async def _join(
        self,
        member: str = "",
        instance: str | None = None,
        *,
        kind: str = _KIND,
        protocols: tuple[str, ...] = ("p", "q"),
        version: int = 9,
        session_ms: int = _SESSION_MS,
        kafka: Kafka | None = None,
        expected: tuple[ErrorCode, ...] = (E.NONE,),
    ) -> Any:
        request = JoinGroupRequest(
            group_id=self._group,
            session_timeout_ms=session_ms,
            rebalance_timeout_ms=_REBALANCE_MS,
            member_id=member,
            group_instance_id=instance,
            protocol_type=kind,
            protocols=[JoinGroupRequestProtocol(name=p, metadata=b"m") for p in protocols],
        )
        answer = await self._ask(request, version, kafka)
        await self._expect(f"join of {member or instance}", answer.error_code, *expected)
        return answer

    async def _enter(self) -> Any:
        """A member with an id, as newer clients get it; it joins twice."""
        answer = await self._join(expected=(E.MEMBER_ID_REQUIRED,))
        return await self._join(answer.member_id)

    async def _sync(
        self, joined: Any, given: dict[str, bytes] | None = None, *, expected: ErrorCode = E.NONE,
        instance: str | None = None, kafka: Kafka | None = None, **named: Any,
    ) -> Any:  # fmt: skip
        fields: dict[str, Any] = {"protocol_type": _KIND, "protocol_name": joined.protocol_name}
        request = SyncGroupRequest(
            group_id=self._group,
            generation_id=joined.generation_id,
            member_id=joined.member_id,
            group_instance_id=instance,
            assignments=[
                SyncGroupRequestAssignment(member_id=one, assignment=data)
                for one, data in (given or {}).items()
            ],
            **{**fields, **named},
        )
        answer = await self._ask(request, 5, kafka)
        await self._expect(f"sync of {joined.member_id}", answer.error_code, expected)
        return answer

    async def _heartbeat(
        self, member: str, generation: int, *expected: ErrorCode, instance: str | None = None
    ) -> None:
        request = HeartbeatRequest(
            group_id=self._group,
            generation_id=generation,
            member_id=member,
            group_instance_id=instance,
        )
        answer = await self._ask(request, 4)
        await self._expect(f"heartbeat of {member}", answer.error_code, *expected or (E.NONE,))

    async def _leave(self, member: str, instance: str | None, expected: ErrorCode) -> None:
        leaving = LeaveGroupMember(member_id=member, group_instance_id=instance)
        answer = await self._ask(LeaveGroupRequest(group_id=self._group, members=[leaving]), 5)
        code = answer.error_code or answer.members[0].error_code
        await self._expect(f"{member or instance} leaves", code, expected)

    async def _delete(self, *expected: ErrorCode) -> None:
        answer = await self._ask(DeleteGroupsRequest(groups_names=[self._group]), 2)
        await self._expect("deletion", answer.results[0].error_code, *expected)

    async def _check_state(self, *states: str) -> None:
        reported = (await self._ask(DescribeGroupsRequest(groups=[self._group]), 5)).groups[0]
        await self._expect("describe", reported.error_code, E.NONE)
        if reported.group_state not in states:
            self._scene.violation(f"{self._group} is {reported.group_state}, not {states[0]}")

    def _check(self, what: str, found: object, wanted: object) -> None:
        if found != wanted:
            self._scene.violation(f"{self._group}: {what} is {found}, not {wanted}")

    # ---- the scripts

    async def _life(self) -> None:
        """One worker, whom others do not get along with."""
        first = await self._enter()
        me, generation = first.member_id, first.generation_id
        self._check("the leader", first.leader, me)
        again = await self._join(me)
        self._check("the generation of a join that came twice", again.generation_id, generation)
        wrong = E.INCONSISTENT_GROUP_PROTOCOL
        await self._sync(first, protocol_name="other", expected=wrong)
        await self._sync(first, protocol_type="other", expected=wrong)
        synced = await self._sync(first, {me: b"work"})
        self._check("the assignment", bytes(synced.assignment), b"work")
        await self._heartbeat(me, generation)
        await self._heartbeat(me, generation + 1, E.ILLEGAL_GENERATION)
        await self._heartbeat("nobody", generation, E.UNKNOWN_MEMBER_ID)
        await self._check_state("Stable")
        await self._join(kind="consumer", expected=(wrong,))
        await self._join(protocols=("r",), expected=(wrong,))
        newer = ConsumerGroupHeartbeatRequest(
            group_id=self._group,
            member_id="newer",
            member_epoch=0,
            rebalance_timeout_ms=1000,
            subscribed_topic_names=["log"],
            topic_partitions=[],
        )
        await self._expect(
            "a newer member", (await self._ask(newer, 1)).error_code, E.GROUP_ID_NOT_FOUND
        )
        await self._delete_offsets(E.NON_EMPTY_GROUP)
        await self._delete(E.NON_EMPTY_GROUP)
        await self._leave("nobody", None, E.UNKNOWN_MEMBER_ID)
        await self._leave(me, None, E.NONE)
        await self._check_state("Empty", "Dead")
        await self._heartbeat(me, generation, E.UNKNOWN_MEMBER_ID)
        await self._delete(*self._deleted)
        await self._check_state("Dead")

    async def _delete_offsets(self, expected: ErrorCode) -> None:
        topic = OffsetDeleteRequestTopic(
            name="log", partitions=[OffsetDeleteRequestPartition(partition_index=0)]
        )
        request = OffsetDeleteRequest(group_id=self._group, topics=[topic])
        answer = await self._ask(request, 0)
        await self._expect("deletion of offsets", answer.error_code, expected)

    async def _statics(self) -> None:
        """Two that have names, and come back under them."""
        one, two = await _all(
            self._join(instance="one", version=5),
            self._join(instance="two", version=9, kafka=self._second),
        )
        if one.generation_id != two.generation_id:
            raise _Disturbed
        generation = one.generation_id
        leader = one if one.leader == one.member_id else two
        given = {one.member_id: b"1", two.member_id: b"2"}
        names = {one.member_id: "one", two.member_id: "two"}
        synced = await _all(
            *(
                self._sync(
                    each,
                    given if each is leader else None,
                    instance=names[each.member_id],
                    kafka=kafka,
                )
                for each, kafka in ((one, self._kafka), (two, self._second))
            )
        )
        self._check("what they got", [bytes(each.assignment) for each in synced], [b"1", b"2"])
        for version, which, old in ((5, "one", one.member_id), (9, "two", two.member_id)):
            back = await self._join(instance=which, version=version)
            self._check("the generation of one that is back", back.generation_id, generation)
            if back.member_id == old:
                self._scene.violation(f"{self._group}: {which} is back as {old}")
            await self._heartbeat(old, generation, E.FENCED_INSTANCE_ID, instance=which)
            got = await self._sync(back, instance=which)
            self._check(f"what {which} has", bytes(got.assignment), given[old])
            await self._heartbeat(back.member_id, generation, instance=which)
            if which == "one":
                # As a follower that missed an answer, or a leader that wants to restart.
                one = back
        await self._leave("", "one", E.NONE)
        await self._leave("", "one", E.UNKNOWN_MEMBER_ID)
        await self._heartbeat(
            one.member_id, generation, E.UNKNOWN_MEMBER_ID, E.FENCED_INSTANCE_ID, instance="one"
        )

    async def _silent(self) -> None:
        """One of two takes part in the rebalance, and then says nothing."""
        asked = await _all(*(self._join(expected=(E.MEMBER_ID_REQUIRED,)) for _ in range(2)))
        both = await _all(
            self._join(asked[0].member_id), self._join(asked[1].member_id, kafka=self._second)
        )
        if both[0].generation_id != both[1].generation_id:
            raise _Disturbed
        generation = both[0].generation_id
        leader = next(each for each in both if each.leader == each.member_id)
        other = next(each for each in both if each is not leader)
        if self._rng.random() < 0.5:
            leader, other = other, leader
        request = SyncGroupRequest(
            group_id=self._group,
            generation_id=generation,
            member_id=leader.member_id,
            assignments=[],
        )
        answer = await self._ask(request, 5)
        await self._expect("a sync", answer.error_code, E.NONE, E.REBALANCE_IN_PROGRESS)
        if not answer.error_code:
            await asyncio.sleep(_REBALANCE_MS / 1000 + 0.7)
        await self._heartbeat(
            other.member_id, generation, E.UNKNOWN_MEMBER_ID, E.REBALANCE_IN_PROGRESS
        )
        # Who comes back too late for the rebalance has been removed, too.
        expected = (E.NONE, E.UNKNOWN_MEMBER_ID)
        again = await self._join(leader.member_id, expected=expected)
        if not again.error_code and again.generation_id <= generation:
            self._scene.violation(f"{self._group}: still generation {again.generation_id}")

    async def _pending(self) -> None:
        """Ids that are given out, and given back, or never used."""
        answer = await self._join(expected=(E.MEMBER_ID_REQUIRED,))
        await self._leave(answer.member_id, None, E.NONE)
        await self._join(answer.member_id, expected=(E.UNKNOWN_MEMBER_ID,))
        answer = await self._join(session_ms=1_000, expected=(E.MEMBER_ID_REQUIRED,))
        await asyncio.sleep(1.3)
        # A coordinator that was stopped meanwhile may get it before it checks the time.
        await self._join(answer.member_id, expected=(E.UNKNOWN_MEMBER_ID, E.NONE))
