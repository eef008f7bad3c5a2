"""What is known to break consumer groups, each with a test, numbered as the project numbers it."""

import itertools
from collections.abc import Callable

import confluent_kafka
import pytest

from moldau.model.errors import ErrorCode
from moldau.testing.broker import Broker
from moldau.testing.waiting import wait_until
from moldau.wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from moldau.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from moldau.wire.messages.join_group import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
)
from moldau.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from moldau.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestGroupTopic,
    OffsetFetchResponse,
)
from moldau.wire.messages.sync_group import (
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)
from raw_client import (
    RawClient,
)

pytestmark = [pytest.mark.compat, pytest.mark.system]


@pytest.fixture
def group(raw: RawClient, new_name: Callable[[str], str]) -> str:
    """A new group whose coordinator answers. The first question of all makes the topic of groups,
    and which test asks it depends on their order."""
    name = new_name("group")
    sought = FindCoordinatorRequest(coordinator_keys=[name], key_type=0)
    fetched = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=name, topics=[])])

    def error() -> ErrorCode:
        found = raw.request(sought, FindCoordinatorResponse, 4).coordinators[0].error_code
        return ErrorCode(found or raw.request(fetched, OffsetFetchResponse, 9).groups[0].error_code)

    wait_until(lambda: error() is ErrorCode.NONE, "the coordinator answers", describe=error)
    return name


def test_12_a_commit_keeps_the_leader_epoch(raw: RawClient, topic: str, group: str) -> None:
    epoch = raw.metadata(topic).partitions[0].leader_epoch
    assert commit(raw, group, topic, 0, leader_epoch=epoch) == ErrorCode.NONE
    assert committed(raw, group, topic)[1] == epoch


def join(
    raw: RawClient, group: str, member: str, *, instance: str | None = None, version: int = 5
) -> JoinGroupResponse:
    request = JoinGroupRequest(
        group_id=group,
        session_timeout_ms=60_000,
        rebalance_timeout_ms=60_000,
        member_id=member,
        group_instance_id=instance,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=b"subscription")],
    )
    return raw.request(request, JoinGroupResponse, version)


def sync(
    raw: RawClient, group: str, joined: JoinGroupResponse, *, instance: str | None = None
) -> SyncGroupResponse:
    assignments = [
        SyncGroupRequestAssignment(member_id=member.member_id, assignment=b"for-" + member.metadata)
        for member in joined.members
    ]
    request = SyncGroupRequest(
        group_id=group,
        generation_id=joined.generation_id,
        member_id=joined.member_id,
        group_instance_id=instance,
        assignments=assignments,
    )
    return raw.request(request, SyncGroupResponse, 3)


def test_21_a_new_member_is_given_an_id_before_it_joins(
    raw: RawClient, group: str, new_name: Callable[[str], str]
) -> None:
    asked = join(raw, group, "")
    assert asked.error_code == ErrorCode.MEMBER_ID_REQUIRED
    assert asked.member_id
    joined = join(raw, group, asked.member_id)
    assert (joined.error_code, joined.member_id) == (ErrorCode.NONE, asked.member_id)
    assert sync(raw, group, joined).assignment == b"for-subscription"
    # Clients before version 4 cannot be asked to come again.
    assert join(raw, new_name("group"), "", version=3).error_code == ErrorCode.NONE


def test_21_consumers_that_join_together_all_get_partitions(
    broker: Broker, raw: RawClient, group: str, new_name: Callable[[str], str]
) -> None:
    topic = raw.create_well(new_name("topic"), partitions=6)
    errors: list[object] = []
    consumers = [
        confluent_kafka.Consumer(
            {
                "bootstrap.servers": broker.bootstrap,
                "group.id": group,
                "log_level": 3,
                "error_cb": errors.append,
            }
        )
        for _ in range(3)
    ]
    try:
        for consumer in consumers:
            consumer.subscribe([topic])
        owned: list[list[int]] = []

        def is_shared() -> bool:
            for consumer in consumers:
                got = consumer.poll(0.05)
                assert got is None or got.error() is None, got.error()
            owned[:] = [[part.partition for part in item.assignment()] for item in consumers]
            is_even = all(len(share) == 2 for share in owned)
            return is_even and sorted(itertools.chain(*owned)) == list(range(6))

        wait_until(is_shared, "all have their share", describe=lambda: owned)
    finally:
        for consumer in consumers:
            consumer.close()
    assert errors == []


@pytest.mark.safety
def test_22_a_static_member_keeps_its_assignment_and_fences_its_double(
    raw: RawClient, group: str
) -> None:
    first = join(raw, group, "", instance="one")
    assert first.error_code == ErrorCode.NONE
    assert sync(raw, group, first, instance="one").error_code == ErrorCode.NONE
    # The same instance starts again without its member id, as after a crash.
    second = join(raw, group, "", instance="one")
    assert second.error_code == ErrorCode.NONE
    assert second.member_id != first.member_id
    assert second.generation_id == first.generation_id
    again = sync(raw, group, second, instance="one")
    assert (again.error_code, again.assignment) == (ErrorCode.NONE, b"for-subscription")
    beat = HeartbeatRequest(
        group_id=group,
        generation_id=first.generation_id,
        member_id=first.member_id,
        group_instance_id="one",
    )
    assert raw.request(beat, HeartbeatResponse).error_code == ErrorCode.FENCED_INSTANCE_ID


def commit(
    raw: RawClient,
    group: str,
    topic: str,
    offset: int,
    *,
    leader_epoch: int = -1,
    metadata: str | None = "",
) -> int:
    partition = OffsetCommitRequestPartition(
        partition_index=0,
        committed_offset=offset,
        committed_leader_epoch=leader_epoch,
        committed_metadata=metadata,
    )
    request = OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=-1,
        member_id="",
        topics=[OffsetCommitRequestTopic(name=topic, partitions=[partition])],
    )
    answer = raw.request(request, OffsetCommitResponse, 9)
    return answer.topics[0].partitions[0].error_code


def committed(raw: RawClient, group: str, topic: str) -> tuple[int, int, str | None]:
    request = OffsetFetchRequest(
        groups=[
            OffsetFetchRequestGroup(
                group_id=group,
                topics=[OffsetFetchRequestGroupTopic(name=topic, partition_indexes=[0])],
            )
        ]
    )
    answer = raw.request(request, OffsetFetchResponse, 9).groups[0].topics[0].partitions[0]
    return answer.committed_offset, answer.committed_leader_epoch, answer.metadata


def test_23_a_commit_comes_back_with_its_metadata_and_epoch(
    raw: RawClient, topic: str, group: str
) -> None:
    assert committed(raw, group, topic) == (-1, -1, "")
    assert commit(raw, group, topic, 7, leader_epoch=3, metadata="Größe 1") == ErrorCode.NONE
    assert committed(raw, group, topic) == (7, 3, "Größe 1")
    assert commit(raw, group, topic, 8) == ErrorCode.NONE
    assert committed(raw, group, topic) == (8, -1, "")
