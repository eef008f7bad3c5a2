"""The metadata store: one decision at a time, applied only when committed, rebuilt from the log."""

import asyncio
from pathlib import Path

import pytest
from raft_brokers import RealClock, until
from replica_brokers import MetadataBroker, MetadataCluster, members

from moldau.log.disk import open_disk_log
from moldau.log.files import OsFiles
from moldau.log.interface import LogConfig, PartitionLog
from moldau.log.memory import MemoryLog
from moldau.metadata.commands import (
    AllocateProducerIds,
    Command,
    CreateCluster,
    CreateTopic,
    DeleteTopic,
    ReassignPartition,
    RegisterBroker,
    ReportReplicas,
)
from moldau.metadata.image import EMPTY_IMAGE, Image
from moldau.metadata.snapshot import encode_image
from moldau.model.errors import CorruptionError, DiskFullError, ErrorCode, RefusedError
from moldau.model.ids import BrokerId, Offset, PartitionIndex, TopicId, TopicPartition
from moldau.raft.membership import Members
from moldau.replica.replica import Replica
from moldau.service import metadata_store
from moldau.service.metadata_store import Caller, Gone, MetadataReplica, MetadataStore
from moldau.testing.replicas import (
    ME,
    NotingListener,
    SetClock,
    make_driver,
    make_flusher,
    wait_ready,
)

OTHER = BrokerId(2)


class NoCaller:
    """There is nobody to be called."""

    async def call(
        self, peer: BrokerId, method: int, payload: bytes, timeout_seconds: float
    ) -> bytes:
        raise AssertionError(f"broker {peer} was asked")


class World:
    """One broker's store, over the log that the test gives."""

    store: MetadataStore
    replica: MetadataReplica

    def __init__(self, log: PartitionLog) -> None:
        self.log = log
        self.flusher = make_flusher()
        self.driver = make_driver(self.flusher)
        self.listener = NotingListener()
        self.images: list[Image] = []
        self.gone: list[Gone] = []
        self.gate = asyncio.Event()
        """Cleared: whoever makes the broker as the image says comes to no end."""
        self.gate.set()
        self.is_gate_for_one = False
        self.on_committed = 0

    @classmethod
    async def open(cls, log: PartitionLog) -> "World":
        world = cls(log)
        world.prepare()
        world.store.start()
        await wait_ready(world.replica)
        await world.store.settled(log.end_offset)
        return world

    def prepare(self, voters: Members | None = None) -> None:
        self.replica = MetadataReplica(
            partition=TopicPartition("__cluster_metadata", PartitionIndex(0)),
            topic_id=TopicId(bytes(16)),
            log=self.log,
            members=voters or Members((ME,)),
            driver=self.driver,
            flusher=self.flusher,
            clock=SetClock(),
            listener=self.listener,
        )
        self.store = MetadataStore(
            self.replica, RealClock(), NoCaller(), self._follow, self._count_committed
        )

    async def _follow(self, image: Image, gone: list[Gone]) -> None:
        await self.gate.wait()
        if self.is_gate_for_one:
            self.gate.clear()
        self.images.append(image)
        self.gone += gone

    def _count_committed(self) -> None:
        self.on_committed += 1

    def crash(self) -> None:
        """Nothing is left but the log."""
        if self.store.settling is not None:
            self.store.settling.cancel()
        self.driver.stop()
        self.flusher.stop()

    async def close(self) -> None:
        await self.store.stop()
        self.replica.close()
        self.driver.stop()
        self.flusher.stop()


def topic(name: str, number: int, partitions: int = 1, factor: int = 1) -> CreateTopic:
    return CreateTopic(
        name=name,
        topic_id=TopicId(bytes([number] * 16)),
        partitions=partitions,
        replication_factor=factor,
    )


def registration(broker: int) -> RegisterBroker:
    return RegisterBroker(id=BrokerId(broker), host="h", port=broker, incarnation=f"i{broker}")


async def set_up(log: PartitionLog | None = None) -> World:
    world = await World.open(MemoryLog(LogConfig()) if log is None else log)
    await world.store.submit(CreateCluster(cluster_id="c"))
    await world.store.submit(registration(ME))
    return world


# ---- one broker


