"""A group lives through join, sync, heartbeat, commit and leave at every served version."""

import itertools
from collections.abc import Callable

import pytest

from moldau.client.wire.connection import KafkaConnection
from moldau.edge.kafka import authorized_operations as operations
from moldau.model.errors import ErrorCode
from moldau.security import acl
from moldau.testing.broker import Broker
from moldau.testing.waiting import wait_until
from moldau.wire.messages.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from moldau.wire.messages.describe_groups import (
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from moldau.wire.messages.find_coordinator import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from moldau.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from moldau.wire.messages.join_group import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
)
from moldau.wire.messages.leave_group import (
    LeaveGroupMember,
    LeaveGroupRequest,
    LeaveGroupResponse,
)
from moldau.wire.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from moldau.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from moldau.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
)
from moldau.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestGroupTopic,
    OffsetFetchRequestTopic,
    OffsetFetchResponse,
)
from moldau.wire.messages.sync_group import (
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)

pytestmark = pytest.mark.system

GROUP, TRANSACTION, SHARE = 0, 1, 2
TopicIdOf = Callable[[str], bytes]
_numbers = itertools.count(1)


@pytest.fixture
def group() -> str:
    return f"edge-group-{next(_numbers)}"


def join(
    connection: KafkaConnection,
    group: str,
    *,
    version: int = 9,
    member: str = "",
    instance: str | None = None,
) -> JoinGroupResponse:
    """Joins; from version 4 on in two steps, as a client does."""
    request = JoinGroupRequest(
        group_id=group,
        session_timeout_ms=60_000,
        rebalance_timeout_ms=60_000,
        member_id=member,
        group_instance_id=instance,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=b"topics")],
    )
    response = connection.request(request, JoinGroupResponse, version)
    if response.error_code == ErrorCode.MEMBER_ID_REQUIRED:
        request.member_id = response.member_id
        response = connection.request(request, JoinGroupResponse, version)
    return response


def sync(
    connection: KafkaConnection, group: str, joined: JoinGroupResponse, *, version: int = 5
) -> SyncGroupResponse:
    request = SyncGroupRequest(
        group_id=group,
        generation_id=joined.generation_id,
        member_id=joined.member_id,
        protocol_type="consumer",
        protocol_name="range",
        assignments=[SyncGroupRequestAssignment(member_id=joined.member_id, assignment=b"mine")],
    )
    return connection.request(request, SyncGroupResponse, version)


def settle(connection: KafkaConnection, group: str) -> JoinGroupResponse:
    joined = join(connection, group)
    assert sync(connection, group, joined).error_code == 0
    return joined


def leave(connection: KafkaConnection, group: str, member: str) -> None:
    request = LeaveGroupRequest(group_id=group, members=[LeaveGroupMember(member_id=member)])
    assert connection.request(request, LeaveGroupResponse).error_code == 0


def commit(
    connection: KafkaConnection,
    group: str,
    topic: str,
    offsets: dict[int, int],
    *,
    version: int = 9,
    topic_id: bytes = bytes(16),
    member: str = "",
    generation: int = -1,
) -> list[int]:
    request = OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=generation,
        member_id=member,
        topics=[
            OffsetCommitRequestTopic(
                name=topic,
                topic_id=topic_id,
                partitions=[
                    OffsetCommitRequestPartition(
                        partition_index=index,
                        committed_offset=offset,
                        committed_leader_epoch=3,
                        committed_metadata="here",
                    )
                    for index, offset in offsets.items()
                ],
            )
        ],
    )
    (answered,) = connection.request(request, OffsetCommitResponse, version).topics
    return [partition.error_code for partition in answered.partitions]


def describe(connection: KafkaConnection, group: str, version: int = 6) -> DescribedGroup:
    request = DescribeGroupsRequest(groups=[group])
    (described,) = connection.request(request, DescribeGroupsResponse, version).groups
    return described


# ---- FindCoordinator


