"""A client that repeats a name is answered once: a description can be much longer than a name."""

import pytest
from guarded_calls import ALICE
from handler_calls import FakeCluster, ask, brokers, facade, image, topic
from refusal_world import world

from moldau.edge.kafka.handlers import metadata
from moldau.edge.kafka.served_apis import APIS
from moldau.model.ids import NO_TOPIC_ID
from moldau.wire.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from moldau.wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from moldau.wire.messages.describe_groups import DescribeGroupsRequest
from moldau.wire.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeProducersTopic,
)
from moldau.wire.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsTopic,
)
from moldau.wire.messages.describe_transactions import DescribeTransactionsRequest
from moldau.wire.messages.find_coordinator import FindCoordinatorRequest
from moldau.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from moldau.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestGroupTopic,
    OffsetFetchResponse,
)
from moldau.wire.registry import RESPONSES, ApiKey
from moldau.wire.schema import Request

TIMES = 3
REPEATED = [
    (MetadataRequest(topics=[MetadataRequestTopic(name="t")] * TIMES), "topics"),
    (
        DescribeConfigsRequest(
            resources=[
                DescribeConfigsResource(resource_type=2, resource_name="t", configuration_keys=None)
            ]
            * TIMES
        ),
        "results",
    ),
    (DescribeGroupsRequest(groups=["g"] * TIMES), "groups"),
    (ConsumerGroupDescribeRequest(group_ids=["g"] * TIMES), "groups"),
    (DescribeTransactionsRequest(transactional_ids=["x"] * TIMES), "transaction_states"),
    (FindCoordinatorRequest(key_type=0, coordinator_keys=["g"] * TIMES), "coordinators"),
    (
        DescribeProducersRequest(
            topics=[DescribeProducersTopic(name="t", partition_indexes=[0])] * TIMES
        ),
        "topics",
    ),
    (
        DescribeTopicPartitionsRequest(topics=[DescribeTopicPartitionsTopic(name="t")] * TIMES),
        "topics",
    ),
    (
        OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", topics=None)] * TIMES),
        "groups",
    ),
]


@pytest.mark.parametrize(
    ("request_", "answers"),
    [pytest.param(*case, id=ApiKey(case[0].API_KEY).name) for case in REPEATED],
)
def test_a_repeated_name_is_answered_once(request_: Request, answers: str) -> None:
    key = request_.API_KEY
    found = ask(APIS[key], world().session(ALICE), request_, RESPONSES[key])
    assert len(getattr(found, answers)) == 1


def test_a_repeated_partition_is_answered_once() -> None:
    asked = [
        DescribeProducersTopic(name="t", partition_indexes=indexes)
        for indexes in ([0, 1, 0], [1, 2])
    ]
    request = DescribeProducersRequest(topics=asked)
    api = APIS[request.API_KEY]
    found = ask(api, world().session(ALICE), request, DescribeProducersResponse)
    (partitions,) = [each.partitions for each in found.topics]
    assert [each.partition_index for each in partitions] == [0, 1, 2]


def test_a_group_may_be_asked_for_some_topics_here_and_others_there() -> None:
    groups = [
        OffsetFetchRequestGroup(
            group_id="g", topics=[OffsetFetchRequestGroupTopic(name=name, partition_indexes=[0])]
        )
        for name in ("a", "b")
    ]
    request = OffsetFetchRequest(groups=groups)
    api = APIS[request.API_KEY]
    found = ask(api, world().session(ALICE), request, OffsetFetchResponse, 9)
    assert len(found.groups) == 2


def test_a_topic_is_described_once_under_whatever_name_its_id_is_given() -> None:
    wide = topic("wide", *[(1,)] * 5)
    cluster = FakeCluster(image(brokers(1), wide))
    by_id = [
        MetadataRequestTopic(name=name, topic_id=wide.topic_id) for name in (None, "a", "b", "wide")
    ]
    others = [MetadataRequestTopic(name=name, topic_id=NO_TOPIC_ID) for name in ("x", "y", "x")]
    request = MetadataRequest(topics=[*by_id, *others])
    found = ask(metadata.API, facade(cluster), request, MetadataResponse)
    assert [each.name for each in found.topics] == ["wide", "x", "y"]
