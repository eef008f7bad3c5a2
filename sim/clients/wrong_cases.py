"""What an admin must not ask for, and how each of it is refused."""

from collections.abc import Callable
from typing import Any, Final

from moldau.model.errors import ErrorCode
from moldau.wire.messages.alter_configs import (
    AlterableConfig,
    AlterConfigsRequest,
    AlterConfigsResource,
)
from moldau.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from moldau.wire.messages.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from moldau.wire.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from moldau.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from moldau.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from moldau.wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from moldau.wire.messages.elect_leaders import ElectLeadersRequest, ElectLeadersTopic
from moldau.wire.messages.fetch import FetchRequest
from moldau.wire.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalConfig,
    IncrementalConfigsResource,
)
from moldau.wire.schema import Request
from sim.clients.own_topics import BROKER_KIND, TOPIC_KIND

E = ErrorCode
LOAD: Final = "log"
Case = tuple[Request, Callable[[Any], int], set[ErrorCode]]


def _create(name: str, partitions: int = 1, factor: int = 1, **named: Any) -> CreateTopicsRequest:
    topic = CreatableTopic(name=name, num_partitions=partitions, replication_factor=factor, **named)
    return CreateTopicsRequest(topics=[topic], timeout_ms=3000)


def _alter(kind: int, name: str, *changes: tuple[str, int, str | None]) -> Request:
    configs = [IncrementalConfig(name=n, config_operation=o, value=v) for n, o, v in changes]
    resource = IncrementalConfigsResource(resource_type=kind, resource_name=name, configs=configs)
    return IncrementalAlterConfigsRequest(resources=[resource], validate_only=False)


def _grow(name: str, count: int, assignments: Any = None) -> Request:
    topic = CreatePartitionsTopic(name=name, count=count, assignments=assignments)
    return CreatePartitionsRequest(topics=[topic], timeout_ms=3000, validate_only=False)


def _replace(kind: int, name: str, key: str, value: str | None) -> Request:
    resource = AlterConfigsResource(
        resource_type=kind, resource_name=name, configs=[AlterableConfig(name=key, value=value)]
    )
    return AlterConfigsRequest(resources=[resource], validate_only=False)


def _describe(kind: int, name: str) -> Request:
    resource = DescribeConfigsResource(
        resource_type=kind, resource_name=name, configuration_keys=None
    )
    return DescribeConfigsRequest(resources=[resource])


def _placed(*replicas: list[int], first: int = 0) -> list[CreatableReplicaAssignment]:
    return [
        CreatableReplicaAssignment(partition_index=index, broker_ids=some)
        for index, some in enumerate(replicas, first)
    ]


def _grown_on(*replicas: list[int]) -> list[CreatePartitionsAssignment]:
    return [CreatePartitionsAssignment(broker_ids=some) for some in replicas]


def _move(name: str, index: int, replicas: list[int] | None) -> Request:
    partition = ReassignablePartition(partition_index=index, replicas=replicas)
    topic = ReassignableTopic(name=name, partitions=[partition])
    return AlterPartitionReassignmentsRequest(timeout_ms=3000, topics=[topic])


def _delete(name: str | None, topic_id: bytes = bytes(16)) -> Request:
    return DeleteTopicsRequest(
        topics=[DeleteTopicState(name=name, topic_id=topic_id)], timeout_ms=3000
    )


def _created(answer: Any) -> int:
    return int(answer.topics[0].error_code)


def _answered(answer: Any) -> int:
    return int(answer.responses[0].error_code)


def _grown(answer: Any) -> int:
    return int(answer.results[0].error_code)


def _moved(answer: Any) -> int:
    return int(answer.error_code or answer.responses[0].partitions[0].error_code)


def _of_partition(answer: Any) -> int:
    return int(answer.topics[0].partitions[0].error_code)


def _described(answer: Any) -> int:
    return int(answer.results[0].error_code)


def _elected(answer: Any) -> int:
    return int(answer.replica_election_results[0].partition_result[0].error_code)


def _whole(answer: Any) -> int:
    return int(answer.error_code)


_BAD_SETTINGS: Final = (
    ("retention.ms", "soon"),
    ("retention.ms", "9" * 200),
    ("retention.ms", "-2"),
    ("no.such.thing", "1"),
    ("unclean.leader.election.enable", "perhaps"),
    ("remote.storage.enable", "true"),
    ("min.cleanable.dirty.ratio", "much"),
    ("min.cleanable.dirty.ratio", "nan"),
    ("min.cleanable.dirty.ratio", "1.5"),
    ("cleanup.policy", ""),
    ("cleanup.policy", "burn"),
    ("compression.type", "zip"),
    ("max.message.bytes", "-1"),
    ("retention.ms", None),
)


