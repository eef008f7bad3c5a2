"""A consumer for coroutines reads, commits, and loses nothing to whoever is cancelled."""

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest

from moldau import (
    AsyncAdmin,
    AsyncConsumer,
    AsyncProducer,
    ClientError,
    InvalidArgumentError,
    NotFoundError,
    UnreachableError,
)
from moldau.testing.broker import Broker
from moldau.testing.ports import free_ports
from moldau.testing.waiting import wait_seconds_max

pytestmark = pytest.mark.system

NewName = Callable[[str], str]
COUNT = 10


@pytest.fixture
def topic(moldau_session_broker: Broker, moldau_topic: str) -> str:
    """A topic with the messages "0" to "9"."""

    async def fill() -> None:
        async with AsyncProducer(moldau_session_broker.bootstrap) as producer:
            await producer.send_many(moldau_topic, [str(number) for number in range(COUNT)])

    asyncio.run(fill())
    return moldau_topic


@pytest.fixture
def open_consumer(moldau_session_broker: Broker, new_name: NewName) -> Callable[..., AsyncConsumer]:
    """Makes members of one group."""
    group = new_name("readers")

    def make(**settings: Any) -> AsyncConsumer:
        return AsyncConsumer(moldau_session_broker.bootstrap, **{"group_id": group, **settings})

    return make


OpenConsumer = Callable[..., AsyncConsumer]


async def texts(consumer: AsyncConsumer, count: int) -> list[str]:
    """Of the next messages, `count` at least."""
    found: list[str] = []
    while len(found) < count:
        batch = await consumer.poll(wait_seconds_max())
        assert batch, f"{len(found)} of {count} messages arrived"
        found += [message.text for message in batch]
    return found


async def test_the_first_poll_waits_for_the_group_and_hands_out_at_most_so_many(
    open_consumer: OpenConsumer, topic: str
) -> None:
    async with open_consumer(max_poll_records=4) as consumer:
        await consumer.subscribe(topic)
        first = await consumer.poll()
        assert first[0].text == "0"
        assert 1 <= len(first) <= 4
        await texts(consumer, COUNT - len(first))
        assert await consumer.poll(0) == []
        assert await consumer.poll(0.15) == []
        assert await consumer.assignment() == [(topic, 0)]


async def test_commits_seeks_pauses_and_lag_are_those_of_a_consumer(
    open_consumer: OpenConsumer, topic: str
) -> None:
    async with open_consumer(enable_auto_commit=False, max_poll_records=1) as consumer:
        await consumer.subscribe([topic])
        for _ in range(3):
            (message,) = await consumer.poll(wait_seconds_max())
        await consumer.commit(message)
        assert await consumer.committed() == {(topic, 0): 2}
        assert await consumer.lag() == {(topic, 0): 7}
        await consumer.seek(topic, 0, 8)
        assert await texts(consumer, 2) == ["8", "9"]
        await consumer.commit({(topic, 0): 5})
        await consumer.seek(topic, 0, "earliest")
        await consumer.pause([(topic, 0)])
        assert await consumer.poll(0.3) == []
        await consumer.resume([(topic, 0)])
        assert await texts(consumer, 1) == ["0"]
    async with open_consumer(enable_auto_commit=False) as consumer:
        await consumer.subscribe(topic)
        assert (await texts(consumer, 4))[0] == "6"


async def test_iteration_goes_on_after_a_break_and_commits_what_it_handed_out(
    open_consumer: OpenConsumer, topic: str
) -> None:
    async with open_consumer() as consumer:
        await consumer.subscribe(topic)
        async for message in consumer:
            if message.text == "3":
                break
        async for message in consumer:
            assert message.text == "4"
            break
        assert await texts(consumer, 1) == [str(number) for number in range(5, COUNT)]
        await consumer.seek(topic, 0, 0)
        async for message in consumer:
            if message.text == "5":
                break
    async with open_consumer() as consumer:
        await consumer.subscribe(topic)
        async for message in consumer:
            assert message.text == "6"
            break


