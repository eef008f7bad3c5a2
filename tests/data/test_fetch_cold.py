"""Fetches of what a disk holds: a thread reads and checks it, and the loop goes on."""

import asyncio
import errno
import os
import threading
from pathlib import Path

import pytest
from fetch_world import World

from moldau.log.disk_log import DiskLog, open_disk_log
from moldau.log.interface import LogConfig
from moldau.log.os_filesystem import OsFiles
from moldau.log.prefetch import Prefetch
from moldau.model.errors import CorruptionError, ErrorCode
from moldau.testing.logs import append, flush
from moldau.testing.waiting import until

pytestmark = pytest.mark.inprocess

_CONFIG = LogConfig(segment_bytes_max=2_000)
_BATCHES = 20


def stored(directory: Path) -> int:
    """Write some batches as an earlier process would; returns the bytes of the first segment."""
    log = open_disk_log(OsFiles(directory), "log", _CONFIG)
    for _ in range(_BATCHES):
        append(log)
    flush(log)
    log.close()
    return min(file.stat().st_size for file in (directory / "log").glob("*.log"))


def reopened(directory: Path) -> DiskLog:
    return open_disk_log(OsFiles(directory), "log", _CONFIG)


async def opened(directory: Path) -> World:
    stored(directory)
    world = World(1 << 24)
    await world.open(0, reopened(directory))
    return world


async def test_what_was_there_before_the_start_is_read_by_a_thread_once(tmp_path: Path) -> None:
    world = await opened(tmp_path)
    assert world.fetch((0, 0)) is not None
    assert (world.answers, world.service.parked_count) == ([], 1)
    await until(lambda: len(world.answers) == 1, "the answer")
    assert (world.answers[0][0].error, world.service.parked_count) == (ErrorCode.NONE, 0)
    assert world.answers[0][0].size > 0
    assert world.fetch((0, 0)) is None
    assert world.sizes[1] == world.sizes[0]


async def test_what_this_process_wrote_needs_no_thread(tmp_path: Path) -> None:
    world = await opened(tmp_path)
    size = await world.append(0)
    assert world.fetch((0, _BATCHES)) is None
    assert world.sizes == [[size]]


async def test_damage_that_a_thread_finds_takes_the_partition_offline(tmp_path: Path) -> None:
    stored(tmp_path)
    first = min((tmp_path / "log").glob("*.log"))
    data = bytearray(first.read_bytes())
    data[4096 + 100] ^= 1
    first.write_bytes(data)
    world = World(1 << 24)
    await world.open(0, reopened(tmp_path))
    world.fetch((0, 0))
    await until(lambda: bool(world.answers), "the answer")
    assert [first.name in str(error) for error in world.offline] == [True]
    assert world.answers[0][0].error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_a_client_that_disconnects_meanwhile_gets_no_response(tmp_path: Path) -> None:
    world = await opened(tmp_path)
    parked = world.fetch((0, 0))
    assert parked is not None
    parked.cancel()
    again = world.fetch((0, 0))
    await until(lambda: bool(world.answers), "the second answer")
    assert (again is not None, len(world.answers), world.service.parked_count) == (True, 1, 0)


async def test_a_fetch_that_is_completed_early_gets_what_the_thread_read(tmp_path: Path) -> None:
    world = await opened(tmp_path)
    parked = world.fetch((0, 0), bytes_min=1 << 20)
    assert parked is not None
    parked.complete()
    assert world.answers == []
    await until(lambda: bool(world.answers), "the answer")
    assert world.answers[0][0].size > 0


async def test_too_little_of_it_waits_for_more(tmp_path: Path) -> None:
    world = await opened(tmp_path)
    parked = world.fetch((0, _BATCHES - 1), bytes_min=200)
    assert parked is not None
    await until(lambda: parked.prefetch is None, "the thread")
    assert (world.answers, world.watchers) == ([], 1)
    await world.append(0, 300)
    await until(lambda: bool(world.answers), "the answer")


async def test_nothing_is_read_for_clients_that_went_while_the_disk_was_busy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = await opened(tmp_path)
    go_on = threading.Event()
    begun: list[Prefetch] = []
    run = Prefetch.run

    def slow(task: Prefetch) -> None:
        begun.append(task)
        assert go_on.wait(20)
        run(task)

    monkeypatch.setattr(Prefetch, "run", slow)
    gone = [world.fetch((0, 0)) for _ in range(50)]
    for parked in gone:
        assert parked is not None
        parked.cancel()
    assert world.fetch((0, 0)) is not None
    # The pool hears of it in the next turns.
    for _ in range(3):
        await asyncio.sleep(0)
    go_on.set()
    await until(lambda: bool(world.answers), "the answer of the one that stayed")
    assert (len(world.answers), world.service.parked_count) == (1, 0)
    # Those that threads had begun, and the last one.
    assert len(begun) < 25


@pytest.mark.parametrize("number", [errno.EMFILE, errno.EIO])
async def test_a_read_that_the_disk_refuses_is_answered(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = await opened(tmp_path)

    def refuse(*arguments: object) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patched:
        patched.setattr(DiskLog, "read", refuse)
        assert world.fetch((0, 0)) is not None
        await until(lambda: bool(world.answers), "the answer")
        answers = [one.error for one in world.answers.pop()]
    assert answers == [ErrorCode.KAFKA_STORAGE_ERROR]
    assert world.service.parked_count == 0
    # Too many open files pass; a disk that cannot be read does not.
    assert len(world.offline) == (number == errno.EIO)
    if not world.offline:
        world.fetch((0, 0))
        await until(lambda: bool(world.answers), "the next answer")
        assert world.answers[0][0].size > 0


async def test_a_read_that_fails_answers_a_waiting_fetch_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = await opened(tmp_path)
    parked = world.fetch((0, _BATCHES), bytes_min=1 << 20)
    assert (parked is not None, world.watchers) == (True, 1)

    def fail(*arguments: object) -> None:
        raise CorruptionError("damaged")

    monkeypatch.setattr(DiskLog, "read", fail)
    world.propose(0)
    await until(lambda: bool(world.offline), "the failed read")
    await asyncio.sleep(0)
    assert (len(world.answers), world.service.parked_count) == (1, 0)


async def test_a_thread_that_fails_leaves_no_fetch_without_an_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    world = await opened(tmp_path)

    def fail(task: Prefetch) -> None:
        raise MemoryError

    monkeypatch.setattr(Prefetch, "run", fail)
    assert world.fetch((0, 0)) is not None
    await until(lambda: bool(world.answers), "the answer")
    assert (world.answers[0][0].error, world.service.parked_count) == (ErrorCode.NONE, 0)
    assert world.answers[0][0].size > 0
    assert "a cold read failed: MemoryError()" in caplog.text
    # Its traceback holds the file of the read.
    caplog.clear()
