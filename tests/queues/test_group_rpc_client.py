"""Asking a group's coordinator: here or elsewhere, again if need be, and not for ever."""

from typing import Any, cast

import pytest

from moldau.coordination.group_service import GroupService
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import BrokerId, PartitionIndex, TopicPartition
from moldau.net.peers.methods import PeerMethod
from moldau.queues import group_rpc_client
from moldau.queues.group_rpc_client import GroupRpcClient
from moldau.queues.group_rpc_handlers import GroupRpcHandlers
from moldau.queues.group_rpc_messages import (
    GroupDescription,
    GroupMemberRef,
    OffsetCommitResult,
    decode,
    encode,
)
from moldau.queues.types import ErrorReason, QueueRefusedError
from moldau.testing.replicas import ManualClock

ME, OTHER, THIRD = BrokerId(1), BrokerId(2), BrokerId(3)
TOLD = GroupDescription(members=[], classic_members=1, has_offsets=False)


class World:
    """Who coordinates, and what is answered, call by call."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.coordinators: list[BrokerId | RefusedError] = [OTHER]
        self.answers: list[Any] = []
        self.sent: list[tuple[int, int, bytes]] = []
        self.here = 0
        self.calls = GroupRpcClient(
            me=ME,
            clock=self.clock,
            groups=cast(GroupService, self),
            handlers=cast(GroupRpcHandlers, self),
            caller=self,
            peers=lambda: [OTHER, THIRD],
        )

    async def find_coordinator(self, group: str) -> BrokerId:
        self.clock.steady += 1.0
        found = self.coordinators.pop(0) if len(self.coordinators) > 1 else self.coordinators[0]
        if isinstance(found, RefusedError):
            raise found
        return found

    async def call(
        self, peer: BrokerId, method: int, payload: bytes, timeout_seconds: float
    ) -> bytes:
        self.sent.append((peer, method, payload))
        return encode(self._answer())

    async def describe(self, asked: GroupMemberRef) -> Any:
        self.here += 1
        return self._answer()

    # Of the coordinator's side; only what a test asks for here is answered.
    heartbeat = offsets = commit = describe

    def _answer(self) -> Any:
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, RefusedError):
            raise answer
        return answer


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_rpc_client, "_PAUSE_SECONDS", 0.0)


async def test_the_coordinator_is_asked_where_it_is() -> None:
    world = World()
    world.answers = [TOLD]
    assert await world.calls.describe("g") == TOLD
    ((peer, method, payload),) = world.sent
    assert (peer, method) == (OTHER, PeerMethod.QUEUE_DESCRIBE)
    assert decode(payload, GroupMemberRef) == GroupMemberRef(group="g")
    world.coordinators = [ME]
    assert await world.calls.describe("g") == TOLD
    assert (world.here, len(world.sent)) == (1, 1)


async def test_a_coordinator_that_moves_or_loads_is_looked_for_again() -> None:
    world = World()
    world.coordinators = [OTHER, ME, OTHER]
    world.answers = [
        RefusedError(ErrorCode.NOT_COORDINATOR),
        RefusedError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
        RefusedError(ErrorCode.NETWORK_EXCEPTION),
        [OffsetCommitResult(ErrorCode.NONE, 7)],
    ]
    partition = TopicPartition("t", PartitionIndex(0))
    assert await world.calls.commit("g", "m", [(partition, 9)]) == [OffsetCommitResult(0, 7)]
    assert world.here == 1
    assert [method for _, method, _ in world.sent] == [PeerMethod.QUEUE_COMMIT] * 3


async def test_no_peer_is_asked_forever() -> None:
    world = World()
    world.coordinators = [RefusedError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "nobody leads")]
    with pytest.raises(QueueRefusedError, match="nobody leads") as caught:
        await world.calls.describe("g")
    assert caught.value.reason is ErrorReason.UNAVAILABLE


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (ErrorCode.UNKNOWN_MEMBER_ID, ErrorReason.UNKNOWN_CONSUMER),
        (ErrorCode.GROUP_ID_NOT_FOUND, ErrorReason.OTHER_MODE),
        (ErrorCode.INCONSISTENT_GROUP_PROTOCOL, ErrorReason.OTHER_MODE),
        (ErrorCode.INVALID_GROUP_ID, ErrorReason.INVALID_ARGUMENT),
        (ErrorCode.GROUP_MAX_SIZE_REACHED, ErrorReason.BUSY),
        (ErrorCode.KAFKA_STORAGE_ERROR, ErrorReason.UNAVAILABLE),
    ],
)
async def test_a_refusal_is_returned_in_the_terms_of_queues(
    code: ErrorCode, reason: ErrorReason
) -> None:
    world = World()
    world.answers = [RefusedError(code, "for a reason")]
    with pytest.raises(QueueRefusedError, match="for a reason") as caught:
        await world.calls.describe("g")
    assert caught.value.reason is reason
    assert len(world.sent) == 1


async def test_all_peers_are_notified_of_a_leave_and_an_unresponsive_one_does_no_harm() -> None:
    world = World()
    world.answers = [RefusedError(ErrorCode.NETWORK_EXCEPTION), b""]
    await world.calls.announce_member_left("g", "m")
    assert [(peer, method) for peer, method, _ in world.sent] == [
        (OTHER, PeerMethod.QUEUE_MEMBER_LEFT),
        (THIRD, PeerMethod.QUEUE_MEMBER_LEFT),
    ]
