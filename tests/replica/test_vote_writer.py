"""Votes of many groups go to the disk together, one write after another, and none is forgotten."""

import asyncio
import threading
from collections.abc import Mapping

import pytest

from moldau.model.errors import DiskFullError, StorageError
from moldau.model.ids import NO_EPOCH, BrokerId, Epoch
from moldau.replica.vote_writer import Vote, VoteWriter
from moldau.testing.waiting import until, wait_seconds_max

pytestmark = pytest.mark.inprocess

ONE, TWO = (Epoch(1), BrokerId(1)), (Epoch(2), BrokerId(1))


class SlowVotes:
    """A journal whose writes wait for the test, and fail as it says."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.failures: list[Exception] = []
        self.written: list[dict[str, Vote]] = []
        self.forgotten: list[frozenset[str]] = []

    def get(self, group: str) -> Vote:
        return NO_EPOCH, BrokerId(-1)

    def record(self, votes: Mapping[str, Vote]) -> None:
        assert self.gate.wait(wait_seconds_max())
        if self.failures:
            raise self.failures.pop(0)
        self.written.append(dict(votes))

    def forget(self, groups: frozenset[str]) -> None:
        self.forgotten.append(groups)


class Desk:
    def __init__(self) -> None:
        self.votes = SlowVotes()
        self.persisted: list[dict[str, Vote]] = []
        self.failures: list[StorageError] = []
        self.writer = VoteWriter(
            loop=asyncio.get_running_loop(),
            votes=self.votes,
            on_persisted=lambda votes: self.persisted.append(dict(votes)),
            on_failure=self.failures.append,
        )


def test_votes_asked_during_a_write_share_the_next_one() -> None:
    async def scenario() -> None:
        desk = Desk()
        desk.votes.gate.clear()
        desk.writer.request("a", ONE)
        desk.writer.write()
        for name in ("b", "c", "a"):
            desk.writer.request(name, TWO)
            desk.writer.write()
        assert desk.persisted == []
        desk.votes.gate.set()
        await until(lambda: len(desk.persisted) == 2, "both are written")
        assert desk.votes.written == [{"a": ONE}, {"b": TWO, "c": TWO, "a": TWO}]
        assert desk.persisted == desk.votes.written
        desk.writer.stop()

    asyncio.run(scenario())


def test_votes_that_found_no_room_are_written_again_unless_newer_ones_came(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # When the test says so: newer ones must come before.
    monkeypatch.setattr("moldau.replica.vote_writer._DISK_FULL_RETRY_SECONDS", 3600)

    async def scenario() -> None:
        desk = Desk()
        desk.votes.failures = [DiskFullError("no room")]
        desk.writer.request("a", ONE)
        desk.writer.request("b", ONE)
        desk.writer.write()
        await until(lambda: desk.writer._is_waiting, "they found no room")
        desk.writer.request("b", TWO)
        desk.writer.write()
        assert desk.votes.written == []
        desk.writer._write_again()
        await until(lambda: len(desk.persisted) == 1, "they are written")
        assert desk.persisted == [{"a": ONE, "b": TWO}]
        assert desk.failures == []
        desk.writer.stop()

    asyncio.run(scenario())


def test_a_failed_disk_is_reported_and_no_vote_counts() -> None:
    async def scenario() -> None:
        desk = Desk()
        for count, error in enumerate((StorageError("I/O error"), OSError("something else")), 1):
            desk.votes.failures = [error]
            desk.writer.request("a", ONE)
            desk.writer.write()
            await until(lambda count=count: len(desk.failures) == count, "it is reported")
        assert desk.persisted == []
        desk.writer.stop()

    asyncio.run(scenario())


def test_a_deleted_group_is_forgotten_in_the_same_order() -> None:
    async def scenario() -> None:
        desk = Desk()
        desk.writer.request("a", ONE)
        desk.writer.request("b", ONE)
        desk.writer.forget("a")
        await until(lambda: desk.votes.written == [{"b": ONE}], "the other is written")
        assert desk.votes.forgotten == [frozenset({"a"})]
        desk.writer.stop()

    asyncio.run(scenario())


def test_a_group_that_found_no_room_is_forgotten_again_unless_it_came_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("moldau.replica.vote_writer._DISK_FULL_RETRY_SECONDS", 3600)

    async def scenario() -> None:
        desk = Desk()
        desk.votes.failures = [DiskFullError("no room")]
        desk.votes.gate.clear()
        desk.writer.forget("a")
        desk.writer.forget("b")
        desk.writer.request("b", ONE)
        desk.votes.gate.set()
        await until(lambda: desk.writer._is_waiting, "they found no room")
        desk.writer._write_again()
        await until(lambda: desk.votes.written == [{"b": ONE}], "the one is written")
        assert desk.votes.forgotten == [frozenset({"a"})] * 2
        assert desk.failures == []
        desk.writer.stop()

    asyncio.run(scenario())


def test_a_stop_waits_for_the_write_under_way_and_begins_no_other() -> None:
    async def scenario() -> None:
        desk = Desk()
        desk.writer.request("a", ONE)
        desk.writer.write()
        desk.writer.stop()
        assert desk.votes.written == [{"a": ONE}]
        desk.writer.request("b", ONE)
        desk.writer.write()
        await asyncio.sleep(0.01)
        assert desk.votes.written == [{"a": ONE}]
        assert desk.persisted == []

    asyncio.run(scenario())