@pytest.mark.parametrize("version", range(7))
def test_this_broker_coordinates_every_group(
    connection: KafkaConnection, moldau_session_broker: Broker, group: str, version: int
) -> None:
    request = FindCoordinatorRequest(key=group)
    if version >= 4:
        request = FindCoordinatorRequest(coordinator_keys=[group, "other"])
    response = connection.request(request, FindCoordinatorResponse, version)
    if version >= 4:
        assert [found.key for found in response.coordinators] == [group, "other"]
        node = response.coordinators[1]
        assert (node.error_code, node.node_id, node.port) == (0, 1, moldau_session_broker.port)
    else:
        assert (response.error_code, response.node_id) == (0, 1)
        assert response.port == moldau_session_broker.port


@pytest.mark.parametrize("version", range(1, 7))
def test_this_broker_coordinates_every_transactional_id(
    connection: KafkaConnection, version: int
) -> None:
    request = FindCoordinatorRequest(key="tx", key_type=TRANSACTION)
    if version >= 4:
        request = FindCoordinatorRequest(coordinator_keys=["tx"], key_type=TRANSACTION)
    response = connection.request(request, FindCoordinatorResponse, version)
    found = response.coordinators[0] if version >= 4 else response
    assert (found.error_code, found.node_id) == (0, 1)


def test_other_coordinators_do_not_exist(connection: KafkaConnection) -> None:
    request = FindCoordinatorRequest(coordinator_keys=["x"], key_type=SHARE)
    (found,) = connection.request(request, FindCoordinatorResponse).coordinators
    assert found.error_code == ErrorCode.INVALID_REQUEST


# ---- JoinGroup, SyncGroup, Heartbeat, LeaveGroup


@pytest.mark.parametrize("version", range(10))
def test_a_member_joins_and_leads(connection: KafkaConnection, group: str, version: int) -> None:
    joined = join(connection, group, version=version)
    assert (joined.error_code, joined.generation_id) == (0, 1)
    assert joined.leader == joined.member_id
    assert joined.member_id.startswith("edge-test-")
    assert joined.protocol_name == "range"
    assert [(each.member_id, each.metadata) for each in joined.members] == [
        (joined.member_id, b"topics")
    ]
    if version >= 7:
        assert joined.protocol_type == "consumer"


@pytest.mark.parametrize("version", range(10))
def test_a_refused_join_names_no_protocol(connection: KafkaConnection, version: int) -> None:
    joined = join(connection, "", version=version)
    assert joined.error_code == ErrorCode.INVALID_GROUP_ID
    assert (joined.generation_id, joined.members) == (-1, [])
    assert joined.protocol_name == (None if version >= 7 else "")


def test_from_version_4_a_new_member_gets_its_id_first(
    connection: KafkaConnection, group: str
) -> None:
    request = JoinGroupRequest(
        group_id=group,
        session_timeout_ms=60_000,
        member_id="",
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
    )
    response = connection.request(request, JoinGroupResponse, 4)
    assert response.error_code == ErrorCode.MEMBER_ID_REQUIRED
    assert response.member_id


def test_a_static_member_keeps_its_instance(connection: KafkaConnection, group: str) -> None:
    joined = join(connection, group, instance="one")
    assert joined.error_code == 0
    assert [each.group_instance_id for each in joined.members] == ["one"]
    again = join(connection, group, instance="one")
    assert again.error_code == 0
    assert again.member_id != joined.member_id
    late = HeartbeatRequest(
        group_id=group,
        generation_id=again.generation_id,
        member_id=joined.member_id,
        group_instance_id="one",
    )
    fenced = connection.request(late, HeartbeatResponse).error_code
    assert fenced == ErrorCode.FENCED_INSTANCE_ID


@pytest.mark.parametrize("version", range(6))
def test_the_assignment_comes_back(connection: KafkaConnection, group: str, version: int) -> None:
    synced = sync(connection, group, join(connection, group), version=version)
    assert (synced.error_code, synced.assignment) == (0, b"mine")
    if version >= 5:
        assert (synced.protocol_type, synced.protocol_name) == ("consumer", "range")