async def test_a_consumer_that_fails_gets_its_messages_again(
    open_consumer: OpenConsumer, topic: str
) -> None:
    async def fail() -> None:
        async with open_consumer() as consumer:
            await consumer.subscribe(topic)
            await texts(consumer, 1)
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        await fail()
    async with open_consumer() as consumer:
        await consumer.subscribe(topic)
        assert (await texts(consumer, COUNT))[0] == "0"


@pytest.mark.safety
async def test_a_cancelled_poll_loses_no_message_and_commits_none(
    moldau_session_broker: Broker, open_consumer: OpenConsumer, topic: str
) -> None:
    seed = random.randrange(2**32)
    rng = random.Random(seed)
    total = 200

    async def produce() -> None:
        async with AsyncProducer(moldau_session_broker.bootstrap, linger_ms=0) as producer:
            for number in range(COUNT, total):
                await producer.send(topic, str(number))
                await asyncio.sleep(rng.random() * 0.004)

    producing = asyncio.ensure_future(produce())
    found: list[str] = []
    cancelled = members = 0
    while len(found) < total:
        members += 1
        async with open_consumer(enable_auto_commit=False, max_poll_records=7) as consumer:
            await consumer.subscribe(topic)
            # Cancelled at all times: before, in the middle of a fetch, and when it has messages.
            for _ in range(80):
                polling = asyncio.ensure_future(consumer.poll(wait_seconds_max()))
                await asyncio.sleep(rng.choice((0, 0, 0.001, rng.random() * 0.02)))
                if polling.cancel():
                    cancelled += 1
                try:
                    found += [message.text for message in await polling]
                except asyncio.CancelledError:
                    # What no poll has returned must not be committed: the next member starts here.
                    await consumer.commit()
            await consumer.commit()
    await producing
    assert found == [str(number) for number in range(total)], f"seed={seed}"
    assert cancelled > 20


@pytest.mark.safety
async def test_a_cancelled_iteration_loses_no_message(
    open_consumer: OpenConsumer, topic: str
) -> None:
    found: list[str] = []
    async with open_consumer(max_poll_records=3) as consumer:
        await consumer.subscribe(topic)

        async def iterate() -> None:
            async for message in consumer:
                found.append(message.text)
                await asyncio.sleep(0.002)

        while len(found) < COUNT:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(iterate(), 0.003)
    assert found == [str(number) for number in range(COUNT)]


async def test_other_tasks_get_their_turn_in_the_middle_of_a_long_poll(
    open_consumer: OpenConsumer, topic: str
) -> None:
    async with open_consumer(enable_auto_commit=False) as consumer:
        await consumer.subscribe(topic)
        await texts(consumer, COUNT)
        polling = asyncio.ensure_future(consumer.poll(wait_seconds_max()))
        ticks = 0
        for _ in range(20):
            await asyncio.sleep(0.005)
            ticks += 1
        await consumer.commit()
        assert await consumer.committed() == {(topic, 0): COUNT - 1}
        assert await consumer.lag() == {(topic, 0): 0}
        await consumer.seek(topic, 0, 9)
        # The seek has brought it something.
        assert [message.text for message in await polling] == ["9"]
        assert ticks == 20


async def test_callbacks_run_in_the_loop_and_may_use_the_consumer(
    open_consumer: OpenConsumer, topic: str
) -> None:
    told: list[object] = []
    loop = asyncio.get_running_loop()
    left_behind: list[asyncio.Task[dict[tuple[str, int], int]]] = []
    consumer = open_consumer(enable_auto_commit=False)

    async def came(partitions: list[tuple[str, int]]) -> None:
        assert asyncio.get_running_loop() is loop
        with pytest.raises(ClientError, match="cannot poll in on_assign"):
            await consumer.poll(1)
        await asyncio.sleep(0)
        # It outlives the callback, and then waits for its turn like any other.
        left_behind.append(asyncio.ensure_future(later()))
        told.append(("came", partitions))

    async def later() -> dict[tuple[str, int], int]:
        await asyncio.sleep(0.05)
        return await consumer.committed()

    async def leave(partitions: list[tuple[str, int]]) -> None:
        await consumer.commit()
        told.append(("left", partitions, await consumer.assignment()))

    await consumer.subscribe(topic, on_assign=came, on_revoke=leave)
    await texts(consumer, COUNT)
    assert await asyncio.wait_for(left_behind[0], wait_seconds_max()) == {}
    await consumer.close()
    assert told == [("came", [(topic, 0)]), ("left", [(topic, 0)], [(topic, 0)])]
    plain: list[object] = []
    async with open_consumer() as again:
        await again.subscribe(topic, on_assign=plain.append)
        async with asyncio.timeout(wait_seconds_max()):
            while not plain:
                assert await again.poll(0.1) == []
        assert await again.poll(2) == []
    assert plain == [[(topic, 0)]]