async def test_of_two_who_create_the_same_topic_at_once_one_is_refused() -> None:
    world = await set_up()
    store = world.store
    results = await asyncio.gather(
        store.submit(topic("t", 1)), store.submit(topic("t", 2)), return_exceptions=True
    )
    refusals = [result for result in results if isinstance(result, RefusedError)]
    assert [refusal.code for refusal in refusals] == [ErrorCode.TOPIC_ALREADY_EXISTS]
    assert len(store.image.topics) == len(store.image.topics_by_id) == 1
    world.crash()


async def test_who_gives_up_waiting_leaves_no_half_decision_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = await set_up()
    commit, reached, gate = metadata_store.commit_batch, asyncio.Event(), asyncio.Event()

    async def commit_late(replica: Replica, batch: bytes) -> ErrorCode:
        reached.set()
        await gate.wait()
        return await commit(replica, batch)

    monkeypatch.setattr(metadata_store, "commit_batch", commit_late)
    impatient = asyncio.create_task(world.store.submit(topic("t", 1)))
    await reached.wait()
    impatient.cancel()
    second = asyncio.create_task(world.store.submit(topic("t", 2)))
    await asyncio.sleep(0)
    gate.set()
    with pytest.raises(RefusedError) as refusal:
        await second
    assert refusal.value.code is ErrorCode.TOPIC_ALREADY_EXISTS
    world.crash()


async def test_a_change_is_seen_only_once_it_is_committed() -> None:
    world = await set_up()
    store, images = world.store, world.images
    before, told = len(images), world.on_committed
    submitting = asyncio.create_task(store.submit(topic("t", 1)))
    await asyncio.sleep(0)
    assert store.image.topic("t") is None
    await submitting
    assert store.image.topic("t") is not None
    assert [image.topic("t") is not None for image in images[before:]] == [True]
    assert world.on_committed == told + 1
    world.crash()


async def test_a_command_is_answered_when_the_broker_is_as_it_says() -> None:
    world = await set_up()
    world.gate.clear()
    submitting = asyncio.create_task(world.store.submit(topic("t", 1)))
    await until(lambda: world.store.image.topic("t") is not None, "the image")
    await asyncio.sleep(0.02)
    assert not submitting.done()
    world.gate.set()
    (record,) = await submitting
    assert record.name == "t"  # type: ignore[union-attr]
    assert world.images[-1].topic("t") is not None
    world.crash()


async def test_a_command_waits_for_its_own_image_and_not_for_the_one_before() -> None:
    world = await set_up()
    world.gate.clear()
    world.is_gate_for_one = True
    first = asyncio.create_task(world.store.submit(topic("t", 1)))
    await until(lambda: world.store.image.topic("t") is not None, "the image")
    await asyncio.sleep(0.02)
    second = asyncio.create_task(world.store.submit(topic("u", 2)))
    await until(lambda: world.store.image.topic("u") is not None, "the image")
    world.gate.set()
    await first
    await asyncio.sleep(0.02)
    assert (second.done(), world.images[-1].topic("u")) == (False, None)
    world.gate.set()
    await second
    assert world.images[-1].topic("u") is not None
    world.crash()


async def test_nothing_is_decided_by_a_leader_that_is_not_ready() -> None:
    world = await set_up()
    end = world.log.end_offset
    async with world.store._lock:
        submitting = asyncio.create_task(world.store.submit(topic("t", 1)))
        await asyncio.sleep(0)
        # Elected again: what it knew before may not be all.
        world.replica.is_ready = False
    await asyncio.sleep(0.02)
    assert (world.log.end_offset, submitting.done()) == (end, False)
    world.replica.is_ready = True
    world.store.leader_changed()
    await submitting
    assert world.store.image.topic("t") is not None
    world.crash()


async def test_a_log_is_not_cut_at_what_is_not_on_this_disk() -> None:
    world = await set_up()
    flushed = world.log.flushed_offset
    await world.store.submit(topic("t", 1))
    world.log._flushed = flushed  # type: ignore[attr-defined]
    world.store.compact()
    assert (world.log.start_offset, world.log.load_snapshot()) == (0, None)
    world.log._flushed = world.log.end_offset  # type: ignore[attr-defined]
    world.store.compact()
    assert world.log.start_offset == world.log.end_offset
    world.crash()


