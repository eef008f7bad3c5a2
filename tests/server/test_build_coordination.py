"""A broker hosts what is coordinated, from its start on and through the next one."""

import asyncio
from pathlib import Path

import pytest
from ledger_world import QueueLeader

from moldau.leases.state import QueueId
from moldau.metadata.image import QUEUE_STATE_TOPIC
from moldau.model.ids import PartitionIndex
from moldau.model.topology import Endpoint
from moldau.server.broker import BrokerServer
from moldau.server.config.coordination_schema import QueueConfig
from moldau.server.config.schema import (
    GrpcConfig,
    HttpConfig,
    KafkaConfig,
    RaftConfig,
    ServerConfig,
)
from moldau.server.machine import Machine
from moldau.testing.waiting import wait_seconds_max

pytestmark = pytest.mark.inprocess


def fail(error: BaseException) -> None:
    raise AssertionError(f"the broker ended: {error!r}")


async def start(directory: Path) -> BrokerServer:
    free = Endpoint("127.0.0.1", 0)
    config = ServerConfig(
        data_dir=str(directory),
        bootstrap=True,
        kafka=KafkaConfig(addr=free),
        raft=RaftConfig(addr=free),
        http=HttpConfig(addr=free),
        grpc=GrpcConfig(addr=free),
        queue=QueueConfig(state_partitions=3),
    )
    server = BrokerServer(
        config,
        Machine(),
        on_storage_failure=fail,
        on_internal_error=fail,
        on_removed=lambda: fail(AssertionError("removed")),
    )
    try:
        async with asyncio.timeout(wait_seconds_max()):
            await server.start()
    except BaseException:
        await server.abandon()
        raise
    return server


async def test_queues_are_stored_across_a_restart_until_their_topic_is_deleted(
    tmp_path: Path,
) -> None:
    server = await start(tmp_path)
    topic = await server._broker.topics.create("t", partitions=1, replication_factor=1)
    ledgers = server._coordinators.ledgers
    queues = [QueueId(f"g{n}", topic.topic_id, PartitionIndex(0)) for n in range(9)]
    for queue in queues:
        leader = QueueLeader(ledgers, queue, epoch=1)
        await leader.take_over()
        await leader.work(2)
    stored = [await ledgers.stored(queue) for queue in queues]
    image = server._broker.topics.image
    assert len(image.topics[QUEUE_STATE_TOPIC].partitions) == 3
    await server.stop()

    server = await start(tmp_path)
    ledgers = server._coordinators.ledgers
    assert [await ledgers.stored(queue) for queue in queues] == stored
    await server._broker.topics.delete(name="t")
    async with asyncio.timeout(wait_seconds_max()):
        while any([await ledgers.stored(queue) for queue in queues]):
            await asyncio.sleep(0.02)
    await server.stop()