def cases() -> list[Case]:
    """All of them."""
    return [*_wrong_topics(), *_wrong_settings(), *_others()]


def _wrong_settings() -> list[Case]:
    bad: list[Case] = []
    for name, value in _BAD_SETTINGS:
        setting = CreatableTopicConfig(name=name, value=value)
        bad.append((_create("w", 1, 1, configs=[setting]), _created, {E.INVALID_CONFIG}))
        if value is not None:
            request = _alter(TOPIC_KIND, LOAD, (name, 0, value))
            bad.append((request, _answered, {E.INVALID_CONFIG}))
        bad.append((_replace(TOPIC_KIND, LOAD, name, value), _answered, {E.INVALID_CONFIG}))
    lags = (("min.compaction.lag.ms", 0, "9"), ("max.compaction.lag.ms", 0, "8"))
    twice = (("retention.ms", 0, "7"), ("retention.ms", 1, None))
    unknown = {E.UNKNOWN_TOPIC_OR_PARTITION}
    # Broker 1 may have left.
    of_broker = {E.INVALID_CONFIG, E.INVALID_REQUEST}
    return [
        *bad,
        (_alter(TOPIC_KIND, LOAD, *lags), _answered, {E.INVALID_CONFIG}),
        (_alter(TOPIC_KIND, LOAD, *twice), _answered, {E.INVALID_REQUEST}),
        (_alter(TOPIC_KIND, LOAD, ("cleanup.policy", 2, None)), _answered, {E.INVALID_CONFIG}),
        (_alter(TOPIC_KIND, LOAD, ("retention.ms", 2, "1")), _answered, {E.INVALID_CONFIG}),
        (_alter(BROKER_KIND, "1", ("no.such", 0, "1")), _answered, of_broker),
        (
            _alter(BROKER_KIND, "777", ("log.segment.bytes", 0, "7000")),
            _answered,
            {E.INVALID_REQUEST},
        ),
        (_alter(BROKER_KIND, "x"), _answered, {E.INVALID_REQUEST}),
        (_replace(BROKER_KIND, "x", "log.segment.bytes", "7000"), _answered, {E.INVALID_REQUEST}),
        (_replace(BROKER_KIND, "1", "log.retention.hours", "x"), _answered, of_broker),
        (_replace(3, "x", "a", "1"), _answered, {E.INVALID_REQUEST}),
        (_replace(TOPIC_KIND, "nobody", "retention.ms", "1"), _answered, unknown),
        (_describe(TOPIC_KIND, "nobody"), _described, unknown),
        (_describe(TOPIC_KIND, "a b"), _described, unknown | {E.INVALID_TOPIC_EXCEPTION}),
        (_describe(BROKER_KIND, "x"), _described, {E.INVALID_REQUEST}),
        (_describe(3, "x"), _described, {E.INVALID_REQUEST}),
    ]


def _wrong_topics() -> list[Case]:
    wrong = {E.INVALID_REPLICA_ASSIGNMENT}
    internal = {E.INVALID_TOPIC_EXCEPTION, E.UNKNOWN_TOPIC_OR_PARTITION}
    keep = _move(LOAD, 0, [1, 2, 3, 4, 5, 6, 7])
    assert isinstance(keep, AlterPartitionReassignmentsRequest)
    keep.allow_replication_factor_change = False
    return [
        (_create("w", -1, -1, assignments=_placed([1], first=1)), _created, wrong),
        (_create("w", -1, -1, assignments=_placed([1], [1, 2])), _created, wrong),
        (_create("w", -1, -1, assignments=_placed([])), _created, wrong),
        (_create("w", -1, -1, assignments=_placed([777])), _created, wrong),
        (_create("w", -1, -1, assignments=_placed([1, -1])), _created, wrong),
        (_delete("__consumer_offsets"), _answered, internal),
        (_grow("__consumer_offsets", 9), _grown, internal),
        (_grow(LOAD, 20_000), _grown, {E.INVALID_PARTITIONS}),
        (_grow(LOAD, 9, _grown_on([1])), _grown, wrong),
        (_grow(LOAD, 4, _grown_on([777], [777], [777])), _grown, wrong),
        (_grow(LOAD, 4, _grown_on([1, 1], [777])), _grown, wrong),
        (_grow(LOAD, 4, _grown_on([1, 1])), _grown, wrong),
        (keep, _moved, {E.INVALID_REPLICATION_FACTOR, E.INVALID_REPLICA_ASSIGNMENT}),
        (_move(LOAD, -1, [1]), _moved, {E.UNKNOWN_TOPIC_OR_PARTITION}),
        (
            ElectLeadersRequest(
                election_type=1, topic_partitions=[ElectLeadersTopic(topic=LOAD, partitions=[0])]
            ),
            _elected,
            {E.ELECTION_NOT_NEEDED, E.ELIGIBLE_LEADERS_NOT_AVAILABLE},
        ),
        (
            ElectLeadersRequest(
                election_type=0, topic_partitions=[ElectLeadersTopic(topic=LOAD, partitions=[77])]
            ),
            _elected,
            {E.UNKNOWN_TOPIC_OR_PARTITION},
        ),
    ]


