"""ElectLeaders: partitions by name, or all that are due."""

import asyncio

import pytest
from handler_calls import FakeCluster, ask, brokers, facade, image, topic

from moldau.edge.kafka.handlers import elect_leaders
from moldau.metadata.leader_balance import ElectionType
from moldau.model.errors import ErrorCode, RefusedError
from moldau.wire.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    ElectLeadersTopic,
)


class ElectingCluster(FakeCluster):
    """Partition 1 needs no election, that of partition 2 never ends."""

    def __init__(self) -> None:
        super().__init__(image(brokers(1, 2), topic("t", (1, 2))))
        self.held: list[tuple[str, int, ElectionType]] = []

    async def elect(self, name: str, partition: int, election: ElectionType) -> None:
        self.held.append((name, partition, election))
        if partition == 1:
            raise RefusedError(ErrorCode.ELECTION_NOT_NEEDED, "it leads already")
        if partition == 2:
            await asyncio.get_running_loop().create_future()

    def elections_due(self) -> list[tuple[str, int]]:
        return [("t", 0), ("t", 1), ("u", 0)]


def elect(
    cluster: ElectingCluster,
    version: int,
    wanted: dict[str, list[int]] | None,
    **fields: int,
) -> ElectLeadersResponse:
    topics = None
    if wanted is not None:
        topics = [ElectLeadersTopic(topic=name, partitions=each) for name, each in wanted.items()]
    request = ElectLeadersRequest(topic_partitions=topics, **fields)
    return ask(elect_leaders.API, facade(cluster), request, ElectLeadersResponse, version)


def codes(response: ElectLeadersResponse) -> dict[tuple[str, int], int]:
    return {
        (found.topic, each.partition_id): each.error_code
        for found in response.replica_election_results
        for each in found.partition_result
    }


@pytest.mark.parametrize("version", range(3))
def test_named_partitions_are_elected_once_each(version: int) -> None:
    cluster = ElectingCluster()
    response = elect(cluster, version, {"t": [0, 1, 0], "u": [0]})
    assert cluster.held == [
        ("t", 0, ElectionType.PREFERRED),
        ("t", 1, ElectionType.PREFERRED),
        ("u", 0, ElectionType.PREFERRED),
    ]
    assert codes(response) == {
        ("t", 0): ErrorCode.NONE,
        ("t", 1): ErrorCode.ELECTION_NOT_NEEDED,
        ("u", 0): ErrorCode.NONE,
    }
    refused = response.replica_election_results[0].partition_result[1]
    assert refused.error_message == "it leads already"


@pytest.mark.parametrize("version", range(3))
def test_without_a_list_all_that_are_due_are_elected(version: int) -> None:
    # One whose election proved to be needless was not asked for by the client: not an error.
    assert codes(elect(ElectingCluster(), version, None)) == {("t", 0): 0, ("u", 0): 0}


def test_an_empty_list_elects_no_leader() -> None:
    cluster = ElectingCluster()
    assert codes(elect(cluster, 2, {})) == {}
    assert cluster.held == []


def test_a_leader_that_does_not_come_in_time_is_said_to_be_late() -> None:
    found = codes(elect(ElectingCluster(), 2, {"t": [0, 2]}, timeout_ms=50))
    assert found == {("t", 0): ErrorCode.NONE, ("t", 2): ErrorCode.REQUEST_TIMED_OUT}


def test_the_kind_of_election_is_passed_on() -> None:
    cluster = ElectingCluster()
    elect(cluster, 1, {"t": [0]}, election_type=1)
    assert cluster.held == [("t", 0, ElectionType.UNCLEAN)]


@pytest.mark.parametrize("version", [1, 2])
def test_an_unknown_kind_of_election_is_refused(version: int) -> None:
    cluster = ElectingCluster()
    response = elect(cluster, version, {"t": [0]}, election_type=7)
    assert response.error_code == ErrorCode.INVALID_REQUEST
    assert cluster.held == []
