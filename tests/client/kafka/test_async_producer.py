"""A producer for coroutines sends, waits without making others wait, and loses nothing unseen."""

import asyncio
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator

import pytest

from moldau import (
    AckMode,
    AsyncConsumer,
    AsyncDelivery,
    AsyncProducer,
    BufferFullError,
    ClientError,
    Consumer,
    DeliveryFailedError,
    InvalidArgumentError,
    Producer,
    TimedOutError,
    UnreachableError,
)
from moldau.client.kafka.async_delivery import DeliveryWaiters
from moldau.testing.broker import Broker
from moldau.testing.ports import free_ports
from moldau.testing.waiting import wait_seconds_max

pytestmark = pytest.mark.system

NewName = Callable[[str], str]


@pytest.fixture(scope="module")
def pausable_broker() -> Iterator[Broker]:
    """A broker that tests of this module may pause, which the shared one must not be."""
    with Broker() as broker:
        yield broker


@pytest.fixture
def own_topic(new_name: NewName) -> str:
    """A name for a topic that the first message creates."""
    return new_name("own")


def read(broker: Broker, topic: str) -> list[str]:
    """All texts in a topic, up to a mark that is sent now."""
    with Producer(broker.bootstrap) as producer:
        producer.send(topic, "mark")
    texts: list[str] = []
    with Consumer(broker.bootstrap) as consumer:
        consumer.subscribe(topic)
        while "mark" not in texts:
            batch = consumer.poll(wait_seconds_max())
            assert batch, f"only {len(texts)} messages arrived"
            texts += [message.text for message in batch]
    return texts[:-1]


async def connect(producer: AsyncProducer, topic: str) -> None:
    """Send until one message has arrived: on a busy machine a short timeout may be too short."""
    async with asyncio.timeout(wait_seconds_max()):
        while True:
            try:
                await (await producer.send(topic, "first"))
            except TimedOutError:
                continue
            return


async def ticks_during(work: Awaitable[object]) -> int:
    """How often another task of the loop gets its turn while this one is awaited."""
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0)
            ticks += 1

    ticker = asyncio.ensure_future(tick())
    try:
        await work
    finally:
        ticker.cancel()
    return ticks


async def test_send_returns_a_delivery_and_awaiting_that_says_where_the_message_is(
    moldau_session_broker: Broker, moldau_topic: str
) -> None:
    async with AsyncProducer(moldau_session_broker.bootstrap) as producer:
        delivery = await producer.send(moldau_topic, {"a": 1}, key="k", timestamp=1_700_000_000_000)
        assert isinstance(delivery, AsyncDelivery)
        with pytest.raises(ClientError, match="not done yet") as caught:
            delivery.result()
        assert caught.value.hint == "await it first"
        assert await delivery == (moldau_topic, 0, 0, 1_700_000_000_000)
        # Any number of times, and then without waiting.
        assert await delivery == delivery.result()
        assert delivery.done()
        assert delivery.exception() is None
    assert read(moldau_session_broker, moldau_topic) == ['{"a":1}']


async def test_many_are_sent_in_order_and_awaited_together(
    moldau_session_broker: Broker, moldau_topic: str
) -> None:
    async with AsyncProducer(moldau_session_broker.bootstrap) as producer:
        deliveries = await producer.send_many(moldau_topic, [("k", str(n)) for n in range(1000)])
        receipts = await asyncio.gather(*deliveries)
        assert [receipt.offset for receipt in receipts] == list(range(1000))
        assert len(producer) == 0


async def test_tasks_share_a_producer_and_acks_are_chosen_per_message(
    moldau_session_broker: Broker, moldau_topic: str
) -> None:
    producer = AsyncProducer(moldau_session_broker.bootstrap)

    async def work(name: str) -> None:
        for number in range(50):
            await (await producer.send(moldau_topic, f"{name} {number}", acks=AckMode[name]))

    # All of them find it unconnected, and it connects once for each level.
    await asyncio.gather(*(work(mode.name) for mode in AckMode))
    await producer.close()
    texts = read(moldau_session_broker, moldau_topic)
    for mode in AckMode:
        mine = [text for text in texts if text.startswith(mode.name)]
        assert mine == [f"{mode.name} {number}" for number in range(50)]


async def test_the_loop_is_woken_once_for_all_deliveries_that_came_since() -> None:
    loop = asyncio.get_running_loop()
    mailbox = DeliveryWaiters(loop)
    waiters = [mailbox.waiter() for _ in range(1000)]
    woken = 0
    tell = loop.call_soon_threadsafe

    def count(*arguments: object) -> object:
        nonlocal woken
        woken += 1
        return tell(*arguments)  # type: ignore[arg-type]

    loop.call_soon_threadsafe = count  # type: ignore[method-assign, assignment]

    def put_all() -> None:
        for waiter in waiters:
            mailbox.put(waiter, None)  # type: ignore[arg-type]

    thread = threading.Thread(target=put_all)
    thread.start()
    # The loop stands still meanwhile.
    thread.join()
    assert woken == 1
    await asyncio.wait_for(asyncio.gather(*waiters), wait_seconds_max())