async def test_a_fresh_image_is_one_that_the_broker_has_followed() -> None:
    world = await set_up()
    world.gate.clear()
    submitting = asyncio.create_task(world.store.submit(topic("t", 1)))
    await until(lambda: world.store.image.topic("t") is not None, "the image")
    asking = asyncio.create_task(world.store.fresh())
    await asyncio.sleep(0.02)
    assert not asking.done()
    world.gate.set()
    assert (await asking).topic("t") is not None
    assert world.images[-1].topic("t") is not None
    await submitting
    world.crash()


async def test_who_waits_too_long_for_the_broker_is_told_that_the_change_is_made() -> None:
    world = await set_up()
    world.gate.clear()
    with pytest.raises(RefusedError, match="the change is made") as refused:
        await world.store.submit(topic("t", 1), seconds_max=0)
    assert refused.value.code is ErrorCode.REQUEST_TIMED_OUT
    assert world.store.image.topic("t") is not None
    world.crash()


async def test_a_refused_command_changes_nothing() -> None:
    world = await set_up()
    end, count = world.log.end_offset, len(world.images)
    with pytest.raises(RefusedError):
        await world.store.submit(topic("..", 1))
    assert (world.log.end_offset, len(world.images)) == (end, count)
    world.crash()


async def test_a_preview_changes_nothing_either() -> None:
    world = await set_up()
    end = world.log.end_offset
    assert world.store.preview(topic("t", 1)).topic("t") is not None
    assert (world.store.image.topic("t"), world.log.end_offset) == (None, end)
    world.crash()


async def test_the_image_is_rebuilt_from_the_log() -> None:
    world = await set_up()
    for number in range(5):
        await world.store.submit(topic(f"t{number}", number + 1))
    world.crash()
    again = await World.open(world.log)
    assert again.store.image == world.store.image
    assert again.images[-1] == world.store.image
    again.crash()


async def test_after_a_clean_stop_the_image_is_there_before_anything_is_committed(
    tmp_path: Path,
) -> None:
    files = OsFiles(tmp_path)
    world = await set_up(open_disk_log(files, "log", LogConfig()))
    assert not world.store.is_empty
    await world.store.submit(topic("t", 1))
    await world.close()
    log = open_disk_log(files, "log", LogConfig())
    assert log.start_offset == log.end_offset == 3
    again = World(log)
    again.prepare(members((1, 2, 3)))
    assert again.store.image == world.store.image
    assert again.store.forecast() == world.store.image
    again.crash()


async def test_what_is_not_known_to_be_committed_is_a_forecast_and_no_image() -> None:
    world = await set_up()
    await world.store.submit(topic("t", 1))
    world.crash()
    again = World(world.log)
    again.prepare(members((1, 2, 3)))
    again.store.start()
    await asyncio.sleep(0.02)
    assert again.store.image == EMPTY_IMAGE
    assert again.store.forecast() == world.store.image
    assert (again.store.leader, again.store.is_leading) == (-1, False)
    again.crash()


async def test_a_follower_applies_what_is_committed_and_not_what_comes_after_it() -> None:
    world = await set_up()
    world.crash()
    again = World(world.log)
    again.prepare(members((1, 2, 3)))
    again.store.start()
    again.replica.on_commit(again.replica.group, Offset(1))
    assert (again.store.image.cluster_id, len(again.store.image.brokers)) == ("c", 0)
    again.replica.on_commit(again.replica.group, Offset(2))
    assert len(again.store.image.brokers) == 1
    await until(lambda: len(again.images) > 0 and len(again.images[-1].brokers) == 1, "the image")
    # Only a leader has somebody to tell.
    assert again.on_committed == 0
    again.crash()


async def test_a_log_is_compacted_after_many_records_and_read_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(metadata_store, "_SNAPSHOT_RECORDS", 10)
    world = await set_up()
    for number in range(30):
        await world.store.submit(topic(f"t{number}", number + 1))
    await until(lambda: world.log.start_offset >= 30, "the last compaction")
    assert 0 < world.log.end_offset - world.log.start_offset < 10
    world.crash()
    again = await World.open(world.log)
    assert again.store.image == world.store.image
    again.crash()


async def test_a_crash_between_snapshot_and_cut_is_made_up_for() -> None:
    world = await set_up()
    await world.store.submit(topic("t", 1))
    end = world.log.end_offset
    world.log.save_snapshot(end, encode_image(world.store.image))
    world.crash()
    again = await World.open(world.log)
    assert (again.log.start_offset, again.store.image) == (end, world.store.image)
    again.crash()


