"""The client on asyncio, its start and end, work with handlers, and what is told of groups."""

import asyncio
import logging
import os
import signal
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest
from queue_brokers import FakeCluster

from moldau import (
    AsyncQueueClient,
    AsyncQueueMessage,
    ClientError,
    InvalidArgumentError,
    NotFoundError,
    QueueClient,
    QueueMessage,
    RejectedError,
    TimedOutError,
    UnreachableError,
)
from moldau.client.queue.client import seeds_of
from moldau.client.queue.handler_loop import WorkResult
from moldau.proto.v1 import queue_pb2 as pb
from moldau.testing.ports import free_ports
from moldau.testing.waiting import until, wait_seconds_max, wait_until

pytestmark = pytest.mark.system


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, wait_seconds_max()))


def with_client(brokers: FakeCluster, work: Callable[[AsyncQueueClient], Awaitable[None]]) -> None:
    async def main() -> None:
        async with AsyncQueueClient(
            brokers.addresses, timeout=wait_seconds_max(), refresh=0.5
        ) as client:
            await work(client)

    run(main())


def test_send_poll_ack_on_asyncio(brokers: FakeCluster) -> None:
    async def work(client: AsyncQueueClient) -> None:
        await client.send("jobs", "one")
        await client.send_many("jobs", ["two", "three"])
        async with await client.connect("g", "jobs") as worker:
            seen = []
            async for message in worker:
                seen.append(message.text)
                await message.ack()
                if len(seen) == 3:
                    break
            assert sorted(seen) == ["one", "three", "two"]
            assert await worker.poll(wait=0) == []

    with_client(brokers, work)


@pytest.mark.safety
def test_a_cancelled_poll_loses_nothing(brokers: FakeCluster) -> None:
    async def work(client: AsyncQueueClient) -> None:
        worker = await client.connect("g", "jobs")
        poll = asyncio.create_task(worker.poll(wait=30))
        await until(lambda: brokers.has_waiting_polls, "the poll waits")
        poll.cancel()
        await asyncio.wait([poll])
        await client.send("jobs", "x")
        (message,) = await worker.poll(wait=wait_seconds_max())
        assert message.attempt == 1

    with_client(brokers, work)


def test_handlers_run_side_by_side(brokers: FakeCluster) -> None:
    together = asyncio.Event()
    running = 0

    async def handle(message: AsyncQueueMessage) -> None:
        nonlocal running
        running += 1
        if running == 5:
            together.set()
        await asyncio.wait_for(together.wait(), wait_seconds_max())

    async def work(client: AsyncQueueClient) -> None:
        await client.send_many("jobs", ["x"] * 5)
        done = await client.work("g", "jobs", handle, concurrency=5, limit=5)
        assert done == (5, 0)

    with_client(brokers, work)


