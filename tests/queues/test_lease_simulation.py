"""Arbitrary workers, faults and leaders: no acked message comes again, none is lost, and poison
ends in the dead-letter topic. The seed is in the test's name."""

import asyncio
import random
from collections import defaultdict
from contextlib import suppress
from functools import partial

import pytest
from effort import seeds
from queue_world import QueueWorld

from moldau.leases.commands import BACKOFF, Ack, Extend, Nack
from moldau.model.queue_headers import (
    DEAD_ATTEMPTS_HEADER,
    DEAD_OFFSET_HEADER,
    DEAD_PARTITION_HEADER,
)
from moldau.queues.types import DONE, Delivery, ErrorReason, QueueRefusedError

ATTEMPTS_MAX = 3
MEMBERS = ("w1", "w2", "w3")
STEPS = 60
PARTITIONS = 2


class Books:
    """What the workers know, and nobody else."""

    def __init__(self) -> None:
        self.sent: set[bytes] = set()
        self.acked: set[bytes] = set()
        self.perhaps_acked: set[bytes] = set()
        """The answer was that nobody knows."""
        self.attempts: dict[bytes, int] = defaultdict(int)
        self.held: list[tuple[str, Delivery]] = []


class Simulation:
    def __init__(self, world: QueueWorld, rng: random.Random) -> None:
        self.world = world
        self.rng = rng
        self.books = Books()

    # ---- what workers do

    async def send(self) -> None:
        count = self.rng.randint(1, 6)
        first = len(self.books.sent)
        kinds = [b"poison" if self.rng.random() < 0.15 else b"good" for _ in range(count)]
        values = [b"%s-%d" % (kind, first + place) for place, kind in enumerate(kinds)]
        self.books.sent.update(values)
        await self.world.send(*values, partition=self.rng.randrange(PARTITIONS))

    async def poll(self, member: str, *, wait: float) -> None:
        with suppress(QueueRefusedError):
            for delivery in await self.world.take(self.rng.randint(1, 5), member=member, wait=wait):
                value = delivery.record.value or b""
                assert value not in self.books.acked, "an acked message came again"
                assert self.books.attempts[value] < delivery.attempt <= ATTEMPTS_MAX
                self.books.attempts[value] = delivery.attempt
                self.books.held.append((member, delivery))

    async def settle(self) -> None:
        if not self.books.held:
            return
        member, delivery = self.books.held.pop(self.rng.randrange(len(self.books.held)))
        choice = self.rng.random()
        if choice < 0.1:
            # Its worker forgets about it.
            return
        if choice < 0.2:
            await self.world.host.settle(
                self.world.group, member, [delivery.token], partial(Extend, visibility_ms=100)
            )
            self.books.held.append((member, delivery))
        elif choice < 0.4 or (delivery.record.value or b"").startswith(b"poison"):
            await self.world.host.settle(
                self.world.group,
                member,
                [delivery.token],
                partial(Nack, delay_ms=self.rng.choice([BACKOFF, 0, 5])),
            )
        else:
            await self.ack(member, delivery)

    async def ack(self, member: str, delivery: Delivery) -> None:
        value = delivery.record.value or b""
        (verdict,) = await self.world.host.settle(self.world.group, member, [delivery.token], Ack)
        if verdict == DONE:
            self.books.acked.add(value)
        elif verdict.reason is ErrorReason.UNAVAILABLE:
            self.books.perhaps_acked.add(value)

    # ---- what goes wrong

    async def step(self) -> None:
        rng, ledger = self.rng, self.world.ledger
        if rng.random() < 0.4:
            await self.send()
        jobs = [self.poll(rng.choice(MEMBERS), wait=rng.choice([0, 0.003])) for _ in range(2)]
        jobs += [self.settle() for _ in range(rng.randint(0, 3))]
        fault = rng.random()
        if fault < 0.08:
            ledger.fails_before = 1
        elif fault < 0.16:
            ledger.fails_after = 1
        elif fault < 0.2:
            ledger.comes_late = 1
        elif fault < 0.22:
            ledger.fails_loading = 1
        elif fault < 0.25:
            self.world.append_failures = 2
        elif fault < 0.3:
            jobs.append(self.world.host.evict("g", rng.choice(MEMBERS)))
        is_changed = fault > 0.94
        running = [asyncio.create_task(job) for job in jobs]
        if is_changed:
            for _ in range(rng.randrange(6)):
                await asyncio.sleep(0)
            await self.world.change_leader()
        await asyncio.gather(*running)
        if rng.random() < 0.5:
            self.world.pass_time(rng.choice([1, 10, 60]))

    # ---- the end

    async def finish(self) -> None:
        """All is well again, and the workers are honest."""
        ledger = self.world.ledger
        ledger.fails_before = ledger.fails_after = ledger.fails_loading = ledger.comes_late = 0
        self.world.append_failures = 0
        self.books.held.clear()
        async with asyncio.timeout(60):
            while not await self.is_done():
                self.world.pass_time(200)
                await asyncio.sleep(0.001)
                await self.poll("w1", wait=0.002)
                held, self.books.held = self.books.held, []
                for member, delivery in held:
                    if (delivery.record.value or b"").startswith(b"poison"):
                        await self.world.host.settle(
                            self.world.group,
                            member,
                            [delivery.token],
                            partial(Nack, delay_ms=0, reason="poison"),
                        )
                    else:
                        await self.ack(member, delivery)

    async def is_done(self) -> bool:
        topic = self.world.topics["t"]
        try:
            every = [
                await self.world.host.stats(self.world.group, topic, part.index)
                for part in topic.partitions
            ]
        except QueueRefusedError:
            return False
        return all(one.is_here and one.floor == one.end for one in every)

    def check(self) -> None:
        books = self.books
        dead: dict[bytes | None, tuple[bytes | None, bytes | None]] = {}
        for record in self.world.stored("g.dead") if "g.dead" in self.world.topics else []:
            headers = dict(record.headers)
            assert headers[DEAD_ATTEMPTS_HEADER] == b"%d" % ATTEMPTS_MAX
            origin = (headers[DEAD_PARTITION_HEADER], headers[DEAD_OFFSET_HEADER])
            assert dead.setdefault(record.value, origin) == origin
        assert not books.acked & dead.keys(), "acked, and a dead letter"
        assert books.acked | books.perhaps_acked | dead.keys() == books.sent, "lost"
        poison = {value for value in books.sent if value.startswith(b"poison")}
        assert poison <= dead.keys()


@pytest.mark.parametrize("seed", seeds(6))
async def test_whatever_happens_every_message_is_done_once_or_dead(seed: int) -> None:
    world = await QueueWorld.make(
        partitions=PARTITIONS, attempts_max=ATTEMPTS_MAX, visibility_ms=100, backoff_ms=5
    )
    simulation = Simulation(world, random.Random(seed))
    for _ in range(STEPS):
        await simulation.step()
    await simulation.finish()
    simulation.check()
    world.host.stop()
