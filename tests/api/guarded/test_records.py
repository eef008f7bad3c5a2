"""Fetches of several topics: refused ones get an error, the others are read as usual."""

from collections.abc import Callable
from typing import Any

import pytest
from guarded_calls import GuardedWorld, allow

from moldau.data.fetch import PartitionFetch, PartitionFetchResult
from moldau.model.errors import ErrorCode
from moldau.model.ids import Offset
from moldau.security.acl import Operation, Permission, ResourceType

TOPIC = ResourceType.TOPIC
REFUSED = ErrorCode.TOPIC_AUTHORIZATION_FAILED


class Fetches:
    """Fetches of one session; the service answers each partition with its number."""

    def __init__(self, *readable: str) -> None:
        self.world = GuardedWorld()
        self.world.grant(allow(Operation.READ, TOPIC, name) for name in readable)
        self.world.services["fetch"].effects["fetch"] = self._read
        self.read: list[tuple[str | None, int]] = []
        self.waits: list[int] = []

    def _read(self, requests: Any, *, wait_ms_max: int, on_ready: Any, **_: object) -> None:
        self.waits.append(wait_ms_max)
        self.read += [(each.topic, each.partition) for each in requests]
        on_ready(
            [
                PartitionFetchResult(ErrorCode.NONE, each.partition, 0, b"data", 4)
                for each in requests
            ]
        )

    def fetch(self, *wanted: tuple[str | None, int]) -> list[tuple[ErrorCode, int]]:
        """The error and the number of each."""
        results: list[PartitionFetchResult] = []
        on_ready: Callable[[list[PartitionFetchResult]], None] = results.extend
        self.world.session().fetch.fetch(
            [PartitionFetch(name, index, Offset(0), 100, -1) for name, index in wanted],
            bytes_min=1,
            bytes_max=1000,
            wait_ms_max=500,
            on_ready=on_ready,
        )
        return [(each.error, each.high_watermark) for each in results]


def test_each_partition_gets_its_own_result() -> None:
    fetches = Fetches("a", "c")
    found = fetches.fetch(("a", 0), ("b", 1), ("c", 2), ("b", 3), ("a", 4))
    assert found == [
        (ErrorCode.NONE, 0),
        (REFUSED, -1),
        (ErrorCode.NONE, 2),
        (REFUSED, -1),
        (ErrorCode.NONE, 4),
    ]
    assert fetches.read == [("a", 0), ("c", 2), ("a", 4)]
    assert fetches.waits == [500]


def test_a_refused_topic_is_audited_once_per_request() -> None:
    fetches = Fetches("a")
    fetches.fetch(("b", 0), ("b", 1), ("b", 2), ("a", 0))
    assert len(fetches.world.audited) == 1


@pytest.mark.parametrize("wanted", [[("b", 0)], [("b", 0), ("c", 1)]])
def test_without_an_allowed_partition_nothing_is_read(wanted: list[tuple[str, int]]) -> None:
    fetches = Fetches("a")
    assert fetches.fetch(*wanted) == [(REFUSED, -1)] * len(wanted)
    assert fetches.waits == []


def test_an_empty_fetch_waits_as_before() -> None:
    fetches = Fetches()
    assert fetches.fetch() == []
    assert fetches.waits == [500]


def test_rights_that_end_count_for_the_next_fetch() -> None:
    fetches = Fetches("a")
    assert fetches.fetch(("a", 7)) == [(ErrorCode.NONE, 7)]
    reads = allow(Operation.READ, TOPIC, "a")
    denies = allow(Operation.READ, TOPIC, "a", permission=Permission.DENY)
    fetches.world.grant([reads, denies])
    assert fetches.fetch(("a", 7)) == [(REFUSED, -1)]
