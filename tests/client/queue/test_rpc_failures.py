"""A failed call is understood: who said so, whether it may be tried again, and what to tell."""

from typing import Any

import grpc
import pytest
from grpc import aio

from moldau.client import errors
from moldau.client.queue.rpc_failures import (
    RpcFailure,
    error_for,
    error_of,
    failure_of,
    retries_exhausted_error,
)

pytestmark = pytest.mark.inprocess


def failed(
    status: grpc.StatusCode, details: str = "", trailers: tuple[tuple[str, str], ...] = ()
) -> RpcFailure:
    error = aio.AioRpcError(status, aio.Metadata(), aio.Metadata(*trailers), details=details)
    return failure_of(error, "a:1")


def test_a_refusal_says_what_the_broker_said() -> None:
    failure = failed(
        grpc.StatusCode.FAILED_PRECONDITION,
        "this broker does not lead it",
        (("moldau-reason", "NOT_LEADER"), ("moldau-hint", "ask%20another")),
    )
    assert (failure.reason, failure.hint) == ("NOT_LEADER", "ask another")
    assert failure.is_retriable
    assert failure.is_stale_route
    assert not failure.has_no_response
    assert not failure.is_uncertain


def test_a_call_that_never_left_is_certain() -> None:
    text = "failed to connect to all addresses; last error: UNKNOWN: Connection refused"
    failure = failed(grpc.StatusCode.UNAVAILABLE, text)
    assert failure.has_no_response
    assert failure.is_retriable
    assert not failure.is_uncertain
    assert failure.text == "connection refused"


@pytest.mark.parametrize(
    ("last", "text", "hint"),
    [
        ("UNAVAILABLE: ipv4:127.0.0.1:1: Socket closed", "it closed the connection", "require TLS"),
        (
            "UNKNOWN: ipv4:127.0.0.1:1: Cannot check peer: missing selected ALPN property.",
            "it is not a gRPC listener",
            "is that the gRPC address",
        ),
    ],
)
def test_a_listener_of_another_kind_is_recognised(last: str, text: str, hint: str) -> None:
    failure = failed(
        grpc.StatusCode.UNAVAILABLE, f"failed to connect to all addresses; last error: {last}"
    )
    assert failure.text == text
    assert hint in failure.hint
    assert failure.is_retriable
    assert not failure.is_uncertain


def test_a_connection_that_breaks_leaves_it_open() -> None:
    failure = failed(grpc.StatusCode.UNAVAILABLE, "Socket closed; {a lot of text}")
    assert failure.is_uncertain
    assert failure.text == "socket closed"


async def test_a_stream_that_breaks_in_a_write_has_no_response() -> None:
    async with aio.insecure_channel("127.0.0.1:1") as channel:
        call: Any = channel.stream_stream("/a/b")()
        # As gRPC does when its core fails to write: hardly to be brought about from outside.
        call._cython_call.set_internal_error("failed to write")
        failure = failed(await call.code(), await call.details() or "")
    assert (failure.has_no_response, failure.is_retriable, failure.is_uncertain) == (
        True,
        True,
        True,
    )
    assert not failure.is_evicted
    assert failure.text == "lost the connection"


@pytest.mark.parametrize(
    ("trailers", "uncertain"),
    [
        ((("moldau-reason", "UNAVAILABLE"),), False),
        ((("moldau-reason", "UNAVAILABLE"), ("moldau-uncertain", "true")), True),
        ((("moldau-reason", "TIMED_OUT"),), True),
    ],
)
def test_a_broker_says_whether_it_is_uncertain(
    trailers: tuple[tuple[str, str], ...], uncertain: bool
) -> None:
    assert failed(grpc.StatusCode.UNAVAILABLE, "x", trailers).is_uncertain is uncertain


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("UNKNOWN_TOPIC", errors.NotFoundError),
        ("UNKNOWN_GROUP", errors.NotFoundError),
        ("INVALID_ARGUMENT", errors.InvalidArgumentError),
        ("TIMED_OUT", errors.TimedOutError),
        ("BUSY", errors.UnavailableError),
        ("UNAVAILABLE", errors.UnavailableError),
        ("OTHER_MODE", errors.RejectedError),
        ("A_REASON_OF_TOMORROW", errors.RejectedError),
    ],
)
def test_reasons_become_errors(reason: str, kind: type[errors.ClientError]) -> None:
    assert type(error_for(reason, "x")) is kind


