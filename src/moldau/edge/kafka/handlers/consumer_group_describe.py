"""ConsumerGroupDescribe (69): state and members of consumer groups (KIP-848)."""

from collections.abc import Mapping
from typing import Final

from moldau.api.types import DescribedConsumer
from moldau.edge.kafka.authorized_operations import NOT_REQUESTED, on_group
from moldau.edge.kafka.handler import Api, Call
from moldau.edge.kafka.large_requests import handle_each
from moldau.model.errors import RefusedError
from moldau.model.ids import TopicId
from moldau.wire.messages.consumer_group_describe import (
    ConsumerGroupAssignment,
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ConsumerGroupMember,
    ConsumerGroupTopic,
    DescribedConsumerGroup,
)

_MEMBER_TYPE_CLASSIC: Final = 0
_MEMBER_TYPE_CONSUMER: Final = 1


async def handle(
    call: Call, request: ConsumerGroupDescribeRequest
) -> ConsumerGroupDescribeResponse:
    shows_rights = request.include_authorized_operations
    groups = await handle_each(
        request.group_ids, lambda group_id: _describe(call, group_id, shows_rights), _refused
    )
    return ConsumerGroupDescribeResponse(groups=groups)


def _refused(group_id: str, error: RefusedError) -> DescribedConsumerGroup:
    return DescribedConsumerGroup(
        error_code=error.code,
        error_message=str(error),
        group_id=group_id,
        group_state="",
        group_epoch=0,
        assignment_epoch=0,
        assignor_name="",
        members=[],
    )


def _describe(call: Call, group_id: str, shows_rights: bool) -> DescribedConsumerGroup:
    try:
        group = call.session.groups.describe_consumers(group_id)
    except RefusedError as error:
        return _refused(group_id, error)
    return DescribedConsumerGroup(
        error_code=group.error,
        error_message=group.message,
        group_id=group_id,
        group_state=group.state,
        group_epoch=group.epoch,
        assignment_epoch=group.target_epoch,
        assignor_name=group.assignor,
        members=[_member(call, member) for member in group.members],
        authorized_operations=on_group(call.session, group_id) if shows_rights else NOT_REQUESTED,
    )


def _member(call: Call, member: DescribedConsumer) -> ConsumerGroupMember:
    return ConsumerGroupMember(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=member.rack,
        member_epoch=member.epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=list(member.topics),
        subscribed_topic_regex=member.pattern,
        assignment=_assignment(call, member.assigned),
        target_assignment=_assignment(call, member.target),
        member_type=_MEMBER_TYPE_CLASSIC if member.is_classic else _MEMBER_TYPE_CONSUMER,
    )


def _assignment(
    call: Call, assignment: Mapping[TopicId, frozenset[int]]
) -> ConsumerGroupAssignment:
    topics = []
    for topic_id, indexes in sorted(assignment.items()):
        topic = call.session.topics.find_by_id(topic_id)
        # None: the topic was just deleted.
        if topic is not None:
            topics.append(
                ConsumerGroupTopic(
                    topic_id=topic_id, topic_name=topic.name, partitions=sorted(indexes)
                )
            )
    return ConsumerGroupAssignment(topic_partitions=topics)


API = Api(ConsumerGroupDescribeRequest, versions=(0, 1), handle=handle)