@pytest.mark.parametrize("version", range(5))
def test_a_heartbeat_of_a_member_is_good(
    connection: KafkaConnection, group: str, version: int
) -> None:
    joined = settle(connection, group)

    def beat(member: str, generation: int) -> int:
        request = HeartbeatRequest(group_id=group, generation_id=generation, member_id=member)
        return connection.request(request, HeartbeatResponse, version).error_code

    assert beat(joined.member_id, 1) == 0
    assert beat(joined.member_id, 7) == ErrorCode.ILLEGAL_GENERATION
    assert beat("stranger", 1) == ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("version", range(6))
def test_a_member_leaves(connection: KafkaConnection, group: str, version: int) -> None:
    joined = settle(connection, group)

    def go(member: str) -> tuple[int, list[int]]:
        request = LeaveGroupRequest(group_id=group, member_id=member)
        if version >= 3:
            members = [LeaveGroupMember(member_id=member)]
            request = LeaveGroupRequest(group_id=group, members=members)
        response = connection.request(request, LeaveGroupResponse, version)
        return response.error_code, [each.error_code for each in response.members]

    unknown = ErrorCode.UNKNOWN_MEMBER_ID
    assert go("stranger") == ((0, [unknown]) if version >= 3 else (unknown, []))
    assert go(joined.member_id) == ((0, [0]) if version >= 3 else (0, []))
    assert describe(connection, group).members == []


def test_a_waiting_join_is_answered_when_the_other_member_leaves(
    connection: KafkaConnection, moldau_session_broker: Broker, group: str
) -> None:
    broker = moldau_session_broker
    first = settle(connection, group)
    with KafkaConnection(broker.host, broker.port) as other:
        request = JoinGroupRequest(
            group_id=group,
            session_timeout_ms=60_000,
            rebalance_timeout_ms=60_000,
            member_id="",
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
        )
        other.post(request, 3)
        heartbeat = HeartbeatRequest(group_id=group, generation_id=1, member_id=first.member_id)
        code = wait_until(
            lambda: connection.request(heartbeat, HeartbeatResponse).error_code,
            "the other member's join is heard of",
        )
        assert code == ErrorCode.REBALANCE_IN_PROGRESS
        leave(connection, group, first.member_id)
        joined = other.receive()
        assert isinstance(joined, JoinGroupResponse)
        assert (joined.error_code, joined.generation_id) == (0, 2)


# ---- OffsetCommit, OffsetFetch


@pytest.mark.parametrize("version", range(2, 11))
def test_a_commit_comes_back(
    connection: KafkaConnection,
    group: str,
    moldau_topic: str,
    topic_id_of: TopicIdOf,
    version: int,
) -> None:
    topic_id = topic_id_of(moldau_topic)
    codes = commit(
        connection, group, moldau_topic, {0: 42, 9: 1}, version=version, topic_id=topic_id
    )
    assert codes == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    if version == 10:
        unknown = commit(connection, group, "", {0: 1}, version=10, topic_id=b"?" * 16)
        assert unknown == [ErrorCode.UNKNOWN_TOPIC_ID]
    else:
        unknown = commit(connection, group, "not-there", {0: 1}, version=version)
        assert unknown == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    request = OffsetFetchRequest(
        group_id=group,
        topics=[OffsetFetchRequestTopic(name=moldau_topic, partition_indexes=[0])],
    )
    (fetched,) = connection.request(request, OffsetFetchResponse, 7).topics[0].partitions
    assert (fetched.committed_offset, fetched.metadata) == (42, "here")
    assert fetched.committed_leader_epoch == (3 if version >= 6 else -1)


@pytest.mark.parametrize("retention_ms", [-(2**63), -1, 0, 2**63 - 1])
def test_any_retention_that_an_old_client_asks_for_is_taken(
    connection: KafkaConnection, group: str, moldau_topic: str, retention_ms: int
) -> None:
    partition = OffsetCommitRequestPartition(
        partition_index=0, committed_offset=8, committed_metadata=None
    )
    request = OffsetCommitRequest(
        group_id=group,
        member_id="",
        retention_time_ms=retention_ms,
        topics=[OffsetCommitRequestTopic(name=moldau_topic, partitions=[partition])],
    )
    for _ in range(2):
        (topic,) = connection.request(request, OffsetCommitResponse, 2).topics
        assert topic.partitions[0].error_code == 0


