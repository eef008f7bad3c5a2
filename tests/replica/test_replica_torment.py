"""Idempotent producers against replicas that are cut off and restarted all the time.

Deposed leaders are written to as well, and every batch is sent again and again, as by clients whose
replies are lost. Whatever happens, the memory of producers is what the log says, nothing is stored
twice, and what was acknowledged stays where it was.
"""

import asyncio
import random
import time
from collections.abc import Callable
from typing import Any

import pytest
from replica_brokers import ReplicaBroker, ReplicaCluster, make_batch, propose, values

from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import Offset, TimestampMs
from moldau.raft.config import RaftConfig
from moldau.replica.producers import ProducerTable

pytestmark = pytest.mark.inprocess

SECONDS = 3.0
IN_FLIGHT = 5
CONFIG = RaftConfig(
    election_ms_min=80, election_ms_max=160, retry_ms=40, snapshot_retry_ms=200, transfer_ms_max=150
)


def check_memory(broker: ReplicaBroker, producers: list["Producer"]) -> None:
    """The table that was kept up with the log is the one that the log gives. It may lack the oldest
    batches of a producer whose newest were cut, if these are acknowledged: nobody sends them
    again."""
    replica = broker.replica
    told = ProducerTable()
    told.replay(replica.log.headers(replica.log.start_offset), TimestampMs(0), lambda _: None)
    for producer, state in told:
        known = replica.producers.get(producer)
        assert known is not None, f"broker {broker.id} has forgotten producer {producer}"
        assert known.batches, f"broker {broker.id}, producer {producer}"
        newest = state.batches[-len(known.batches) :]
        assert known.batches == newest, f"broker {broker.id}, producer {producer}"
        pending = producers[producer].pending
        for batch in state.batches[: -len(known.batches)]:
            assert not pending or batch.last_sequence < pending[0][0], f"{broker.id}: {batch}"


class Producer:
    """Sends in order, up to five batches ahead, to everybody who believes to lead."""

    def __init__(self, cluster: ReplicaCluster, number: int, chance: random.Random) -> None:
        self.cluster, self.number, self.chance = cluster, number, chance
        self.sequence = 0
        self.pending: list[tuple[int, list[bytes]]] = []
        self.acknowledged: dict[bytes, int] = {}

    def fill(self) -> None:
        while len(self.pending) < IN_FLIGHT:
            count = self.chance.choice([1, 1, 2, 3])
            made = [b"%d:%d" % (self.number, self.sequence + i) for i in range(count)]
            self.pending.append((self.sequence, made))
            self.sequence += count

    async def run(self, is_over: Callable[[], bool]) -> None:
        while not is_over():
            self.fill()
            sent = []
            for broker in self.cluster.running:
                if broker.replica.is_leader:
                    sent += self.send(broker)
            if sent:
                seconds = self.chance.choice([0.005, 0.02, 0.1])
                await asyncio.wait([done for _, _, done in sent], timeout=seconds)
            for made, offset, done in sent:
                if done.done() and done.result() is ErrorCode.NONE:
                    for place, value in enumerate(made):
                        assert self.acknowledged.setdefault(value, offset + place) == offset + place
            while self.pending and all(v in self.acknowledged for v in self.pending[0][1]):
                self.pending.pop(0)
            await asyncio.sleep(self.chance.choice([0, 0.001, 0.01]))

    def send(self, broker: ReplicaBroker) -> list[tuple[list[bytes], Offset, asyncio.Future[Any]]]:
        sent = []
        for sequence, made in self.pending:
            data = make_batch(*made, producer=self.number, sequence=sequence)
            try:
                proposal = propose(broker.replica, data)
            except RefusedError:
                # It leads no longer; or was deposed, and lacks what others acknowledged.
                break
            done = asyncio.get_running_loop().create_future()
            broker.replica.when_committed(proposal.end_offset, done.set_result)
            sent.append((made, proposal.base_offset, done))
            if self.chance.random() < 0.1:
                break
        return sent


async def torment(
    cluster: ReplicaCluster,
    producers: list[Producer],
    chance: random.Random,
    is_over: Callable[[], bool],
) -> int:
    """Cut off and restart brokers one after another; returns how often."""
    count = 0
    while not is_over():
        await asyncio.sleep(chance.uniform(0.02, 0.3))
        leaders = [broker for broker in cluster.running if broker.replica.is_leader]
        broker = chance.choice([*cluster.all, *leaders])
        if chance.random() < 0.5:
            cluster.cut_off(broker)
            await asyncio.sleep(chance.uniform(0, 0.4))
            cluster.introduce()
        else:
            broker.stop()
            await asyncio.sleep(chance.uniform(0, 0.4))
            await cluster.restart(int(broker.id))
        for each in cluster.running:
            check_memory(each, producers)
        count += 1
    return count


@pytest.mark.parametrize("seed", [1, 2])
async def test_nothing_is_forgotten_stored_twice_or_lost(seed: int) -> None:
    chance = random.Random(seed)
    async with ReplicaCluster(3, config=CONFIG, heartbeat_ms=15) as cluster:
        cluster.add_group(0)
        ends = time.monotonic() + SECONDS
        producers = [Producer(cluster, number, chance) for number in range(3)]

        def is_over() -> bool:
            """After a while; a slow machine may need longer to get anything done."""
            return time.monotonic() > ends and all(one.acknowledged for one in producers)

        tasks = [asyncio.create_task(producer.run(is_over)) for producer in producers]
        assert await torment(cluster, producers, chance, is_over)
        await asyncio.gather(*tasks)
        await cluster.alike()
        for broker in cluster.running:
            check_memory(broker, producers)
        stored = values(cluster.running[0].replica)
        assert len(stored) == len(set(stored))
        for producer in producers:
            for value, offset in producer.acknowledged.items():
                assert stored[offset] == value
        assert sum(len(producer.acknowledged) for producer in producers)
