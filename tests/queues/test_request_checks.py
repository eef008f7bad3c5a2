"""What is out of bounds is refused, with what the bound is."""

from collections.abc import Callable

import pytest

from moldau.queues.request_checks import (
    check_consumer,
    check_group,
    check_number,
    check_poll,
    check_settling,
)
from moldau.queues.types import ErrorReason, QueueRefusedError


@pytest.mark.parametrize(
    "call",
    [
        lambda: check_group("g" * 255),
        lambda: check_consumer("g", "c" * 120),
        lambda: check_poll(1_000, 60_000, None),
        lambda: check_poll(1, 0, 1),
        lambda: check_settling("g", "c", 10_000, delay_ms=0, reason="r" * 4096),
        lambda: check_number("n", None, 1, 2),
    ],
)
def test_the_bound_itself_is_allowed(call: Callable[[], None]) -> None:
    call()


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: check_group(""), "1 to 255"),
        (lambda: check_group("ü" * 128), "256 bytes"),
        (lambda: check_group("\ud800"), "not valid Unicode"),
        (lambda: check_consumer("g", ""), "1 to 120"),
        (lambda: check_consumer("g", "c" * 121), "1 to 120"),
        (lambda: check_consumer("", "c"), "group"),
        (lambda: check_poll(0, 0, None), "max_messages"),
        (lambda: check_poll(1_001, 0, None), "1000"),
        (lambda: check_poll(1, -1, None), "wait_ms"),
        (lambda: check_poll(1, 60_001, None), "60000"),
        (lambda: check_poll(1, 0, 0), "visibility_ms"),
        (lambda: check_settling("g", "c", 10_001), "limit is 10000"),
        (lambda: check_settling("g", "c", 1, delay_ms=-1), "delay_ms"),
        (lambda: check_settling("g", "c", 1, visibility_ms=0), "visibility_ms"),
        (lambda: check_settling("g", "c", 1, reason="ü" * 2049), "reason"),
    ],
)
def test_what_is_beyond_is_refused(call: Callable[[], None], said: str) -> None:
    with pytest.raises(QueueRefusedError, match=said) as caught:
        call()
    assert caught.value.reason is ErrorReason.INVALID_ARGUMENT
