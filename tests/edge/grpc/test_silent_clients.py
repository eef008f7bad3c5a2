"""Clients that begin calls and say nothing, or no more: they keep nobody else out."""

import threading
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from grpc import StatusCode
from grpc_health.v1 import health_pb2, health_pb2_grpc
from open_sessions import entrance_to

from grpc_world import Door, opened
from moldau.api.entrance import Entrance
from moldau.edge.grpc.listener import GrpcLimits
from moldau.proto.v1 import queue_pb2 as pb
from moldau.proto.v1.queue_pb2_grpc import QueueStub
from moldau.queues.types import DONE
from moldau.security.sasl import AuthenticationError
from moldau.testing.waiting import wait_seconds_max, wait_until

pytestmark = pytest.mark.inprocess

ACK = pb.AckRequest(group="g", consumer_id="c", tokens=[b"t"])
UNARY = ("Ack", "Poll", "ReadFrom")
CALLS_MAX = 20
ALONE = [("grpc.use_local_subchannel_pool", 1)]


class Asked(Entrance):
    """Counts who comes, and lets in only those with a word."""

    def __init__(self, entrance: Entrance) -> None:
        super().__init__(entrance.sessions)
        self.count = 0

    asks = True

    async def enter(self, authorization: Any, *args: Any, **named: Any) -> Any:
        self.count += 1
        if not authorization:
            raise AuthenticationError("who are you?")
        return await super().enter(authorization, *args, **named)


@pytest.fixture
def silence() -> Iterator[threading.Event]:
    """Requests that do not come until it is set, and then neither."""
    ended = threading.Event()
    yield ended
    ended.set()


def say_nothing(until: threading.Event) -> Iterator[bytes]:
    until.wait(wait_seconds_max())
    yield from ()


def begin(channel: grpc.Channel, method: str, silence: threading.Event) -> Any:
    """A call of any kind, as gRPC sends it; its status is known by `code()`."""
    path = method if "/" in method else f"/moldau.v1.Queue/{method}"
    stream: Any = channel.stream_stream(path)
    return stream(say_nothing(silence), timeout=wait_seconds_max())


def health(door: Door) -> Any:
    return health_pb2_grpc.HealthStub(door.channel)


def is_served(door: Door, *, wait_for_ready: bool = False) -> bool:
    """Whether another client finds room for a call."""
    with grpc.insecure_channel(door.address, options=ALONE) as channel:
        call: Any = QueueStub(channel).Ack.with_call
        try:
            call(
                ACK,
                metadata=[("authorization", "x")],
                timeout=wait_seconds_max(),
                wait_for_ready=wait_for_ready,
            )
        except grpc.RpcError as error:
            if error.code() is not StatusCode.RESOURCE_EXHAUSTED:
                raise
            return False
    return True


def made_with(limits: GrpcLimits) -> Any:
    return opened(limits, entrance=lambda broker: Asked(entrance_to(broker)))


@pytest.mark.parametrize("method", UNARY)
def test_an_unknown_client_that_sends_no_request_is_refused_before_it(
    method: str, silence: threading.Event
) -> None:
    with made_with(GrpcLimits(calls_max=CALLS_MAX)) as door:
        door.queues.answers["ack"] = [DONE]
        calls = [begin(door.channel, method, silence) for _ in range(CALLS_MAX)]
        assert [call.code() for call in calls] == [StatusCode.UNAUTHENTICATED] * CALLS_MAX
        assert not silence.is_set()
        wait_until(lambda: is_served(door), "there is room")


@pytest.mark.parametrize("method", UNARY)
def test_a_client_that_sends_no_request_makes_room_after_a_while(
    method: str, silence: threading.Event
) -> None:
    with opened(GrpcLimits(calls_max=CALLS_MAX, request_ms_max=200)) as door:
        door.queues.answers["ack"] = [DONE]
        calls = [begin(door.channel, method, silence) for _ in range(CALLS_MAX)]
        assert {call.code() for call in calls} == {StatusCode.DEADLINE_EXCEEDED}
        assert not silence.is_set()
        wait_until(lambda: is_served(door), "there is room")


