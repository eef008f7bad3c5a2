"""Read, transform, write, and commit only what has been written: at least once, with aiokafka."""

import asyncio
import os
import uuid

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

BROKERS = os.environ.get("MOLDAU_BROKERS", "localhost:9092")
RUN = uuid.uuid4().hex[:8]
SOURCE, TARGET = f"words-{RUN}", f"shouts-{RUN}"
WORDS = ["vltava", "labe", "morava", "odra", "berounka"]


async def shout() -> None:
    """The pipeline itself: ends when all words were processed."""
    consumer = AIOKafkaConsumer(
        SOURCE,
        bootstrap_servers=BROKERS,
        group_id=f"shouter-{RUN}",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )
    async with consumer, AIOKafkaProducer(bootstrap_servers=BROKERS, acks="all") as producer:
        done = 0
        while done < len(WORDS):
            for messages in (await consumer.getmany(timeout_ms=1000)).values():
                for message in messages:
                    await producer.send_and_wait(TARGET, message.value.upper(), key=message.key)
                    done += 1
            await consumer.commit()


async def main() -> None:
    async with AIOKafkaProducer(bootstrap_servers=BROKERS) as producer:
        for word in WORDS:
            await producer.send_and_wait(SOURCE, word.encode())
    await asyncio.wait_for(shout(), 60)
    reader = AIOKafkaConsumer(TARGET, bootstrap_servers=BROKERS, auto_offset_reset="earliest")
    async with reader:
        got = [(await asyncio.wait_for(reader.getone(), 30)).value.decode() for _ in WORDS]
    print(*got)
    assert got == [word.upper() for word in WORDS]


asyncio.run(main())
