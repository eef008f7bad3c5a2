"""Partitions follow the metadata: opened, led, left, dropped, each where it belongs."""

import asyncio

import msgspec
import pytest
from memory_log import MemoryLog
from partitions_world import (
    OTHER,
    THIRD,
    TOPIC_ID,
    World,
    changed,
    creation,
    moved,
    reconcile_now,
    reported,
)
from raft_brokers import Broker, Cluster
from replica_brokers import make_batch, members

from moldau.data.disk_space import DiskGuard
from moldau.data.fetch import FetchService, PartitionFetch, PartitionFetchResult
from moldau.data.offsets import LATEST, OffsetService
from moldau.data.partitions import Partitions, first_members
from moldau.data.produce import ACKS_ALL, ACKS_LEADER, ProduceService
from moldau.data.restore import RestoreService
from moldau.log.interface import LogConfig, PartitionLog
from moldau.metadata.commands import (
    AlterBrokerConfigs,
    AlterTopicConfigs,
    ConfigChange,
    ConfigOperation,
    CreatePartitions,
    DeleteTopic,
    RegisterBroker,
)
from moldau.metadata.image import CLUSTER_DEFAULT, EMPTY_IMAGE, Image, Partition
from moldau.model.errors import DiskFullError, ErrorCode, RefusedError
from moldau.model.flush import FlushPolicy
from moldau.model.ids import (
    FIRST_LOG,
    BrokerId,
    Epoch,
    LogId,
    Offset,
    PartitionIndex,
    ProducerEpoch,
    ProducerId,
    RaftIndex,
    TimestampMs,
    TopicId,
)
from moldau.raft.config import RaftConfig
from moldau.raft.membership import NO_BROKER
from moldau.records.batch import stamp
from moldau.records.record import Record, build_batch
from moldau.replica.peer_codec import encode_append
from moldau.replica.replica import Replica
from moldau.server.clock import SystemClock
from moldau.testing.logs import append
from moldau.testing.replicas import ME
from moldau.testing.waiting import until

pytestmark = pytest.mark.inprocess


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
        await world.partitions.reconcile(world.image)
        assert turns >= 4
        await world.partitions.wait_until_led()
        assert all(hosted.replica.is_ready for hosted in world.partitions)
    counting.cancel()
    assert (len(world.partitions), sorted(world.dropped)) == (0, list(range(100)))
    assert world.driver.groups == {}
    world.stop()


async def test_a_request_that_waits_for_a_deleted_topic_fails_and_its_log_is_not_flushed() -> None:
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


async def test_a_topic_that_is_recreated_under_its_name_is_another_one() -> None:
    world = World()
    await world.create(2)
    old = world.replica()
    again = TopicId(b"fedcba9876543210")
    world.image = changed(world.image, DeleteTopic(name="t"))
    world.submit(creation(1, topic_id=again))
    await world.partitions.wait_until_led()
    assert (world.dropped, len(world.partitions)) == ([0, 1], 1)
    assert (world.replica().topic_id, old.is_open, world.replica().is_open) == (again, False, True)
    # What an earlier process left of the old one goes, and the new one stays.
    world.dropped.clear()
    world.partitions.forget_logs(
        [("t", TOPIC_ID, PartitionIndex(0)), ("t", again, PartitionIndex(0))], world.image
    )
    assert (world.dropped, world.replica().is_ready) == ([0], True)
    world.stop()


async def test_a_deleted_topic_is_not_served_any_more_before_it_is_dropped() -> None:
    """Its image may wait for the one before, with thousands of logs to open. What is produced to
    the next topic of that name meanwhile was acknowledged, and dropped with the old one."""
    world = World()
    await world.create(2)
    old, deleted = world.replica(), world.image.topics["t"]
    again = TopicId(b"fedcba9876543210")
    world.image = changed(world.image, DeleteTopic(name="t"))
    world.partitions.stop_serving([deleted])
    assert world.partitions.get("t", 0) is None
    assert world.refusal(0) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    world.image = changed(world.image, creation(1, topic_id=again))
    assert world.refusal(0) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    # The files of an open log stay.
    world.partitions.forget_logs([("t", TOPIC_ID, PartitionIndex(0))], world.image)
    assert (old.is_open, world.dropped) == (True, [])
    reconcile_now(world.partitions, world.image)
    await world.partitions.wait_until_led()
    assert (old.is_open, world.dropped) == (False, [0, 1])
    assert (world.replica().topic_id, world.replica().is_ready) == (again, True)
    assert not world.partitions._deleted
    world.stop()


