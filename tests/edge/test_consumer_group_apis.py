"""ConsumerGroupHeartbeat and ConsumerGroupDescribe over the wire, at every served version."""

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from moldau.client.wire.client import KafkaClient
from moldau.client.wire.connection import KafkaConnection
from moldau.model.errors import ErrorCode
from moldau.testing.broker import Broker
from moldau.wire.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribedConsumerGroup,
)
from moldau.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    HeartbeatOwnedTopic,
)
from moldau.wire.messages.describe_groups import DescribeGroupsRequest, DescribeGroupsResponse
from moldau.wire.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from moldau.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponse,
)

pytestmark = pytest.mark.system

_numbers = itertools.count(1)


@pytest.fixture
def wire(moldau_session_broker: Broker) -> Iterator[KafkaConnection]:
    with KafkaConnection(moldau_session_broker.host, moldau_session_broker.port) as opened:
        yield opened


@pytest.fixture
def group(moldau_session_broker: Broker) -> str:
    """Also the name of a topic with two partitions."""
    name = f"assigned-{next(_numbers)}"
    with KafkaClient(moldau_session_broker.bootstrap) as client:
        client.create_topic(name, partitions=2)
    return name


def beat(
    wire: KafkaConnection, group: str, member: str, epoch: int, version: int = 1, **fields: object
) -> ConsumerGroupHeartbeatResponse:
    values: dict[str, object] = {"group_id": group, "member_id": member, "member_epoch": epoch}
    if epoch == 0:
        values |= {
            "rebalance_timeout_ms": 30_000,
            "subscribed_topic_names": [group],
            "topic_partitions": [],
        }
    request = ConsumerGroupHeartbeatRequest(**{**values, **fields})  # type: ignore[arg-type]
    return wire.request(request, ConsumerGroupHeartbeatResponse, version)


def describe(wire: KafkaConnection, group: str, version: int = 1) -> DescribedConsumerGroup:
    request = ConsumerGroupDescribeRequest(group_ids=[group], include_authorized_operations=True)
    (found,) = wire.request(request, ConsumerGroupDescribeResponse, version).groups
    return found


@pytest.mark.parametrize("version", [0, 1])
def test_a_member_joins_keeps_up_and_leaves(
    wire: KafkaConnection, group: str, version: int
) -> None:
    joined = beat(wire, group, "" if version == 0 else "me", 0, version)
    assert joined.error_code == ErrorCode.NONE
    member = joined.member_id or ""
    assert member
    assert version == 0 or member == "me"
    assert joined.heartbeat_interval_ms == 5_000
    assert joined.assignment is not None
    (given,) = joined.assignment.topic_partitions
    assert given.partitions == [0, 1]
    kept = beat(wire, group, member, joined.member_epoch, version)
    assert (kept.error_code, kept.assignment) == (ErrorCode.NONE, None)
    found = describe(wire, group, version)
    assert (found.group_state, found.group_epoch, found.assignor_name) == ("Stable", 1, "uniform")
    (me,) = found.members
    assert (me.member_id, me.member_epoch, me.client_host) == (member, 1, "/127.0.0.1")
    (topic,) = me.assignment.topic_partitions
    assert (topic.topic_name, topic.topic_id, topic.partitions) == (group, given.topic_id, [0, 1])
    assert me.target_assignment == me.assignment
    assert found.authorized_operations > 0
    assert beat(wire, group, member, -1, version).member_epoch == -1
    assert describe(wire, group, version).group_state == "Empty"


def test_a_client_of_version_1_makes_its_own_id(wire: KafkaConnection, group: str) -> None:
    assert beat(wire, group, "", 0, 1).error_code == ErrorCode.INVALID_REQUEST


def test_what_a_member_owns_is_read_from_the_request(wire: KafkaConnection, group: str) -> None:
    joined = beat(wire, group, "a", 0)
    assert joined.assignment is not None
    topic_id = joined.assignment.topic_partitions[0].topic_id
    beat(wire, group, "b", 0)
    told = beat(wire, group, "a", 1)
    assert told.assignment is not None
    (kept,) = told.assignment.topic_partitions
    owned = [HeartbeatOwnedTopic(topic_id=topic_id, partitions=kept.partitions)]
    assert beat(wire, group, "a", 1, topic_partitions=owned).member_epoch == 2
    assert describe(wire, group).group_state == "Reconciling"
    given = beat(wire, group, "b", 2).assignment
    assert given is not None
    assert given.topic_partitions[0].partitions != kept.partitions


def test_patterns_are_taken_from_version_1_on(wire: KafkaConnection, group: str) -> None:
    fields: Any = {"subscribed_topic_names": None, "subscribed_topic_regex": f"{group}|none"}
    joined = beat(wire, group, "me", 0, **fields)
    assert joined.assignment is not None
    assert joined.assignment.topic_partitions[0].partitions == [0, 1]
    assert describe(wire, group).members[0].subscribed_topic_regex == f"{group}|none"
    refused = beat(wire, group, "you", 0, **{**fields, "subscribed_topic_regex": "("})
    assert refused.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION
    assert "(" in (refused.error_message or "")


def test_each_kind_of_group_is_listed_and_described_as_what_it_is(
    wire: KafkaConnection, group: str
) -> None:
    beat(wire, group, "me", 0)
    listed = wire.request(ListGroupsRequest(types_filter=["consumer"]), ListGroupsResponse).groups
    (mine,) = [one for one in listed if one.group_id == group]
    assert (mine.group_type, mine.group_state, mine.protocol_type) == (
        "consumer",
        "Stable",
        "consumer",
    )
    (classic,) = wire.request(DescribeGroupsRequest(groups=[group]), DescribeGroupsResponse).groups
    assert classic.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert describe(wire, "nobody").error_code == ErrorCode.GROUP_ID_NOT_FOUND


def test_an_offset_fetch_with_an_old_epoch_is_refused(wire: KafkaConnection, group: str) -> None:
    beat(wire, group, "me", 0)
    for epoch, expected in ((1, ErrorCode.NONE), (7, ErrorCode.STALE_MEMBER_EPOCH)):
        asked = OffsetFetchRequestGroup(
            group_id=group, member_id="me", member_epoch=epoch, topics=None
        )
        (answer,) = wire.request(OffsetFetchRequest(groups=[asked]), OffsetFetchResponse, 9).groups
        assert answer.error_code == expected
