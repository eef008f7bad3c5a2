"""Partitions follow the metadata: opened, led, left, dropped; also on a full or failed disk."""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import pytest
from raft_brokers import Broker, Cluster, RealClock, until
from replica_brokers import make_batch, members

from moldau.log.datadir import delete_partition, partition_path
from moldau.log.disk import open_disk_log
from moldau.log.files import OsFiles
from moldau.log.interface import LogConfig, PartitionLog
from moldau.log.memory import MemoryLog
from moldau.metadata.apply import apply
from moldau.metadata.commands import (
    AlterBrokerConfigs,
    AlterTopicConfigs,
    Command,
    ConfigChange,
    ConfigOperation,
    CreateCluster,
    CreatePartitions,
    CreateTopic,
    DeleteTopic,
    ReassignPartition,
    RegisterBroker,
    ReportReplicas,
)
from moldau.metadata.decide import decide
from moldau.metadata.image import CLUSTER_DEFAULT, EMPTY_IMAGE, Image, Partition
from moldau.model.errors import (
    CorruptionError,
    DiskFullError,
    ErrorCode,
    MoldauError,
    RefusedError,
    StorageError,
)
from moldau.model.flush import FlushPolicy
from moldau.model.ids import (
    BrokerId,
    Epoch,
    Offset,
    PartitionIndex,
    RaftIndex,
    TopicId,
    TopicPartition,
)
from moldau.raft.config import RaftConfig
from moldau.raft.membership import Members
from moldau.replica.peer_codec import encode_append
from moldau.replica.replica import Replica
from moldau.service.disk import DiskGuard
from moldau.service.fetch import FetchRequest, FetchResult, FetchService
from moldau.service.metadata_store import Gone, MetadataReplica, MetadataStore
from moldau.service.offsets import LATEST, OffsetService
from moldau.service.partitions import Hosted, Partitions, first_members
from moldau.service.produce import ACKS_ALL, ACKS_LEADER, ProduceService
from moldau.testing.logs import append
from moldau.testing.replicas import ME, MemoryVotes, NotingListener, make_driver, make_flusher

TOPIC_ID = TopicId(b"0123456789abcdef")
OTHER, THIRD = BrokerId(2), BrokerId(3)


class TroubledLog(MemoryLog):
    failure: StorageError | None = None
    closed = False
    discarded = False

    def append_control(self, *arguments: object) -> None:
        if self.failure is not None:
            raise self.failure
        super().append_control(*arguments)  # type: ignore[arg-type]

    def close(self) -> None:
        self.closed = True
        super().close()

    def discard(self) -> None:
        self.discarded = True
        super().discard()


def changed(image: Image, command: Command) -> Image:
    for record in decide(command, image):
        image = apply(image, record)
    return image


def creation(
    partitions: int = 3,
    *,
    name: str = "t",
    topic_id: TopicId = TOPIC_ID,
    assignments: Mapping[int, Sequence[int]] | None = None,
    configs: Mapping[str, str] | None = None,
) -> CreateTopic:
    return CreateTopic(
        name=name,
        topic_id=topic_id,
        partitions=partitions if assignments is None else -1,
        replication_factor=1 if assignments is None else -1,
        assignments=assignments,
        configs=configs or {},
    )


