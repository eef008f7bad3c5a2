"""Errors that may pass are retried with growing pauses until the deadline; others are not."""

import asyncio
from types import SimpleNamespace

import pytest

from moldau.client import retry as module
from moldau.client.errors import (
    ClientError,
    NotFoundError,
    RejectedError,
    TimedOutError,
    UnreachableError,
)
from moldau.client.retry import RETRIABLE_CODES, Backoff, is_retriable, retry
from moldau.model.errors import ErrorCode


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses that were made, on a clock that they alone move."""
    made: list[float] = []
    clock = SimpleNamespace(monotonic=lambda: sum(made), sleep=made.append)
    monkeypatch.setattr(module, "time", clock)
    return made


def test_pauses_double_up_to_a_maximum_and_end_at_the_deadline(pauses: list[float]) -> None:
    backoff = Backoff(1.0, pause_seconds=0.1, pause_seconds_max=0.4)
    while not backoff.is_over:
        backoff.sleep()
    assert pauses == pytest.approx([0.1, 0.2, 0.4, 0.3])
    backoff.restart()
    assert backoff.seconds_left == pytest.approx(1.0)


def test_one_try_leaves_time_for_others(pauses: list[float]) -> None:
    assert Backoff(30.0).try_seconds == 10.0
    assert Backoff(2.0).try_seconds == 1.0
    assert Backoff(0.5).try_seconds == 0.5
    assert Backoff(0.0).try_seconds == 0.001


async def test_coroutines_pause_as_well(
    pauses: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    backoff = Backoff(0.01, pause_seconds=0.02)
    await backoff.sleep_async()
    assert pauses == [0.01]
    assert backoff.is_over


def test_a_retriable_error_is_retried_and_stale_metadata_forgotten(pauses: list[float]) -> None:
    failures: list[ClientError] = [
        UnreachableError("down"),
        RejectedError("moved", ErrorCode.NOT_COORDINATOR),
        RejectedError("busy", ErrorCode.CONCURRENT_TRANSACTIONS),
    ]
    forgotten: list[int] = []

    def attempt() -> str:
        if failures:
            raise failures.pop(0)
        return "done"

    found = retry(
        attempt, seconds_max=9, doing="try", forget=lambda: forgotten.append(len(failures))
    )
    assert (found, forgotten, len(pauses)) == ("done", [2, 1], 3)


def test_the_deadline_ends_it_with_the_last_error(pauses: list[float]) -> None:
    def attempt() -> None:
        raise UnreachableError("down", hint="start it")

    with pytest.raises(
        TimedOutError, match="cannot try: timed out after 2 s; last error: down"
    ) as e:
        retry(attempt, seconds_max=2, doing="try")
    assert e.value.hint == "start it"
    assert sum(pauses) == pytest.approx(2)


def test_what_cannot_pass_is_raised_at_once(pauses: list[float]) -> None:
    def attempt() -> None:
        raise NotFoundError("no topic")

    with pytest.raises(NotFoundError):
        retry(attempt, seconds_max=9, doing="try")
    assert pauses == []
    assert not is_retriable(RejectedError("x", ErrorCode.MESSAGE_TOO_LARGE))
    assert ErrorCode.UNKNOWN_TOPIC_OR_PARTITION not in RETRIABLE_CODES
