"""Moves and elections: what is asked, what is repeated, what is made of the answers."""

import pytest

from moldau.client.errors import NotFoundError, RejectedError, UnreachableError
from moldau.client.wire import client
from moldau.client.wire.client import KafkaClient
from moldau.client.wire.partition_admin import PartitionAdmin, PartitionMove
from moldau.model.errors import ErrorCode
from moldau.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsResponse,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)
from moldau.wire.messages.elect_leaders import (
    ElectLeadersPartitionResult,
    ElectLeadersResponse,
    ElectLeadersTopicResult,
)
from moldau.wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
)
from moldau.wire.messages.metadata import (
    MetadataBroker,
    MetadataResponse,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

pytestmark = pytest.mark.inprocess


class FakeClient(KafkaClient):
    """Answers in turn; an exception is raised."""

    def __init__(self, bootstrap, *, timeout, security):
        super().__init__(bootstrap, timeout=timeout, security=security)
        self.answers: list[object] = []
        self.asked: list[object] = []

    def close(self):
        pass

    def _next(self):
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def request_controller(self, request, response_type):
        self.asked.append(request)
        answer = self._next()
        assert isinstance(answer, response_type)
        return answer

    def metadata(self, topic=None):  # type: ignore[override]
        self.asked.append(topic)
        return self._next()


@pytest.fixture
def admin(monkeypatch):
    monkeypatch.setattr(client, "KafkaClient", FakeClient)
    with PartitionAdmin("h:1") as made:
        yield made


def altered(*results: tuple[int, int, str | None]) -> AlterPartitionReassignmentsResponse:
    parts = [
        ReassignablePartitionResponse(partition_index=number, error_code=code, error_message=text)
        for number, code, text in results
    ]
    return AlterPartitionReassignmentsResponse(
        responses=[ReassignableTopicResponse(name="t", partitions=parts)]
    )


def test_moves_are_asked_for_by_topic_and_none_takes_one_back(admin):
    admin._client.answers = [altered((0, 0, None), (1, 0, None))]
    assert admin.move({("t", 0): (1, 2), ("u", 4): None, ("t", 1): (2, 1)}) == []
    (request,) = admin._client.asked
    assert [
        (topic.name, [(part.partition_index, part.replicas) for part in topic.partitions])
        for topic in request.topics
    ] == [("t", [(0, [1, 2]), (1, [2, 1])]), ("u", [(4, None)])]


def test_refusals_are_in_words(admin):
    admin._client.answers = [
        altered(
            (0, 0, None),
            (1, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, None),
            (2, ErrorCode.INVALID_REPLICA_ASSIGNMENT, "no broker 9"),
            (3, ErrorCode.INVALID_REPLICA_ASSIGNMENT, None),
        )
    ]
    assert [str(one) for one in admin.move({("t", 0): (1,)})] == [
        "t:1: it is not being moved",
        "t:2: no broker 9",
        "t:3: INVALID_REPLICA_ASSIGNMENT",
    ]


def test_a_controller_that_changes_is_asked_again(admin):
    admin._client.answers = [
        AlterPartitionReassignmentsResponse(error_code=ErrorCode.NOT_CONTROLLER, responses=[]),
        UnreachableError("gone"),
        altered((0, 0, None)),
    ]
    assert admin.move({("t", 0): (1,)}) == []
    assert len(admin._client.asked) == 3


def test_two_unreachable_brokers_are_an_error(admin):
    admin._client.answers = [UnreachableError("gone"), UnreachableError("gone")]
    with pytest.raises(UnreachableError):
        admin.moves()


def test_a_refusal_of_the_whole_request_is_an_error(admin):
    code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    admin._client.answers = [
        ListPartitionReassignmentsResponse(error_code=code, error_message="no", topics=[])
    ]
    with pytest.raises(RejectedError, match="cannot list moves: no"):
        admin.moves()


def test_moves_are_listed_in_order(admin):
    parts = [
        OngoingPartitionReassignment(
            partition_index=number, replicas=[1, 2], adding_replicas=[2], removing_replicas=[1]
        )
        for number in (1, 0)
    ]
    answer = ListPartitionReassignmentsResponse(
        topics=[OngoingTopicReassignment(name="t", partitions=parts)]
    )
    admin._client.answers = [answer, answer]
    assert admin.moves() == [PartitionMove("t", number, (1, 2), (2,), (1,)) for number in (0, 1)]
    admin.moves([("t", 0)])
    assert [request.topics is None for request in admin._client.asked] == [True, False]


def test_elections_are_distinguished_by_their_results(admin):
    results = [
        ElectLeadersPartitionResult(partition_id=0),
        ElectLeadersPartitionResult(partition_id=1, error_code=ErrorCode.ELECTION_NOT_NEEDED),
    ]
    admin._client.answers = [
        ElectLeadersResponse(
            replica_election_results=[ElectLeadersTopicResult(topic="t", partition_result=results)]
        )
    ]
    elected, refused = admin.elect([("t", 0), ("t", 1)])
    assert elected == [("t", 0)]
    assert [(one.partition, one.code) for one in refused] == [(1, ErrorCode.ELECTION_NOT_NEEDED)]


def test_places_are_those_of_the_topic_and_a_missing_one_is_said(admin):
    part = MetadataResponsePartition(
        partition_index=0, leader_id=2, replica_nodes=[2, 1], isr_nodes=[2], offline_replicas=[]
    )
    answer = MetadataResponse(
        brokers=[MetadataBroker(node_id=n, host="h", port=n) for n in (2, 1)],
        topics=[MetadataResponseTopic(name="t", partitions=[part])],
    )
    admin._client.answers = [answer, answer, answer]
    (place,) = admin.places("t")
    assert (place.leader, place.replicas, place.in_sync) == (2, (2, 1), (2,))
    with pytest.raises(NotFoundError, match="topic u does not exist"):
        admin.places("u")
    assert admin.brokers() == [1, 2]
