"""Partitions on a disk that is full, or fails, or is found as a crash left it."""

import asyncio
from pathlib import Path

import pytest
from partitions_world import OTHER, World, creation, moved, reported

from moldau.control.metadata_replica import MetadataReplica
from moldau.control.metadata_store import MetadataStore, RemovedReplica
from moldau.data.partitions import Partitions
from moldau.log.datadir import delete_partition, partition_path
from moldau.log.disk_log import open_disk_log
from moldau.log.interface import LogConfig
from moldau.log.os_filesystem import OsFiles
from moldau.metadata.commands import (
    CreateCluster,
    DeleteTopic,
    ReassignPartition,
    RegisterBroker,
    ReportReplicas,
)
from moldau.metadata.image import Image
from moldau.model.errors import CorruptionError, DiskFullError, ErrorCode, MoldauError, StorageError
from moldau.model.ids import BrokerId, Offset, PartitionIndex, TopicId, TopicPartition
from moldau.raft.membership import Members
from moldau.server.clock import SystemClock
from moldau.testing.logs import append
from moldau.testing.replicas import ME, make_driver, make_flusher
from moldau.testing.waiting import until

pytestmark = pytest.mark.inprocess


async def test_a_partition_without_room_for_its_no_op_leads_when_there_is_room() -> None:
    world = World()
    world.append_failures[1] = DiskFullError("no room")
    world.submit(creation())
    await until(lambda: world.ready == [True, False, True], "the others")
    assert world.refusal(1) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    world.logs[1].failure = None
    await until(lambda: world.ready == [True, True, True], "the one without room")
    assert (world.partitions.offline, world.failures) == ({}, [])
    world.stop()


async def test_a_partition_without_room_for_its_files_waits_offline_and_the_others_lead() -> None:
    world = World()
    world.log_failures = {1: DiskFullError("no room"), 2: CorruptionError("damaged")}
    await world.create()
    assert world.ready == [True, False, False]
    assert world.refusal(1) is world.refusal(2) is ErrorCode.KAFKA_STORAGE_ERROR
    world.partitions.retry_offline()
    assert world.refusal(1) is ErrorCode.KAFKA_STORAGE_ERROR
    world.log_failures.clear()
    world.partitions.retry_offline()
    await world.partitions.wait_until_led()
    # What is damaged is left alone, whatever room there is.
    assert world.ready == [True, True, False]
    assert [*world.partitions.offline] == [("t", 2)]
    assert world.failures == []
    world.stop()


async def test_without_room_for_the_votes_nothing_leads_until_there_is() -> None:
    world = World()
    world.votes.failure = DiskFullError("no room")
    world.submit(creation())
    await asyncio.sleep(0.05)
    assert world.ready == [False, False, False]
    world.votes.failure = None
    await until(lambda: world.ready == [True, True, True], "the leaders")
    assert world.failures == []
    world.stop()


@pytest.mark.parametrize("where", ["votes", "append", "open", "drop"])
async def test_a_failed_disk_is_reported_so_that_the_process_ends(where: str) -> None:
    world = World()
    failure = StorageError("the disk is gone")

    def fail(*arguments: object) -> None:
        raise failure

    if where == "votes":
        world.votes.failure = failure
        world.submit(creation())
    elif where == "append":
        world.append_failures[2] = failure
        world.submit(creation())
        await until(lambda: ("t", 2) in world.partitions.offline, "the end of the group")
    elif where == "open":
        world.log_failures[2] = failure
        with pytest.raises(StorageError):
            world.submit(creation())
    else:
        await world.create()
        world.partitions._drop_log = fail
        with pytest.raises(StorageError):
            world.submit(DeleteTopic(name="t"))
    await until(lambda: bool(world.failures), "the report")
    assert world.failures == [failure]
    world.stop()


async def test_an_offline_partition_that_moves_away_is_forgotten() -> None:
    world = World(2)
    world.log_failures[0] = DiskFullError("no room")
    world.submit(creation(assignments={0: (ME,)}))
    assert world.refusal(0) is ErrorCode.KAFKA_STORAGE_ERROR
    world.submit(moved(0, OTHER))
    world.submit(reported(world.image))
    assert (world.partitions.offline, world.dropped) == ({}, [0])
    world.log_failures.clear()
    world.partitions.retry_offline()
    assert len(world.partitions) == 0
    world.stop()


@pytest.mark.parametrize("error", [CorruptionError("damaged"), DiskFullError("no room")])
async def test_a_partition_that_is_taken_offline_answers_all_and_vouches_for_nothing(
    error: MoldauError,
) -> None:
    world = World()
    await world.create()
    replica, log = world.replica(), world.logs[0]
    hosted = world.partitions.get("t", 0)
    assert hosted is not None
    told: list[ErrorCode] = []
    replica.when_committed(Offset(replica.high_watermark + 1), told.append)
    world.partitions.on_failed(replica, error)
    assert told == [ErrorCode.KAFKA_STORAGE_ERROR]
    assert (world.refusal(0), world.told[-1]) == (ErrorCode.KAFKA_STORAGE_ERROR, (0, False))
    assert (log.closed, log.discarded) == (False, isinstance(error, DiskFullError))
    assert (replica.is_open, replica.is_ready, world.dropped) == (False, False, [])
    assert replica.group.name not in world.driver.groups
    world.partitions.take_offline(hosted, CorruptionError("again"))
    assert world.partitions.offline[("t", 0)] is error
    world.partitions.retry_offline()
    await world.partitions.wait_until_led()
    assert world.ready == [isinstance(error, DiskFullError), True, True]
    # Late news of the one that went do not hurt the one that came.
    world.partitions.on_failed(replica, CorruptionError("late"))
    assert world.ready == [isinstance(error, DiskFullError), True, True]
    world.partitions.close()
    assert [log.closed for log in world.logs.values()].count(True) >= 2
    world.stop()


