"""The loop of `moldau queue work`, over a worker that stands in for the client's."""

import asyncio
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest
from fakes import Fake

from moldau.cli.errors import CommandError
from moldau.cli.queue.work_loop import STOPPED, EmptyCheck, StopRequest, WorkLoop
from moldau.client.errors import NotFoundError, UnreachableError


class Refused(NamedTuple):
    message: object
    reason: str
    text: str


@dataclass
class Message:
    offset: int
    topic: str = "jobs"
    partition: int = 0
    attempt: int = 1


@dataclass
class FakeWorker(Fake):
    messages: list[Message]
    visibility: float = 30.0
    asked: list[Any] = field(default_factory=list)
    acked: list[Any] = field(default_factory=list)
    nacked: list[Any] = field(default_factory=list)
    extended: list[Any] = field(default_factory=list)
    refuse: bool = False
    hold: asyncio.Event | None = None
    errors: list[Any] = field(default_factory=list)

    async def poll(self, max_messages, wait):
        self.asked.append(max_messages)
        if self.errors:
            raise self.errors.pop(0)
        if self.hold is not None:
            await self.hold.wait()
        taken, self.messages = self.messages[:max_messages], self.messages[max_messages:]
        if not taken:
            await asyncio.sleep(0.001)
        return taken

    def _refused(self, messages):
        return [Refused(m, "EXPIRED", "too late") for m in messages] if self.refuse else []

    async def ack(self, messages):
        self.acked += [message.offset for message in messages]
        return self._refused(messages)

    async def nack(self, messages, *, delay=None, reason=""):
        self.nacked += [(message.offset, delay, reason) for message in messages]
        return self._refused(messages)

    async def extend(self, messages, seconds):
        self.extended += [message.offset for message in messages]
        return self._refused(messages)


def jobs(count: int) -> list[Message]:
    return [Message(offset=number) for number in range(count)]


def drained(worker: FakeWorker) -> EmptyCheck:
    async def ready() -> int:
        return len(worker.messages)

    return EmptyCheck(ready)


async def succeed(message):
    return ""


async def test_what_succeeds_is_acked_and_what_fails_is_given_back_with_its_reason(capfd):
    async def handle(message):
        return "no luck" if message.offset == 1 else ""

    worker = FakeWorker(jobs(3))
    tally = await WorkLoop(worker, handle, StopRequest(), drained=drained(worker)).run()
    assert (tally.done, tally.failed, tally.lost) == (2, 1, 0)
    assert worker.acked == [0, 2]
    assert worker.nacked == [(1, None, "no luck")]
    assert "jobs-0@1, attempt 1: no luck" in capfd.readouterr().err


async def test_the_pause_before_the_next_attempt_can_be_chosen():
    async def fail(message):
        return "no"

    worker = FakeWorker(jobs(1))
    await WorkLoop(
        worker, fail, StopRequest(), drained=drained(worker), retry_seconds=7.0, quiet=True
    ).run()
    assert worker.nacked == [(0, 7.0, "no")]


@pytest.mark.parametrize("concurrency", [1, 3])
async def test_no_more_are_taken_than_can_be_begun(concurrency):
    running = most = 0

    async def handle(message):
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.01)
        running -= 1
        return ""

    worker = FakeWorker(jobs(10))
    await WorkLoop(
        worker, handle, StopRequest(), concurrency=concurrency, drained=drained(worker)
    ).run()
    assert most == concurrency
    assert max(worker.asked) <= concurrency
    assert sorted(worker.acked) == list(range(10))


async def test_a_number_of_messages_is_a_bound_on_what_is_taken():
    worker = FakeWorker(jobs(10))
    loop = WorkLoop(worker, succeed, StopRequest(), concurrency=4, messages_max=6)
    assert (await loop.run()).done == 6
    assert len(worker.messages) == 4, "the others stay for somebody else"


async def test_a_stop_lets_what_runs_finish_and_takes_nothing_more():
    began, go_on = asyncio.Event(), asyncio.Event()

    async def handle(message):
        began.set()
        await go_on.wait()
        return ""

    stopping, worker = StopRequest(), FakeWorker(jobs(5))
    running = asyncio.ensure_future(WorkLoop(worker, handle, stopping, quiet=True).run())
    await began.wait()
    stopping.signal()
    await asyncio.sleep(0)
    go_on.set()
    assert (await running).done == 1
    assert worker.acked == [0]
    assert len(worker.messages) == 4


async def test_what_a_poll_brings_after_the_stop_is_given_back():
    stopping = StopRequest()
    worker = FakeWorker(jobs(2), hold=asyncio.Event())
    running = asyncio.ensure_future(WorkLoop(worker, succeed, stopping, concurrency=2).run())
    await asyncio.sleep(0.01)
    stopping.signal()
    assert worker.hold is not None
    worker.hold.set()
    assert (await running).done == 0
    assert worker.nacked == [(0, 0, STOPPED), (1, 0, STOPPED)]


