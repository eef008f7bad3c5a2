"""The operations of `topic_changes` and `topic_queries`, for the OpenAPI document."""

from typing import Final

from moldau.edge.http.operation import TEXT, Operation, number
from moldau.edge.http.query_parameters import PAGE_SIZE, PAGE_SIZE_MAX
from moldau.edge.http.resources import TopicShown
from moldau.edge.http.topic_changes import (
    ConfigsShown,
    ConfigsWanted,
    ElectionWanted,
    PartitionsProblem,
    PartitionsWanted,
    ReplicasWanted,
    TopicElected,
    TopicMoved,
    TopicTrimmed,
    TrimWanted,
)
from moldau.edge.http.topic_queries import TopicGroupList, TopicSettings

TOPIC_OPERATIONS: Final[dict[tuple[str, str], Operation]] = {
    ("GET", "/api/v1/topic-settings"): Operation(
        "listTopicSettings",
        "Every setting that topics may have: type, default, meaning",
        {200: TopicSettings},
        {},
    ),
    ("PATCH", "/api/v1/topics/{topic}/configs"): Operation(
        "changeTopicConfigs",
        "Change settings of a topic; null: back to the default",
        {200: ConfigsShown},
        {},
        body=ConfigsWanted,
        refusals=(404,),
    ),
    ("POST", "/api/v1/topics/{topic}/partitions"): Operation(
        "addPartitions",
        "Add partitions to a topic",
        {200: TopicShown},
        {},
        body=PartitionsWanted,
        refusals=(404,),
    ),
    ("POST", "/api/v1/topics/{topic}/trim"): Operation(
        "trimTopic",
        "Delete the records before an offset; null: all",
        {200: TopicTrimmed},
        {},
        body=TrimWanted,
        refusals=(404,),
        problem=PartitionsProblem,
    ),
    ("GET", "/api/v1/topics/{topic}/groups"): Operation(
        "listTopicGroups",
        "The groups that consume a topic, with their lag, in pages",
        {200: TopicGroupList},
        {"limit": number(1, PAGE_SIZE_MAX, default=PAGE_SIZE), "after": TEXT},
        refusals=(404,),
    ),
    ("POST", "/api/v1/topics/{topic}/elect"): Operation(
        "electLeaders",
        "Move leadership to the preferred replicas; null: of all partitions that need it",
        {200: TopicElected},
        {},
        body=ElectionWanted,
        refusals=(404,),
        problem=PartitionsProblem,
    ),
    ("POST", "/api/v1/topics/{topic}/replicas"): Operation(
        "moveReplicas",
        "Move partitions to other brokers; null cancels a move",
        {200: TopicMoved},
        {},
        body=ReplicasWanted,
        refusals=(404, 409),
        problem=PartitionsProblem,
    ),
}
