"""A client that knows nothing but the address: what it needs, the broker tells by reflection."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import grpc
import pytest
from google.protobuf import descriptor_pool, json_format, message_factory
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

from moldau.testing.broker import Broker
from moldau.testing.waiting import wait_seconds_max

pytestmark = pytest.mark.system

QUEUE = "moldau.v1.Queue"


class GenericClient:
    """Calls anything by name, with JSON in and out, as grpcurl does."""

    def __init__(self, channel: grpc.Channel) -> None:
        self._channel = channel
        self.database = ProtoReflectionDescriptorDatabase(channel)
        self.pool = descriptor_pool.DescriptorPool(self.database)

    def call(self, service: str, method: str, *requests: dict[str, Any]) -> list[dict[str, Any]]:
        found = self.pool.FindServiceByName(service).methods_by_name[method]
        asked = message_factory.GetMessageClass(found.input_type)
        answered = message_factory.GetMessageClass(found.output_type)
        messages = [json_format.ParseDict(request, asked()) for request in requests]
        path, how = f"/{service}/{method}", (asked.SerializeToString, answered.FromString)
        answers: Iterable[Any]
        if found.client_streaming:
            answers = self._channel.stream_stream(path, *how)(
                iter(messages), timeout=wait_seconds_max()
            )
        elif found.server_streaming:
            answers = self._channel.unary_stream(path, *how)(
                messages[0], timeout=wait_seconds_max()
            )
        else:
            answers = [
                self._channel.unary_unary(path, *how)(messages[0], timeout=wait_seconds_max())
            ]
        return [
            json_format.MessageToDict(answer, preserving_proto_field_name=True)
            for answer in answers
        ]

    def one(self, method: str, **request: Any) -> dict[str, Any]:
        (answer,) = self.call(QUEUE, method, request)
        return answer


@pytest.fixture
def client(moldau_session_broker: Broker) -> Iterator[GenericClient]:
    with grpc.insecure_channel(moldau_session_broker.grpc_address) as channel:
        yield GenericClient(channel)


def test_the_services_are_listed_and_described(client: GenericClient) -> None:
    names = set(client.database.get_services())
    assert names == {QUEUE, "grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"}
    methods = client.pool.FindServiceByName(QUEUE).methods_by_name
    assert {"CreateTopic", "SendBatch", "Heartbeat", "ReadFrom", "ManageBrokers"} <= set(methods)


def test_a_generic_client_creates_a_topic_sends_polls_and_acks(
    client: GenericClient, new_name: Callable[[str], str]
) -> None:
    topic, group = new_name("reflected"), new_name("reflected-group")
    assert client.one("CreateTopic", topic=topic, partitions=1)["topic"] == topic
    client.one("Send", topic=topic, message={"value": "b25l"})
    (sent,) = client.call(QUEUE, "SendBatch", {"topic": topic, "messages": [{"value": "dHdv"}]})
    assert sent["offsets"] == ["1"]
    connected = client.one("Connect", group=group, topics=[topic], mode="QUEUE")
    who = {"group": group, "consumer_id": connected["consumer_id"]}
    polled = client.one("Poll", **who, max_messages=10, wait_ms=30_000)["messages"]
    assert [message["value"] for message in polled] == ["b25l", "dHdv"]
    tokens = [message["token"] for message in polled]
    assert client.one("Ack", **who, tokens=tokens)["done"] == 2
    (refused, _) = client.one("Ack", **who, tokens=tokens)["refused"]
    assert refused["reason"] == "SETTLED"
    assert "messages" not in client.one("Poll", **who)
    (beat,) = client.call(QUEUE, "Heartbeat", dict(who))
    assert beat["heartbeat_interval_ms"] > 0
    client.one("Disconnect", **who)
    with pytest.raises(grpc.RpcError) as caught:
        client.one("Poll", **who)
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


def test_health_is_reported_to_a_generic_client(client: GenericClient) -> None:
    (answer,) = client.call("grpc.health.v1.Health", "Check", {"service": QUEUE})
    assert answer == {"status": "SERVING"}


def test_reflection_answers_under_its_newer_name_too(moldau_session_broker: Broker) -> None:
    with grpc.insecure_channel(moldau_session_broker.grpc_address) as channel:
        ask = channel.stream_stream(
            "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
            reflection_pb2.ServerReflectionRequest.SerializeToString,
            reflection_pb2.ServerReflectionResponse.FromString,
        )
        request = reflection_pb2.ServerReflectionRequest(list_services="")
        (newer,) = ask(iter([request]), timeout=wait_seconds_max())
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        (older,) = stub.ServerReflectionInfo(iter([request]), timeout=wait_seconds_max())
    assert newer == older
    assert QUEUE in {service.name for service in newer.list_services_response.service}