async def test_an_error_in_a_callback_comes_out_of_the_poll(
    open_consumer: OpenConsumer, topic: str
) -> None:
    async def fail(_: object) -> None:
        raise KeyError("mine")

    async with open_consumer() as consumer:
        await consumer.subscribe(topic, on_assign=fail)
        with pytest.raises(KeyError, match="mine"):
            await consumer.poll(wait_seconds_max())


@pytest.mark.safety
async def test_a_closed_consumer_refuses_ends_iterations_and_may_be_closed_twice(
    open_consumer: OpenConsumer, topic: str
) -> None:
    consumer = open_consumer()
    await consumer.subscribe(topic)
    await texts(consumer, COUNT)

    async def iterate() -> str:
        async for _ in consumer:
            return "message"
        return "ended"

    iterating = asyncio.ensure_future(iterate())
    await asyncio.sleep(0.05)
    await asyncio.gather(consumer.close(), consumer.close())
    await consumer.close()
    assert await asyncio.wait_for(iterating, wait_seconds_max()) == "ended"
    for call in (consumer.poll, consumer.commit, consumer.start):
        with pytest.raises(ClientError, match="the consumer is closed"):
            await call()
    await open_consumer().close()


async def test_an_unreachable_cluster_is_reported_at_the_start() -> None:
    (port,) = free_ports(1)
    with pytest.raises(UnreachableError, match="cannot reach"):
        await AsyncConsumer(f"127.0.0.1:{port}").start()
    with pytest.raises(UnreachableError, match="cannot reach"):
        await AsyncAdmin(f"127.0.0.1:{port}").topics()
    with pytest.raises(InvalidArgumentError, match="max_poll_record"):
        AsyncConsumer(max_poll_record=1)  # type: ignore[call-arg]


async def test_an_admin_makes_describes_and_deletes(
    moldau_session_broker: Broker, open_consumer: OpenConsumer, new_name: NewName
) -> None:
    name = new_name("made")
    async with AsyncAdmin(moldau_session_broker.bootstrap) as admin:
        await admin.create_topic(name, partitions=2, config={"retention.ms": "60000"})
        assert len((await admin.topic(name, offsets=True)).partitions) == 2
        await admin.add_partitions(name, 3)
        await admin.alter_topic_config(name, {"retention.ms": "70000"})
        config = {entry.name: entry.value for entry in await admin.topic_config(name)}
        assert config["retention.ms"] == "70000"
        assert name in [topic.name for topic in await admin.topics()]
        assert (await admin.nodes())[1][0].port == moldau_session_broker.port
        async with AsyncProducer(moldau_session_broker.bootstrap) as producer:
            await producer.send(name, "x", partition=0)
        parts = [(name, 0), (name, 1)]
        assert await admin.offset_range(parts) == {(name, 0): (0, 1), (name, 1): (0, 0)}
        assert await admin.offsets_at(parts, 1) == {(name, 0): 0, (name, 1): -1}
        async with open_consumer() as consumer:
            group = str(consumer.config.group_id)
            await consumer.subscribe(name)
            await texts(consumer, 1)
        assert group in [found.name for found in await admin.groups()]
        assert sum(lag.lag for lag in (await admin.group(group)).lags if lag.lag > 0) == 0
        await admin.commit_group(group, {(name, 0): 0})
        await admin.delete_group(group)
        with pytest.raises(NotFoundError, match=group):
            await admin.group(group)
        await admin.delete_topic(name)
        with pytest.raises(NotFoundError, match=name) as caught:
            await admin.topic(name)
        assert "topic create" in caught.value.hint
    with pytest.raises(ClientError, match="closed"):
        await admin.topics()