async def test_a_loop_that_only_sends_lets_other_tasks_run(
    moldau_session_broker: Broker, moldau_topic: str
) -> None:
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    async with AsyncProducer(moldau_session_broker.bootstrap) as producer:
        await (await producer.send(moldau_topic, "x"))
        task = asyncio.ensure_future(other())
        for _ in range(5000):
            await producer.send(moldau_topic, "x")
        assert turns >= 10
        task.cancel()


@pytest.mark.safety
async def test_nothing_that_waits_for_a_broker_stops_the_loop(
    pausable_broker: Broker, own_topic: str
) -> None:
    producer = AsyncProducer(pausable_broker.bootstrap, buffer_messages=20, max_block_ms=300)
    await connect(producer, own_topic)
    pausable_broker.pause()

    async def flush() -> None:
        with pytest.raises(TimedOutError, match="20 messages are not acknowledged"):
            await producer.flush(0.3)

    async def overfill() -> None:
        with pytest.raises(BufferFullError, match="buffer is full; 20 messages") as caught:
            await producer.send(own_topic, "too much")
        assert "max_block_ms" in caught.value.hint

    async def connect_another_level() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(producer.send(own_topic, "x", acks=1), 0.3)

    async def close() -> None:
        with pytest.raises(TimedOutError, match="20 messages were given up"):
            await producer.close(0.3)

    try:
        await producer.send_many(own_topic, ["x"] * 20)
        for work in (flush(), overfill(), connect_another_level()):
            assert await ticks_during(work) > 50
    finally:
        pausable_broker.resume()
    await producer.flush(wait_seconds_max())
    pausable_broker.pause()
    try:
        lost = await producer.send_many(own_topic, ["y"] * 20)
        assert await ticks_during(close()) > 50
        for delivery in lost:
            with pytest.raises(ClientError) as caught:
                await delivery
            assert "closed too early" in caught.value.hint
    finally:
        pausable_broker.resume()


async def test_a_full_buffer_is_waited_for_and_a_cancelled_send_was_not_sent(
    pausable_broker: Broker, own_topic: str
) -> None:
    async with AsyncProducer(pausable_broker.bootstrap, buffer_messages=10) as producer:
        await connect(producer, own_topic)
        pausable_broker.pause()
        try:
            await producer.send_many(own_topic, ["early"] * 10)
            waiting = asyncio.ensure_future(producer.send(own_topic, "late"))
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(producer.send(own_topic, "never"), 0.1)
            assert not waiting.done()
        finally:
            pausable_broker.resume()
        await (await asyncio.wait_for(waiting, wait_seconds_max()))
    assert read(pausable_broker, own_topic) == ["first", *["early"] * 10, "late"]


async def test_failures_that_were_not_awaited_to_the_end_are_raised_by_flush(
    pausable_broker: Broker, own_topic: str
) -> None:
    async with AsyncProducer(pausable_broker.bootstrap, delivery_timeout_ms=3_000) as producer:
        await connect(producer, own_topic)
        pausable_broker.pause()
        try:
            awaited = await producer.send(own_topic, "a")
            with pytest.raises(TimedOutError, match="cannot send to"):
                await awaited
            await producer.flush(wait_seconds_max())
            left = await producer.send(own_topic, "b")
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(left, 0.01)
            failure: DeliveryFailedError | None = None
            try:
                await producer.flush(wait_seconds_max())
            except DeliveryFailedError as error:
                failure = error
            assert failure is not None, f"flush was content with {left}, seen: {left._seen}"
            assert "1 messages failed" in str(failure)
        finally:
            pausable_broker.resume()


async def test_a_delivery_belongs_to_the_loop_of_its_producer(
    moldau_session_broker: Broker, moldau_topic: str
) -> None:
    async with AsyncProducer(moldau_session_broker.bootstrap, linger_ms=60_000) as producer:
        delivery = await producer.send(moldau_topic, "x")

        async def elsewhere() -> None:
            await delivery

        with pytest.raises(ClientError, match="event loop of its producer"):
            await asyncio.to_thread(asyncio.run, elsewhere())
        await producer.flush(wait_seconds_max())
        await delivery


UNCLOSED = """
import asyncio, sys
from moldau import AsyncProducer
async def main():
    global producer
    producer = AsyncProducer(sys.argv[1], linger_ms=60_000)
    await producer.send(sys.argv[2], "last")
    if sys.argv[3] == "cancelled":
        closing = asyncio.ensure_future(producer.close())
        await asyncio.sleep(0.05)
        closing.cancel()
asyncio.run(main())
"""


