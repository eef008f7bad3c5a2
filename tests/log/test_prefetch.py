"""Reads that a thread prepares: what the loop is spared, and what happens to the log meanwhile."""

import random
from pathlib import Path

import pytest

from moldau.log.disk_log import DiskLog, open_disk_log
from moldau.log.interface import LogConfig
from moldau.log.os_filesystem import OsFile, OsFiles
from moldau.log.prefetch import Prefetch
from moldau.model.errors import CorruptionError, RefusedError
from moldau.model.ids import Offset
from moldau.testing.logs import append, flush, read_bytes

_VALUE = bytes(900)
_CONFIG = LogConfig(segment_bytes_max=200_000, index_interval_bytes=4096)
_BYTES = 20_000


def opened(directory: Path) -> DiskLog:
    return open_disk_log(OsFiles(directory), "log", _CONFIG)


def filled(directory: Path, count: int = 500) -> tuple[DiskLog, list[bytes]]:
    log = opened(directory)
    batches = [append(log, value=_VALUE) for _ in range(count)]
    flush(log)
    return log, batches


def reopened(directory: Path, count: int = 500) -> tuple[DiskLog, list[bytes]]:
    log, batches = filled(directory, count)
    log.close()
    return opened(directory), batches


def begun(log: DiskLog, offset: int, bytes_max: int = _BYTES) -> Prefetch:
    task = log.begin_prefetch(Offset(offset), bytes_max)
    assert task is not None
    return task


@pytest.fixture
def cold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OsFile, "is_cached", lambda *_: False)


def forbid_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> bytes:
        raise AssertionError("the event loop waits for the disk")

    monkeypatch.setattr(OsFiles, "open", fail)
    monkeypatch.setattr(OsFiles, "read", fail)
    monkeypatch.setattr(OsFile, "pread", fail)


@pytest.mark.usefixtures("cold")
def test_the_active_segment_is_asked_about_too(tmp_path: Path) -> None:
    log, batches = filled(tmp_path, 150)
    assert len(log.segments) == 1
    task = begun(log, 0)
    task.run()
    log.end_check(task)
    assert read_bytes(log, 0, _BYTES).startswith(batches[0])
    # The next read goes on where that one ended, and is as cold.
    assert log.begin_prefetch(log.read(Offset(0), _BYTES, log.end_offset).next_offset, _BYTES)


@pytest.mark.usefixtures("cold")
def test_a_reader_that_keeps_up_is_not_asked_about(tmp_path: Path) -> None:
    log, _ = filled(tmp_path, 150)
    read_bytes(log, 0, 1 << 20)
    end = log.end_offset
    append(log)
    assert log.begin_prefetch(end, _BYTES) is None
    for _ in range(80):
        append(log, value=_VALUE)
    assert log.begin_prefetch(end, _BYTES) is not None


def test_what_is_cached_and_checked_needs_no_thread(tmp_path: Path) -> None:
    log, _ = filled(tmp_path)
    assert log.begin_prefetch(log.active.base_offset, _BYTES) is None
    assert log.begin_prefetch(log.end_offset, _BYTES) is None


def test_the_thread_opens_the_file_and_loads_the_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, batches = reopened(tmp_path)
    offset = 100
    with monkeypatch.context() as patch:
        forbid_the_disk(patch)
        task = begun(log, offset)
    task.run()
    assert task.size >= _BYTES
    with monkeypatch.context() as patch:
        forbid_the_disk(patch)
        log.end_check(task)
        assert log.segments[0].loaded_index().floor_offset(Offset(offset)) is not None
        assert log.segments[0].opened_file is not None
        assert log.segments[0].is_checked(task.start, task.reached)
    assert read_bytes(log, offset, _BYTES).startswith(batches[offset])
    assert log.begin_prefetch(Offset(offset), _BYTES - 4096) is None


def test_only_what_was_there_at_the_start_is_checked(tmp_path: Path) -> None:
    log, _ = reopened(tmp_path, 10)
    end = log.active.position
    append(log, value=_VALUE)
    task = begun(log, 0, 1 << 20)
    # Appended, and rotten in memory already: the check of produced batches is elsewhere.
    log.active.file().pwrite(bytes(40), end + 100)
    task.run()
    log.end_check(task)
    assert task.reached == end


def test_damage_is_reported_when_the_task_ends(tmp_path: Path) -> None:
    log, batches = reopened(tmp_path)
    log.segments[0].file().pwrite(b"\xff", 4096 + len(batches[0]) * 3 + 100)
    task = begun(log, 0)
    task.run()
    with pytest.raises(CorruptionError, match="checksum mismatch"):
        log.end_check(task)


def test_a_truncation_meanwhile_makes_the_result_void(tmp_path: Path) -> None:
    log, batches = reopened(tmp_path, 100)
    task = begun(log, 0, 1 << 20)
    log.truncate(log.index_of(Offset(50)))
    for _ in range(50):
        append(log, value=b"other" * 150)
    task.run()
    assert task.damage
    log.end_check(task)
    assert read_bytes(log, 0, 1 << 20, 50) == b"".join(batches[:50])
    assert b"other" in read_bytes(log, 50)


def test_a_deletion_meanwhile_makes_the_result_void(tmp_path: Path) -> None:
    log, batches = reopened(tmp_path)
    first = log.segments[1].base_offset
    task = begun(log, 0)
    log.delete_before(first)
    task.run()
    log.end_check(task)
    with pytest.raises(RefusedError):
        read_bytes(log, 0)
    assert read_bytes(log, first, 1).startswith(batches[first])


def test_what_cannot_be_opened_is_left_to_the_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, batches = reopened(tmp_path)
    task = begun(log, 0)

    def fail(*_: object, **__: object) -> OsFile:
        raise OSError(24, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(OsFiles, "open", fail)
        task.run()
    log.end_check(task)
    assert read_bytes(log, 0, 1).startswith(batches[0])


@pytest.mark.usefixtures("cold")
@pytest.mark.parametrize("seed", range(20))
def test_reads_are_right_whatever_happens_while_threads_prepare_them(
    seed: int, tmp_path: Path
) -> None:
    rng = random.Random(seed)
    log, stored = reopened(tmp_path, rng.randint(50, 600))
    start = 0
    running: list[Prefetch] = []
    for _ in range(200):
        match rng.choice(("begin", "begin", "run", "end", "read", "append", "cut", "delete")):
            case "begin":
                task = log.begin_prefetch(
                    Offset(rng.randint(0, len(stored))), rng.choice((1, _BYTES))
                )
                running += [task] if task else []
            case "run" if running:
                rng.choice(running).run()
            case "end" if running:
                task = running.pop(rng.randrange(len(running)))
                task.run()
                log.end_check(task)
            case "append":
                for _ in range(rng.randint(1, 60)):
                    stored.append(append(log, value=rng.randbytes(900)))
                if rng.random() < 0.5:
                    flush(log)
            case "cut" if len(stored) - start > 20:
                end = rng.randint(max(start + 1, len(stored) - 300), len(stored))
                log.truncate(log.index_of(Offset(end)))
                del stored[end:]
            case "delete" if len(stored) - start > 100:
                start += rng.randint(0, 50)
                log.delete_before(Offset(start))
            case _ if start < len(stored):
                offset = rng.randrange(start, len(stored))
                data = read_bytes(log, offset, rng.choice((1, _BYTES)))
                assert data
                assert b"".join(stored[offset:]).startswith(data)
    log.close()
    for task in running:
        # The log is closed, and the threads are not done yet.
        task.run()