def test_a_commit_of_an_unknown_member_is_refused(
    connection: KafkaConnection, group: str, moldau_topic: str
) -> None:
    joined = settle(connection, group)

    def try_commit(member: str, generation: int) -> list[int]:
        return commit(connection, group, moldau_topic, {0: 1}, member=member, generation=generation)

    assert try_commit("stranger", 1) == [ErrorCode.UNKNOWN_MEMBER_ID]
    assert try_commit(joined.member_id, 5) == [ErrorCode.ILLEGAL_GENERATION]
    assert try_commit(joined.member_id, 1) == [0]


@pytest.mark.parametrize("version", range(1, 8))
def test_offsets_of_one_group_are_fetched(
    connection: KafkaConnection, group: str, moldau_topic: str, version: int
) -> None:
    commit(connection, group, moldau_topic, {0: 5})

    def fetch(topics: list[OffsetFetchRequestTopic] | None) -> dict[tuple[str, int], int]:
        request = OffsetFetchRequest(group_id=group, topics=topics)
        response = connection.request(request, OffsetFetchResponse, version)
        assert response.error_code == 0
        return {
            (topic.name, partition.partition_index): partition.committed_offset
            for topic in response.topics
            for partition in topic.partitions
        }

    wanted = [OffsetFetchRequestTopic(name=moldau_topic, partition_indexes=[0, 3])]
    assert fetch(wanted) == {(moldau_topic, 0): 5, (moldau_topic, 3): -1}
    assert fetch([]) == {}
    if version >= 2:
        assert fetch(None) == {(moldau_topic, 0): 5}


@pytest.mark.parametrize("version", range(8, 11))
def test_offsets_of_several_groups_are_fetched(
    connection: KafkaConnection,
    group: str,
    moldau_topic: str,
    topic_id_of: TopicIdOf,
    version: int,
) -> None:
    commit(connection, group, moldau_topic, {0: 5})
    topic_id = topic_id_of(moldau_topic)
    wanted = OffsetFetchRequestGroupTopic(
        name=moldau_topic, topic_id=topic_id, partition_indexes=[0, 3]
    )
    unknown = OffsetFetchRequestGroupTopic(
        name="not-there", topic_id=b"?" * 16, partition_indexes=[0]
    )
    request = OffsetFetchRequest(
        groups=[
            OffsetFetchRequestGroup(group_id=group, topics=[wanted, unknown]),
            OffsetFetchRequestGroup(group_id=group, topics=None),
            OffsetFetchRequestGroup(group_id="empty", topics=[wanted]),
        ]
    )
    some, everything, empty = connection.request(request, OffsetFetchResponse, version).groups
    found = some.topics[0]
    assert (found.name, found.topic_id) == (
        ("", topic_id) if version == 10 else (moldau_topic, bytes(16))
    )
    assert [each.committed_offset for each in found.partitions] == [5, -1]
    assert (found.partitions[0].committed_leader_epoch, found.partitions[0].metadata) == (3, "here")
    (missing,) = some.topics[1].partitions
    assert missing.committed_offset == -1
    assert missing.error_code == (ErrorCode.UNKNOWN_TOPIC_ID if version == 10 else 0)
    assert [each.topic_id for each in everything.topics] == [found.topic_id]
    assert [len(each.partitions) for each in everything.topics] == [1]
    assert [each.committed_offset for each in empty.topics[0].partitions] == [-1, -1]
    assert (some.error_code, everything.error_code, empty.error_code) == (0, 0, 0)


# ---- DescribeGroups, ListGroups


@pytest.mark.parametrize("version", range(7))
def test_a_group_is_described(connection: KafkaConnection, group: str, version: int) -> None:
    joined = settle(connection, group)
    described = describe(connection, group, version)
    assert (described.error_code, described.group_state) == (0, "Stable")
    assert (described.protocol_type, described.protocol_data) == ("consumer", "range")
    (member,) = described.members
    assert (member.member_id, member.client_id) == (joined.member_id, "edge-test")
    assert (member.client_host, member.member_metadata) == ("/127.0.0.1", b"topics")
    assert member.member_assignment == b"mine"
    assert described.authorized_operations == operations.NOT_REQUESTED