class World:
    """Broker 1 of as many as the test wants; nobody hears it but itself."""

    def __init__(self, brokers: int = 1, config: RaftConfig | None = None) -> None:
        self.failures: list[StorageError] = []
        self.votes = MemoryVotes()
        self.logs: dict[int, TroubledLog] = {}
        self.dropped: list[int] = []
        self.log_failures: dict[int, MoldauError] = {}
        """By partition: what its log says when it is opened."""
        self.append_failures: dict[int, StorageError] = {}
        """And what it says when it is written to."""
        self.told: list[tuple[int, bool]] = []
        self.flusher = make_flusher(on_failure=self.failures.append)
        self.driver = make_driver(
            self.flusher,
            clock=RealClock(),
            votes=self.votes,
            config=config or RaftConfig(election_ms_min=50, election_ms_max=100),
        )
        self.partitions = Partitions(
            open_log=self._open_log,
            drop_log=lambda name, topic_id, index: self.dropped.append(index),
            driver=self.driver,
            flusher=self.flusher,
            clock=RealClock(),
            defaults={},
        )
        self.partitions.on_leadership = lambda replica: self.told.append(
            (replica.partition.partition, replica.is_ready)
        )
        self.image: Image = EMPTY_IMAGE
        for number in range(1, brokers + 1):
            self.submit(
                RegisterBroker(id=BrokerId(number), host="h", port=9092, incarnation=f"{number}")
            )

    def _open_log(
        self, name: str, topic_id: TopicId, index: PartitionIndex, config: LogConfig
    ) -> PartitionLog:
        if index in self.log_failures:
            raise self.log_failures[index]
        log = self.logs[index] = TroubledLog(config)
        log.failure = self.append_failures.get(index)
        return log

    def submit(self, command: Command) -> None:
        self.image = changed(self.image, command)
        self.partitions.reconcile(self.image)

    async def create(self, partitions: int = 3) -> None:
        self.submit(creation(partitions))
        await self.partitions.wait_led()

    def hosted(self, index: int) -> Hosted:
        hosted = self.partitions.get("t", index)
        assert hosted is not None
        return hosted

    def replica(self, index: int = 0) -> Replica:
        return self.hosted(index).replica

    @property
    def ready(self) -> list[bool]:
        found = [self.partitions.get("t", index) for index in range(3)]
        return [hosted is not None and hosted.replica.is_ready for hosted in found]

    def refusal(self, index: int, name: str = "t") -> ErrorCode:
        with pytest.raises(RefusedError) as refused:
            self.partitions.lead(name, index)
        return refused.value.code

    def stop(self) -> None:
        self.driver.stop()
        self.flusher.stop()


async def test_a_topic_of_many_partitions_is_opened_and_dropped_in_turns_of_the_loop() -> None:
    world = World()
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count_turns())
    for command in (creation(100), DeleteTopic(name="t")):
        world.image = changed(world.image, command)
        turns = 0
        await world.partitions.reconcile_gently(world.image)
        assert turns >= 4
        await world.partitions.wait_led()
        assert all(hosted.replica.is_ready for hosted in world.partitions)
    counting.cancel()
    assert (len(world.partitions), sorted(world.dropped)) == (0, list(range(100)))
    assert world.driver.groups == {}
    world.stop()


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
    await world.partitions.wait_led()
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


async def test_who_waits_for_a_deleted_topic_is_told_and_its_log_is_not_flushed() -> None:
    world = World()
    await world.create(1)
    replica, log = world.replica(), world.logs[0]
    told: list[ErrorCode] = []
    replica.when_committed(Offset(replica.high_watermark + 1), told.append)
    await until(lambda: bool(world.votes.groups), "the vote")
    world.submit(DeleteTopic(name="t"))
    assert told == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert (world.dropped, log.closed, log.discarded) == ([0], False, True)
    assert world.partitions.get("t", 0) is None
    assert world.refusal(0) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert world.told[-1] == (0, False)
    assert world.driver.groups == {}
    await until(lambda: not world.votes.groups, "the vote to be forgotten")
    world.stop()


async def test_a_topic_that_is_made_anew_under_its_name_is_another_one() -> None:
    world = World()
    await world.create(2)
    old = world.replica()
    again = TopicId(b"fedcba9876543210")
    world.image = changed(world.image, DeleteTopic(name="t"))
    world.submit(creation(1, topic_id=again))
    await world.partitions.wait_led()
    assert (world.dropped, len(world.partitions)) == ([0, 1], 1)
    assert (world.replica().topic_id, old.is_open, world.replica().is_open) == (again, False, True)
    # What an earlier process left of the old one goes, and the new one stays.
    world.dropped.clear()
    world.partitions.forget_logs(
        [("t", TOPIC_ID, PartitionIndex(0)), ("t", again, PartitionIndex(0))], world.image
    )
    assert (world.dropped, world.replica().is_ready) == ([0], True)
    world.stop()


