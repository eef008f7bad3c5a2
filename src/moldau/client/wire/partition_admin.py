"""Owns the requests that move partitions from broker to broker, and their leaders.

librdkafka's Python client has no request for moves, so these go over our own connections.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import NamedTuple, Self, TypeVar

from moldau.client.errors import (
    NotFoundError,
    RejectedError,
    TimedOutError,
    UnreachableError,
)
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
_RETRY_SECONDS = 0.2

# The controller changes, or is not chosen yet: it will be, soon.
_PASSING = frozenset(
    {
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.BROKER_NOT_AVAILABLE,
        ErrorCode.LEADER_NOT_AVAILABLE,
    }
)

_WORDS = {
    ErrorCode.NO_REASSIGNMENT_IN_PROGRESS: "it is not being moved",
    ErrorCode.ELECTION_NOT_NEEDED: "its preferred broker leads it already",
    ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE: "its preferred broker is down or not in sync",
}

Part = tuple[str, int]
"""A topic's name and the number of a partition."""

T = TypeVar("T")


class PartitionReplicas(NamedTuple):
    """Where a partition lies; leader -1: nobody leads it."""

    topic: str
    partition: int
    leader: int
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]


class PartitionMove(NamedTuple):
    """A move that is under way."""

    topic: str
    partition: int
    replicas: tuple[int, ...]
    """Old and new ones."""
    adding: tuple[int, ...]
    removing: tuple[int, ...]


class PartitionRefusal(NamedTuple):
    """What a broker did not do for one partition, and why."""

    topic: str
    partition: int
    code: int
    message: str

    def __str__(self) -> str:
        return f"{self.topic}:{self.partition}: {self.message}"


class PartitionAdmin:
    """Moves and elections in the cluster at `brokers`."""

    def __init__(self, brokers: str, *, seconds_max: float = REQUEST_SECONDS_MAX) -> None:
        self._seconds_max = seconds_max
        self._client = KafkaClient(brokers, timeout=seconds_max)

    def close(self) -> None:
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # ---- what there is

    def brokers(self) -> list[int]:
        """The numbers of the brokers."""
        response = self._patiently(self._client.metadata)
        return sorted(broker.node_id for broker in response.brokers)

    def places(self, topic: str) -> list[PartitionReplicas]:
        """Where the partitions of a topic lie, by number. Raises NotFoundError."""
        response = self._patiently(lambda: self._client.metadata(topic))
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
        """Moves under way, of all partitions or of these."""
        asked = None
        if parts is not None:
            asked = [
                ListPartitionReassignmentsTopic(name=topic, partition_indexes=numbers)
                for topic, numbers in _by_topic(parts).items()
            ]
        request = ListPartitionReassignmentsRequest(
            topics=asked, timeout_ms=int(self._seconds_max * 1000)
        )

        def attempt() -> ListPartitionReassignmentsResponse:
            response = self._client.ask_controller(request, ListPartitionReassignmentsResponse)
            _check(response.error_code, response.error_message, "list moves")
            return response

        response = self._patiently(attempt)
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

    # ---- what changes

    def move(self, targets: Mapping[Part, Sequence[int] | None]) -> list[PartitionRefusal]:
        """Start moves to these replicas, the preferred leader first; None takes a move back.

        Returns what was refused; the rest goes on by itself.
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
            response = self._client.ask_controller(request, AlterPartitionReassignmentsResponse)
            _check(response.error_code, response.error_message, "move partitions")
            return response

        response = self._patiently(attempt)
        return [
            _refusal(topic.name, part.partition_index, part.error_code, part.error_message)
            for topic in response.responses
            for part in topic.partitions
            if part.error_code
        ]

    def elect(
        self, parts: Iterable[Part] | None = None
    ) -> tuple[list[Part], list[PartitionRefusal]]:
        """Give partitions back to their preferred leaders: those that changed, those that did not.

        Without `parts`: every partition of the cluster that is led by another one.
        """
        asked = None
        if parts is not None:
            asked = [
                ElectLeadersTopic(topic=topic, partitions=numbers)
                for topic, numbers in _by_topic(parts).items()
            ]
        request = ElectLeadersRequest(
            topic_partitions=asked, timeout_ms=int(self._seconds_max * 1000)
        )

        def attempt() -> ElectLeadersResponse:
            response = self._client.ask_controller(request, ElectLeadersResponse)
            _check(response.error_code, None, "elect leaders")
            return response

        elected: list[Part] = []
        refused: list[PartitionRefusal] = []
        for topic in self._patiently(attempt).replica_election_results:
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

    # ---- how

    def _patiently(self, attempt: Callable[[], T]) -> T:
        """Again while the controller changes or a broker is gone; all of this may be done twice."""
        deadline = time.monotonic() + self._seconds_max
        lost = False
        while True:
            try:
                return attempt()
            except RejectedError as error:
                if error.code not in _PASSING or time.monotonic() >= deadline:
                    raise
            except (UnreachableError, TimedOutError):
                # Once: a connection that had gone stale. Twice: nobody is there.
                if lost or time.monotonic() >= deadline:
                    raise
                lost = True
            time.sleep(_RETRY_SECONDS)


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
    words = next((text for known, text in _WORDS.items() if known == code), None)
    return PartitionRefusal(topic, partition, code, words or message or _name(code))
