"""Failed logins are slowed down, others are not; tables and log lines have a bound."""

import asyncio
import logging

import pytest
from handler_calls import LoopClock

from moldau.api import login_throttle
from moldau.api.login_throttle import (
    FORGIVE_SECONDS,
    LOG_SECONDS,
    REFUSAL_SECONDS,
    REFUSAL_SECONDS_MAX,
    WAIT_SECONDS_MAX,
    LoginThrottle,
)

HOST = "10.0.0.1"


def now() -> float:
    return asyncio.get_running_loop().time()


async def attempt(throttle: LoginThrottle, user: str, host: str = HOST) -> float | None:
    """The seconds that an attempt waited before it failed; None: refused unseen."""
    began = now()
    if not await throttle.admit(user, host):
        return None
    waited = now() - began
    throttle.failed(user, host)
    return waited


async def test_the_first_failures_are_free_and_later_ones_wait_longer_and_longer():
    throttle = LoginThrottle(LoopClock())
    waits = [await attempt(throttle, "alice") for _ in range(12)]
    assert waits[:7] == [0] * 7
    later = [wait for wait in waits[7:] if wait is not None]
    assert len(later) == 5
    assert later == sorted(later)
    assert later[0] > 0
    assert later[-1] <= WAIT_SECONDS_MAX


async def test_many_attempts_at_once_are_not_all_looked_at():
    throttle = LoginThrottle(LoopClock())
    for _ in range(20):
        throttle.failed("alice", HOST)
    looked_at = await asyncio.gather(*(throttle.admit("alice", HOST) for _ in range(100)))
    assert looked_at.count(None) > 95


async def test_attempts_under_way_count_as_failed():
    throttle = LoginThrottle(LoopClock())
    for _ in range(10):
        assert await throttle.admit("alice", HOST)
        throttle.suspect("alice", HOST)
    assert await attempt(throttle, "alice")


async def test_a_user_who_logs_in_is_not_slow_any_more_but_its_address_is():
    throttle = LoginThrottle(LoopClock())
    for number in range(150):
        throttle.failed(f"user-{number}", HOST)
    for _ in range(10):
        throttle.failed("alice", HOST)
    throttle.succeeded("alice", HOST)
    began = now()
    for _ in range(3):
        assert await throttle.admit("alice", HOST)
    assert now() == began
    assert await throttle.admit("carol", HOST)
    assert await throttle.admit("carol", HOST)
    assert now() > began


async def test_a_user_who_logs_in_all_the_time_does_not_make_guesses_of_others_free():
    throttle = LoginThrottle(LoopClock())
    throttle.succeeded("alice", HOST)
    began = now()
    guesses = 0
    while now() - began < 600:
        if await attempt(throttle, "alice") is not None:
            guesses += 1
        await asyncio.sleep(0.1)
        throttle.succeeded("alice", HOST)
    # Some are free again each minute, the others wait.
    assert guesses < 600
    await asyncio.sleep(FORGIVE_SECONDS)
    throttle.succeeded("alice", HOST)
    assert [await attempt(throttle, "alice") for _ in range(5)] == [0] * 5


async def old_client(throttle: LoginThrottle, backoff_seconds_max: float) -> None:
    """Tries an old password again and again, as librdkafka does."""
    backoff = 0.1
    while True:
        seconds = REFUSAL_SECONDS
        if await throttle.admit("alice", HOST):
            seconds = throttle.failed("alice", HOST)
        await asyncio.sleep(seconds + backoff)
        backoff = min(2 * backoff, backoff_seconds_max)


@pytest.mark.parametrize(("count", "backoff_seconds_max"), [(4, 10.0), (2, 1.0)])
async def test_programs_with_an_old_password_do_not_keep_out_those_with_the_new_one(
    count: int, backoff_seconds_max: float
):
    throttle = LoginThrottle(LoopClock())
    throttle.succeeded("alice", HOST)
    old = [asyncio.create_task(old_client(throttle, backoff_seconds_max)) for _ in range(count)]
    waits = []
    for _ in range(300):
        began = now()
        turn = await throttle.admit("alice", HOST)
        assert turn is not None, f"refused after {began:.0f} s"
        throttle.succeeded("alice", HOST, turn)
        waits.append(now() - began)
        await asyncio.sleep(1)
    assert sum(waits) < 15
    for each in old:
        each.cancel()


async def test_a_right_password_delays_no_others():
    throttle = LoginThrottle(LoopClock())
    throttle.failed("alice", HOST)
    throttle.succeeded("alice", HOST)  # The one pardon of a minute.
    for _ in range(30):
        throttle.failed("alice", HOST)
    began = now()
    for _ in range(10):
        turn = await throttle.admit("alice", HOST)
        assert turn is not None
        throttle.succeeded("alice", HOST, turn)
    assert now() == began


