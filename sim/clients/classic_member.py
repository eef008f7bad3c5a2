"""Members of the classic protocol, of which one assigns for all."""

from typing import Any, Final

from moldau.groups.consumer_protocol import assignment_bytes, read_assignment
from moldau.model.errors import ErrorCode
from moldau.wire.messages.heartbeat import HeartbeatRequest
from moldau.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from moldau.wire.messages.leave_group import LeaveGroupMember, LeaveGroupRequest
from moldau.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from sim.clients.group_bytes import assign, subscription_bytes
from sim.clients.group_member import GroupMember, at_least
from sim.clients.wire import COORDINATOR_GONE, Lost, Place

COOPERATIVE: Final = "cooperative-sticky"
_NOT_A_MEMBER: Final = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID})
_AGAIN: Final = COORDINATOR_GONE | {
    ErrorCode.REBALANCE_IN_PROGRESS,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.GROUP_MAX_SIZE_REACHED,
}


class ClassicMember(GroupMember):
    """Eager: lets go of everything before it joins. Cooperative: keeps it, and joins once more
    when it had to revoke something."""

    is_cooperative = False

    def _pin(self) -> None:
        super()._pin()
        rng = self._rng
        self._session_ms = rng.choice((2_000, 4_000, 8_000))
        self._rebalance_ms = rng.choice((2_000, 6_000))
        self._heartbeat_seconds = rng.choice((0.2, 0.6))
        self._bytes_version = rng.randint(0, 3)
        # All know both: who loads a group knows of its members' protocols the chosen one only.
        self._protocols = rng.sample(["range", "roundrobin"], 2)
        if self._instance_id is not None:
            at_least(self._kafka, JoinGroupRequest, 5)
            at_least(self._kafka, SyncGroupRequest, 3)
            at_least(self._kafka, HeartbeatRequest, 3)
            at_least(self._kafka, LeaveGroupRequest, 3)
        self._must_join = True
        self._heartbeat_at = 0.0

    def be_cooperative(self) -> None:
        self.is_cooperative = True
        self._protocols = [COOPERATIVE]
        self._bytes_version = self._rng.randint(2, 3)

    async def _keep_up(self) -> None:
        now = self._scene.scheduler.now
        if self._must_join:
            await self._join()
        elif now >= self._heartbeat_at:
            self._heartbeat_at = now + self._heartbeat_seconds
            await self._heartbeat()

    def _heard(self, what: str, code: ErrorCode) -> None:
        """An error: whatever it is, it joins again."""
        self._look_again(code)
        self._must_join = True
        if code in _NOT_A_MEMBER:
            self._let_go(list(self.owned))
            self.member_id, self.epoch = "", -1
        elif code is ErrorCode.ILLEGAL_GENERATION:
            self._let_go(list(self.owned))
            self.epoch = -1
        elif code not in _AGAIN:
            self._unexpected(what, code)

    # ---- to get in

    async def _join(self) -> None:
        if self.owned and self._rng.random() < 0.5:
            await self.commit()
        if not self.is_cooperative:
            self._let_go(list(self.owned))
        said = subscription_bytes(self._book.topics, self.owned, self.epoch, self._bytes_version)
        request = JoinGroupRequest(
            group_id=self._group,
            session_timeout_ms=self._session_ms,
            rebalance_timeout_ms=self._rebalance_ms,
            member_id=self.member_id,
            group_instance_id=self._instance_id,
            protocol_type="consumer",
            protocols=[
                JoinGroupRequestProtocol(name=name, metadata=said) for name in self._protocols
            ],
        )
        answer = await self._ask(request, seconds=15.0)
        code = ErrorCode(answer.error_code)
        if code is ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = answer.member_id
        elif code is not ErrorCode.NONE:
            self._heard("JoinGroup", code)
            await self._scene.pause(self._rng, 0.1)
        else:
            self.member_id, self.epoch = answer.member_id, answer.generation_id
            await self._sync(answer)

    async def _sync(self, joined: Any) -> None:
        plan: dict[str, list[Place]] = {}
        if joined.leader == self.member_id and not joined.skip_assignment:
            said = {one.member_id: bytes(one.metadata) for one in joined.members}
            plan = assign(joined.protocol_name, said, self._book.places)
        request = SyncGroupRequest(
            group_id=self._group,
            generation_id=self.epoch,
            member_id=self.member_id,
            group_instance_id=self._instance_id,
            protocol_type="consumer",
            protocol_name=joined.protocol_name,
            assignments=[
                SyncGroupRequestAssignment(member_id=one, assignment=_assignment(some))
                for one, some in plan.items()
            ],
        )
        sent_at = self._book.now()
        answer = await self._ask(request, seconds=10.0)
        code = ErrorCode(answer.error_code)
        if code is not ErrorCode.NONE:
            self._heard("SyncGroup", code)
            return
        read = read_assignment(bytes(answer.assignment))
        assert read is not None
        given = {(topic, at) for topic, indexes in read.partitions.items() for at in indexes}
        gone = [place for place in self.owned if place not in given]
        for place in self.owned.keys() & given:
            self._book.seen_alive(self.owned[place], sent_at, "a sync")
        self._let_go(gone)
        self._take(given, sent_at)
        self._scene.count("syncs")
        self._must_join = bool(gone)
        self._heartbeat_at = self._scene.scheduler.now + self._heartbeat_seconds

    async def _heartbeat(self) -> None:
        request = HeartbeatRequest(
            group_id=self._group,
            generation_id=self.epoch,
            member_id=self.member_id,
            group_instance_id=self._instance_id,
        )
        code = ErrorCode((await self._ask(request, seconds=2.0)).error_code)
        if code is not ErrorCode.NONE:
            self._heard("Heartbeat", code)

    # ---- to get out

    async def leave(self) -> None:
        self._let_go(list(self.owned))
        if not self.member_id:
            return
        itself = LeaveGroupMember(member_id=self.member_id, group_instance_id=self._instance_id)
        version = self._kafka.version_of(LeaveGroupRequest(group_id=self._group))
        request = LeaveGroupRequest(
            group_id=self._group,
            member_id=self.member_id if version < 3 else "",
            members=[itself] if version >= 3 else [],
        )
        answer = await self._ask(request)
        code = ErrorCode(answer.error_code)
        if code is ErrorCode.NONE and version >= 3:
            code = ErrorCode(answer.members[0].error_code)
        self._look_again(code)
        if code in _AGAIN:
            raise Lost(code.name)
        if code and code not in _NOT_A_MEMBER:
            self._unexpected("LeaveGroup", code)


def _assignment(places: list[Place]) -> bytes:
    by_topic: dict[str, list[int]] = {}
    for topic, index in places:
        by_topic.setdefault(topic, []).append(index)
    return assignment_bytes(by_topic)
