"""Requests of transactions are repeated while that is what clients do, and no longer."""

from collections.abc import Callable

import pytest

from faults.wire import Answer, GaveUpError, Wire
from moldau.client.errors import RejectedError, UnreachableError
from moldau.model.errors import ErrorCode
from moldau.testing.waiting import wait_seconds_max

pytestmark = pytest.mark.inprocess


def answers(*each: Answer | Exception) -> tuple[Callable[[], Answer], list[int]]:
    """An attempt that ends like this, one time after another, and a count of them."""
    left, made = list(each), [0]

    def attempt() -> Answer:
        made[0] += 1
        answer = left.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    return attempt, made


@pytest.fixture
def wire() -> Wire:
    return Wire("127.0.0.1:1", "t", "p1")


def test_passing_errors_and_lost_connections_are_tried_again(wire: Wire) -> None:
    attempt, made = answers(
        UnreachableError("gone"),
        Answer(ErrorCode.NOT_COORDINATOR),
        RejectedError("none", ErrorCode.LEADER_NOT_AVAILABLE),
        Answer(ErrorCode.CONCURRENT_TRANSACTIONS),
        Answer(0, 7),
    )
    assert wire.persist(attempt, wait_seconds_max()) == Answer(0, 7)
    assert made == [5]


@pytest.mark.parametrize("code", [ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH])
def test_a_refusal_is_final(wire: Wire, code: ErrorCode) -> None:
    attempt, made = answers(Answer(code))
    assert wire.persist(attempt, wait_seconds_max()).code == code
    assert made == [1]


def test_one_that_is_never_answered_is_given_up(wire: Wire) -> None:
    attempt, _ = answers(*[Answer(ErrorCode.NOT_COORDINATOR)] * 50)
    with pytest.raises(GaveUpError, match="NOT_COORDINATOR"):
        wire.persist(attempt, 0.1)
