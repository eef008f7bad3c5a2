"""The audit log: what a line says, and that a client in a loop cannot fill the disk."""

import json
from typing import Any, cast

import pytest

from moldau.api.audit import BURST_LINES, LINES_PER_SECOND, LOGGER_NAME, AuditLog, to_logger
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

    def record(self, name: str = "orders", *, is_allowed: bool = False) -> None:
        self.log.record(
            user("alice"),
            "192.0.2.7",
            "public",
            "topics.delete",
            Operation.DELETE,
            Resource(ResourceType.TOPIC, name),
            is_allowed=is_allowed,
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
    assert line["allowed"] is False


def test_a_flood_is_bounded_and_counted() -> None:
    world = World()
    for _ in range(BURST_LINES + 1000):
        world.record()
    assert len(world.lines) == BURST_LINES
    world.clock.now += 1
    for _ in range(1000):
        world.record()
    assert len(world.lines) == BURST_LINES + LINES_PER_SECOND
    assert world.lines[BURST_LINES]["left_out"] == 1000
    assert "left_out" not in world.lines[-1]


def test_a_quiet_log_allows_one_burst_again_and_no_more() -> None:
    world = World()
    for _ in range(BURST_LINES):
        world.record()
    world.clock.now += 1_000_000
    world.lines.clear()
    for _ in range(BURST_LINES + 1):
        world.record()
    assert len(world.lines) == BURST_LINES


def test_lines_go_to_their_own_logger(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger=LOGGER_NAME):
        to_logger('{"allowed": false}')
    assert [(each.name, each.getMessage()) for each in caplog.records] == [
        (LOGGER_NAME, '{"allowed": false}')
    ]
