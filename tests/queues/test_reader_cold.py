"""What a queue reads of its partition where it is not in memory: threads read it first."""

import asyncio
import errno
import os
import threading
from pathlib import Path

import pytest
from queue_world import LIMITS

from moldau.log.disk_log import DiskLog, open_disk_log
from moldau.log.interface import LogConfig
from moldau.log.os_filesystem import OsFile, OsFiles
from moldau.log.prefetch import Prefetch
from moldau.model.errors import CorruptionError, ErrorCode, MoldauError, RefusedError
from moldau.model.ids import Offset, TimestampMs
from moldau.queues.reader import QueueReader
from moldau.records.batch import read_header
from moldau.records.record import Record, build_batch
from moldau.replica.replica import Replica
from moldau.testing.replicas import lead_replica, make_flusher
from moldau.testing.waiting import until

pytestmark = pytest.mark.inprocess


async def make(directory: Path, *values: bytes) -> tuple[QueueReader, Replica]:
    log = open_disk_log(OsFiles(directory), "t-0", LogConfig())
    replica = await lead_replica(log, make_flusher(threads=0))
    records = [Record(Offset(0), TimestampMs(1_000), None, value, []) for value in values]
    data = bytearray(build_batch(records))
    replica.propose(data, [read_header(data)])
    await until(lambda: replica.high_watermark >= log.end_offset, "all is committed")
    return QueueReader(asyncio.get_running_loop(), replica, LIMITS), replica


async def test_a_thread_reads_what_is_not_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, _ = await make(tmp_path, b"a", b"b")
    monkeypatch.setattr(OsFile, "is_cached", lambda *_: False)
    threads: list[bool] = []
    run = Prefetch.run

    def recorded(task: Prefetch) -> None:
        threads.append(threading.current_thread() is not threading.main_thread())
        run(task)

    monkeypatch.setattr(Prefetch, "run", recorded)
    await reader.read_on(2)
    assert [entry.record.value for entry in await reader.browse(Offset(0), 2, 1000)] == [b"a", b"b"]
    assert threads
    assert all(threads)


@pytest.mark.parametrize(
    ("number", "kind"), [(errno.EMFILE, RefusedError), (errno.EIO, CorruptionError)]
)
async def test_a_read_that_the_disk_refuses_ends_no_task_of_the_broker(
    number: int, kind: type[MoldauError], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, _ = await make(tmp_path, b"a")

    def refuse(*arguments: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(DiskLog, "read", refuse)
    with pytest.raises(kind):
        await reader.read_on(1)


async def test_a_leader_that_is_deposed_while_a_thread_reads_serves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, replica = await make(tmp_path, b"a")
    monkeypatch.setattr(OsFile, "is_cached", lambda *_: False)
    reading = asyncio.create_task(reader.read_on(1))
    await asyncio.sleep(0)
    replica._is_leading = False
    with pytest.raises(RefusedError) as refused:
        await reading
    assert refused.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_damage_that_a_thread_finds_is_not_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, replica = await make(tmp_path, b"a")
    monkeypatch.setattr(OsFile, "is_cached", lambda *_: False)
    monkeypatch.setattr(Prefetch, "run", lambda task: setattr(task, "damage", "rotten"))
    with pytest.raises(CorruptionError, match="rotten"):
        await reader.read_on(1)
    assert replica.is_leader
