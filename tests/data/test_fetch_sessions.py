"""The bound of all fetch sessions, who gives way to whom, and requests that fit no session."""

import pytest

from moldau.data.fetch import PartitionFetchResult
from moldau.data.fetch_session import WantedPartition
from moldau.data.fetch_sessions import FetchSessions
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import Offset

FOUND = PartitionFetchResult(ErrorCode.NONE, 0, 0, b"", 0, 0)


class Cache:
    """Sessions with room for 100 partitions; connections are names."""

    def __init__(self, partitions_max: int = 100, session_partitions_max: int = 80) -> None:
        self.now = 0.0
        self.sessions = FetchSessions(
            lambda topic, index: None,
            lambda: self.now,
            partitions_max=partitions_max,
            session_partitions_max=session_partitions_max,
        )
        self.ids: dict[str, int] = {}
        self.epochs: dict[str, int] = {}

    def open(self, connection: str, size: int, owner: str = "") -> bool:
        """Whether it gets a session. Its owner is the connection unless given."""
        self.ids[connection] = self.sessions.open(
            connection,
            owner or connection,
            [(wanted(index), FOUND, "t") for index in range(size)],
            size,
            uses_ids=False,
            reads_committed=False,
            rights=None,
        )
        self.epochs[connection] = 1
        return self.ids[connection] > 0

    def use(self, connection: str, *added: int) -> bool:
        """Whether its session is there, and goes on with these partitions more."""
        try:
            session = self.sessions.resume(
                connection, self.ids[connection], self.epochs[connection], uses_ids=False
            )
            session.update([wanted(index) for index in added], [])
            self.sessions.make_room(connection, session)
        except RefusedError as error:
            if error.code is not ErrorCode.FETCH_SESSION_ID_NOT_FOUND:
                raise
            return False
        self.epochs[connection] += 1
        return True


def wanted(index: int) -> WantedPartition:
    return WantedPartition("t", index, Offset(0), 1, -1)


def refusal(cache: Cache, number: int, epoch: int, *, uses_ids: bool = False) -> ErrorCode:
    with pytest.raises(RefusedError) as refused:
        cache.sessions.resume("a", number, epoch, uses_ids=uses_ids)
    return refused.value.code


def test_a_request_that_fits_no_session_is_refused_and_ends_none() -> None:
    cache = Cache()
    cache.open("a", 5)
    number = cache.ids["a"]
    assert refusal(cache, number + 1, 1) is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert refusal(cache, 0, 1) is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert refusal(cache, number, 2) is ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert refusal(cache, number, 1, uses_ids=True) is ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
    assert cache.use("a")
    assert refusal(cache, number, 1) is ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert cache.use("a")


def test_the_epoch_begins_again_at_one() -> None:
    cache = Cache()
    cache.open("a", 1)
    session = cache.sessions.resume("a", cache.ids["a"], 1, uses_ids=False)
    session.epoch = cache.epochs["a"] = (1 << 31) - 1
    assert cache.use("a")
    assert session.epoch == 1


def test_the_session_of_another_connection_is_not_found() -> None:
    cache = Cache()
    cache.open("a", 5)
    cache.open("b", 5)
    assert cache.ids["a"] != cache.ids["b"]
    cache.ids["b"] = cache.ids["a"]
    assert not cache.use("b")
    assert cache.use("a")


def test_a_connection_has_one_session() -> None:
    cache = Cache()
    cache.open("a", 5)
    before = cache.ids["a"]
    cache.open("a", 7)
    assert (len(cache.sessions), cache.sessions.partition_count) == (1, 7)
    assert refusal(cache, before, 1) is ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_closing_needs_the_right_id() -> None:
    cache = Cache()
    cache.open("a", 5)
    cache.sessions.close("a", cache.ids["a"] + 1)
    cache.sessions.close("b", cache.ids["a"])
    assert cache.use("a")
    cache.sessions.close("a", cache.ids["a"])
    assert (len(cache.sessions), cache.sessions.partition_count) == (0, 0)


def test_without_partitions_there_is_no_session() -> None:
    assert not Cache().open("a", 0)


def test_one_that_is_too_large_gets_none_and_one_that_grows_too_large_loses_it() -> None:
    cache = Cache()
    assert not cache.open("a", 81)
    assert cache.open("a", 79)
    assert cache.use("a", 79)
    assert not cache.use("a", 80)
    assert cache.sessions.partition_count == 0


def test_who_has_most_gives_way_and_keeps_as_much_as_others() -> None:
    cache = Cache()
    for number in range(10):
        assert cache.open(f"greedy-{number}", 10, owner="greedy")
    for number in range(5):
        assert cache.open(f"modest-{number}", 10, owner="modest")
    assert not cache.open("modest-5", 10, owner="modest")
    assert not cache.open("greedy-10", 10, owner="greedy")
    # The least recently used gave way.
    assert [cache.use(f"greedy-{number}") for number in range(10)] == [False] * 5 + [True] * 5
    assert all(cache.use(f"modest-{number}") for number in range(5))
    assert cache.sessions.evicted_total == 5


def test_one_that_was_not_used_for_two_minutes_gives_way_to_any() -> None:
    cache = Cache()
    cache.open("a", 50)
    cache.now = 60.0
    cache.open("b", 50)
    cache.now = 119.0
    assert not cache.open("c", 60)
    assert cache.use("a")
    cache.now = 181.0
    assert cache.open("c", 50)
    assert [cache.use(each) for each in ("a", "b", "c")] == [True, False, True]


def test_what_is_forgotten_makes_room() -> None:
    cache = Cache()
    cache.open("a", 60)
    cache.open("b", 40)
    session = cache.sessions.resume("a", cache.ids["a"], 1, uses_ids=False)
    session.update([], [("t", index) for index in range(50)])
    assert cache.sessions.partition_count == 50
    assert cache.open("c", 50)


def test_a_session_that_grows_pushes_out_no_one_who_has_less() -> None:
    cache = Cache()
    cache.open("a", 60)
    cache.open("b", 40)
    assert not cache.use("a", 61)
    assert cache.use("b")