def test_connections_without_calls_make_room_after_a_while() -> None:
    with opened(GrpcLimits(connections_max=2, idle_ms_max=500)) as door:
        door.queues.answers["ack"] = [DONE]
        held = [grpc.insecure_channel(door.address, options=ALONE) for _ in range(2)]
        for channel in held:
            grpc.channel_ready_future(channel).result(wait_seconds_max())
        assert is_served(door, wait_for_ready=True)
        for channel in held:
            channel.close()


def test_one_address_cannot_take_all_calls(silence: threading.Event) -> None:
    with opened(GrpcLimits(calls_max=CALLS_MAX, calls_per_address_max=5)) as door:
        door.queues.answers["ack"] = [DONE]
        held = [begin(door.channel, "Ack", silence) for _ in range(CALLS_MAX)]
        wait_until(lambda: sum(call.done() for call in held) == CALLS_MAX - 5, "five calls wait")
        refused = [call for call in held if call.done()]
        assert {call.code() for call in refused} == {StatusCode.RESOURCE_EXHAUSTED}
        assert {call.details() for call in refused} == {"limit of 5 calls per address reached"}
        for call in held:
            call.cancel()
        wait_until(lambda: is_served(door), "there is room")


@pytest.mark.parametrize("method", UNARY)
def test_a_call_that_ends_without_a_request_is_refused(method: str) -> None:
    with opened() as door:
        call: Any = door.channel.stream_stream(f"/moldau.v1.Queue/{method}")(iter(()))
        assert call.code() is StatusCode.INVALID_ARGUMENT
        assert call.details() == "the call has no request"


def test_a_stop_does_not_wait_for_requests(silence: threading.Event) -> None:
    with made_with(GrpcLimits()) as door:
        metadata = [("authorization", "x")]
        path = "/moldau.v1.Queue/Ack"
        call: Any = door.channel.stream_stream(path)(say_nothing(silence), metadata=metadata)
        check = begin(door.channel, "/grpc.health.v1.Health/Check", silence)
        wait_until(lambda: door.entrance.count == 1, "the call has begun")
        wait_until(lambda: door.listener._health._under_way, "the check has begun")
        door.run(door.listener.stop(wait_seconds_max()))
        assert call.code() is StatusCode.UNAVAILABLE
        assert check.code() is StatusCode.UNAVAILABLE


@pytest.mark.parametrize("kind", ["silent", "watching"])
def test_unknown_clients_that_hold_health_checks_keep_neither_calls_nor_checks_out(
    kind: str, silence: threading.Event
) -> None:
    limits = GrpcLimits(calls_max=CALLS_MAX, health_calls_max=5)
    with made_with(limits) as door:
        door.queues.answers["ack"] = [DONE]
        held = []
        for number in range(CALLS_MAX):
            if kind == "silent":
                held.append(begin(door.channel, "/grpc.health.v1.Health/Check", silence))
            else:
                wanted = health_pb2.HealthCheckRequest(service=f"service-{number}")
                held.append(health(door).Watch(wanted))
                assert next(held[-1]).status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
        # All but the last five are replaced, the oldest first.
        wait_until(lambda: sum(call.done() for call in held) == CALLS_MAX - 5, "calls have ended")
        first = held[: CALLS_MAX - 5] if kind == "watching" else [x for x in held if x.done()]
        assert {call.code() for call in first} == {StatusCode.RESOURCE_EXHAUSTED}
        wait_until(lambda: is_served(door), "there is room")
        checked = health(door).Check(health_pb2.HealthCheckRequest(), timeout=wait_seconds_max())
        assert checked.status == health_pb2.HealthCheckResponse.SERVING
        for call in held:
            call.cancel()
        wait_until(lambda: not door.listener._health._under_way, "all checks have ended")


def test_a_health_check_of_an_unknown_service_or_of_nonsense_is_refused() -> None:
    with opened() as door:
        wanted = health_pb2.HealthCheckRequest(service="x")
        with pytest.raises(grpc.RpcError) as caught:
            health(door).Check(wanted, timeout=wait_seconds_max())
        assert caught.value.code() is StatusCode.NOT_FOUND
        call: Any = door.channel.unary_unary("/grpc.health.v1.Health/Check")
        with pytest.raises(grpc.RpcError) as caught:
            call(b"\xff\xff", timeout=wait_seconds_max())
        assert caught.value.code() is StatusCode.INVALID_ARGUMENT
