"""DescribeTopicPartitions (75): topics in pages, with a cursor.

Topics come sorted by name, so that a cursor means the same in the next request.
"""

from moldau.api.types import Partition, Topic
from moldau.edge.kafka.authorized_operations import on_topic
from moldau.edge.kafka.handler import Api, Call
from moldau.edge.kafka.large_requests import Steps, in_turns
from moldau.edge.kafka.partition_leaders import placements_of
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import NO_TOPIC_ID
from moldau.wire.messages.describe_topic_partitions import (
    DescribeTopicPartitionsNextCursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)

_PARTITIONS_MAX = 2000
"""Of one response, even if the client requests more."""


@in_turns
def handle(
    call: Call, request: DescribeTopicPartitionsRequest
) -> Steps[DescribeTopicPartitionsResponse]:
    names = sorted({topic.name for topic in request.topics} or _all_names(call))
    first_index = 0
    cursor = request.cursor
    if cursor is not None:
        names = [name for name in names if name >= cursor.topic_name]
        if names and names[0] == cursor.topic_name:
            first_index = max(0, cursor.partition_index)
    left = max(1, min(request.response_partition_limit, _PARTITIONS_MAX))
    topics: list[DescribeTopicPartitionsResponseTopic] = []
    next_cursor = None
    for name in names:
        yield
        try:
            topic = call.session.topics.find(name)
        except RefusedError as error:
            topics.append(_refused(name, error.code))
            continue
        if topic is None:
            topics.append(_refused(name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
            continue
        if left == 0:
            next_cursor = DescribeTopicPartitionsNextCursor(topic_name=name, partition_index=0)
            break
        shown = topic.partitions[first_index : first_index + left]
        topics.append(_describe(call, topic, shown))
        left -= len(shown)
        if first_index + len(shown) < len(topic.partitions):
            next_cursor = DescribeTopicPartitionsNextCursor(
                topic_name=name, partition_index=first_index + len(shown)
            )
            break
        first_index = 0
    return DescribeTopicPartitionsResponse(topics=topics, next_cursor=next_cursor)


def _all_names(call: Call) -> set[str]:
    return {topic.name for topic in call.session.topics.all()}


def _refused(name: str, code: ErrorCode) -> DescribeTopicPartitionsResponseTopic:
    return DescribeTopicPartitionsResponseTopic(
        error_code=code, name=name, topic_id=NO_TOPIC_ID, partitions=[]
    )


def _describe(
    call: Call, topic: Topic, partitions: tuple[Partition, ...]
) -> DescribeTopicPartitionsResponseTopic:
    described = []
    placements = placements_of(call.session, topic, partitions, call.session.cluster.alive)
    for partition, placement in zip(partitions, placements, strict=True):
        error, leader, epoch, replicas, in_sync, offline = placement
        described.append(
            DescribeTopicPartitionsResponsePartition(
                error_code=error,
                partition_index=partition.index,
                leader_id=leader,
                leader_epoch=epoch,
                replica_nodes=replicas,
                isr_nodes=in_sync,
                # Empty and not null: the Java client does not check for null.
                eligible_leader_replicas=[],
                last_known_elr=[],
                offline_replicas=offline,
            )
        )
    return DescribeTopicPartitionsResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.internal,
        partitions=described,
        topic_authorized_operations=on_topic(call.session, topic.name),
    )


API = Api(DescribeTopicPartitionsRequest, versions=(0, 0), handle=handle)