async def test_a_replica_that_moved_away_goes_with_its_topic() -> None:
    """It is still a member of its group when the topic is deleted."""
    world = World(2)
    world.submit(creation(assignments={0: (ME, OTHER)}))
    old = world.replica()
    world.image = changed(world.image, moved(0, OTHER))
    world.image = changed(world.image, reported(world.image))
    world.partitions.stop_serving([world.image.topics["t"]])
    reconcile_now(world.partitions, world.image)
    assert (old.is_open, world.dropped) == (True, [])
    world.submit(DeleteTopic(name="t"))
    assert (old.is_open, world.dropped, world.driver.groups) == (False, [0], {})
    assert not world.partitions._deleted
    world.stop()


async def test_an_open_log_of_a_deleted_topic_is_not_opened_a_second_time() -> None:
    world = World()
    await world.create(2)
    log, deleted = world.logs[0], world.image.topics["t"]
    # Of an image that changes the topic, and is reconciled slowly.
    earlier = changed(world.image, CreatePartitions(topic="t", count=3))
    world.partitions.stop_serving([deleted])
    reconcile_now(world.partitions, earlier)
    assert (world.logs[0] is log, sorted(world.logs)) == (True, [0, 1])
    world.image = changed(earlier, DeleteTopic(name="t"))
    reconcile_now(world.partitions, world.image)
    assert (log.discarded, world.driver.groups) == (True, {})
    world.stop()


async def test_a_topic_that_is_deleted_while_it_is_opened_is_never_served() -> None:
    world = World()
    world.image = changed(world.image, creation(2))
    steps = world.partitions._reconcile_steps(world.image)
    with world.flusher.fencing():
        opened = [(opening, world.partitions._open(opening)) for opening in next(steps)]
        world.partitions.stop_serving([world.image.topics["t"]])
        for opening, log in opened:
            world.partitions._host(opening, log)
        assert [list(rest) for rest in steps] == []
    assert [log.discarded for log in world.logs.values()] == [True, True]
    assert (len(world.partitions), world.driver.groups) == (0, {})
    world.submit(DeleteTopic(name="t"))
    assert world.dropped == [0, 1]
    assert not world.partitions._deleted
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


async def test_a_partition_is_left_when_its_move_is_over_and_not_before() -> None:
    world = World(3)
    world.submit(creation(assignments={0: (ME,), 1: (ME,)}))
    await world.partitions.wait_until_led()
    told: list[ErrorCode] = []
    replica, log = world.replica(), world.logs[0]
    replica.when_committed(Offset(replica.high_watermark + 1), told.append)
    world.submit(moved(0, OTHER, THIRD))
    assert (world.replica(), world.dropped, told) == (replica, [], [])
    assert replica.is_ready
    left_by_its_group(replica)
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
    # And that its log is not the one that the others counted on.
    assert (world.replica().epoch, world.logs[0].log_id == FIRST_LOG) == (epoch, False)
    world.submit(moved(0, OTHER, THIRD))
    world.submit(reported(world.image))
    world.submit(DeleteTopic(name="t"))
    await until(lambda: not world.votes.groups, "the votes to be forgotten")
    world.stop()


def left_by_its_group(replica: Replica) -> None:
    """As if it had heard that others are the group now; the log is as it was."""
    replica.group.core.leader = NO_BROKER


async def test_what_came_back_by_a_newer_image_is_not_dropped_by_an_older_one() -> None:
    world = World(3)
    world.submit(creation(assignments={0: (ME,)}))
    await world.partitions.wait_until_led()
    replica = world.replica()
    world.submit(moved(0, OTHER, THIRD))
    old = changed(world.image, reported(world.image))
    newest = changed(old, moved(0, OTHER, THIRD, ME))
    world.partitions.newest_image = lambda: newest
    left_by_its_group(replica)
    await world.partitions.reconcile(old)
    await world.partitions.reconcile(newest)
    assert (world.replica(), world.dropped) == (replica, [])
    world.stop()


async def test_what_a_leader_counts_on_is_not_dropped_whatever_the_image_says() -> None:
    world = World(3)
    world.submit(creation(assignments={0: (ME,)}))
    await world.partitions.wait_until_led()
    replica = world.replica()
    world.submit(moved(0, OTHER, THIRD))
    world.submit(reported(world.image))
    world.partitions.finish_moves()
    assert (world.replica(), world.dropped) == (replica, [])
    left_by_its_group(replica)
    world.partitions.finish_moves()
    assert world.dropped == [0]
    world.stop()