async def test_a_poll_that_hangs_does_not_keep_the_worker_from_stopping(monkeypatch):
    monkeypatch.setattr("moldau.cli.queue.work_loop._POLL_END_SECONDS_MAX", 0.05)
    stopping = StopRequest()
    worker = FakeWorker(jobs(2), hold=asyncio.Event())
    running = asyncio.ensure_future(WorkLoop(worker, succeed, stopping).run())
    await asyncio.sleep(0.01)
    stopping.signal()
    await asyncio.wait_for(running, 30)
    assert worker.acked == []


async def test_a_second_signal_ends_what_runs_and_gives_it_back():
    began = asyncio.Event()

    async def handle(message):
        began.set()
        await asyncio.sleep(3600)
        return ""

    stopping, worker = StopRequest(), FakeWorker(jobs(1))
    running = asyncio.ensure_future(WorkLoop(worker, handle, stopping, quiet=True).run())
    await began.wait()
    stopping.signal()
    await asyncio.sleep(0.01)
    assert not running.done()
    stopping.signal()
    await asyncio.wait_for(running, 30)
    assert worker.nacked == [(0, 0, STOPPED)]


async def test_the_lease_of_what_takes_longer_is_extended_until_it_is_done():
    worker = FakeWorker(jobs(1), visibility=0.03)

    async def handle(message):
        while len(worker.extended) < 3:
            await asyncio.sleep(0.005)
        return ""

    await WorkLoop(worker, handle, StopRequest(), drained=drained(worker)).run()
    extended = len(worker.extended)
    await asyncio.sleep(0.1)
    assert len(worker.extended) == extended
    assert worker.acked == [0]


async def test_a_message_that_cannot_be_settled_is_counted_and_said(capfd):
    worker = FakeWorker(jobs(1), refuse=True)
    tally = await WorkLoop(worker, succeed, StopRequest(), drained=drained(worker)).run()
    assert (tally.done, tally.lost) == (0, 1)
    assert "jobs-0@0 was not settled: too late" in capfd.readouterr().err


async def test_a_command_that_cannot_be_started_ends_the_worker_and_gives_the_message_back():
    async def handle(message):
        raise FileNotFoundError(2, "No such file or directory", "resize")

    worker = FakeWorker(jobs(5))
    with pytest.raises(CommandError, match="cannot run resize: no such file or directory"):
        await WorkLoop(worker, handle, StopRequest()).run()
    assert worker.nacked == [(0, 0, STOPPED)]
    assert len(worker.messages) == 4, "not every message is tried with it"


async def test_with_once_it_ends_when_nothing_is_left_and_all_is_done():
    slow = asyncio.Event()

    async def handle(message):
        if message.offset == 0:
            await slow.wait()
        return ""

    worker = FakeWorker(jobs(3))
    running = asyncio.ensure_future(
        WorkLoop(worker, handle, StopRequest(), concurrency=2, drained=drained(worker)).run()
    )
    while worker.acked != [1, 2]:
        await asyncio.sleep(0.001)
    assert not running.done()
    slow.set()
    assert (await running).done == 3


async def test_a_poll_that_came_back_too_early_does_not_end_it():
    worker = FakeWorker([])
    left = [3, 1, 0]

    async def ready() -> int:
        if left[0] == 1:
            worker.messages = jobs(1)
        return left.pop(0)

    assert (
        await WorkLoop(worker, succeed, StopRequest(), drained=EmptyCheck(ready)).run()
    ).done == 1
    assert left == []


async def test_what_others_hold_is_not_waited_for_without_end(monkeypatch):
    monkeypatch.setattr("moldau.cli.queue.work_loop._DRAIN_SECONDS_MAX", 0.05)

    async def ready() -> int:
        return 7

    worker = FakeWorker([])
    assert (
        await WorkLoop(worker, succeed, StopRequest(), drained=EmptyCheck(ready)).run()
    ).done == 0
    assert len(worker.asked) > 1


async def test_brokers_that_are_away_are_waited_for_and_that_is_said_once(monkeypatch, capfd):
    monkeypatch.setattr("moldau.cli.queue.work_loop._LOST_SECONDS", 0.001)
    worker = FakeWorker(jobs(1), errors=[UnreachableError("nobody answers")] * 3)
    tally = await WorkLoop(worker, succeed, StopRequest(), messages_max=1).run()
    assert tally.done == 1
    assert capfd.readouterr().err == "nobody answers; retrying (Ctrl-C stops)\n"


async def test_what_will_not_go_away_ends_it_and_so_does_silence_where_an_end_is_waited_for():
    worker = FakeWorker(jobs(1), errors=[NotFoundError("no such topic")])
    with pytest.raises(NotFoundError):
        await WorkLoop(worker, succeed, StopRequest()).run()
    worker = FakeWorker(jobs(1), errors=[UnreachableError("nobody answers")])
    with pytest.raises(UnreachableError):
        await WorkLoop(worker, succeed, StopRequest(), drained=drained(worker)).run()