async def test_a_log_without_its_beginning_and_its_snapshot_is_refused() -> None:
    world = await set_up()
    world.crash()
    world.log.delete_before(world.log.end_offset)
    with pytest.raises(CorruptionError, match="beginning"):
        World(world.log).prepare()


async def test_a_topic_is_gone_with_all_that_this_broker_held_of_it() -> None:
    world = await set_up()
    await world.store.submit(registration(OTHER))
    await world.store.submit(topic("mine", 1, partitions=4))
    held = [p.index for p in world.store.image.topics["mine"].partitions if ME in p.replicas]
    assert 0 < len(held) < 4
    assert world.gone == []
    await world.store.submit(DeleteTopic(name="mine"))
    assert world.gone == [("mine", TopicId(bytes([1] * 16)), index) for index in held]
    world.crash()


async def move(store: MetadataStore, name: str, replicas: tuple[int, ...]) -> None:
    await store.submit(
        ReassignPartition(topic=name, partition=PartitionIndex(0), replicas=replicas)
    )
    found = store.image.topics[name]
    await store.submit(
        ReportReplicas(
            topic_id=found.topic_id,
            partition=PartitionIndex(0),
            wish=found.partitions[0].wish,
            voters=tuple(map(BrokerId, replicas)),
        )
    )


async def test_a_partition_is_gone_when_its_move_is_over_and_not_before() -> None:
    world = await set_up()
    await world.store.submit(registration(OTHER))
    command = CreateTopic(
        name="t",
        topic_id=TopicId(bytes([1] * 16)),
        partitions=-1,
        replication_factor=-1,
        assignments={0: (ME,)},
    )
    await world.store.submit(command)
    await world.store.submit(
        ReassignPartition(topic="t", partition=PartitionIndex(0), replicas=(OTHER,))
    )
    assert world.gone == []
    await move(world.store, "t", (OTHER,))
    assert world.gone == [("t", command.topic_id, 0)]
    world.crash()


async def test_what_was_gone_before_a_crash_is_told_again_until_the_broker_has_followed() -> None:
    world = await set_up()
    await world.store.submit(topic("t", 1))
    world.gate.clear()
    deleting = asyncio.create_task(world.store.submit(DeleteTopic(name="t")))
    await until(lambda: world.store.image.topic("t") is None, "the image")
    # Not even a clean stop may forget it.
    await world.store.stop()
    deleting.cancel()
    world.crash()
    assert world.gone == []
    again = await World.open(world.log)
    assert again.gone == [("t", TopicId(bytes([1] * 16)), 0)]
    await again.close()
    once_more = await World.open(again.log)
    assert once_more.gone == []
    once_more.crash()


async def test_what_a_leaders_snapshot_no_longer_has_is_gone() -> None:
    world = await set_up()
    await world.store.submit(topic("kept", 1))
    image = world.store.image
    await world.store.submit(topic("t", 2))
    world.replica.on_reset(world.replica.group, world.log.end_offset, encode_image(image))
    await until(lambda: bool(world.gone), "what is gone")
    assert world.gone == [("t", TopicId(bytes([2] * 16)), 0)]
    assert world.store.image == image
    world.crash()


async def test_a_leaders_snapshot_that_cannot_be_read_is_a_failure() -> None:
    world = await set_up()
    image = world.store.image
    world.replica.on_reset(world.replica.group, world.log.end_offset, b"damaged")
    assert [type(error) for error in world.listener.failures] == [CorruptionError]
    assert world.store.image == image
    world.crash()


async def test_a_leader_sends_no_snapshot_that_is_not_that_of_its_start() -> None:
    world = await set_up()
    with pytest.raises(CorruptionError):
        world.replica.snapshot(world.replica.group, world.log.start_offset)
    world.store.compact()
    start = world.log.start_offset
    assert world.replica.snapshot(world.replica.group, start) == encode_image(world.store.image)
    with pytest.raises(CorruptionError):
        world.replica.snapshot(world.replica.group, type(start)(start + 1))
    world.crash()


# ---- three brokers


async def start(cluster: MetadataCluster) -> MetadataBroker:
    cluster.add_group()
    leader = await cluster.ready()
    await leader.store.submit(CreateCluster(cluster_id="c"))
    for number in cluster.brokers:
        await leader.store.submit(registration(number))
    return leader