async def test_one_that_a_partition_moves_to_opens_as_a_learner_and_stands_for_nothing() -> None:
    world = World(3)
    world.submit(creation(assignments={0: (OTHER, THIRD)}))
    assert world.partitions.get("t", 0) is None
    world.submit(moved(0, ME, OTHER))
    assert world.replica().members == members((2, 3), (1,))
    assert world.logs[0].log_id != FIRST_LOG
    await asyncio.sleep(0.3)
    assert (world.replica().epoch, world.replica().leader) == (-1, -1)
    world.submit(reported(world.image))
    assert world.replica().is_open
    # The metadata alone gives no vote: the group's own log does.
    assert not world.replica().group.core.is_voter
    world.stop()


def test_the_first_members_of_a_group_are_the_replicas_before_a_move_and_who_learns() -> None:
    still = Partition(PartitionIndex(0), (THIRD, ME))
    assert first_members(still) == members((1, 3))
    moving = Partition(
        PartitionIndex(0), (OTHER, THIRD, ME), target=(OTHER, THIRD), origin=(THIRD, ME)
    )
    assert first_members(moving) == members((1, 3), (2,))


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


async def test_producers_of_a_backup_are_forgotten_when_the_restore_ends() -> None:
    world = World()
    world.submit(creation(1, configs={"moldau.restoring": "chain/1"}))
    await world.partitions.wait_until_led()
    record = Record(Offset(0), TimestampMs(1), b"k", b"v", [])
    restored = bytearray()
    for offset, producer in enumerate((7, 8)):
        batch = bytearray(
            build_batch(
                [record],
                producer_id=ProducerId(producer),
                producer_epoch=ProducerEpoch(0),
                base_sequence=0,
                transactional=producer == 8,
            )
        )
        stamp(batch, 0, offset, 0)
        restored += batch
    disk = DiskGuard()
    assert await RestoreService(world.partitions, disk).append("t", 0, 0, restored) == 2
    producers = world.replica().producers
    assert {producer for producer, _ in producers} == {7, 8}
    release = ConfigChange(name="moldau.restoring", operation=ConfigOperation.DELETE)
    world.submit(AlterTopicConfigs(topic="t", changes=(release,)))
    # The other one has an open transaction.
    assert {producer for producer, _ in producers} == {8}
    produce = ProduceService(world.partitions, disk, SystemClock())
    first = build_batch(
        [record], producer_id=ProducerId(7), producer_epoch=ProducerEpoch(0), base_sequence=0
    )
    produce.append("t", 0, memoryview(bytearray(first)), ACKS_LEADER)
    assert world.logs[0].end_offset == 3
    world.stop()


async def test_a_follower_serves_no_client() -> None:
    world = World(2)
    world.submit(creation(assignments={0: (OTHER, ME)}))
    world.submit(creation(1, name="led", topic_id=TopicId(b"9" * 16), assignments={0: (ME,)}))
    await world.partitions.wait_until_led()
    answers: list[list[PartitionFetchResult]] = []
    FetchService(asyncio.get_running_loop(), world.partitions).fetch(
        [PartitionFetch(name, 0, Offset(0), 1000, -1) for name in ("t", "led")],
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
    produce = ProduceService(world.partitions, DiskGuard(), SystemClock())
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


async def test_too_few_in_sync_refuse_acks_all_and_nothing_else() -> None:
    world = World()
    world.submit(creation(1, configs={"min.insync.replicas": "2"}))
    await world.partitions.wait_until_led()
    produce = ProduceService(world.partitions, DiskGuard(), SystemClock())
    with pytest.raises(RefusedError, match="1 replica is in sync") as refused:
        produce.append("t", 0, memoryview(make_batch(b"a")), ACKS_ALL)
    assert refused.value.code is ErrorCode.NOT_ENOUGH_REPLICAS
    assert world.logs[0].end_offset == 0
    produce.append("t", 0, memoryview(make_batch(b"a")), ACKS_LEADER)
    assert world.logs[0].end_offset == 1
    world.stop()


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
            clock=SystemClock(),
            defaults={},
        )

    def _open(
        self,
        name: str,
        topic_id: TopicId,
        index: PartitionIndex,
        config: LogConfig,
        new_id: LogId,
    ) -> PartitionLog:
        return self.logs.setdefault(index, MemoryLog(config, new_id))

    def _drop(self, name: str, topic_id: TopicId, index: PartitionIndex) -> None:
        self.logs.pop(index, None)


class PartitionsCluster(Cluster):
    broker_type = PartitionsBroker

    def follow(self, image: Image) -> None:
        for broker in self.brokers.values():
            assert isinstance(broker, PartitionsBroker)
            reconcile_now(broker.partitions, image)

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


async def test_only_the_first_replica_of_a_fresh_group_without_a_leader_stands_for_it() -> None:
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
    # The others may hear of the group a moment later, so it asks a few times.
    await until(lambda: len(asked) >= 4, "all tries are made")
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