@pytest.mark.safety
@pytest.mark.parametrize("how", ["forgotten", "cancelled"])
def test_the_end_of_a_program_sends_what_an_unclosed_producer_has(
    how: str, moldau_session_broker: Broker, moldau_topic: str
) -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-W", "always::ResourceWarning", "-c", UNCLOSED),
            *(moldau_session_broker.bootstrap, moldau_topic, how),
        ],
        capture_output=True,
        text=True,
        timeout=wait_seconds_max(),
    )
    assert done.returncode == 0, done.stderr
    assert "lost" not in done.stderr
    if how == "forgotten":
        assert "with 1 pending messages was not closed" in done.stderr
    assert read(moldau_session_broker, moldau_topic) == ["last"]


async def test_an_error_in_the_block_is_not_hidden_by_that_of_close(
    pausable_broker: Broker, own_topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    producer = AsyncProducer(pausable_broker.bootstrap, delivery_timeout_ms=500)
    await connect(producer, own_topic)
    pausable_broker.pause()

    async def fail() -> None:
        async with producer:
            await producer.send(own_topic, "x")
            raise KeyError("mine")

    try:
        with pytest.raises(KeyError, match="mine"):
            await fail()
    finally:
        pausable_broker.resume()
    assert "1 messages failed" in caplog.text


@pytest.mark.safety
async def test_a_closed_producer_refuses_and_may_be_closed_twice(
    moldau_session_broker: Broker, moldau_topic: str
) -> None:
    producer = AsyncProducer(moldau_session_broker.bootstrap)
    await producer.send(moldau_topic, "x")
    await asyncio.gather(producer.close(), producer.close())
    await producer.close()
    for call in (lambda: producer.send(moldau_topic, "y"), producer.flush, producer.start):
        with pytest.raises(ClientError, match="the producer is closed"):
            await call()
    never_used = AsyncProducer(moldau_session_broker.bootstrap)
    await never_used.close()


async def test_an_unreachable_cluster_is_reported_at_the_start_and_a_wrong_setting_before() -> None:
    (port,) = free_ports(1)
    producer = AsyncProducer(f"127.0.0.1:{port}")
    with pytest.raises(UnreachableError, match="cannot reach"):
        await producer.start()
    with pytest.raises(InvalidArgumentError, match="linger_mss"):
        AsyncProducer(linger_mss=1)  # type: ignore[call-arg]


async def test_a_transaction_commits_aborts_and_carries_offsets(
    moldau_session_broker: Broker, moldau_topic: str, new_name: NewName
) -> None:
    target = new_name("target")
    with Producer(moldau_session_broker.bootstrap) as source:
        source.send_many(moldau_topic, ["1", "2"])
    async with (
        AsyncProducer(moldau_session_broker.bootstrap, transactional_id=new_name("tx")) as producer,
        AsyncConsumer(
            moldau_session_broker.bootstrap,
            group_id=new_name("g"),
            enable_auto_commit=False,
            max_poll_records=1,
        ) as consumer,
    ):
        await consumer.subscribe(moldau_topic)
        (first,) = await consumer.poll(wait_seconds_max())
        async with producer.transaction() as transaction:
            await producer.send(target, first.text * 2)
            await transaction.commit_offsets(consumer)
        assert await consumer.committed() == {(moldau_topic, 0): 0}
        (second,) = await consumer.poll(wait_seconds_max())

        async def fail() -> None:
            async with producer.transaction() as transaction:
                await producer.send(target, second.text * 2)
                await transaction.commit_offsets(consumer)
                raise KeyError("mine")

        with pytest.raises(KeyError, match="mine"):
            await fail()
        with pytest.raises(ClientError) as caught:
            await producer.send(target, "outside")
        assert "producer.transaction()" in caught.value.hint
        assert await consumer.committed() == {(moldau_topic, 0): 0}
    assert read(moldau_session_broker, target) == ["11"]


async def test_a_cancelled_transaction_is_aborted_and_the_next_one_goes_on(
    moldau_session_broker: Broker, moldau_topic: str, new_name: NewName
) -> None:
    async with AsyncProducer(
        moldau_session_broker.bootstrap, transactional_id=new_name("tx")
    ) as producer:
        inside = asyncio.Event()

        async def work() -> None:
            async with producer.transaction():
                await producer.send(moldau_topic, "half")
                inside.set()
                await asyncio.Event().wait()

        task = asyncio.ensure_future(work())
        await asyncio.wait_for(inside.wait(), wait_seconds_max())
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        # Cancelled before it has begun, wherever that hits: nothing stays open.
        for turns in range(4):
            task = asyncio.ensure_future(work())
            for _ in range(turns):
                await asyncio.sleep(0.001)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        async with producer.transaction():
            await producer.send(moldau_topic, "whole")
    assert read(moldau_session_broker, moldau_topic) == ["whole"]