# ---- with the metadata, on disk


class Disk:
    """A broker's metadata and partitions in one directory, as a process has them."""

    def __init__(self, root: Path) -> None:
        self.files = OsFiles(root)
        self.flusher = make_flusher()
        self.driver = make_driver(self.flusher)
        self.metadata_log = open_disk_log(self.files, "metadata", LogConfig())
        self.replica = MetadataReplica(
            partition=TopicPartition("__cluster_metadata", PartitionIndex(0)),
            topic_id=TopicId(bytes(16)),
            log=self.metadata_log,
            members=Members((ME,)),
            driver=self.driver,
            flusher=self.flusher,
            on_leadership=lambda: None,
            on_failed=lambda error: None,
        )
        self.partitions = Partitions(
            open_log=lambda name, topic_id, index, config, new_id: open_disk_log(
                self.files, partition_path(name, topic_id, index), config, new_id
            ),
            drop_log=lambda name, topic_id, index: delete_partition(
                self.files, name, topic_id, index
            ),
            driver=self.driver,
            flusher=self.flusher,
            clock=SystemClock(),
            defaults={},
        )
        self.is_stuck = False
        self.store = MetadataStore(
            self.replica,
            SystemClock(),
            self.driver._transport,
            self._follow,
        )
        self.store.start()

    async def _follow(self, image: Image, gone: list[RemovedReplica]) -> None:
        if self.is_stuck:
            await asyncio.Event().wait()
        self.partitions.forget_logs(gone, image)
        await self.partitions.reconcile(image)

    def crash(self) -> None:
        assert self.store.applying is not None
        self.store.applying.cancel()
        self.driver.stop()
        self.flusher.stop()
        for log in [self.metadata_log, *(hosted.replica.log for hosted in self.partitions)]:
            log.discard()


async def test_what_was_deleted_or_moved_just_before_a_crash_is_gone_after_the_next_start(
    tmp_path: Path,
) -> None:
    disk = Disk(tmp_path)
    await disk.store.submit(CreateCluster(cluster_id="c"))
    for number in (1, 2):
        await disk.store.submit(
            RegisterBroker(id=BrokerId(number), host="h", port=1, incarnation=f"{number}")
        )
    ids = {name: TopicId(name.encode() * 4) for name in ("dele", "move", "kept")}
    for name, topic_id in ids.items():
        await disk.store.submit(
            creation(name=name, topic_id=topic_id, assignments={0: (ME,), 1: (ME,)})
        )
    paths = {
        (name, index): partition_path(name, topic_id, PartitionIndex(index))
        for name, topic_id in ids.items()
        for index in (0, 1)
    }
    assert all(disk.files.exists(path) for path in paths.values())
    disk.is_stuck = True
    asked = [
        asyncio.create_task(disk.store.submit(command))
        for command in (
            DeleteTopic(name="dele"),
            ReassignPartition(topic="move", partition=PartitionIndex(1), replicas=(OTHER,)),
        )
    ]
    await until(
        lambda: (
            disk.store.image.topic("dele") is None
            and disk.store.image.topics["move"].partitions[1].moving
        ),
        "the image",
    )
    wish = disk.store.image.topics["move"].partitions[1].desired_version
    report = ReportReplicas(
        topic_id=ids["move"], partition=PartitionIndex(1), desired_version=wish, voters=(OTHER,)
    )
    asked.append(asyncio.create_task(disk.store.submit(report)))
    await until(lambda: not disk.store.image.topics["move"].partitions[1].moving, "the report")
    for task in asked:
        task.cancel()
    disk.crash()
    assert all(disk.files.exists(path) for path in paths.values())
    again = Disk(tmp_path)
    await until(lambda: again.replica.is_ready, "a leader")
    await again.store.settled(again.metadata_log.end_offset)
    assert {key for key, path in paths.items() if again.files.exists(path)} == {
        ("move", 0),
        ("kept", 0),
        ("kept", 1),
    }
    assert len(again.partitions) == 3
    again.crash()


async def test_what_was_moved_away_and_back_is_kept_when_a_start_reads_both_again(
    tmp_path: Path,
) -> None:
    disk = Disk(tmp_path)
    await disk.store.submit(CreateCluster(cluster_id="c"))
    for number in (1, 2):
        await disk.store.submit(
            RegisterBroker(id=BrokerId(number), host="h", port=1, incarnation=f"{number}")
        )
    await disk.store.submit(creation(assignments={0: (ME,)}))
    for replicas in ((OTHER,), (ME,)):
        await disk.store.submit(
            ReassignPartition(topic="t", partition=PartitionIndex(0), replicas=replicas)
        )
        await disk.store.submit(reported(disk.store.image))
    # It is a voter again, and what it stores from now on it acknowledges.
    log = disk.partitions.find("t", 0).replica.log
    append(log)
    end = log.end_offset
    flush = log.begin_flush()
    assert flush is not None
    flush.run()
    log.end_flush(flush)
    disk.crash()
    again = Disk(tmp_path)
    await until(lambda: again.replica.is_ready, "a leader")
    await again.store.settled(again.metadata_log.end_offset)
    assert again.partitions.find("t", 0).replica.log.end_offset == end
    again.crash()