async def one_image(cluster: MetadataCluster) -> Image:
    """Wait until all have the same."""
    brokers = cluster.running
    await until(
        lambda: all(broker.store.image == brokers[0].store.image for broker in brokers),
        "one image",
    )
    return brokers[0].store.image


async def test_a_follower_hands_commands_over_and_has_their_effect_when_it_answers() -> None:
    async with MetadataCluster(3) as cluster:
        leader = await start(cluster)
        follower, _ = await cluster.followers()
        (record,) = await follower.store.submit(topic("t", 1, factor=3))
        assert record.topic_id == TopicId(bytes([1] * 16))  # type: ignore[union-attr]
        assert follower.images[-1].topic("t") is not None
        assert leader.store.image.topic("t") is not None
        with pytest.raises(RefusedError) as refused:
            await follower.store.submit(topic("t", 2))
        assert refused.value.code is ErrorCode.TOPIC_ALREADY_EXISTS
        assert await follower.store.submit(SPREAD) == []
        assert len((await one_image(cluster)).topics) == 1
        assert {broker.store.leader for broker in cluster.running} == {leader.id}


SPREAD: Command = ReportReplicas(
    topic_id=TopicId(bytes(16)), partition=PartitionIndex(0), wish=1, voters=()
)
"""About a topic that is not there: nothing to do."""


async def test_only_the_leader_answers_its_peers() -> None:
    async with MetadataCluster(3) as cluster:
        await start(cluster)
        follower, _ = await cluster.followers()
        command = metadata_store.encode_command(topic("t", 1))
        for question in (follower.store.answer(ME, command), follower.store.answer_fresh(ME, b"")):
            with pytest.raises(RefusedError) as refused:
                await question
            assert refused.value.code is ErrorCode.NOT_CONTROLLER


async def test_a_command_that_finds_no_leader_waits_for_one() -> None:
    async with MetadataCluster(3) as cluster:
        leader = await start(cluster)
        follower, other = await cluster.followers()
        leader.stop()
        await follower.store.submit(topic("t", 1))
        assert follower.store.image.topic("t") is not None
        other.stop()
        with pytest.raises(RefusedError, match="a majority") as refused:
            await follower.store.submit(topic("u", 2), seconds_max=1.5)
        assert refused.value.code is ErrorCode.REQUEST_TIMED_OUT


async def test_a_leader_that_is_deposed_while_it_decides_has_the_next_one_do_it() -> None:
    async with MetadataCluster(3) as cluster:
        leader = await start(cluster)
        cluster.cut_off(leader)
        submitting = asyncio.create_task(leader.store.submit(topic("t", 1)))
        await until(lambda: not leader.replica.is_leader, "the fall")
        assert leader.store.image.topic("t") is None
        assert not submitting.done()
        cluster.introduce()
        await submitting
        assert len((await one_image(cluster)).topics) == 1


async def test_a_deletion_is_not_repeated_when_nobody_knows_whether_it_was_done() -> None:
    async with MetadataCluster(3) as cluster:
        leader = await start(cluster)
        await leader.store.submit(topic("t", 1))
        await one_image(cluster)
        cluster.cut_off(leader)
        with pytest.raises(RefusedError, match="may be done or not") as refused:
            await leader.store.submit(DeleteTopic(name="t"))
        assert refused.value.code is ErrorCode.REQUEST_TIMED_OUT
        # Without its entry; else it could be elected again, and the topic would go after all.
        await cluster.ready(other_than=leader.id)
        cluster.introduce()
        await asyncio.sleep(0.1)
        assert (await one_image(cluster)).topic("t") is not None


class LosesAnswers:
    """A caller whose peers carry out what they are asked, but the first answers are lost."""

    def __init__(self, caller: Caller, count: int = 1) -> None:
        self._caller = caller
        self.left = count
        self.calls = 0

    async def call(
        self, peer: BrokerId, method: int, payload: bytes, timeout_seconds: float
    ) -> bytes:
        self.calls += 1
        answer = await self._caller.call(peer, method, payload, timeout_seconds)
        if self.left:
            self.left -= 1
            raise RefusedError(ErrorCode.NETWORK_EXCEPTION, "the link is lost")
        return answer


