"""AlterPartitionReassignments and ListPartitionReassignments."""

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from handler_calls import FakeCluster, ask, brokers, facade, image, topic

from moldau.edge.kafka.handlers import alter_partition_reassignments, list_partition_reassignments
from moldau.metadata.image import Partition
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import BrokerId, PartitionIndex
from moldau.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignableTopic,
)
from moldau.wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    ListPartitionReassignmentsTopic,
)


class MovingCluster(FakeCluster):
    """Remembers the wishes; refuses partition 1, and never answers for partition 9."""

    def __init__(self) -> None:
        super().__init__(image(brokers(1, 2, 3), topic("t", (1,), (2,))))
        self.wishes: list[tuple[str, int, list[int] | None, bool]] = []
        self.asked: list[tuple[str, int]] | None = []
        self.moves: list[tuple[str, Partition]] = []

    async def reassign(
        self,
        name: str,
        partition: int,
        replicas: Sequence[int] | None,
        *,
        allow_replication_factor_change: bool = True,
    ) -> None:
        if partition == 1:
            raise RefusedError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "it does not move")
        if partition == 9:
            await asyncio.get_running_loop().create_future()
        wish = None if replicas is None else list(replicas)
        self.wishes.append((name, partition, wish, allow_replication_factor_change))

    def reassignments(
        self, wanted: Iterable[tuple[str, int]] | None
    ) -> list[tuple[str, Partition]]:
        self.asked = None if wanted is None else list(wanted)
        return self.moves


def alter(
    cluster: MovingCluster, version: int, *wishes: tuple[int, list[int] | None], **fields: Any
) -> AlterPartitionReassignmentsResponse:
    partitions = [
        ReassignablePartition(partition_index=index, replicas=replicas)
        for index, replicas in wishes
    ]
    request = AlterPartitionReassignmentsRequest(
        topics=[ReassignableTopic(name="t", partitions=partitions)], **fields
    )
    return ask(
        alter_partition_reassignments.API,
        facade(cluster),
        request,
        AlterPartitionReassignmentsResponse,
        version,
    )


@pytest.mark.parametrize("version", [0, 1])
def test_desired_replicas_and_cancellations_reach_the_cluster(version: int) -> None:
    cluster = MovingCluster()
    response = alter(cluster, version, (0, [2, 3]), (2, None))
    assert cluster.wishes == [("t", 0, [2, 3], True), ("t", 2, None, True)]
    (answered,) = response.responses
    assert answered.name == "t"
    assert [(each.partition_index, each.error_code) for each in answered.partitions] == [
        (0, 0),
        (2, 0),
    ]
    assert response.error_code == 0


def test_a_refusal_is_that_of_one_partition_with_its_words() -> None:
    cluster = MovingCluster()
    response = alter(cluster, 0, (0, [2]), (1, None))
    done, refused = response.responses[0].partitions
    assert (done.error_code, done.error_message) == (0, None)
    assert refused.error_code == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
    assert refused.error_message == "it does not move"
    assert len(cluster.wishes) == 1


def test_the_number_of_replicas_is_kept_if_the_client_says_so() -> None:
    cluster = MovingCluster()
    response = alter(cluster, 1, (0, [2]), allow_replication_factor_change=False)
    assert cluster.wishes == [("t", 0, [2], False)]
    assert response.allow_replication_factor_change is False


def test_a_move_that_is_not_stored_in_time_times_out() -> None:
    response = alter(MovingCluster(), 0, (0, [2]), (9, [2]), timeout_ms=50)
    codes = [each.error_code for each in response.responses[0].partitions]
    assert codes == [ErrorCode.NONE, ErrorCode.REQUEST_TIMED_OUT]


def list_moves(
    cluster: MovingCluster, topics: list[ListPartitionReassignmentsTopic] | None
) -> ListPartitionReassignmentsResponse:
    return ask(
        list_partition_reassignments.API,
        facade(cluster),
        ListPartitionReassignmentsRequest(topics=topics),
        ListPartitionReassignmentsResponse,
    )


def test_moves_are_listed_by_topic() -> None:
    def ids(*numbers: int) -> tuple[BrokerId, ...]:
        return tuple(BrokerId(number) for number in numbers)

    cluster = MovingCluster()
    cluster.moves = [
        ("t", Partition(PartitionIndex(0), ids(2, 3, 1), target=ids(2, 3), origin=ids(2, 1))),
        ("u", Partition(PartitionIndex(4), ids(1, 2), target=ids(1), origin=ids(2))),
        ("t", Partition(PartitionIndex(1), ids(1, 2), target=ids(1), origin=ids(1, 2))),
    ]
    first, second = list_moves(cluster, None).topics
    assert cluster.asked is None
    assert (first.name, [each.partition_index for each in first.partitions]) == ("t", [0, 1])
    move = first.partitions[0]
    assert (move.replicas, move.adding_replicas, move.removing_replicas) == ([2, 3, 1], [3], [1])
    assert (second.name, second.partitions[0].partition_index) == ("u", 4)


def test_only_the_named_partitions_are_looked_at_each_once() -> None:
    cluster = MovingCluster()
    asked = [
        ListPartitionReassignmentsTopic(name="t", partition_indexes=[1, 0, 1]),
        ListPartitionReassignmentsTopic(name="t", partition_indexes=[2]),
    ]
    assert list_moves(cluster, asked).topics == []
    assert cluster.asked == [("t", 1), ("t", 0), ("t", 2)]


def test_an_empty_list_of_topics_is_not_all_of_them() -> None:
    cluster = MovingCluster()
    list_moves(cluster, [])
    assert cluster.asked == []
