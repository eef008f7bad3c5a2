"""Requests that move partitions between brokers, and elect preferred leaders.

librdkafka's Python client does not have them, so they go over our own connections.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from moldau.client.errors import NotFoundError, TimedOutError, UnreachableError, code_name
from moldau.client.wire.client import ADMIN_SECONDS_MAX, WireAdmin, check_code
from moldau.model.errors import ErrorCode
from moldau.model.topology import MACHINE_SETTING, STATE_SETTING
from moldau.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignableTopic,
)
from moldau.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from moldau.wire.messages.describe_log_dirs import (
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)
from moldau.wire.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    ElectLeadersTopic,
)
from moldau.wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    ListPartitionReassignmentsTopic,
)
from moldau.wire.schema import Request

_BROKER_RESOURCE = 4
_TIMEOUT_MS = int(ADMIN_SECONDS_MAX * 1000)

_MESSAGES: dict[int, str] = {
    ErrorCode.NO_REASSIGNMENT_IN_PROGRESS: "it is not being moved",
    ErrorCode.ELECTION_NOT_NEEDED: "its preferred broker is already the leader",
    ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE: "its preferred broker is down or not in sync",
}

Part = tuple[str, int]
"""Topic and partition."""

R = TypeVar(
    "R",
    AlterPartitionReassignmentsResponse,
    ElectLeadersResponse,
    ListPartitionReassignmentsResponse,
)


class PartitionReplicas(NamedTuple):
    """Leader and replicas of a partition; leader -1: there is none."""

    topic: str
    partition: int
    leader: int
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]


class PartitionMove(NamedTuple):
    """A reassignment in progress."""

    topic: str
    partition: int
    replicas: tuple[int, ...]
    """Old and new replicas."""
    adding: tuple[int, ...]
    removing: tuple[int, ...]


class PartitionRefusal(NamedTuple):
    """Why a request was rejected for one partition."""

    topic: str
    partition: int
    code: int
    message: str

    def __str__(self) -> str:
        return f"{self.topic}:{self.partition}: {self.message}"


class ClusterBroker(NamedTuple):
    """A broker with its disk; sizes of its replicas by partition. Without response: no sizes."""

    id: int
    rack: str | None
    is_draining: bool = False
    sizes: "Mapping[Part, int] | None" = None
    total_bytes: int = -1
    free_bytes: int = -1
    machine: str | None = None


class ClusterPlaces(NamedTuple):
    """All replicas of a cluster."""

    cluster_id: str
    brokers: list[ClusterBroker]
    partitions: list[PartitionReplicas]
    topic_ids: Mapping[str, bytes]


class PartitionAdmin(WireAdmin):
    """Reassignments and elections in a cluster."""

    # ---- queries

    def cluster(self) -> ClusterPlaces:
        """Every replica of every topic, with its size."""
        response = self._retry(self._client.metadata)
        return ClusterPlaces(
            cluster_id=response.cluster_id or "",
            brokers=[self._broker(one.node_id, one.rack) for one in response.brokers],
            partitions=sorted(
                PartitionReplicas(
                    topic=topic.name or "",
                    partition=part.partition_index,
                    leader=part.leader_id,
                    replicas=tuple(part.replica_nodes),
                    in_sync=tuple(part.isr_nodes),
                )
                for topic in response.topics
                if not topic.error_code
                for part in topic.partitions
            ),
            topic_ids={topic.name or "": topic.topic_id for topic in response.topics},
        )

    def _broker(self, number: int, rack: str | None) -> ClusterBroker:
        resource = DescribeConfigsResource(
            resource_type=_BROKER_RESOURCE,
            resource_name=str(number),
            configuration_keys=[STATE_SETTING, MACHINE_SETTING],
        )
        try:
            connection = self._client.broker(number)
            if connection is None:
                return ClusterBroker(number, rack)
            dirs = connection.request(DescribeLogDirsRequest(topics=None), DescribeLogDirsResponse)
            check_code(dirs.error_code, f"read the sizes of broker {number}")
            settings = connection.request(
                DescribeConfigsRequest(resources=[resource]), DescribeConfigsResponse
            )
        except (UnreachableError, TimedOutError):
            return ClusterBroker(number, rack)
        found = dirs.results
        values = {one.name: one.value for each in settings.results for one in each.configs}
        return ClusterBroker(
            number,
            rack,
            is_draining=values.get(STATE_SETTING) == "draining",
            machine=values.get(MACHINE_SETTING),
            sizes={
                (topic.name, part.partition_index): part.partition_size
                for each in found
                for topic in each.topics
                for part in topic.partitions
            },
            total_bytes=max((one.total_bytes for one in found), default=-1),
            free_bytes=max((one.usable_bytes for one in found), default=-1),
        )

    def brokers(self) -> list[int]:
        """The broker ids."""
        response = self._retry(self._client.metadata)
        return sorted(broker.node_id for broker in response.brokers)

    def places(self, topic: str) -> list[PartitionReplicas]:
        """The replicas of a topic's partitions, by number. Raises NotFoundError."""
        response = self._retry(lambda: self._client.metadata(topic))
        for found in response.topics:
            if found.name == topic and not found.error_code:
                places = [
                    PartitionReplicas(
                        topic=topic,
                        partition=part.partition_index,
                        leader=part.leader_id,
                        replicas=tuple(part.replica_nodes),
                        in_sync=tuple(part.isr_nodes),
                    )
                    for part in found.partitions
                ]
                return sorted(places)
        raise NotFoundError(f"topic {topic} does not exist", hint="list them: moldau topic list")

    def moves(self, parts: Iterable[Part] | None = None) -> list[PartitionMove]:
        """Reassignments in progress, of all partitions or of these."""
        topics = None
        if parts is not None:
            topics = [
                ListPartitionReassignmentsTopic(name=topic, partition_indexes=numbers)
                for topic, numbers in _by_topic(parts).items()
            ]
        request = ListPartitionReassignmentsRequest(topics=topics, timeout_ms=_TIMEOUT_MS)
        response = self._request(request, ListPartitionReassignmentsResponse, "list moves")
        return sorted(
            PartitionMove(
                topic=topic.name,
                partition=part.partition_index,
                replicas=tuple(part.replicas),
                adding=tuple(part.adding_replicas),
                removing=tuple(part.removing_replicas),
            )
            for topic in response.topics
            for part in topic.partitions
        )

    # ---- changes

    def move(self, targets: Mapping[Part, Sequence[int] | None]) -> list[PartitionRefusal]:
        """Start reassignments to these replicas, the preferred leader first; None cancels one.

        Returns what was rejected; the others continue in the background.
        """
        request = AlterPartitionReassignmentsRequest(
            timeout_ms=_TIMEOUT_MS,
            topics=[
                ReassignableTopic(
                    name=topic,
                    partitions=[
                        ReassignablePartition(
                            partition_index=number, replicas=_listed(targets[topic, number])
                        )
                        for number in numbers
                    ],
                )
                for topic, numbers in _by_topic(targets).items()
            ],
        )

        response = self._request(request, AlterPartitionReassignmentsResponse, "move partitions")
        return [
            _refusal(topic.name, part.partition_index, part.error_code, part.error_message)
            for topic in response.responses
            for part in topic.partitions
            if part.error_code
        ]

    def elect(
        self, parts: Iterable[Part] | None = None
    ) -> tuple[list[Part], list[PartitionRefusal]]:
        """Elect the preferred leaders; the partitions that changed, and those that did not.

        Without `parts`: all partitions of the cluster whose leader is another one.
        """
        topics = None
        if parts is not None:
            topics = [
                ElectLeadersTopic(topic=topic, partitions=numbers)
                for topic, numbers in _by_topic(parts).items()
            ]
        request = ElectLeadersRequest(topic_partitions=topics, timeout_ms=_TIMEOUT_MS)
        response = self._request(request, ElectLeadersResponse, "elect leaders")
        elected: list[Part] = []
        refused: list[PartitionRefusal] = []
        for topic in response.replica_election_results:
            for part in topic.partition_result:
                if part.error_code:
                    refused.append(
                        _refusal(
                            topic.topic, part.partition_id, part.error_code, part.error_message
                        )
                    )
                else:
                    elected.append((topic.topic, part.partition_id))
        return sorted(elected), sorted(refused)

    def _request(self, request: Request, response_type: type[R], doing: str) -> R:
        def attempt() -> R:
            response = self._client.request_controller(request, response_type)
            # The response to ElectLeaders has no message.
            message = getattr(response, "error_message", None)
            check_code(response.error_code, doing, message)
            return response

        return self._retry(attempt)


def _by_topic(parts: Iterable[Part]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for topic, number in parts:
        found.setdefault(topic, []).append(number)
    return found


def _listed(replicas: Sequence[int] | None) -> list[int] | None:
    return None if replicas is None else list(replicas)


def _refusal(topic: str, partition: int, code: int, message: str | None) -> PartitionRefusal:
    known = _MESSAGES.get(code)
    return PartitionRefusal(topic, partition, code, known or message or code_name(code))