async def test_a_topic_that_was_created_by_the_first_try_counts_as_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The second try comes at once, before a follower hears of the first one's commit.
    monkeypatch.setattr(metadata_store, "_RETRY_SECONDS", 0)
    async with MetadataCluster(3) as cluster:
        leader = await start(cluster)
        leader.store._on_committed = lambda: None
        follower, _ = await cluster.followers()
        follower.store._caller = LosesAnswers(follower.transport)
        assert await follower.store.submit(topic("t", 1)) == []
        assert follower.store.image.topic("t") is not None
        follower.store._caller = LosesAnswers(follower.transport, count=1)
        with pytest.raises(RefusedError) as refused:
            await follower.store.submit(topic("t", 2))
        assert refused.value.code is ErrorCode.TOPIC_ALREADY_EXISTS


async def test_a_topic_that_another_one_created_does_not_count_as_done() -> None:
    async with MetadataCluster(3) as cluster:
        await start(cluster)
        follower, _ = await cluster.followers()

        class Beaten(LosesAnswers):
            async def call(
                self, peer: BrokerId, method: int, payload: bytes, timeout_seconds: float
            ) -> bytes:
                if self.left:
                    self.left -= 1
                    await follower.transport.call(
                        peer, method, metadata_store.encode_command(topic("t", 2)), timeout_seconds
                    )
                    raise RefusedError(ErrorCode.NETWORK_EXCEPTION, "the link is lost")
                return await super().call(peer, method, payload, timeout_seconds)

        follower.store._caller = Beaten(follower.transport)
        with pytest.raises(RefusedError) as refused:
            await follower.store.submit(topic("t", 1))
        assert refused.value.code is ErrorCode.TOPIC_ALREADY_EXISTS


async def test_a_deletion_whose_answer_is_lost_is_sent_once() -> None:
    async with MetadataCluster(3) as cluster:
        await start(cluster)
        follower, _ = await cluster.followers()
        await follower.store.submit(topic("t", 1))
        caller = follower.store._caller = LosesAnswers(follower.transport)
        with pytest.raises(RefusedError) as refused:
            await follower.store.submit(DeleteTopic(name="t"))
        assert (refused.value.code, caller.calls) == (ErrorCode.REQUEST_TIMED_OUT, 1)


async def test_what_does_no_harm_when_it_is_done_twice_is_sent_again() -> None:
    async with MetadataCluster(3) as cluster:
        await start(cluster)
        follower, _ = await cluster.followers()
        caller = follower.store._caller = LosesAnswers(follower.transport, count=2)
        (record,) = await follower.store.submit(AllocateProducerIds(count=10))
        assert (caller.calls, record.first) == (3, 20)  # type: ignore[union-attr]


async def test_a_deletion_during_a_hand_over_waits_for_the_next_leader() -> None:
    async with MetadataCluster(3) as cluster:
        leader = await start(cluster)
        await leader.store.submit(topic("t", 1))
        target, _ = await cluster.followers()
        # The target cannot take over before it answers again; meanwhile nothing may be appended.
        leader.driver.transfer(leader.group(), target.id)
        await leader.store.submit(DeleteTopic(name="t"))
        assert (await one_image(cluster)).topic("t") is None


async def test_a_follower_that_fell_behind_the_start_gets_the_image_and_keeps_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(metadata_store, "_SNAPSHOT_RECORDS", 10)
    async with MetadataCluster(3, directory=tmp_path) as cluster:
        leader = await start(cluster)
        await leader.store.submit(topic("old", 200, factor=3))
        await one_image(cluster)
        late, _ = await cluster.followers()
        late.stop()
        end = late.replica.log.end_offset
        leader = await cluster.ready()
        await leader.store.submit(DeleteTopic(name="old"))
        for number in range(31):
            await leader.store.submit(topic(f"t{number}", number + 1, factor=3))
        assert leader.replica.log.start_offset > end
        await cluster.restart(late.id)
        image = await one_image(cluster)
        assert len(image.topics) == 31
        assert late.replica.log.start_offset > end
        # It held the topic by its own log, whose end it could not know to be committed.
        await until(lambda: bool(late.gone), "what is gone")
        assert late.gone == [("old", TopicId(bytes([200] * 16)), 0)]
        late.stop()
        await cluster.restart(late.id)
        assert late.store.image.topic("t0") is not None
        assert await one_image(cluster) == image
        await late.store.submit(DeleteTopic(name="t0"))
        assert ("t0", TopicId(bytes([1] * 16)), 0) in late.gone


