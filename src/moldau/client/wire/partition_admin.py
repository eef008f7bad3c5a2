"""Requests that move partitions between brokers, and elect preferred leaders.

librdkafka's Python client does not have them, so they go over our own connections.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, Self, TypeVar

from moldau.client.errors import NotFoundError, RejectedError
from moldau.client.retry import RETRIABLE_CODES
from moldau.client.wire.client import KafkaClient
from moldau.model.errors import ErrorCode
from moldau.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignableTopic,
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

REQUEST_SECONDS_MAX = 15.0

_MESSAGES = {
    ErrorCode.NO_REASSIGNMENT_IN_PROGRESS: "it is not being moved",
    ErrorCode.ELECTION_NOT_NEEDED: "its preferred broker is already the leader",
    ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE: "its preferred broker is down or not in sync",
}

Part = tuple[str, int]
"""Topic and partition."""

T = TypeVar("T")


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


class PartitionAdmin:
    """Reassignments and elections in the cluster at `brokers`."""

    def __init__(self, brokers: str, *, seconds_max: float = REQUEST_SECONDS_MAX) -> None:
        self._seconds_max = seconds_max
        self._client = KafkaClient(brokers, timeout=seconds_max)

    def close(self) -> None:
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # ---- queries

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
        request = ListPartitionReassignmentsRequest(
            topics=topics, timeout_ms=int(self._seconds_max * 1000)
        )

        def attempt() -> ListPartitionReassignmentsResponse:
            response = self._client.request_controller(request, ListPartitionReassignmentsResponse)
            _check(response.error_code, response.error_message, "list moves")
            return response

        response = self._retry(attempt)
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
            timeout_ms=int(self._seconds_max * 1000),
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

        def attempt() -> AlterPartitionReassignmentsResponse:
            response = self._client.request_controller(request, AlterPartitionReassignmentsResponse)
            _check(response.error_code, response.error_message, "move partitions")
            return response

        response = self._retry(attempt)
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
        request = ElectLeadersRequest(
            topic_partitions=topics, timeout_ms=int(self._seconds_max * 1000)
        )

        def attempt() -> ElectLeadersResponse:
            response = self._client.request_controller(request, ElectLeadersResponse)
            _check(response.error_code, None, "elect leaders")
            return response

        elected: list[Part] = []
        refused: list[PartitionRefusal] = []
        for topic in self._retry(attempt).replica_election_results:
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

    def _retry(self, attempt: Callable[[], T]) -> T:
        return self._client.with_retries(attempt, idempotent=True, codes=RETRIABLE_CODES)


def _by_topic(parts: Iterable[Part]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for topic, number in parts:
        found.setdefault(topic, []).append(number)
    return found


def _listed(replicas: Sequence[int] | None) -> list[int] | None:
    return None if replicas is None else list(replicas)


def _name(code: int) -> str:
    return RejectedError("", code).name


def _check(code: int, message: str | None, doing: str) -> None:
    if code:
        raise RejectedError(f"cannot {doing}: {message or _name(code)}", code)


def _refusal(topic: str, partition: int, code: int, message: str | None) -> PartitionRefusal:
    words = next((text for known, text in _MESSAGES.items() if known == code), None)
    return PartitionRefusal(topic, partition, code, words or message or _name(code))
