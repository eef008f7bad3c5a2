"""Every method of gRPC, by everyone who may not call it: nothing is given, nothing is changed."""

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import grpc
import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    ResourceType,
)
from confluent_kafka.admin import ResourcePatternType as PatternType
from google.protobuf.message import Message
from grpc import StatusCode
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2
from secured_broker import GROUP, SECRET, TOPIC, SecuredBroker, admin_of, secured_broker

from moldau.proto.trailers import REASON_TRAILER
from moldau.proto.v1 import queue_pb2 as pb
from moldau.proto.v1.queue_pb2_grpc import QueueStub
from moldau.testing.waiting import wait_seconds_max

pytestmark = pytest.mark.system

SERVICE: Final = pb.DESCRIPTOR.services_by_name["Queue"]
DENIED: Final = StatusCode.PERMISSION_DENIED
UNKNOWN: Final = StatusCode.UNAUTHENTICATED
_CONSUMER: Final[dict[str, Any]] = {"group": GROUP, "consumer_id": "c"}
_MESSAGE: Final = pb.OutgoingMessage(value=b"from a stranger")


class Expected(NamedTuple):
    """What is asked, and how it ends for a user without rights, and for a reader.

    None: it is not refused, though it may fail, for what it is about does not exist.
    """

    request: Message
    powerless: StatusCode | None = DENIED
    reader: StatusCode | None = DENIED


EXPECTED: Final = {
    "CreateTopic": Expected(pb.CreateTopicRequest(topic="stolen")),
    "Send": Expected(pb.SendRequest(topic=TOPIC, message=_MESSAGE)),
    "SendBatch": Expected(pb.SendBatchRequest(topic=TOPIC, messages=[_MESSAGE])),
    "Connect": Expected(
        pb.ConnectRequest(group=GROUP, topics=[TOPIC], mode=pb.ORDERED), reader=None
    ),
    "Disconnect": Expected(pb.DisconnectRequest(**_CONSUMER), reader=None),
    "Heartbeat": Expected(pb.HeartbeatRequest(**_CONSUMER), reader=None),
    "Poll": Expected(pb.PollRequest(**_CONSUMER), reader=None),
    "Ack": Expected(pb.AckRequest(**_CONSUMER, tokens=[b"t"]), reader=None),
    "Nack": Expected(pb.NackRequest(**_CONSUMER, tokens=[b"t"]), reader=None),
    "Extend": Expected(
        pb.ExtendRequest(**_CONSUMER, tokens=[b"t"], visibility_ms=1000), reader=None
    ),
    "Stats": Expected(pb.StatsRequest(group=GROUP), reader=None),
    # Lists hold what the caller may describe.
    "ListGroups": Expected(pb.ListGroupsRequest(), powerless=None, reader=None),
    "Peek": Expected(pb.PeekRequest(group=GROUP, topic=TOPIC), reader=None),
    "DeleteGroup": Expected(pb.DeleteGroupRequest(group=GROUP)),
    "ReadFrom": Expected(pb.ReadFromRequest(topic=TOPIC), reader=None),
    "Topology": Expected(pb.TopologyRequest(), powerless=None, reader=None),
    "ManageBrokers": Expected(
        pb.ManageBrokersRequest(remove=pb.RemoveBroker(id=1)),
    ),
}


@pytest.fixture(scope="module")
def secured() -> Iterator[SecuredBroker]:
    with secured_broker() as started:
        yield started


@pytest.fixture(scope="module")
def channel(secured: SecuredBroker) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(secured.broker.grpc_address) as opened:
        yield opened


class Outcome(NamedTuple):
    code: StatusCode
    reason: str = ""
    text: str = ""
    """Of the response."""


def call(channel: grpc.Channel, name: str, authorization: dict[str, str]) -> Outcome:
    method = SERVICE.methods_by_name[name]
    path = f"/{SERVICE.full_name}/{name}"
    kind: Any = {
        (False, False): channel.unary_unary,
        (False, True): channel.unary_stream,
        (True, True): channel.stream_stream,
    }[method.client_streaming, method.server_streaming]
    answer: Any = getattr(pb, method.output_type.name)
    request = EXPECTED[name].request
    invoke = kind(
        path,
        request_serializer=type(request).SerializeToString,
        response_deserializer=answer.FromString,
    )
    sent = iter([request]) if method.client_streaming else request
    metadata = tuple(authorization.items())
    try:
        given = invoke(sent, metadata=metadata, timeout=wait_seconds_max())
        responses = list(given) if method.server_streaming else [given]
    except grpc.RpcError as error:
        trailers: Any = error.trailing_metadata() or ()
        return Outcome(error.code(), str(dict(trailers).get(REASON_TRAILER, "")))
    for response in responses:
        # Errors of a stream's requests are in its responses.
        for failure in getattr(response, "failures", ()):
            if failure.reason == pb.PERMISSION_DENIED:
                return Outcome(DENIED, "PERMISSION_DENIED")
    return Outcome(StatusCode.OK, text="".join(map(str, responses)))


