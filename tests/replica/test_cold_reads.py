"""The threads that read cold data."""

import asyncio
import threading

import pytest

from moldau.replica.cold_reads import read_cold

pytestmark = pytest.mark.inprocess


class Task:
    size = 0

    def __init__(self, done: list["Task"]) -> None:
        self._done = done
        self.is_in_thread = False

    def run(self) -> None:
        self.is_in_thread = threading.current_thread() is not threading.main_thread()
        self._done.append(self)


async def test_tasks_run_in_a_thread_one_after_another() -> None:
    done: list[Task] = []
    tasks = [Task(done) for _ in range(3)]
    await read_cold(asyncio.get_running_loop(), tasks)
    assert done == tasks
    assert all(task.is_in_thread for task in tasks)
