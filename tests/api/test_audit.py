"""The audit log: what a line says, and that a client in a loop cannot fill the disk."""

import json
from typing import Any, cast

import pytest

from moldau.api.audit import (
    CHANGES,
    CLIENTS_MAX,
    LOGGER_NAME,
    OTHERS,
    AuditLog,
    to_logger,
)
from moldau.security.acl import Operation, Resource, ResourceType
from moldau.security.principal import user


class Clock:
    now = 100.0

    def monotonic(self) -> float:
        return self.now

    def wall_ms(self) -> int:
        return int(self.now * 1000)


class World:
    def __init__(self) -> None:
        self.clock = Clock()
        self.lines: list[dict[str, Any]] = []
        write = lambda line: self.lines.append(json.loads(line))  # noqa: E731
        self.log = AuditLog(cast(Any, self.clock), write)

    def record(
        self,
        name: str = "orders",
        *,
        is_allowed: bool = False,
        who: str = "alice",
        host: str = "192.0.2.7",
        about: object = "",
    ) -> None:
        self.log.record(
            user(who),
            host,
            "public",
            "topics.delete",
            Operation.DELETE,
            Resource(ResourceType.TOPIC, name),
            is_allowed=is_allowed,
            about=about,
        )


def test_a_line_says_who_did_what_from_where() -> None:
    world = World()
    world.record(is_allowed=True)
    assert world.lines == [
        {
            "time_ms": 100_000,
            "principal": "User:alice",
            "host": "192.0.2.7",
            "use_case": "topics.delete",
            "operation": "DELETE",
            "resource_type": "TOPIC",
            "resource": "orders",
            "allowed": True,
            "listener": "public",
        }
    ]


def test_names_of_clients_cannot_start_a_new_line_or_be_endless() -> None:
    world = World()
    world.record('a"}\n{"allowed": true' + "x" * 10_000)
    (line,) = world.lines
    assert line["resource"].startswith('a"}\n{')
    assert len(line["resource"]) == 300
    assert line["resource"].endswith("x…")
    assert line["allowed"] is False


def test_what_is_too_long_says_so() -> None:
    world = World()
    world.record("n" * 300, about="a" * 2000)
    world.record(about="a" * 2001)
    short, long = world.lines
    assert (short["resource"], short["about"]) == ("n" * 300, "a" * 2000)
    assert long["about"] == "a" * 1999 + "…"


def test_a_flood_is_bounded_and_counted() -> None:
    world = World()
    for _ in range(OTHERS.client_burst + 1000):
        world.record()
    assert len(world.lines) == OTHERS.client_burst
    world.clock.now += 1
    for _ in range(1000):
        world.record()
    assert len(world.lines) == OTHERS.client_burst + OTHERS.client_per_second
    assert world.lines[OTHERS.client_burst]["left_out"] == 1000
    assert "left_out" not in world.lines[-1]


@pytest.mark.parametrize("is_allowed", [True, False])
def test_a_flood_hides_neither_changes_nor_other_clients(is_allowed: bool) -> None:
    world = World()
    rate = CHANGES if is_allowed else OTHERS
    for _ in range(rate.burst * 2):
        world.record(is_allowed=is_allowed)
    world.lines.clear()
    world.record("hidden?", is_allowed=not is_allowed)
    world.record("hidden?", is_allowed=is_allowed, who="bob")
    world.record("hidden?", is_allowed=is_allowed, host="192.0.2.8")
    assert [line["resource"] for line in world.lines] == ["hidden?"] * 3
    # One client of IPv6 has a whole network of addresses.
    for number in range(rate.burst):
        world.record(is_allowed=is_allowed, host=f"2001:db8::{number:x}")
    assert len(world.lines) == 3 + min(rate.client_burst, rate.burst - rate.client_burst - 2)


def test_many_clients_together_are_bounded_in_lines_and_in_memory() -> None:
    world = World()
    for number in range(CLIENTS_MAX * 2):
        world.record(who=f"user-{number}")
    assert len(world.lines) == OTHERS.burst
    for number in range(CLIENTS_MAX * 2):
        world.clock.now += 1
        world.record(who=f"user-{number}")
    assert len(world.log._denials._clients) == CLIENTS_MAX
    world.clock.now += 1
    for _ in range(OTHERS.burst * 2):
        world.record(who="user-0", is_allowed=True)
    assert len(world.log._changes._clients) == 1


def test_what_a_change_is_about_is_made_into_text_only_if_it_is_written() -> None:
    class Costly:
        count = 0

        def __str__(self) -> str:
            self.count += 1
            return "x" * 10_000

    world, costly = World(), Costly()
    for _ in range(OTHERS.client_burst * 3):
        world.record(about=costly)
    assert costly.count == OTHERS.client_burst
    assert len(world.lines[0]["about"]) == 2000


def test_a_quiet_log_allows_one_burst_again_and_no_more() -> None:
    world = World()
    for _ in range(OTHERS.client_burst):
        world.record()
    world.clock.now += 1_000_000
    world.lines.clear()
    for _ in range(OTHERS.client_burst + 1):
        world.record()
    assert len(world.lines) == OTHERS.client_burst


def test_lines_go_to_their_own_logger(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger=LOGGER_NAME):
        to_logger('{"allowed": false}')
    assert [(each.name, each.getMessage()) for each in caplog.records] == [
        (LOGGER_NAME, '{"allowed": false}')
    ]
