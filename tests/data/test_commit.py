"""The broker's own writes: told when they are committed, and when they never will be."""

import asyncio

import pytest
from memory_log import MemoryLog
from replica_brokers import ReplicaCluster, make_batch, values, write

from moldau.data.commit import commit_batch, trim_replica
from moldau.log.interface import LogConfig
from moldau.model.errors import DiskFullError, ErrorCode
from moldau.model.ids import Offset
from moldau.replica.replica import Replica
from moldau.testing.replicas import lead_replica, make_driver, make_flusher

pytestmark = pytest.mark.inprocess


class World:
    """A broker alone."""

    replica: Replica

    def __init__(self) -> None:
        self.log = MemoryLog(LogConfig())
        self.flusher = make_flusher()
        self.driver = make_driver(self.flusher)

    @classmethod
    async def make(cls) -> "World":
        world = cls()
        world.replica = await lead_replica(world.log, world.flusher, driver=world.driver)
        return world

    def stop(self) -> None:
        self.driver.stop()
        self.flusher.stop()


async def test_a_batch_is_answered_when_it_is_committed() -> None:
    world = await World.make()
    writing = asyncio.create_task(commit_batch(world.replica, bytes(make_batch(b"a"))))
    await asyncio.sleep(0)
    assert (world.log.end_offset, world.replica.high_watermark) == (1, 0)
    assert await writing is ErrorCode.NONE
    assert world.replica.high_watermark == 1
    world.stop()


async def test_a_full_disk_is_reported_and_nothing_is_stored() -> None:
    world = await World.make()

    def full(*arguments: object) -> None:
        raise DiskFullError("no room")

    world.log.append = full  # type: ignore[method-assign, assignment]
    world.log.append_control = full  # type: ignore[method-assign, assignment]
    written = await commit_batch(world.replica, bytes(make_batch(b"a")))
    assert (written, world.log.end_offset) == (ErrorCode.KAFKA_STORAGE_ERROR, 0)
    assert await trim_replica(world.replica, Offset(0)) is ErrorCode.KAFKA_STORAGE_ERROR
    world.stop()


async def test_a_batch_of_a_leader_that_falls_is_answered_with_that() -> None:
    async with ReplicaCluster(3) as cluster:
        cluster.add_group()
        leader = await cluster.ready()
        await write(leader.replica, make_batch(b"a"))
        leader = await cluster.ready()
        cluster.cut_off(leader)
        answers = await asyncio.gather(
            commit_batch(leader.replica, bytes(make_batch(b"b"))),
            trim_replica(leader.replica, Offset(1)),
        )
        assert list(answers) == [ErrorCode.NOT_LEADER_OR_FOLLOWER] * 2
        assert leader.replica.log.start_offset == 0


async def test_a_request_that_gives_up_waiting_disturbs_no_other() -> None:
    world = await World.make()
    given_up = [
        asyncio.create_task(commit_batch(world.replica, bytes(make_batch(b"a")))),
        asyncio.create_task(trim_replica(world.replica, Offset(0))),
    ]
    await asyncio.sleep(0)
    for task in given_up:
        task.cancel()
    assert await commit_batch(world.replica, bytes(make_batch(b"b"))) is ErrorCode.NONE
    assert values(world.replica) == [b"a", b"b"]
    assert await trim_replica(world.replica, Offset(1)) is ErrorCode.NONE
    assert values(world.replica) == [b"b"]
    world.stop()