def state(secured: SecuredBroker) -> object:
    topology = secured.read("/api/v1/topology")
    topic = secured.read(f"/api/v1/topics/{TOPIC}")
    return (
        [(broker["id"], broker["state"]) for broker in topology["brokers"]],
        {each["name"] for each in topology["topics"]} - {"__queue_state"},
        [(each["start_offset"], each["end_offset"]) for each in topic["partitions"]],
    )


def test_every_method_has_a_rule():
    assert set(EXPECTED) == {method.name for method in SERVICE.methods}


@pytest.mark.parametrize("name", EXPECTED)
def test_nobody_gets_or_changes_more_than_they_may(secured, channel, name):
    before = state(secured)
    assert call(channel, name, {})[:2] == (UNKNOWN, "UNAUTHENTICATED")
    wrong = {"authorization": "Bearer wrong"}
    assert call(channel, name, wrong)[:2] == (UNKNOWN, "UNAUTHENTICATED")
    for who, expected in (
        ("powerless", EXPECTED[name].powerless),
        ("reader", EXPECTED[name].reader),
    ):
        found = call(channel, name, secured.authorization(who))
        if expected is None:
            assert found.code not in (DENIED, UNKNOWN), who
        else:
            assert found[:2] == (expected, expected.name), who
        if who == "powerless":
            assert TOPIC not in found.text
            assert SECRET not in found.text
    assert state(secured) == before


def test_a_reader_reads(secured, channel):
    assert SECRET in call(channel, "ReadFrom", secured.authorization("reader")).text
    assert TOPIC in call(channel, "Topology", secured.authorization("reader")).text


def test_the_administrator_gets_through_where_others_are_refused(secured, channel):
    """The walk means nothing if these calls fail for other reasons."""
    admin = secured.authorization("admin")
    for name in ("CreateTopic", "Send", "SendBatch"):
        assert call(channel, name, admin).code is StatusCode.OK
    assert call(channel, "DeleteGroup", admin).code not in (DENIED, UNKNOWN)


def test_health_is_for_everyone_and_reflection_for_those_who_are_known(secured, channel):
    health = health_pb2_grpc.HealthStub(channel)
    checked = health.Check(health_pb2.HealthCheckRequest(), timeout=wait_seconds_max())
    assert checked.status == health_pb2.HealthCheckResponse.SERVING
    for version in ("v1", "v1alpha"):
        reflect = channel.stream_stream(
            f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
            request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
            response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
        )
        wanted = reflection_pb2.ServerReflectionRequest(list_services="")
        with pytest.raises(grpc.RpcError) as refused:
            list(reflect(iter([wanted]), timeout=wait_seconds_max()))
        assert refused.value.code() is UNKNOWN
        metadata = tuple(secured.authorization("powerless").items())
        (shown,) = reflect(iter([wanted]), metadata=metadata, timeout=wait_seconds_max())
        assert SERVICE.full_name in str(shown)


def test_a_consumer_cannot_have_messages_copied_that_it_may_not_read(secured, channel):
    """By dead letters: of a queue that others defined, to a topic of its own, or from its own to
    one that it may not write."""
    admin, client = secured.authorization("admin"), admin_of(secured.broker)
    for topic in ("hidden", "mine"):
        secured.ask("admin", "POST", "/api/v1/topics", {"name": topic, "partitions": 1})
    for kind, name, operation in (
        (ResourceType.GROUP, "jobs", AclOperation.READ),
        (ResourceType.GROUP, "other-jobs", AclOperation.READ),
        (ResourceType.TOPIC, "mine", AclOperation.WRITE),
    ):
        rule = AclBinding(
            kind, name, PatternType.LITERAL, "User:reader", "*", operation, AclPermissionType.ALLOW
        )
        for future in client.create_acls([rule]).values():
            future.result(wait_seconds_max())
    stub = QueueStub(channel)

    def connect(authorization: dict[str, str], group: str, *topics: str, dead: str = "") -> Any:
        request = pb.ConnectRequest(
            group=group,
            topics=topics,
            mode=pb.QUEUE,
            settings=pb.QueueSettings(dead_letter_topic=dead),
        )
        metadata = tuple(authorization.items())
        try:
            return stub.Connect(request, metadata=metadata, timeout=wait_seconds_max())
        except grpc.RpcError as error:
            return error

    connect(admin, "jobs", TOPIC, "hidden")
    reader = secured.authorization("reader")
    for group, dead in (("jobs", "mine"), ("jobs", "hidden"), ("other-jobs", "hidden")):
        refused = connect(reader, group, TOPIC, dead=dead)
        assert refused.code() is not StatusCode.OK
        assert dead == "hidden" or refused.code() is DENIED
        assert dead == "hidden" or "hidden" not in refused.details()
    assert connect(reader, "jobs", TOPIC).settings.dead_letter_topic == ""
    assert connect(reader, "other-jobs", TOPIC, dead="mine").mode == pb.QUEUE
    listed = stub.ListGroups(
        pb.ListGroupsRequest(), metadata=tuple(admin.items()), timeout=wait_seconds_max()
    )
    found = {each.group: each.settings.dead_letter_topic for each in listed.groups}
    assert found["jobs"] == "jobs.dead"
    assert found["other-jobs"] == "mine"
