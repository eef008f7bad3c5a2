"""The log on disk, written by one thread and flushed by another."""

import queue
import threading
from pathlib import Path

import pytest

from moldau.log.disk_log import open_disk_log
from moldau.log.flush import DiskFlush
from moldau.log.interface import LogConfig
from moldau.log.os_filesystem import OsFiles
from moldau.model.ids import Offset
from moldau.testing.logs import append, flush

pytestmark = pytest.mark.inprocess


def test_flushes_in_another_thread_lose_nothing(tmp_path: Path) -> None:
    log = open_disk_log(OsFiles(tmp_path), "log", LogConfig(segment_bytes_max=300_000))
    tasks: queue.SimpleQueue[DiskFlush | None] = queue.SimpleQueue()
    done: queue.SimpleQueue[DiskFlush] = queue.SimpleQueue()

    def work() -> None:
        while (task := tasks.get()) is not None:
            task.run()
            done.put(task)

    thread = threading.Thread(target=work)
    thread.start()
    batches = []
    running = False
    for i in range(4000):
        batches.append(append(log, value=b"%d" % i * 60))
        if running and not done.empty():
            log.end_flush(done.get())
            running = False
        if not running:
            task = log.begin_flush()
            if task is not None:
                tasks.put(task)
                running = True
    tasks.put(None)
    thread.join()
    if running:
        log.end_flush(done.get())
    flush(log)
    assert log.flushed_offset == 4000
    # As a killed process leaves it.
    again = open_disk_log(OsFiles(tmp_path), "log", LogConfig())
    assert list(again.batches(Offset(0))) == batches
