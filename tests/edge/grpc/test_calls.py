"""What holds for every call: refusals, defects, bounds, cancelling, the stop, and health."""

import asyncio
import logging
import queue
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from open_sessions import broker_with, entrance_to

from grpc_world import Door, opened
from moldau.api.password_check import UnavailableError
from moldau.api.stored_user import StoredUser
from moldau.edge.grpc.calls import Call, Calls, RefusedCallError
from moldau.edge.grpc.errors import unknown_caller
from moldau.edge.grpc.listener import GrpcLimits
from moldau.metadata.security import User
from moldau.model.errors import ErrorCode, RefusedError, StorageError
from moldau.proto.trailers import HINT_TRAILER, REASON_TRAILER, RETRY_TRAILER, decode_text
from moldau.proto.v1 import queue_pb2 as pb
from moldau.proto.v1.queue_pb2_grpc import QueueStub
from moldau.queues.types import ErrorReason, PollResult, QueueRefusedError
from moldau.security.principal import ANONYMOUS
from moldau.security.quotas import QuotaEntity, QuotaKey
from moldau.security.sasl import AuthenticationError
from moldau.testing.waiting import wait_seconds_max, wait_until

pytestmark = pytest.mark.inprocess

ACK = pb.AckRequest(group="g", consumer_id="c", tokens=[b"t"])
MANUAL_CLOCK = SimpleNamespace(wall_ms=lambda: 0, monotonic=lambda: 0.0)
POLL = pb.PollRequest(group="g", consumer_id="c", wait_ms=60_000)


@pytest.fixture
def door() -> Iterator[Door]:
    with opened() as opened_door:
        yield opened_door


def refused(call: Any) -> grpc.RpcError:
    with pytest.raises(grpc.RpcError) as caught:
        call()
    return caught.value


def trailers(error: Any) -> dict[str, str]:
    return dict(error.trailing_metadata())


@pytest.mark.parametrize("reason", list(ErrorReason))
def test_every_reason_of_the_queues_has_a_status_and_its_name(
    door: Door, reason: ErrorReason
) -> None:
    door.queues.answers["ack"] = QueueRefusedError(reason)
    error = refused(lambda: door.stub.Ack(ACK, timeout=wait_seconds_max()))
    assert trailers(error)[REASON_TRAILER] == reason.name
    assert error.details() == reason.value
    known = {
        ErrorReason.INVALID_ARGUMENT: grpc.StatusCode.INVALID_ARGUMENT,
        ErrorReason.UNKNOWN_CONSUMER: grpc.StatusCode.NOT_FOUND,
        ErrorReason.NOT_LEADER: grpc.StatusCode.FAILED_PRECONDITION,
        ErrorReason.UNAVAILABLE: grpc.StatusCode.UNAVAILABLE,
        ErrorReason.BUSY: grpc.StatusCode.RESOURCE_EXHAUSTED,
    }
    assert error.code() == known.get(reason, error.code())
    assert error.code() not in (grpc.StatusCode.OK, grpc.StatusCode.UNKNOWN)


def test_a_client_that_could_not_be_checked_may_try_again_and_a_wrong_one_may_not() -> None:
    busy = unknown_caller(UnavailableError("busy", reason="r"))
    assert (busy.code, busy.text) == (grpc.StatusCode.UNAVAILABLE, "busy")
    wrong = unknown_caller(AuthenticationError("wrong", reason="r"))
    assert (wrong.code, wrong.text) == (grpc.StatusCode.UNAUTHENTICATED, "wrong")


def test_a_hint_of_any_letters_arrives(door: Door) -> None:
    hint = "100 % größer · 試す\n\x00"
    door.queues.answers["ack"] = QueueRefusedError(ErrorReason.BUSY, "zu viel · ü", hint=hint)
    error = refused(lambda: door.stub.Ack(ACK, timeout=wait_seconds_max()))
    assert decode_text(trailers(error)[HINT_TRAILER]) == hint
    assert error.details() == "zu viel · ü"


def test_a_text_of_any_length_fits_an_answer(door: Door) -> None:
    door.queues.answers["ack"] = RefusedError(ErrorCode.NOT_COORDINATOR, "ü" * 100_000)
    error = refused(lambda: door.stub.Ack(ACK, timeout=wait_seconds_max()))
    assert error.code() is grpc.StatusCode.UNAVAILABLE
    assert (error.details() or "").endswith("ü…")