async def test_a_fresh_image_has_all_that_was_committed_before_it_was_asked_for() -> None:
    async with MetadataCluster(3, heartbeat_ms=150) as cluster:
        leader = await start(cluster)
        follower, _ = await cluster.followers()
        leader.store._on_committed = lambda: None
        for number in range(5):
            await leader.store.submit(topic(f"t{number}", number + 1))
            image = await follower.store.fresh()
            assert image.topic(f"t{number}") is not None
            assert follower.images[-1].topic(f"t{number}") is not None
            assert await leader.store.fresh() == leader.store.image


async def test_a_full_disk_between_snapshot_and_cut_ends_nobody() -> None:
    async with MetadataCluster(3) as cluster:
        leader = await start(cluster)
        behind, _ = await cluster.followers()
        cluster.cut_off(behind)
        await leader.store.submit(topic("a", 1))
        leader.store.compact()
        await leader.store.submit(topic("b", 2))
        log = leader.replica.log
        cut, start_offset = log.delete_before, log.start_offset

        def refuse_twice(offset: Offset) -> None:
            refusals.append(offset)
            if len(refusals) > 2:
                cut(offset)
            else:
                raise DiskFullError("no room")

        refusals: list[Offset] = []
        log.delete_before = refuse_twice  # type: ignore[method-assign]
        with pytest.raises(DiskFullError):
            leader.store.compact()
        assert log.start_offset == start_offset
        cluster.introduce()
        await until(lambda: behind.store.image.topic("b") is not None, "the snapshot")
        assert leader.replica.group.failure is None
        assert len(refusals) == 3


async def test_nothing_is_left_by_an_image_that_lags() -> None:
    async with MetadataCluster(3, heartbeat_ms=150) as cluster:
        leader = await start(cluster)
        follower, other = await cluster.followers()
        # It hears of one commit after the other, each with a heartbeat.
        leader.store._on_committed = lambda: None
        me, index = follower.id, PartitionIndex(0)
        topic_id = TopicId(bytes([1] * 16))
        await leader.store.submit(
            CreateTopic(name="t", topic_id=topic_id, assignments={0: (me, other.id)})
        )

        async def move(*replicas: BrokerId) -> None:
            await leader.store.submit(
                ReassignPartition(topic="t", partition=index, replicas=replicas)
            )
            wish = leader.store.image.topics["t"].partitions[0].wish
            report = ReportReplicas(
                topic_id=topic_id, partition=index, wish=wish, voters=tuple(sorted(replicas))
            )
            await leader.store.submit(report)

        asked = asyncio.Event()
        answered = asyncio.Event()
        ask = follower.store._fresh_offset

        async def ask_slowly() -> Offset:
            asked.set()
            await answered.wait()
            return await ask()

        follower.store._fresh_offset = ask_slowly  # type: ignore[method-assign]
        await move(leader.id, other.id)
        await asyncio.wait_for(asked.wait(), 20)
        await move(me, other.id)
        answered.set()
        await follower.store.settled(leader.replica.log.end_offset)
        known = [image.topics["t"].partitions[0] for image in follower.images if image.topics]
        assert known[-1].replicas == (me, other.id)
        assert all(me in partition.replicas for partition in known)


async def test_a_leader_that_nobody_hears_has_no_fresh_image_to_give() -> None:
    async with MetadataCluster(3) as cluster:
        leader = await start(cluster)
        cluster.cut_off(leader)
        with pytest.raises(RefusedError):
            await leader.store.fresh()
        await until(lambda: leader.store.leader != leader.id, "the fall")
        with pytest.raises(RefusedError) as refused:
            await leader.store.fresh()
        assert refused.value.code is ErrorCode.NOT_CONTROLLER


async def test_a_deposed_leader_goes_on_to_follow() -> None:
    async with MetadataCluster(3) as cluster:
        leader = await start(cluster)
        target, _ = await cluster.followers()
        while not await leader.driver.transfer(leader.group(), target.id):
            await asyncio.sleep(0.05)
        await until(lambda: target.store.is_leading, "the new leader")
        await target.store.submit(topic("t", 1))
        await until(lambda: leader.images[-1].topic("t") is not None, "the image")
