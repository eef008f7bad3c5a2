"""One connection: negotiation, pipelining, and every way in which it can break."""

import socket
from typing import Any

import pytest

from moldau.client.errors import ClientError, RejectedError, TimedOutError, UnreachableError
from moldau.client.wire.connection import KafkaConnection
from moldau.model.errors import ErrorCode, PeerProtocolError
from moldau.wire.messages.api_versions import ApiVersionsResponse
from moldau.wire.messages.fetch import FetchResponse
from moldau.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from moldau.wire.messages.metadata import MetadataRequest, MetadataResponse
from moldau.wire.messages.produce import ProduceRequest
from moldau.wire.registry import ApiKey

pytestmark = pytest.mark.inprocess


def connect(broker: Any, **options: Any) -> KafkaConnection:
    return KafkaConnection(broker.host, broker.port, **options)


def heartbeat(generation: int) -> HeartbeatRequest:
    return HeartbeatRequest(group_id="g", generation_id=generation, member_id="m")


def answer_metadata(request: Any, version: int) -> MetadataResponse:
    return MetadataResponse(brokers=[], topics=[], cluster_id="c")


def test_the_highest_common_version_is_used(scripted_broker: Any) -> None:
    scripted_broker.served[ApiKey.METADATA] = (0, 7)
    scripted_broker.handlers[ApiKey.METADATA] = answer_metadata
    with connect(scripted_broker, client_id="tester") as connection:
        response = connection.request(MetadataRequest(topics=None), MetadataResponse)
    assert response.cluster_id == "c"
    assert [h.api_version for h, _ in scripted_broker.requests] == [4, 7]
    assert {h.client_id for h, _ in scripted_broker.requests} == {"tester"}


def test_versions_are_asked_once(scripted_broker: Any) -> None:
    scripted_broker.handlers[ApiKey.METADATA] = answer_metadata
    with connect(scripted_broker) as connection:
        connection.send(MetadataRequest(topics=None))
        connection.send(MetadataRequest(topics=None))
    asked = [h.api_key for h, _ in scripted_broker.requests]
    assert asked.count(ApiKey.API_VERSIONS) == 1


@pytest.mark.parametrize("newest", [0, 2])
def test_a_broker_with_older_api_versions_is_understood(scripted_broker: Any, newest: int) -> None:
    scripted_broker.served[ApiKey.API_VERSIONS] = (0, newest)
    with connect(scripted_broker) as connection:
        assert connection.version_for(MetadataRequest) == 13
    assert [h.api_version for h, _ in scripted_broker.requests] == [4, newest]


def test_a_refused_negotiation_is_an_error_with_its_code(scripted_broker: Any) -> None:
    scripted_broker.handlers[ApiKey.API_VERSIONS] = lambda request, version: ApiVersionsResponse(
        error_code=ErrorCode.INVALID_REQUEST, api_keys=[]
    )
    with connect(scripted_broker) as connection, pytest.raises(RejectedError) as caught:
        connection.served_versions()
    assert caught.value.name == "INVALID_REQUEST"


def test_an_api_that_the_broker_lacks_is_named(scripted_broker: Any) -> None:
    del scripted_broker.served[ApiKey.HEARTBEAT]
    with (
        connect(scripted_broker) as connection,
        pytest.raises(ClientError, match="does not support Heartbeat"),
    ):
        connection.send(heartbeat(1))


def test_versions_without_overlap_are_named(scripted_broker: Any) -> None:
    scripted_broker.served[ApiKey.HEARTBEAT] = (7, 9)
    with (
        connect(scripted_broker) as connection,
        pytest.raises(ClientError, match=r"7 to 9.*this client 0 to 4"),
    ):
        connection.send(heartbeat(1))


def test_posted_requests_are_answered_in_order(scripted_broker: Any) -> None:
    scripted_broker.handlers[ApiKey.HEARTBEAT] = lambda request, version: HeartbeatResponse(
        throttle_time_ms=request.generation_id
    )
    with connect(scripted_broker) as connection:
        for number in range(20):
            connection.post(heartbeat(number), 4)
        assert connection.pending_count == 20
        with pytest.raises(ClientError, match="outstanding"):
            connection.send(heartbeat(99), 4)
        replies = [connection.receive() for _ in range(20)]
    assert [r.throttle_time_ms for r in replies] == list(range(20))  # type: ignore[attr-defined]


def test_receiving_what_was_never_asked_is_an_error_at_once(scripted_broker: Any) -> None:
    with connect(scripted_broker) as connection, pytest.raises(ClientError, match="outstanding"):
        connection.receive()


def test_a_request_without_reply_leaves_the_next_one_in_step(scripted_broker: Any) -> None:
    scripted_broker.handlers[ApiKey.PRODUCE] = lambda request, version: None
    scripted_broker.handlers[ApiKey.METADATA] = answer_metadata
    with connect(scripted_broker) as connection:
        connection.post(ProduceRequest(acks=0, timeout_ms=1, topics=[]), 9, reply=False)
        assert connection.request(MetadataRequest(topics=None), MetadataResponse).cluster_id == "c"


def test_the_wrong_type_of_response_is_a_bug_of_the_caller(scripted_broker: Any) -> None:
    scripted_broker.handlers[ApiKey.METADATA] = answer_metadata
    with connect(scripted_broker) as connection, pytest.raises(TypeError, match="FetchResponse"):
        connection.request(MetadataRequest(topics=None), FetchResponse)


def test_nothing_listening_is_said_with_a_hint() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(UnreachableError, match=f"127.0.0.1:{port} .*refused") as caught:
        KafkaConnection("127.0.0.1", port)
    assert "moldau dev" in caught.value.hint


def test_an_unknown_host_is_said() -> None:
    with pytest.raises(UnreachableError, match="no such host"):
        KafkaConnection("no-such-host.invalid", 9092, timeout=5)


def test_an_unresponsive_broker_runs_into_the_timeout_and_closes(scripted_broker: Any) -> None:
    scripted_broker.handlers[ApiKey.HEARTBEAT] = lambda request, version: None
    connection = connect(scripted_broker, timeout=0.2)
    with pytest.raises(TimedOutError, match=r"0.2 s"):
        connection.send(heartbeat(1), 4)
    assert connection.closed
    with pytest.raises(UnreachableError, match="is closed"):
        connection.send(heartbeat(1), 4)


def test_a_broker_that_hangs_up_is_said(scripted_broker: Any) -> None:
    def hang_up(request: Any, version: int) -> None:
        scripted_broker.hang_up()

    scripted_broker.handlers[ApiKey.HEARTBEAT] = hang_up
    connection = connect(scripted_broker)
    with pytest.raises(UnreachableError, match="lost the connection"):
        connection.send(heartbeat(1), 4)
    assert connection.closed


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (b"\xff\xff\xff\xff", "response of -1 bytes"),
        (b"\x7f\xff\xff\xff", "response of 2147483647 bytes"),
        (b"\0\0\0\x02\0\0", "ends inside its header"),
        (b"\0\0\0\x06\0\0\0\x63\0\0", "responded to request 99 instead of 1"),
        (b"\0\0\0\x06\0\0\0\x01\0\0", "HeartbeatResponse v4"),
    ],
)
def test_a_broken_response_closes_the_connection(
    scripted_broker: Any, reply: bytes, reason: str
) -> None:
    scripted_broker.handlers[ApiKey.HEARTBEAT] = lambda request, version: reply
    connection = connect(scripted_broker)
    with pytest.raises(PeerProtocolError, match=reason):
        connection.send(heartbeat(1), 4)
    assert connection.closed