@pytest.mark.parametrize("failure", [ValueError("secret"), StorageError("secret")])
def test_an_internal_error_is_logged_once_and_not_shown(
    door: Door, failure: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    door.queues.answers["ack"] = failure
    with caplog.at_level(logging.ERROR):
        error = refused(lambda: door.stub.Ack(ACK, timeout=wait_seconds_max()))
    assert error.code() is grpc.StatusCode.INTERNAL
    assert "secret" not in f"{error.details()}{trailers(error)}"
    assert trailers(error)[REASON_TRAILER] == "INTERNAL"
    assert len(caplog.records) == 1
    assert (caplog.records[0].exc_info or (None, None))[1] is failure


def test_bytes_that_are_no_message_are_refused(door: Door) -> None:
    call: Any = door.channel.unary_unary("/moldau.v1.Queue/Ack")
    error = refused(lambda: call(b"\xff\xff\xff", timeout=wait_seconds_max()))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert error.details() == "cannot decode the request as AckRequest"
    stream: Any = door.channel.stream_stream("/moldau.v1.Queue/Heartbeat")
    error = refused(lambda: list(stream(iter([b"\xff\xff\xff"]), timeout=wait_seconds_max())))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize("method", ["/moldau.v1.Queue/Nothing", "/moldau.v2.Queue/Ack", "/x"])
def test_an_unknown_call_is_unimplemented(door: Door, method: str) -> None:
    call: Any = door.channel.unary_unary(method)
    error = refused(lambda: call(b"", timeout=wait_seconds_max()))
    assert error.code() is grpc.StatusCode.UNIMPLEMENTED


def test_a_request_above_the_bound_is_refused_and_the_next_one_answered() -> None:
    with opened(GrpcLimits(request_bytes_max=10_000)) as door:
        door.queues.answers["ack"] = []
        large = pb.AckRequest(group="g", consumer_id="c", tokens=[b"x" * 20_000])
        error = refused(lambda: door.stub.Ack(large, timeout=wait_seconds_max()))
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert door.stub.Ack(ACK, timeout=wait_seconds_max()) == pb.SettleResponse()


def test_connections_above_the_bound_are_closed_until_another_one_ends() -> None:
    alone = [("grpc.use_local_subchannel_pool", 1)]
    with opened(GrpcLimits(connections_max=2)) as door:
        door.queues.answers["ack"] = []
        with grpc.insecure_channel(door.address, options=alone) as loads_it:
            QueueStub(loads_it).Ack(ACK, timeout=wait_seconds_max())
        channels = [grpc.insecure_channel(door.address, options=alone) for _ in range(2)]
        for channel in channels:
            assert QueueStub(channel).Ack(ACK, timeout=wait_seconds_max()) == pb.SettleResponse()
        error = refused(lambda: door.stub.Ack(ACK, timeout=wait_seconds_max()))
        assert error.code() is grpc.StatusCode.UNAVAILABLE
        channels.pop().close()
        assert (
            door.stub.Ack(ACK, timeout=wait_seconds_max(), wait_for_ready=True)
            == pb.SettleResponse()
        )
        channels.pop().close()


def test_calls_above_the_bound_are_refused() -> None:
    with opened(GrpcLimits(calls_max=2)) as door:
        door.queues.hold = threading.Event()
        door.queues.answers["poll"] = PollResult()
        waiting = [door.stub.Poll.future(POLL, timeout=wait_seconds_max()) for _ in range(2)]
        wait_until(lambda: len(door.queues.asked) == 2, "both polls wait")
        error = refused(lambda: door.stub.Poll(POLL, timeout=wait_seconds_max()))
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        door.queues.hold.set()
        assert [call.result() for call in waiting] == [pb.PollResponse()] * 2


def test_who_gives_up_ends_what_waits_for_it(door: Door) -> None:
    door.queues.hold = threading.Event()
    call = door.stub.Poll.future(POLL, timeout=wait_seconds_max())
    wait_until(lambda: door.queues.asked, "the poll waits")
    call.cancel()
    wait_until(lambda: door.queues.cancelled == 1, "the poll has ended")


def test_a_deadline_shortens_the_wait_so_that_messages_still_arrive(door: Door) -> None:
    door.queues.answers["poll"] = PollResult()
    door.stub.Poll(POLL, timeout=50)
    door.stub.Poll(POLL)
    (_, (short,), _), (_, (whole,), _) = door.queues.asked
    assert 0 < short.wait_ms < 50_000
    assert whole.wait_ms == 60_000


def test_a_stop_refuses_who_waits_and_lets_others_finish(door: Door) -> None:
    door.queues.hold = threading.Event()
    door.queues.answers["ack"] = []
    poll = door.stub.Poll.future(POLL, timeout=wait_seconds_max())
    beats = door.stub.Heartbeat(iter_slowly(door.queues.hold), timeout=wait_seconds_max())
    ack = door.stub.Ack.future(ACK, timeout=wait_seconds_max())
    wait_until(
        lambda: {name for name, _, _ in door.queues.asked} == {"poll", "ack"},
        "the poll and the ack are under way",
    )
    stopping = threading.Thread(target=lambda: door.run(door.listener.stop(wait_seconds_max())))
    stopping.start()
    error = refused(poll.result)
    assert error.code() is grpc.StatusCode.UNAVAILABLE
    assert trailers(error)[REASON_TRAILER] == "UNAVAILABLE"
    error = refused(lambda: next(beats))
    assert error.code() is grpc.StatusCode.UNAVAILABLE
    door.queues.hold.set()
    assert ack.result() == pb.SettleResponse()
    stopping.join(wait_seconds_max())
    assert not stopping.is_alive()


def iter_slowly(until: threading.Event) -> Iterator[pb.HeartbeatRequest]:
    until.wait(wait_seconds_max())
    return
    yield


def test_health_is_reported_while_it_serves_and_while_it_stops(door: Door) -> None:
    health = health_pb2_grpc.HealthStub(door.channel)
    for name in ("", "moldau.v1.Queue"):
        told = health.Check(health_pb2.HealthCheckRequest(service=name), timeout=wait_seconds_max())
        assert told.status == health_pb2.HealthCheckResponse.SERVING
    watched = health.Watch(health_pb2.HealthCheckRequest(service="moldau.v1.Queue"))
    assert next(watched).status == health_pb2.HealthCheckResponse.SERVING
    stopping = threading.Thread(target=lambda: door.run(door.listener.stop(5)))
    stopping.start()
    assert next(watched).status == health_pb2.HealthCheckResponse.NOT_SERVING
    watched.cancel()
    stopping.join(wait_seconds_max())
    error = refused(
        lambda: health.Check(health_pb2.HealthCheckRequest(service="x"), timeout=wait_seconds_max())
    )
    assert error.code() is grpc.StatusCode.UNAVAILABLE


class SlowClient:
    """A context of gRPC whose client has no room for a while."""

    def __init__(self) -> None:
        self.room = asyncio.Event()

    async def write(self, answer: object) -> None:
        await self.room.wait()


def test_a_stop_does_not_break_in_while_an_answer_is_written() -> None:
    async def scenario() -> None:
        entrance = entrance_to(broker_with())
        calls, client = Calls(entrance), SlowClient()
        visit = await entrance.enter([], "127.0.0.1")
        call: Call[Any, Any] = Call(calls, cast(Any, client), pb.ReadFromRequest, visit)

        async def work() -> None:
            with calls.waiting():
                await call.write(pb.ReadFromResponse())

        writing = asyncio.create_task(work())
        await asyncio.sleep(0)
        calls.stop()
        await asyncio.sleep(0)
        # gRPC could not be told of the refusal before.
        assert not writing.done()
        client.room.set()
        with pytest.raises(RefusedCallError, match="stopping"):
            await writing

    asyncio.run(scenario())


def test_a_stream_carries_nothing_after_the_token_of_its_caller_has_expired() -> None:
    now = 1000

    async def scenario() -> None:
        clock = SimpleNamespace(wall_ms=lambda: now, monotonic=lambda: 0.0)
        entrance = entrance_to(broker_with(clock=clock))
        visit = (await entrance.enter([], "127.0.0.1"))._replace(expires_at_ms=2000)
        client = SlowClient()
        client.room.set()
        call: Call[Any, Any] = Call(Calls(entrance), cast(Any, client), pb.ReadFromRequest, visit)
        await call.write(pb.ReadFromResponse())
        nonlocal now
        now = 2000
        with pytest.raises(AuthenticationError, match="expired"):
            await call.write(pb.ReadFromResponse())
        # But for what was done before, which the client would do again.
        await call.confirm(pb.ReadFromResponse())

    asyncio.run(scenario())


@pytest.mark.parametrize("after", [{}, {"alice": User("alice", {}, created=2)}])
def test_a_stream_carries_nothing_after_the_user_of_its_caller_was_deleted(after) -> None:
    users = {"alice": User("alice", {}, created=1)}

    async def scenario() -> None:
        entrance = entrance_to(broker_with())
        alice = StoredUser(lambda: users, "alice")
        visit = (await entrance.enter([], "127.0.0.1"))._replace(user=alice)
        client = SlowClient()
        client.room.set()
        call: Call[Any, Any] = Call(Calls(entrance), cast(Any, client), pb.ReadFromRequest, visit)
        await call.write(pb.ReadFromResponse())
        nonlocal users
        users = after
        with pytest.raises(AuthenticationError, match="deleted"):
            await call.write(pb.ReadFromResponse())

    asyncio.run(scenario())


def test_a_stream_over_its_time_is_not_read_until_it_is_paid() -> None:
    reads: list[float] = []
    now = 0.0

    class Client:
        async def read(self) -> object:
            reads.append(now)
            return pb.HeartbeatRequest()

    async def scenario() -> None:
        nonlocal now
        clock = SimpleNamespace(wall_ms=lambda: 0, monotonic=lambda: now)
        entrance = entrance_to(broker_with(clock=clock))
        quotas = entrance.sessions.quotas
        quotas.replace({QuotaEntity("", None): {QuotaKey.REQUEST: 100.0}})
        visit = await entrance.enter([], "127.0.0.1")
        call: Call[Any, Any] = Call(
            Calls(entrance), cast(Any, Client()), pb.HeartbeatRequest, visit
        )
        assert await call.read() is not None
        meter = visit.session.meter()
        assert meter is not None
        # Some steps of its wait.
        assert meter.take(QuotaKey.REQUEST, 1.003) > 0
        reading = asyncio.create_task(call.read())
        await asyncio.sleep(0.02)
        assert (len(reads), reading.done()) == (1, False)
        now = 1.0
        assert await asyncio.wait_for(reading, wait_seconds_max()) is not None
        assert reads == [0.0, 1.0]

    asyncio.run(scenario())


@pytest.mark.parametrize("at_once", [2, 20])
def test_a_stream_in_use_that_would_wait_for_long_ends_and_says_how_long(at_once: int) -> None:
    requests: queue.Queue[pb.HeartbeatRequest | None] = queue.Queue()
    request = pb.HeartbeatRequest(group="g", consumer_id="c")
    with opened(broker={"clock": MANUAL_CLOCK}) as door:
        reply = SimpleNamespace(heartbeat_interval_ms=7, assignment=None)
        door.queues.answers["heartbeat"] = reply
        quotas = door.entrance.sessions.quotas
        quotas.replace({QuotaEntity("", None): {QuotaKey.REQUEST: 100.0}})
        responses = door.stub.Heartbeat(iter(requests.get, None), timeout=wait_seconds_max())
        requests.put(request)
        assert next(responses).heartbeat_interval_ms == 7
        quotas.meter(ANONYMOUS, None).take(QuotaKey.REQUEST, 301.0)
        for _ in range(at_once):
            requests.put(request)
        error = refused(lambda: list(responses))
        requests.put(None)
        assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert trailers(error)[RETRY_TRAILER] == "300000"
        # The stream may have waited for one of them already.
        assert len(door.queues.asked) <= 2


def test_a_stream_over_the_quota_ends_after_its_first_request() -> None:
    """gRPC hides the status of a stream that ends while the client writes."""
    events: list[str] = []

    class Client:
        def peer(self) -> str:
            return "ipv4:192.0.2.1:5000"

        def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
            return ()

        async def read(self) -> pb.SendBatchRequest:
            events.append("read")
            return pb.SendBatchRequest()

        async def abort(self, code: grpc.StatusCode, text: str, trailers: object) -> None:
            events.extend([code.name, str(dict(cast(Any, trailers))[RETRY_TRAILER])])

    async def never(call: object) -> None:
        raise AssertionError

    async def scenario() -> None:
        clock = SimpleNamespace(wall_ms=lambda: 0, monotonic=lambda: 0.0)
        entrance = entrance_to(broker_with(clock=clock))
        entrance.sessions.quotas.replace({QuotaEntity("", None): {QuotaKey.REQUEST: 100.0}})
        visit = await entrance.enter([], "127.0.0.1")
        meter = visit.session.meter()
        assert meter is not None
        meter.take(QuotaKey.REQUEST, 3.0)
        calls = Calls(entrance)
        handler: Any = calls.stream_stream(pb.SendBatchRequest, never)
        with pytest.raises(RuntimeError, match="an aborted call continued"):
            await handler.stream_stream(None, Client())
        calls.stop()

    asyncio.run(scenario())
    assert events == ["read", "RESOURCE_EXHAUSTED", "2000"]