async def test_only_replicas_of_this_broker_are_opened_and_new_partitions_too() -> None:
    world = World(3)
    world.submit(creation(assignments={0: (ME, THIRD), 1: (OTHER, THIRD), 2: (OTHER, ME)}))
    assert [world.partitions.get("t", index) is not None for index in range(3)] == [
        True,
        False,
        True,
    ]
    assert world.refusal(1) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert world.refusal(2) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert world.refusal(3) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert world.refusal(-1) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert world.refusal(0, "other") is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert world.replica(2).members == members((1, 2))
    before = world.replica()
    world.submit(CreatePartitions(topic="t", count=5, assignments=((OTHER, THIRD), (ME, THIRD))))
    assert world.partitions.get("t", 3) is None
    assert world.replica(4).members == members((1, 3))
    assert world.replica() is before
    world.stop()


def reported(image: Image, index: int = 0) -> ReportReplicas:
    """The move of a partition is over."""
    partition = image.topics["t"].partitions[index]
    return ReportReplicas(
        topic_id=TOPIC_ID,
        partition=PartitionIndex(index),
        wish=partition.wish,
        voters=partition.target,
    )


def moved(index: int, *replicas: int) -> ReassignPartition:
    return ReassignPartition(topic="t", partition=PartitionIndex(index), replicas=replicas)


async def test_a_partition_is_left_when_its_move_is_over_and_not_before() -> None:
    world = World(3)
    world.submit(creation(assignments={0: (ME,), 1: (ME,)}))
    await world.partitions.wait_led()
    told: list[ErrorCode] = []
    replica, log = world.replica(), world.logs[0]
    replica.when_committed(Offset(replica.high_watermark + 1), told.append)
    world.submit(moved(0, OTHER, THIRD))
    assert (world.replica(), world.dropped, told) == (replica, [], [])
    assert replica.is_ready
    world.submit(reported(world.image))
    assert told == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    assert (world.dropped, log.discarded, log.closed) == ([0], True, False)
    assert world.told[-1] == (0, False)
    assert world.refusal(0) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert world.replica(1).is_ready
    # Should it come back, it must still know whom it helped to depose.
    epoch = world.votes.get(replica.group.name)[0]
    await asyncio.sleep(0.05)
    assert (epoch, len(world.votes.groups)) == (replica.epoch, 2)
    world.submit(moved(0, OTHER, THIRD, ME))
    assert (world.replica().epoch, world.replica().group.core.may_vote) == (epoch, False)
    world.submit(moved(0, OTHER, THIRD))
    world.submit(reported(world.image))
    world.submit(DeleteTopic(name="t"))
    await until(lambda: not world.votes.groups, "the votes to be forgotten")
    world.stop()


async def test_one_that_a_partition_moves_to_opens_as_a_learner_and_stands_for_nothing() -> None:
    world = World(3)
    world.submit(creation(assignments={0: (OTHER, THIRD)}))
    assert world.partitions.get("t", 0) is None
    world.submit(moved(0, ME, OTHER))
    assert world.replica().members == members((2, 3), (1,))
    assert not world.replica().group.core.may_vote
    await asyncio.sleep(0.3)
    assert (world.replica().epoch, world.replica().leader) == (-1, -1)
    world.submit(reported(world.image))
    assert world.replica().is_open
    # The metadata alone gives no vote: the group's own log does.
    assert not world.replica().group.core.may_vote
    world.stop()


def test_the_first_members_of_a_group_are_the_replicas_before_a_move_and_who_learns() -> None:
    still = Partition(PartitionIndex(0), (THIRD, ME))
    assert first_members(still) == members((1, 3))
    moving = Partition(
        PartitionIndex(0), (OTHER, THIRD, ME), target=(OTHER, THIRD), origin=(THIRD, ME)
    )
    assert first_members(moving) == members((1, 3), (2,))


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
    await world.partitions.wait_led()
    assert world.ready == [isinstance(error, DiskFullError), True, True]
    # Late news of the one that went do not hurt the one that came.
    world.partitions.on_failed(replica, CorruptionError("late"))
    assert world.ready == [isinstance(error, DiskFullError), True, True]
    world.partitions.close()
    assert [log.closed for log in world.logs.values()].count(True) >= 2
    world.stop()


