"""Fetches of several topics: refused ones get an error, the others are read as usual."""

from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest
from guarded_calls import GuardedWorld, allow, outcome

from moldau.data.fetch import ParkedFetch, PartitionFetch, PartitionFetchResult
from moldau.data.fetch_session import FetchSession, WantedPartition
from moldau.data.fetch_sessions import FetchSessions
from moldau.data.record_reader import ReadPage
from moldau.model.errors import ErrorCode, RefusedError
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
        self.meanwhile: Callable[[], None] | None = None
        """What happens while a fetch waits; None: it does not wait."""

    def _read(self, requests: Any, *, wait_ms_max: int, on_ready: Any, **_: object) -> Any:
        self.waits.append(wait_ms_max)
        self.read += [(each.topic, each.partition) for each in requests]
        results = [
            PartitionFetchResult(ErrorCode.NONE, each.partition, 0, b"data", 4) for each in requests
        ]
        if self.meanwhile is None:
            on_ready(results)
            return None
        self._wake = lambda: on_ready(results)
        return Mock(spec=ParkedFetch)

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
        if self.meanwhile is not None:
            assert results == []
            self.meanwhile()
            self._wake()
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


def test_rights_that_end_while_a_fetch_waits_count_when_it_answers() -> None:
    fetches = Fetches("a", "c")
    fetches.meanwhile = lambda: fetches.world.grant([allow(Operation.READ, TOPIC, "c")])
    found = fetches.fetch(("a", 0), ("b", 1), ("c", 2))
    assert found == [(REFUSED, -1), (REFUSED, -1), (ErrorCode.NONE, 2)]
    fetches.meanwhile = lambda: fetches.world.grant([])
    assert fetches.fetch(("c", 2)) == [(REFUSED, -1)]


def test_a_fetch_that_waits_gets_its_records_while_it_may() -> None:
    fetches = Fetches("a")
    fetches.meanwhile = lambda: fetches.world.grant(
        [allow(Operation.READ, TOPIC, "a"), allow(Operation.READ, TOPIC, "b")]
    )
    # What was refused at first was not read.
    assert fetches.fetch(("a", 5), ("b", 1)) == [(ErrorCode.NONE, 5), (REFUSED, -1)]


class SessionFetches(Fetches):
    """Fetches in one fetch session."""

    def __init__(self, *readable: str, wanted: str) -> None:
        super().__init__(*readable)
        sessions = FetchSessions(lambda topic, index: None, lambda: 0.0)
        self.session = FetchSession(1, "alice", sessions, lambda topic, index: None, uses_ids=False)
        self.session.update([WantedPartition(name, 0, Offset(0), 9, -1) for name in wanted], [])

    def next(self) -> dict[object, ErrorCode]:
        results: dict[object, ErrorCode] = {}
        self.world.session().fetch.fetch_in_session(
            self.session,
            name_of=lambda _: None,
            reads_committed=False,
            bytes_min=1,
            bytes_max=1000,
            wait_ms_max=500,
            on_ready=lambda found: results.update(
                {each.topic: result.error for each, result in found}
            ),
        )
        if self.meanwhile is not None:
            assert results == {}
            self.meanwhile()
            self._wake()
        return results


def test_a_session_is_refused_what_the_client_may_not_read() -> None:
    fetches = SessionFetches("a", "c", wanted="abc")
    assert fetches.next() == {"a": ErrorCode.NONE, "b": REFUSED, "c": ErrorCode.NONE}
    assert [topic for topic, _ in fetches.read] == ["a", "c"]
    assert fetches.waits == [500]


def test_a_session_with_nothing_that_may_be_read_does_not_wait() -> None:
    fetches = SessionFetches(wanted="ab")
    assert fetches.next() == {"a": REFUSED, "b": REFUSED}
    assert fetches.waits == []


def test_rights_that_change_count_for_all_partitions_of_a_session() -> None:
    fetches = SessionFetches("a", "b", wanted="ab")
    fetches.next()
    # As if there was nothing new in any of them.
    fetches.session.ready.clear()
    assert fetches.next() == {}
    fetches.world.grant([allow(Operation.READ, TOPIC, "b")])
    assert fetches.next() == {"a": REFUSED, "b": ErrorCode.NONE}
    fetches.world.grant([allow(Operation.READ, TOPIC, name) for name in "ab"])
    assert fetches.next() == {"a": ErrorCode.NONE, "b": ErrorCode.NONE}


def test_rights_that_end_while_a_session_waits_count_when_it_answers() -> None:
    fetches = SessionFetches("a", "b", wanted="ab")
    fetches.meanwhile = lambda: fetches.world.grant([allow(Operation.READ, TOPIC, "b")])
    assert fetches.next() == {"a": REFUSED, "b": ErrorCode.NONE}


def test_rights_that_end_while_a_page_is_read_count(monkeypatch: pytest.MonkeyPatch) -> None:
    made = GuardedWorld()
    page = ReadPage(records=[], next_offset=1, start_offset=0, end_offset=1, bytes_decoded=0)

    async def read(*_: object, **__: object) -> ReadPage:
        made.grant(rights)
        return page

    monkeypatch.setattr("moldau.api.guarded.records.read_page", read)
    call = lambda session: session.fetch.read_page("a", 0, 0, limit=1)  # noqa: E731
    rights = [allow(Operation.READ, TOPIC, "a")]
    made.grant(rights)
    assert outcome(call, made.session()) is page
    rights = []
    found = outcome(call, made.session())
    assert isinstance(found, RefusedError)
    assert found.code is REFUSED


def test_names_that_clients_make_up_are_not_remembered() -> None:
    """A right on all topics is one on all names; each of them may have 32 KB."""
    made = GuardedWorld()
    made.grant([allow(Operation.ALL, TOPIC, "*")])
    session = made.session()
    for name in ("orders", "made-up"):
        session.produce.append(name, 0, memoryview(b""), 1)
        wanted = [PartitionFetch(name, 0, Offset(0), 100, -1)]
        session.fetch.fetch(
            wanted, bytes_min=1, bytes_max=9, wait_ms_max=0, on_ready=lambda _: None
        )
    guard = session._guard
    assert guard.granted_topics("produce.append") == {"orders"}
    assert guard.granted_topics("fetch.fetch") == {"orders"}
