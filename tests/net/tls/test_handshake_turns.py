"""The time for handshakes of a broker, and how its listeners share it. Virtual time."""

import asyncio
from collections.abc import Callable

from handler_calls import LoopClock

from harness.virtual_loop import run_virtually
from moldau.net.tls.handshake_turns import HandshakeTurns

STEP_SECONDS = 0.05


def made() -> HandshakeTurns:
    return HandshakeTurns(asyncio.get_running_loop(), LoopClock())


def flood(turns: HandshakeTurns, name: str, log: list[str]) -> Callable[[], bool]:
    """A listener where more always wait."""

    def take() -> bool:
        log.append(name)
        turns.took(STEP_SECONDS)
        return True

    return take


def test_it_is_free_until_the_time_is_used_up_and_nobody_waits() -> None:
    async def check() -> None:
        turns = made()
        assert turns.is_free()
        turns.took(1.0)
        assert not turns.is_free()
        await asyncio.sleep(6.0)
        assert turns.is_free()
        turns.took(1.0)
        taken: list[str] = []

        def take() -> bool:
            taken.append("once")
            return False

        turns.ask(take)
        assert not taken
        await asyncio.sleep(6.0)
        assert taken == ["once"]
        assert turns.is_free()

    run_virtually(check())


def test_several_listeners_take_no_more_than_one() -> None:
    async def check() -> None:
        turns, log = made(), list[str]()
        for name in ("public", "internal", "peers"):
            turns.ask(flood(turns, name, log))
        await asyncio.sleep(30.0)
        assert 0.15 < len(log) * STEP_SECONDS / 30.0 < 0.22

    run_virtually(check())


def test_a_flood_at_one_listener_delays_another_by_one_step() -> None:
    async def check() -> None:
        turns, log = made(), list[str]()
        turns.ask(flood(turns, "public", log))
        await asyncio.sleep(10.0)
        at_first = len(log)
        turns.ask(flood(turns, "peers", log))
        await asyncio.sleep(10.0)
        assert "peers" in log[at_first : at_first + 2]
        assert abs(log[at_first:].count("peers") - log[at_first:].count("public")) <= 1

    run_virtually(check())