async def test_guesses_at_an_address_where_the_user_works_have_a_bound():
    throttle = LoginThrottle(LoopClock())
    throttle.succeeded("alice", HOST)
    began = now()
    guesses = 0

    async def guess() -> None:
        nonlocal guesses
        while now() - began < 600:
            if await throttle.admit("alice", HOST):
                throttle.failed("alice", HOST)
                guesses += 1
            else:
                await asyncio.sleep(0.01)

    await asyncio.gather(*(guess() for _ in range(10)))
    assert guesses < 330


async def test_attempts_that_take_time_and_succeed_do_not_count_as_failed():
    throttle = LoginThrottle(LoopClock())
    throttle.failed("alice", HOST)
    for _ in range(100):
        assert await throttle.admit("alice", HOST)
        throttle.suspect("alice", HOST)
        throttle.succeeded("alice", HOST, suspected=True)
    assert [await attempt(throttle, "alice") for _ in range(5)] == [0] * 5


async def test_nobody_locks_a_user_out_from_another_address():
    throttle = LoginThrottle(LoopClock())
    for number in range(200):
        throttle.failed("alice", f"10.0.1.{number}")
    began = now()
    assert await throttle.admit("alice", "10.0.0.2")
    assert now() == began
    # What is slow are the refusals.
    assert throttle.failed("alice", "10.0.0.2") == pytest.approx(REFUSAL_SECONDS_MAX)
    assert throttle.failed("bob", "10.0.0.2") == REFUSAL_SECONDS


async def test_failures_are_forgotten():
    throttle = LoginThrottle(LoopClock())
    for _ in range(1000):
        throttle.failed("alice", HOST)
    await asyncio.sleep(600)
    assert [await attempt(throttle, "alice") for _ in range(5)] == [0] * 5


async def test_one_client_that_tries_forever_does_not_slow_down_its_neighbours():
    throttle = LoginThrottle(LoopClock())
    for _ in range(1000):
        await attempt(throttle, "misconfigured")
        await asyncio.sleep(0.1)
    began = now()
    assert await throttle.admit("alice", HOST)
    assert now() == began


async def test_a_client_that_tries_many_names_keeps_nobody_out_who_is_known_at_its_address():
    throttle = LoginThrottle(LoopClock())
    throttle.succeeded("alice", HOST)
    for number in range(1000):
        throttle.failed(f"user-{number}", HOST)
    for _ in range(100):
        began = now()
        assert await throttle.admit("alice", HOST)
        assert now() == began
    looked_at = await asyncio.gather(*(throttle.admit("eve", HOST) for _ in range(100)))
    assert looked_at.count(None) > 80
    # As the user itself it would still wait.
    for _ in range(20):
        throttle.failed("alice", HOST)
    await throttle.admit("alice", HOST)
    began = now()
    assert await throttle.admit("alice", HOST)
    assert now() > began


async def test_addresses_of_one_ipv6_network_are_one():
    throttle = LoginThrottle(LoopClock())
    for number in range(10):
        throttle.failed("alice", f"2001:db8::{number:x}")
    await throttle.admit("alice", "2001:db8::ffff")
    began = now()
    assert await throttle.admit("alice", "2001:db8::eeee")
    assert now() > began
    began = now()
    assert await throttle.admit("alice", "2001:db8:0:1::1")
    assert now() == began


def test_the_tables_have_a_bound():
    class Still(LoopClock):
        def monotonic(self):
            return 0.0

    throttle = LoginThrottle(Still())
    for number in range(login_throttle._ENTRIES_MAX):
        throttle.failed(f"user-{number}" * 100, f"10.{number % 250}.{number // 250}.1")
        throttle.log_failure(f"10.{number % 250}.{number // 250}.1", f"reason {number}")
        throttle.succeeded(f"other-{number}", f"10.0.{number % 250}.1")
        throttle.succeeded(f"another-{number}", f"10.0.{number % 250}.1")
    assert len(throttle._failures) == login_throttle._ENTRIES_MAX
    assert len(throttle._known) == login_throttle._ENTRIES_MAX
    assert len(throttle._logged) == login_throttle._LOGGED_MAX


async def test_a_reason_is_logged_once_per_address_and_then_how_many_were_left_out(
    caplog: pytest.LogCaptureFixture,
):
    throttle = LoginThrottle(LoopClock())
    caplog.set_level(logging.WARNING)
    for _ in range(50):
        throttle.log_failure(HOST, "wrong password for user 'alice'")
    throttle.log_failure("10.0.0.2", "wrong password for user 'alice'")
    assert len(caplog.messages) == 2
    for number in range(50):
        throttle.log_failure(HOST, f"user 'user-{number}' does not exist")
    assert len(caplog.messages) == 2 + login_throttle._REASONS_MAX - 1
    caplog.clear()
    await asyncio.sleep(LOG_SECONDS)
    throttle.log_failure(HOST, "wrong password for user 'alice'")
    (line,) = caplog.messages
    assert "92 more failed before" in line