async def test_settings_reach_the_logs_that_are_open() -> None:
    world = World()
    await world.create(1)
    config = ConfigChange(name="retention.ms", operation=ConfigOperation.SET, value="77")
    world.submit(AlterTopicConfigs(topic="t", changes=(config,)))
    assert world.logs[0].config.retention_ms == 77
    hosted = world.partitions.get("t", 0)
    assert hosted is not None
    assert hosted.config.retention_ms == 77
    segment = ConfigChange(name="log.segment.bytes", operation=ConfigOperation.SET, value="99999")
    world.submit(AlterBrokerConfigs(broker_id=CLUSTER_DEFAULT, changes=(segment,)))
    assert world.logs[0].config.segment_bytes_max == 99999
    assert (world.logs[0].config.retention_ms, world.replica().is_ready) == (77, True)
    world.stop()


async def test_a_follower_serves_no_client() -> None:
    world = World(2)
    world.submit(creation(assignments={0: (OTHER, ME)}))
    world.submit(creation(1, name="led", topic_id=TopicId(b"9" * 16), assignments={0: (ME,)}))
    await world.partitions.wait_led()
    answers: list[list[FetchResult]] = []
    FetchService(asyncio.get_running_loop(), world.partitions).fetch(
        [FetchRequest(name, 0, Offset(0), 1000, -1) for name in ("t", "led")],
        bytes_min=1,
        bytes_max=1000,
        wait_ms_max=60_000,
        on_ready=answers.append,
    )
    assert [result.error for result in answers[0]] == [
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.NONE,
    ]
    offsets = OffsetService(world.partitions)
    produce = ProduceService(world.partitions, DiskGuard(), RealClock())
    for act in (
        lambda: offsets.list_offset("t", 0, LATEST),
        lambda: offsets.epoch_end("t", 0, 0),
        lambda: produce.append("t", 0, memoryview(make_batch(b"a")), ACKS_LEADER),
        lambda: produce.append("t", 0, memoryview(make_batch(b"a")), ACKS_ALL),
    ):
        with pytest.raises(RefusedError) as refused:
            act()
        assert refused.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    follower = world.partitions.get("t", 0)
    assert follower is not None
    assert follower.replica.log.end_index == 0
    assert offsets.list_offset("led", 0, LATEST).offset == 0
    world.stop()


async def test_too_few_in_sync_refuse_who_wants_all_and_nobody_else() -> None:
    world = World()
    world.submit(creation(1, configs={"min.insync.replicas": "2"}))
    await world.partitions.wait_led()
    produce = ProduceService(world.partitions, DiskGuard(), RealClock())
    with pytest.raises(RefusedError, match="1 replica is in sync") as refused:
        produce.append("t", 0, memoryview(make_batch(b"a")), ACKS_ALL)
    assert refused.value.code is ErrorCode.NOT_ENOUGH_REPLICAS
    assert world.logs[0].end_offset == 0
    produce.append("t", 0, memoryview(make_batch(b"a")), ACKS_LEADER)
    assert world.logs[0].end_offset == 1
    world.stop()


# ---- three brokers


class PartitionsBroker(Broker):
    """A broker with partitions in memory, which last as long as it."""

    partitions: Partitions

    def start(self) -> None:
        super().start()
        self.partitions = Partitions(
            open_log=self._open,
            drop_log=self._drop,
            driver=self.driver,
            flusher=self.flusher,
            clock=RealClock(),
            defaults={},
        )

    def _open(
        self, name: str, topic_id: TopicId, index: PartitionIndex, config: LogConfig
    ) -> PartitionLog:
        return self.logs.setdefault(index, MemoryLog(config))

    def _drop(self, name: str, topic_id: TopicId, index: PartitionIndex) -> None:
        self.logs.pop(index, None)


class PartitionsCluster(Cluster):
    broker_type = PartitionsBroker

    def follow(self, image: Image) -> None:
        for broker in self.brokers.values():
            assert isinstance(broker, PartitionsBroker)
            broker.partitions.reconcile(image)

    def leaders(self, count: int) -> list[int]:
        found = []
        for index in range(count):
            for broker in self.brokers.values():
                assert isinstance(broker, PartitionsBroker)
                hosted = broker.partitions.get("t", index)
                if hosted is not None and hosted.replica.is_ready:
                    found.append(int(broker.id))
                    break
            else:
                found.append(-1)
        return found


