"""A view tells where requests belong, whichever interface it came from."""

import msgspec

from moldau.client.queue.cluster_view import ClusterView, view_of_grpc, view_of_http
from moldau.model.delivery_tokens import DeliveryToken, TokenKind, encode_delivery_token
from moldau.model.ids import PartitionIndex, TopicId
from moldau.model.topology import Topology
from moldau.proto.v1 import queue_pb2 as pb

TOPIC_ID = bytes(range(16))


def told_over_grpc() -> ClusterView:
    answer = pb.TopologyResponse(cluster_id="c", version=7)
    answer.brokers.add(id=1, grpc_address="one:8000", is_alive=True)
    answer.brokers.add(id=2, grpc_address="two:8000", is_alive=False)
    topic = answer.topics.add(name="jobs", topic_id=TOPIC_ID)
    topic.partitions.add(partition=0, leader=2)
    topic.partitions.add(partition=1, leader=1)
    topic.partitions.add(partition=2, leader=-1)
    return view_of_grpc(answer, "seed:8000")


def told_over_http() -> ClusterView:
    broker = {"kafka": ["k", 1], "epoch": 1, "leaders": 1, "replicas": 1}
    place = {"leader_epoch": 1, "replicas": [1, 2], "in_sync": [1, 2]}
    answer = {
        "cluster_id": "c",
        "version": 7,
        "controller": 1,
        "answered_by": 1,
        "brokers": [
            {**broker, "id": 1, "alive": True, "grpc": ["one", 8000]},
            {**broker, "id": 2, "alive": False, "grpc": ["two", 8000]},
            {**broker, "id": 3, "alive": True},
        ],
        "topics": [
            {
                "name": "jobs",
                "id": TOPIC_ID.hex(),
                "partitions": [
                    {**place, "partition": 0, "leader": 2},
                    {**place, "partition": 1, "leader": 1},
                    {**place, "partition": 2, "leader": -1},
                ],
            }
        ],
    }
    return view_of_http(msgspec.convert(answer, Topology))


def token(partition: int, topic_id: bytes = TOPIC_ID) -> bytes:
    kind = TokenKind.QUEUE
    return encode_delivery_token(
        DeliveryToken(kind, TopicId(topic_id), PartitionIndex(partition), b"rest")
    )


def test_both_interfaces_tell_the_same() -> None:
    for view in (told_over_grpc(), told_over_http()):
        assert view.alive_addresses == ["one:8000"]
        assert view.all_addresses == ["one:8000", "two:8000"]
        assert view.leader_address("jobs", 0) == "two:8000"
        assert view.topic_addresses("jobs") == ["two:8000", "one:8000"]


def test_a_partition_without_a_leader_has_no_address() -> None:
    view = told_over_grpc()
    assert view.leader_address("jobs", 2) is None
    assert view.leader_address("jobs", 9) is None
    assert view.leader_address("unknown", 0) is None


def test_a_token_is_brought_to_the_leader_of_its_partition() -> None:
    view = told_over_grpc()
    for _ in range(2):
        assert view.token_address(token(0)) == "two:8000"
        assert view.token_address(token(1)) == "one:8000"
        assert view.token_address(token(2)) is None


def test_an_invalid_token_has_no_address() -> None:
    view = told_over_grpc()
    assert view.token_address(b"") is None
    assert view.token_address(b"nonsense of some length, but no token") is None
    assert view.token_address(token(0, bytes(16))) is None


def test_brokers_that_tell_no_address_are_reached_where_they_were_asked() -> None:
    answer = pb.TopologyResponse(cluster_id="c", version=1)
    answer.brokers.add(id=1, is_alive=True)
    answer.brokers.add(id=2, is_alive=True)
    assert view_of_grpc(answer, "proxy:9000").alive_addresses == ["proxy:9000"]