def test_silence_is_unreachable_or_late() -> None:
    gone = failed(grpc.StatusCode.UNAVAILABLE, "failed to connect to all addresses")
    late = failed(grpc.StatusCode.DEADLINE_EXCEEDED)
    assert isinstance(error_of(gone, "send"), errors.UnreachableError)
    assert isinstance(error_of(late, "send"), errors.TimedOutError)
    assert isinstance(retries_exhausted_error({"a": late}, "send", 3), errors.TimedOutError)
    assert isinstance(
        retries_exhausted_error({"a": gone, "b": late}, "send", 3), errors.UnreachableError
    )


def test_a_response_counts_for_more_than_a_timeout() -> None:
    gone = failed(grpc.StatusCode.UNAVAILABLE, "failed to connect to all addresses")
    busy = failed(grpc.StatusCode.RESOURCE_EXHAUSTED, "full", (("moldau-reason", "BUSY"),))
    error = retries_exhausted_error({"a:1": gone, "b:1": busy}, "send to t", 2.5)
    assert isinstance(error, errors.UnavailableError)
    assert "cannot send to t: tried" in str(error)
    assert "(full)" in str(error)


@pytest.mark.parametrize(
    "text",
    [
        "CLIENT: Sent message larger than max (80000019 vs. 67108864)",
        "SERVER: Received message larger than max (70000000 vs. 67108864)",
    ],
)
def test_a_request_that_is_too_large_was_not_carried_out(text: str) -> None:
    failure = failed(grpc.StatusCode.RESOURCE_EXHAUSTED, text)
    assert (failure.reason, failure.is_uncertain, failure.is_retriable) == (
        "TOO_LARGE",
        False,
        False,
    )


def test_an_answer_that_is_too_large_leaves_it_open() -> None:
    text = "CLIENT: Received message larger than max (70000000 vs. 67108864)"
    assert failed(grpc.StatusCode.RESOURCE_EXHAUSTED, text).is_uncertain


@pytest.mark.parametrize(
    ("retry_ms", "seconds"),
    [("1500", 1.5), ("1", 0.001), ("9" * 9, 30.0), ("9" * 5000, 0.0), ("-5", 0.0), ("x", 0.0)],
)
def test_a_client_over_its_quota_waits_as_long_as_the_broker_says_within_bounds(
    retry_ms: str, seconds: float
) -> None:
    trailers = (("moldau-reason", "BUSY"), ("moldau-retry-ms", retry_ms))
    failure = failed(grpc.StatusCode.RESOURCE_EXHAUSTED, "quota", trailers)
    assert failure.is_retriable
    assert failure.retry_seconds == seconds


def test_where_no_broker_is_known_nothing_was_done_and_one_may_come() -> None:
    error = aio.AioRpcError(grpc.StatusCode.UNKNOWN, aio.Metadata(), aio.Metadata(), details="x")
    failure = failure_of(error, "")
    assert failure.is_retriable
    assert not failure.is_uncertain
    assert str(failure) == "no broker is known yet"


@pytest.mark.parametrize("reason", ["UNKNOWN_TOPIC", "UNKNOWN_GROUP", "TOPIC_EXISTS", "TOO_LARGE"])
def test_refusals_that_users_meet_say_what_to_do(reason: str) -> None:
    assert error_for(reason, "no").hint
    assert error_for(reason, "no", hint="the broker's own").hint == "the broker's own"