@pytest.mark.parametrize("version", range(7))
def test_an_unknown_group_is_dead(connection: KafkaConnection, group: str, version: int) -> None:
    described = describe(connection, group, version)
    assert (described.group_state, described.members) == ("Dead", [])
    if version >= 6:
        assert described.error_code == ErrorCode.GROUP_ID_NOT_FOUND
        assert group in (described.error_message or "")
    else:
        assert described.error_code == 0


def test_operations_on_a_group_are_returned_if_asked_for(
    connection: KafkaConnection, group: str
) -> None:
    request = DescribeGroupsRequest(groups=[group], include_authorized_operations=True)
    (described,) = connection.request(request, DescribeGroupsResponse).groups
    assert described.authorized_operations == operations.bits(acl.ON_GROUP)


@pytest.mark.parametrize("version", range(6))
def test_groups_are_listed(connection: KafkaConnection, group: str, version: int) -> None:
    settle(connection, group)

    def listed(states: list[str], types: list[str]) -> dict[str, tuple[str, str, str]]:
        request = ListGroupsRequest(states_filter=states, types_filter=types)
        response = connection.request(request, ListGroupsResponse, version)
        assert response.error_code == 0
        return {
            each.group_id: (each.protocol_type, each.group_state, each.group_type)
            for each in response.groups
        }

    state = "Stable" if version >= 4 else ""
    kind = "classic" if version >= 5 else ""
    assert listed([], [])[group] == ("consumer", state, kind)
    if version >= 4:
        assert group in listed(["stable", "Empty"], [])
        assert group not in listed(["Empty"], [])
    if version >= 5:
        assert group in listed([], ["Classic"])
        others = listed([], ["consumer"])
        assert group not in others
        assert {kind for _, _, kind in others.values()} <= {"consumer"}


# ---- DeleteGroups, OffsetDelete


@pytest.mark.parametrize("version", range(3))
def test_only_an_empty_group_is_deleted(
    connection: KafkaConnection, group: str, moldau_topic: str, version: int
) -> None:
    joined = settle(connection, group)

    def delete() -> list[int]:
        request = DeleteGroupsRequest(groups_names=[group, "never-was"])
        response = connection.request(request, DeleteGroupsResponse, version)
        assert [each.group_id for each in response.results] == [group, "never-was"]
        return [each.error_code for each in response.results]

    missing = ErrorCode.GROUP_ID_NOT_FOUND
    assert delete() == [ErrorCode.NON_EMPTY_GROUP, missing]
    leave(connection, group, joined.member_id)
    commit(connection, group, moldau_topic, {0: 1})
    assert delete() == [0, missing]
    assert describe(connection, group).group_state == "Dead"
    request = OffsetFetchRequest(group_id=group, topics=None)
    assert connection.request(request, OffsetFetchResponse, 7).topics == []


def test_offsets_of_a_group_are_deleted(
    connection: KafkaConnection, group: str, moldau_topic: str
) -> None:
    commit(connection, group, moldau_topic, {0: 1})

    def delete(group_id: str) -> tuple[int, list[int]]:
        request = OffsetDeleteRequest(
            group_id=group_id,
            topics=[
                OffsetDeleteRequestTopic(
                    name=name, partitions=[OffsetDeleteRequestPartition(partition_index=0)]
                )
                for name in ("not-there", moldau_topic)
            ],
        )
        response = connection.request(request, OffsetDeleteResponse)
        codes = [each.error_code for topic in response.topics for each in topic.partitions]
        return response.error_code, codes

    assert delete("never-was") == (ErrorCode.GROUP_ID_NOT_FOUND, [])
    assert delete(group) == (0, [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 0])
    request = OffsetFetchRequest(group_id=group, topics=None)
    assert connection.request(request, OffsetFetchResponse, 7).topics == []