def test_a_handler_that_raises_nacks_with_its_error(
    client: QueueClient, brokers: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    attempts = []

    def handle(message: QueueMessage) -> None:
        attempts.append(message.attempt)
        if message.attempt < 3:
            raise ValueError("not yet")

    client.send("jobs", "x")
    assert client.work("g", "jobs", handle, limit=3) == (1, 2)
    assert attempts == [1, 2, 3]
    assert "ValueError: not yet" in caplog.text


def test_a_slow_handler_keeps_its_message(client: QueueClient, brokers: FakeCluster) -> None:
    seen = []

    def handle(message: QueueMessage) -> None:
        seen.append(message.attempt)
        wait_until(lambda: sum(brokers.calls("Extend").values()) >= 2, "it is extended")
        # The lease that it began with is over.
        brokers.ahead_seconds = 3
        wait_until(lambda: sum(brokers.calls("Extend").values()) >= 3, "it is extended again")

    client.send("jobs", "x")
    done = client.work("g", "jobs", handle, visibility=6, concurrency=2, idle=0.5)
    assert done == (1, 0)
    assert seen == [1]
    assert sum(brokers.calls("Extend").values()) >= 2


def test_a_handler_may_settle_by_itself(client: QueueClient, brokers: FakeCluster) -> None:
    client.send("jobs", "x")

    def handle(message: QueueMessage) -> None:
        if message.attempt == 1:
            message.nack(delay=0)
        else:
            message.ack()

    assert client.work("g", "jobs", handle, limit=2) == (2, 0)
    assert sum(brokers.calls("Ack").values()) == 1


def test_work_ends_when_it_is_stopped(client: QueueClient) -> None:
    stop = threading.Event()
    client.send("jobs", "x")
    done = client.work("g", "jobs", lambda message: stop.set(), stop=stop)
    assert done.done == 1


def test_work_ends_when_nothing_comes(client: QueueClient) -> None:
    assert client.work("g", "jobs", lambda message: None, idle=0.2) == (0, 0)


def test_ordered_work_is_done_one_by_one(client: QueueClient) -> None:
    with pytest.raises(InvalidArgumentError, match="concurrency must be 1"):
        client.work("g", "jobs", lambda message: None, mode="ordered", concurrency=2)


def test_stats_of_all_leaders_are_put_together(client: QueueClient, brokers: FakeCluster) -> None:
    client.send_many("jobs", [(b"%d" % number, "x") for number in range(20)])
    client.connect("g", "jobs").poll(3, wait=wait_seconds_max())
    stats = client.stats("g")
    assert (stats.ready, stats.leased, stats.consumers) == (17, 3, 1)
    assert [each.is_known for each in stats.partitions] == [True, True]
    assert stats.dead_letter_topic == "g.dead"


def test_stats_of_a_part_are_not_returned_as_the_whole(brokers: FakeCluster) -> None:
    with QueueClient(brokers.addresses, timeout=wait_seconds_max() / 20) as client:
        client.connect("g", "jobs")
        brokers.brokers[2].refusals["Stats"] = [(pb.UNAVAILABLE, False)] * 1000
        # It is asked until the time is over: the last answer comes in time, or does not.
        with pytest.raises((RejectedError, TimedOutError), match="stats of g"):
            client.stats("g")


def test_peek_shows_messages_of_all_leaders(client: QueueClient) -> None:
    client.send_many("jobs", [(b"%d" % number, f"{number}") for number in range(20)])
    client.connect("g", "jobs")
    peeked = client.peek("g", "jobs", 4)
    assert {each.message.partition for each in peeked} == {0, 1}
    assert {each.state for each in peeked} == {"ready"}
    with pytest.raises(InvalidArgumentError):
        client.peek("g", "jobs", 0)


def test_a_partition_is_read_over_a_change_of_leaders(
    client: QueueClient, brokers: FakeCluster
) -> None:
    for number in range(100):
        brokers.append("jobs", pb.OutgoingMessage(value=b"%d" % number, partition=0))
    seen = []
    for message in client.read_from("jobs", 0, offset=0):
        seen.append(int(message.text))
        if len(seen) == 5:
            brokers.move("jobs", 0, 2)
    assert seen == list(range(100))
    assert [m.text for m in client.read_from("jobs", 0, offset=7, max_messages=3)] == [
        "7",
        "8",
        "9",
    ]


def test_reading_what_is_not_there_is_not_found(client: QueueClient) -> None:
    with pytest.raises(NotFoundError):
        list(client.read_from("nothing"))
    with pytest.raises(InvalidArgumentError, match="both"):
        client.read_from("jobs", offset=1, timestamp=1)
    with pytest.raises(InvalidArgumentError, match="invalid offset"):
        client.read_from("jobs", offset="middle")


def test_a_topic_that_is_there_may_be_fine(client: QueueClient) -> None:
    assert client.create_topic("new", partitions=3)
    assert not client.create_topic("new", exist_ok=True)
    with pytest.raises(RejectedError, match="create topic new"):
        client.create_topic("new")


def test_a_group_is_deleted(client: QueueClient) -> None:
    client.connect("g", "jobs").close()
    client.delete_group("g")
    with pytest.raises(NotFoundError):
        client.stats("g")


def test_a_view_that_is_wrong_is_refreshed(client: QueueClient, brokers: FakeCluster) -> None:
    brokers.move("jobs", 1, 1)
    worker = client.connect("g", "jobs")
    brokers.append("jobs", pb.OutgoingMessage(value=b"x", partition=1))
    assert len(worker.poll(wait=wait_seconds_max())) == 1


def test_an_unreachable_cluster_is_reported_with_the_addresses_and_what_to_do() -> None:
    (port,) = free_ports(1)
    with pytest.raises(UnreachableError) as raised:
        QueueClient(f"127.0.0.1:{port}", timeout=0.3)
    assert f"127.0.0.1:{port} (connection refused)" in str(raised.value)
    assert "moldau dev" in raised.value.hint


def test_one_address_that_answers_is_enough(brokers: FakeCluster) -> None:
    (port,) = free_ports(1)
    with QueueClient(
        [f"127.0.0.1:{port}", brokers.addresses[1]], timeout=wait_seconds_max()
    ) as client:
        assert len(client.topology().brokers) == 2


def test_a_closed_client_says_so(brokers: FakeCluster) -> None:
    client = QueueClient(brokers.addresses)
    client.close()
    client.close()
    with pytest.raises(ClientError, match="closed"):
        client.send("jobs", "x")


def test_a_client_that_is_not_started_says_so() -> None:
    async def work() -> None:
        with pytest.raises(ClientError, match="not started"):
            await AsyncQueueClient("localhost:1").send("jobs", "x")

    run(work())


def test_a_forked_client_refuses(client: QueueClient) -> None:
    pid = os.fork()
    if pid == 0:
        try:
            client.topology()
        except ClientError as error:
            os._exit(7 if "before the fork" in str(error) else 1)
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7


def test_addresses_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert seeds_of("a:1, b:2") == ["a:1", "b:2"]
    assert seeds_of(["a:1"]) == ["a:1"]
    monkeypatch.delenv("MOLDAU_GRPC", raising=False)
    assert seeds_of(None) == ["localhost:8000"]
    monkeypatch.setenv("MOLDAU_GRPC", "c:3")
    assert seeds_of(None) == ["c:3"]
    with pytest.raises(InvalidArgumentError):
        seeds_of(" , ")
    with pytest.raises(InvalidArgumentError, match="invalid broker address"):
        QueueClient("a:b:c:70000", timeout=0.1)


def test_a_quiet_client_logs_nothing(
    brokers: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "moldau")
    with QueueClient(brokers.addresses) as client, client.connect("g", "jobs") as worker:
        client.send("jobs", "x")
        worker.ack(worker.poll(wait=wait_seconds_max()))
    assert caplog.text == ""


def test_groups_are_listed_by_name_with_their_topics_and_settings(
    brokers: FakeCluster, client: QueueClient
) -> None:
    brokers.create("mails", 1)
    with client.connect("b", ["jobs", "mails"], visibility=7), client.connect("a", "jobs"):
        found = client.groups()
        assert [each.group for each in found] == ["a", "b"]
        assert found[1].topics == ("jobs", "mails")
        assert found[1].visibility == 7
        assert found[1].dead_letter_topic == "b.dead"
        assert [each.group for each in client.groups("mails")] == ["b"]
        assert client.groups("others") == []


@pytest.mark.parametrize("on_asyncio", [False, True])
def test_work_finishes_its_message_on_sigterm(
    client: QueueClient, brokers: FakeCluster, on_asyncio: bool
) -> None:
    client.send_many("jobs", ["a", "b", "c"])
    finished = []

    def handle(message: QueueMessage | AsyncQueueMessage) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.2)
        finished.append(message.text)

    async def work() -> WorkResult:
        async with AsyncQueueClient(brokers.addresses) as own:
            return await own.work("g", "jobs", handle)

    done = asyncio.run(work()) if on_asyncio else client.work("g", "jobs", handle)
    assert done == (1, 0)
    assert len(finished) == 1
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_sigterm_stops_all_that_work_in_the_process(
    client: QueueClient, brokers: FakeCluster
) -> None:
    client.send_many("jobs", ["a"])

    def handle(message: QueueMessage | AsyncQueueMessage) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    async def work() -> tuple[WorkResult, WorkResult]:
        async with AsyncQueueClient(brokers.addresses) as own:
            return await asyncio.gather(
                own.work("g", "jobs", handle), own.work("h", "mails", handle)
            )

    assert list(asyncio.run(work())) == [(1, 0), (0, 0)]
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_handler_of_the_program_for_sigterm_stays(client: QueueClient) -> None:
    stop = threading.Event()
    before = signal.signal(signal.SIGTERM, lambda number, frame: stop.set())
    try:
        client.send_many("jobs", ["a", "b"])
        done = client.work(
            "g", "jobs", lambda message: os.kill(os.getpid(), signal.SIGTERM), stop=stop
        )
    finally:
        signal.signal(signal.SIGTERM, before)
    assert stop.is_set()
    assert done.done >= 1


def test_the_traceback_of_a_failed_message_is_logged(
    client: QueueClient, caplog: pytest.LogCaptureFixture
) -> None:
    def handle(message: QueueMessage) -> None:
        raise ValueError("not yet")

    client.send("jobs", "x")
    client.work("g", "jobs", handle, limit=1)
    assert "handler failed for <AsyncQueueMessage jobs[" in caplog.text
    assert "(attempt 1)" in caplog.text
    assert 'raise ValueError("not yet")' in caplog.text
