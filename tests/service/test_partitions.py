"""Partitions follow the metadata: opened, led, dropped; also on a full or failed disk."""

import asyncio
from collections.abc import Callable

import pytest

from moldau.log.interface import LogConfig, PartitionLog
from moldau.log.memory import MemoryLog
from moldau.metadata.apply import apply
from moldau.metadata.commands import Command, CreateTopic, DeleteTopic, RegisterBroker
from moldau.metadata.decide import decide
from moldau.metadata.image import EMPTY_IMAGE, Image
from moldau.model.errors import DiskFullError, ErrorCode, RefusedError, StorageError
from moldau.model.ids import PartitionIndex, TopicId
from moldau.service.partitions import Partitions
from moldau.testing.replicas import ME, MemoryVotes, SetClock, make_flusher

TOPIC_ID = TopicId(b"0123456789abcdef")


class TroubledLog(MemoryLog):
    failure: StorageError | None = None

    def append_control(self, *arguments: object) -> None:
        if self.failure is not None:
            raise self.failure
        super().append_control(*arguments)  # type: ignore[arg-type]


class World:
    def __init__(self) -> None:
        self.failures: list[StorageError] = []
        self.votes = MemoryVotes()
        self.logs: dict[int, TroubledLog] = {}
        self.dropped: list[int] = []
        self.log_failures: dict[int, StorageError] = {}
        self.flusher = make_flusher(on_failure=self.failures.append)
        self.partitions = Partitions(
            broker=ME,
            open_log=self._open_log,
            drop_log=lambda name, topic_id, index: self.dropped.append(index),
            votes=self.votes,
            flusher=self.flusher,
            clock=SetClock(),
            defaults={},
        )
        self.image: Image = EMPTY_IMAGE
        self.submit(
            RegisterBroker(id=ME, host="localhost", port=9092, rack=None, incarnation="one")
        )

    def _open_log(
        self, name: str, topic_id: TopicId, index: PartitionIndex, config: LogConfig
    ) -> PartitionLog:
        log = self.logs[index] = TroubledLog(config)
        log.failure = self.log_failures.get(index)
        return log

    def submit(self, command: Command) -> None:
        for record in decide(command, self.image):
            self.image = apply(self.image, record)
        self.partitions.reconcile(self.image)

    def create(self, partitions: int = 3) -> None:
        self.submit(
            CreateTopic(
                name="t",
                topic_id=TOPIC_ID,
                partitions=partitions,
                replication_factor=1,
                assignments=None,
                configs={},
                internal=False,
            )
        )

    @property
    def ready(self) -> list[bool]:
        found = [self.partitions.get("t", index) for index in range(3)]
        return [hosted is not None and hosted.replica.is_ready for hosted in found]


async def test_a_topic_of_many_partitions_is_opened_and_dropped_in_turns_of_the_loop() -> None:
    world = World()
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            for index in range(100):
                hosted = world.partitions.get("t", index)
                assert hosted is None or hosted.replica.is_ready
            await asyncio.sleep(0)

    counting = asyncio.create_task(count_turns())
    for command in (
        CreateTopic(name="t", topic_id=TOPIC_ID, partitions=100, replication_factor=1),
        DeleteTopic(name="t"),
    ):
        for record in decide(command, world.image):
            world.image = apply(world.image, record)
        turns = 0
        await world.partitions.reconcile_gently(world.image)
        assert turns >= 4
    counting.cancel()
    assert (len(world.partitions), sorted(world.dropped)) == (0, list(range(100)))
    world.flusher.stop()


async def test_a_partition_without_room_for_its_no_op_waits_offline_and_the_others_lead() -> None:
    world = World()
    world.log_failures[1] = DiskFullError("no room")
    world.create()
    assert world.ready == [True, False, True]
    with pytest.raises(RefusedError) as refused:
        world.partitions.find("t", 1)
    assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    world.partitions.retry_offline()
    assert world.ready == [True, False, True]
    world.log_failures.clear()
    world.partitions.retry_offline()
    assert world.ready == [True, True, True]
    assert (world.partitions.offline, world.failures) == ({}, [])


async def test_without_room_for_the_votes_nothing_leads_until_there_is() -> None:
    world = World()
    world.votes.failure = DiskFullError("no room")
    world.create()
    assert world.ready == [False, False, False]
    world.votes.failure = None
    world.partitions.retry_offline()
    assert world.ready == [True, True, True]


@pytest.mark.parametrize("where", ["votes", "log", "drop"])
async def test_a_failed_disk_is_reported_so_that_the_process_ends(where: str) -> None:
    world = World()
    failure = StorageError("the disk is gone")

    def fail(*arguments: object) -> None:
        raise failure

    act: Callable[[], None] = world.create
    if where == "votes":
        world.votes.failure = failure
    elif where == "log":
        world.log_failures[2] = failure
    else:
        world.create()
        world.partitions._drop_log = fail
        act = lambda: world.submit(DeleteTopic(name="t", topic_id=None))  # noqa: E731
    with pytest.raises(StorageError):
        act()
    assert world.failures == [failure]


async def test_who_waits_for_a_deleted_topic_is_told_and_its_log_is_not_flushed() -> None:
    world = World()
    world.create(1)
    hosted = world.partitions.get("t", 0)
    assert hosted is not None
    closed: list[bool] = []
    world.logs[0].close = lambda: closed.append(True)
    told: list[ErrorCode] = []
    hosted.replica.when_committed(hosted.replica.high_watermark + 1, told.append)  # type: ignore[arg-type]
    world.submit(DeleteTopic(name="t", topic_id=None))
    assert told == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert (world.dropped, closed) == ([0], [])
    assert world.partitions.get("t", 0) is None
