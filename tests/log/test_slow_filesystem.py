"""Flushes that wait on purpose, and files that are otherwise those of the system."""

import threading
from pathlib import Path

import pytest

from moldau.log.slow_filesystem import DiskDelay, SlowFile, SlowFiles

pytestmark = pytest.mark.inprocess

Slept = list[tuple[bool, float]]


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> Slept:
    """In the main thread or not, and for how long."""
    found: Slept = []
    monkeypatch.setattr(
        "moldau.log.slow_filesystem.time.sleep",
        lambda seconds: found.append(
            (threading.current_thread() is threading.main_thread(), seconds)
        ),
    )
    return found


def flush_in_a_thread(file: SlowFile) -> None:
    thread = threading.Thread(target=file.flush)
    thread.start()
    thread.join()


def test_each_flush_of_a_thread_waits_as_long_as_is_said_now(tmp_path: Path, slept: Slept) -> None:
    delay = DiskDelay()
    file = SlowFiles(str(tmp_path), delay).open("a", create=True)
    assert file.pwrite(b"hello", 0) == 5
    flush_in_a_thread(file)
    assert slept == []
    delay.seconds = 0.4
    flush_in_a_thread(file)
    delay.seconds = 0.1
    flush_in_a_thread(file)
    assert slept == [(False, 0.4), (False, 0.1)]
    assert SlowFiles(str(tmp_path), delay).open("a", writable=False).pread(9, 0) == b"hello"
    file.close()
    with pytest.raises(ValueError, match="closed"):
        file.flush()


def test_the_event_loop_is_held_up_for_a_moment_only(tmp_path: Path, slept: Slept) -> None:
    delay = DiskDelay()
    file = SlowFiles(str(tmp_path), delay).open("a", create=True)
    for seconds in (5.0, 0.001):
        delay.seconds = seconds
        file.flush()
    assert slept == [(True, 0.005), (True, 0.001)]


def test_paths_stay_in_the_directory(tmp_path: Path) -> None:
    with pytest.raises(PermissionError):
        SlowFiles(str(tmp_path), DiskDelay()).open("../a", create=True)