async def test_the_first_replica_of_a_fresh_group_leads_it_at_once() -> None:
    image = EMPTY_IMAGE
    for number in (1, 2, 3):
        image = changed(
            image,
            RegisterBroker(id=BrokerId(number), host="h", port=1, incarnation=f"{number}"),
        )
    firsts = [1, 2, 3, 3, 2, 1, 2, 2, 3, 1, 3, 1]
    rows = {
        index: (first, first % 3 + 1, (first + 1) % 3 + 1) for index, first in enumerate(firsts)
    }
    image = changed(image, creation(assignments=rows))
    # Nobody would stand for election by itself while this test lasts.
    config = RaftConfig(election_ms_min=60_000, election_ms_max=90_000)
    async with PartitionsCluster(3, config=config) as cluster:
        await until(
            lambda: all(
                link.is_connected
                for broker in cluster.brokers.values()
                for link in broker.transport.links.values()
            ),
            "the links",
        )
        cluster.follow(image)
        await until(lambda: cluster.leaders(len(firsts)) == firsts, "the leaders")


async def test_only_the_first_replica_of_a_fresh_group_that_nobody_leads_stands_for_it() -> None:
    config = RaftConfig(election_ms_min=60_000, election_ms_max=90_000)
    world = World(2, config)
    world.driver.add_peer(OTHER, ("127.0.0.1", 9))
    asked: list[int] = []
    world.driver.campaign = lambda group: asked.append(group.key.partition)  # type: ignore[method-assign]
    world.submit(creation(assignments={0: (ME, OTHER), 1: (OTHER, ME), 2: (ME, OTHER)}))
    group = world.replica(2).group
    empty = encode_append(group.wire, Epoch(3), RaftIndex(0), Epoch(-1), RaftIndex(0), 0)
    world.driver.on_raft(OTHER, memoryview(empty))
    assert world.replica(2).leader == OTHER
    await asyncio.sleep(0.6)
    # The others may hear of the group a moment later, so it asks a few times.
    assert asked == [0, 0, 0, 0]
    # One that is not fresh leaves it to the timers.
    asked.clear()
    log = world.logs[0]
    append(log)
    world.partitions._open_log = lambda *_: log
    world.partitions.take_offline(world.hosted(0), DiskFullError("no room"))
    world.partitions.retry_offline()
    await asyncio.sleep(0.1)
    assert (asked, world.replica(0).is_open) == ([], True)
    world.driver.remove_peer(OTHER)
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
            clock=RealClock(),
            listener=NotingListener(),
        )
        self.partitions = Partitions(
            open_log=lambda name, topic_id, index, config: open_disk_log(
                self.files, partition_path(name, topic_id, index), config
            ),
            drop_log=lambda name, topic_id, index: delete_partition(
                self.files, name, topic_id, index
            ),
            driver=self.driver,
            flusher=self.flusher,
            clock=RealClock(),
            defaults={},
        )
        self.is_stuck = False
        self.store = MetadataStore(
            self.replica,
            RealClock(),
            self.driver._transport,
            self._follow,
        )
        self.store.start()

    async def _follow(self, image: Image, gone: list[Gone]) -> None:
        if self.is_stuck:
            await asyncio.Event().wait()
        self.partitions.forget_logs(gone, image)
        await self.partitions.reconcile_gently(image)

    def crash(self) -> None:
        assert self.store.settling is not None
        self.store.settling.cancel()
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
    wish = disk.store.image.topics["move"].partitions[1].wish
    report = ReportReplicas(
        topic_id=ids["move"], partition=PartitionIndex(1), wish=wish, voters=(OTHER,)
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


async def test_what_was_moved_away_and_back_is_kept_when_a_start_hears_of_both_again(
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


@pytest.mark.parametrize("is_internal", [False, True])
async def test_an_internal_topic_is_always_flushed(is_internal: bool) -> None:
    world = World()
    command = msgspec.structs.replace(
        creation(1, configs={"moldau.flush": "never"}), internal=is_internal
    )
    world.submit(command)
    wanted = FlushPolicy.ALWAYS if is_internal else FlushPolicy.NEVER
    assert world.logs[0].config.flush is wanted
    world.stop()