def _others() -> list[Case]:
    twice = [
        CreatableReplicaAssignment(partition_index=0, broker_ids=[1, 1]),
        CreatableReplicaAssignment(partition_index=1, broker_ids=[1]),
    ]
    bad = CreatableTopicConfig(name="retention.ms", value="soon")
    unknown = CreatableTopicConfig(name="no.such.thing", value="1")
    trim = DeleteRecordsTopic(
        name="nobody", partitions=[DeleteRecordsPartition(partition_index=0, offset=0)]
    )
    elect = ElectLeadersTopic(topic="nobody", partitions=[0])
    return [
        (_create("a b"), _created, {E.INVALID_TOPIC_EXCEPTION}),
        (_create(""), _created, {E.INVALID_TOPIC_EXCEPTION}),
        (_create(".."), _created, {E.INVALID_TOPIC_EXCEPTION}),
        (_create("x" * 300), _created, {E.INVALID_TOPIC_EXCEPTION}),
        (
            _create("__consumer_offsets"),
            _created,
            {E.INVALID_TOPIC_EXCEPTION, E.TOPIC_ALREADY_EXISTS},
        ),
        (_create(LOAD), _created, {E.TOPIC_ALREADY_EXISTS}),
        (_create("w", 0), _created, {E.INVALID_PARTITIONS}),
        (_create("w", -7), _created, {E.INVALID_PARTITIONS}),
        (_create("w", 2_000_000), _created, {E.INVALID_PARTITIONS}),
        (_create("w", 1, 99), _created, {E.INVALID_REPLICATION_FACTOR}),
        (_create("w", 1, 0), _created, {E.INVALID_REPLICATION_FACTOR}),
        (_create("w", 1, 1, configs=[bad]), _created, {E.INVALID_CONFIG}),
        (_create("w", 1, 1, configs=[unknown]), _created, {E.INVALID_CONFIG}),
        (_create("w", -1, -1, assignments=twice), _created, {E.INVALID_REPLICA_ASSIGNMENT}),
        (_create("w", 2, 1, assignments=twice[1:]), _created, {E.INVALID_REQUEST}),
        (_delete("nobody"), _answered, {E.UNKNOWN_TOPIC_OR_PARTITION}),
        (_delete(None, b"7" * 16), _answered, {E.UNKNOWN_TOPIC_ID}),
        (_delete("nobody", b"7" * 16), _answered, {E.INVALID_REQUEST}),
        (_grow("nobody", 3), _grown, {E.UNKNOWN_TOPIC_OR_PARTITION}),
        (_grow(LOAD, 1), _grown, {E.INVALID_PARTITIONS}),
        (_grow(LOAD, -1), _grown, {E.INVALID_PARTITIONS}),
        (_alter(TOPIC_KIND, "nobody"), _answered, {E.UNKNOWN_TOPIC_OR_PARTITION}),
        (_alter(BROKER_KIND, "777"), _answered, {E.INVALID_REQUEST}),
        (_alter(3, "x"), _answered, {E.INVALID_REQUEST}),
        (_move(LOAD, 0, [1, 1]), _moved, {E.INVALID_REPLICA_ASSIGNMENT}),
        (_move(LOAD, 0, []), _moved, {E.INVALID_REPLICA_ASSIGNMENT}),
        (_move(LOAD, 0, [777]), _moved, {E.INVALID_REPLICA_ASSIGNMENT}),
        (_move(LOAD, 77, [1]), _moved, {E.UNKNOWN_TOPIC_OR_PARTITION}),
        (_move("nobody", 0, [1]), _moved, {E.UNKNOWN_TOPIC_OR_PARTITION}),
        (
            ElectLeadersRequest(election_type=0, topic_partitions=[elect]),
            _elected,
            {E.UNKNOWN_TOPIC_OR_PARTITION},
        ),
        (
            ElectLeadersRequest(election_type=7, topic_partitions=[elect]),
            _whole,
            {E.INVALID_REQUEST},
        ),
        (
            DeleteRecordsRequest(topics=[trim], timeout_ms=100),
            _of_partition,
            {E.UNKNOWN_TOPIC_OR_PARTITION},
        ),
        (
            FetchRequest(max_wait_ms=0, min_bytes=0, session_id=99, session_epoch=2, topics=[]),
            _whole,
            {E.FETCH_SESSION_ID_NOT_FOUND},
        ),
    ]
