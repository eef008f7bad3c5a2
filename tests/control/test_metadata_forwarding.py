"""Several brokers' metadata stores hand commands to the leader, and come to one image."""

import asyncio
from pathlib import Path

import pytest
from metadata_world import registration, topic
from raft_brokers import CONFIG, PATIENT
from replica_brokers import MetadataBroker, MetadataCluster

from moldau.control import metadata_store
from moldau.metadata.command_codec import encode_command
from moldau.metadata.commands import (
    AllocateProducerIds,
    Command,
    CreateCluster,
    CreateTopic,
    DeleteTopic,
    ReassignPartition,
    ReportReplicas,
)
from moldau.metadata.image import Image
from moldau.model.errors import DiskFullError, ErrorCode, RefusedError
from moldau.model.ids import BrokerId, Offset, PartitionIndex, TopicId
from moldau.net.peers.caller import PeerCaller
from moldau.testing.replicas import ME
from moldau.testing.waiting import until, wait_seconds_max

pytestmark = pytest.mark.inprocess


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
        lambda: all(broker.store.image == brokers[0].store.image for broker in brokers), "one image"
    )
    return brokers[0].store.image


async def test_a_follower_hands_commands_over_and_has_their_effect_when_it_answers() -> None:
    async with MetadataCluster(3, config=PATIENT) as cluster:
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
    topic_id=TopicId(bytes(16)), partition=PartitionIndex(0), desired_version=1, voters=()
)
"""About a topic that is not there: nothing to do."""


async def test_only_the_leader_answers_its_peers() -> None:
    async with MetadataCluster(3, config=PATIENT) as cluster:
        await start(cluster)
        follower, _ = await cluster.followers()
        command = encode_command(topic("t", 1))
        for question in (
            follower.store.on_command(ME, command),
            follower.store.on_fresh_offset_request(ME, b""),
        ):
            with pytest.raises(RefusedError) as refused:
                await question
            assert refused.value.code is ErrorCode.NOT_CONTROLLER


async def test_a_command_that_finds_no_leader_waits_for_one() -> None:
    async with MetadataCluster(3, config=PATIENT) as cluster:
        leader = await start(cluster)
        follower, other = await cluster.followers()
        leader.stop()
        cluster.use(CONFIG)
        await follower.store.submit(topic("t", 1))
        assert follower.store.image.topic("t") is not None
        other.stop()
        with pytest.raises(RefusedError, match="a majority") as refused:
            await follower.store.submit(topic("u", 2), seconds_max=1.5)
        assert refused.value.code is ErrorCode.REQUEST_TIMED_OUT


async def test_a_leader_that_is_deposed_while_it_decides_has_the_next_one_do_it() -> None:
    async with MetadataCluster(3, config=PATIENT) as cluster:
        leader = await start(cluster)
        cluster.cut_off(leader)
        cluster.use(CONFIG)
        submitting = asyncio.create_task(leader.store.submit(topic("t", 1)))
        await until(lambda: not leader.replica.is_leader, "the fall")
        assert leader.store.image.topic("t") is None
        assert not submitting.done()
        cluster.introduce()
        await submitting
        assert len((await one_image(cluster)).topics) == 1


async def test_a_deletion_is_not_repeated_when_its_result_is_unknown() -> None:
    async with MetadataCluster(3, config=PATIENT) as cluster:
        leader = await start(cluster)
        await leader.store.submit(topic("t", 1))
        await one_image(cluster)
        cluster.cut_off(leader)
        cluster.use(CONFIG)
        with pytest.raises(RefusedError, match="the outcome is unknown") as refused:
            await leader.store.submit(DeleteTopic(name="t"))
        assert refused.value.code is ErrorCode.REQUEST_TIMED_OUT
        # Without its entry; else it could be elected again, and the topic would go after all.
        successor = await cluster.ready(other_than=leader.id)
        cluster.introduce()
        # Who has this one has all that came before it.
        await successor.store.submit(topic("u", 2))
        image = await one_image(cluster)
        assert image.topic("u") is not None
        assert image.topic("t") is not None


class LosesAnswers:
    """A caller whose peers carry out what they are asked, but the first answers are lost."""

    def __init__(self, caller: PeerCaller, count: int = 1) -> None:
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
    async with MetadataCluster(3, config=PATIENT) as cluster:
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
    async with MetadataCluster(3, config=PATIENT) as cluster:
        await start(cluster)
        follower, _ = await cluster.followers()

        class Beaten(LosesAnswers):
            async def call(
                self, peer: BrokerId, method: int, payload: bytes, timeout_seconds: float
            ) -> bytes:
                if self.left:
                    self.left -= 1
                    await follower.transport.call(
                        peer, method, encode_command(topic("t", 2)), timeout_seconds
                    )
                    raise RefusedError(ErrorCode.NETWORK_EXCEPTION, "the link is lost")
                return await super().call(peer, method, payload, timeout_seconds)

        follower.store._caller = Beaten(follower.transport)
        with pytest.raises(RefusedError) as refused:
            await follower.store.submit(topic("t", 1))
        assert refused.value.code is ErrorCode.TOPIC_ALREADY_EXISTS


async def test_a_deletion_whose_answer_is_lost_is_sent_once() -> None:
    async with MetadataCluster(3, config=PATIENT) as cluster:
        await start(cluster)
        follower, _ = await cluster.followers()
        await follower.store.submit(topic("t", 1))
        caller = follower.store._caller = LosesAnswers(follower.transport)
        with pytest.raises(RefusedError) as refused:
            await follower.store.submit(DeleteTopic(name="t"))
        assert (refused.value.code, caller.calls) == (ErrorCode.REQUEST_TIMED_OUT, 1)


async def test_what_does_no_harm_when_it_is_done_twice_is_sent_again() -> None:
    async with MetadataCluster(3, config=PATIENT) as cluster:
        await start(cluster)
        follower, _ = await cluster.followers()
        caller = follower.store._caller = LosesAnswers(follower.transport, count=2)
        (record,) = await follower.store.submit(AllocateProducerIds(count=10))
        assert (caller.calls, record.first) == (3, 20)  # type: ignore[union-attr]


async def test_a_deletion_during_a_hand_over_waits_for_the_next_leader() -> None:
    async with MetadataCluster(3, config=PATIENT) as cluster:
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
    async with MetadataCluster(3, config=PATIENT, directory=tmp_path) as cluster:
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
    async with MetadataCluster(3, config=PATIENT, heartbeat_ms=150) as cluster:
        leader = await start(cluster)
        follower, _ = await cluster.followers()
        leader.store._on_committed = lambda: None
        for number in range(5):
            await leader.store.submit(topic(f"t{number}", number + 1))
            image = await follower.store.fresh()
            assert image.topic(f"t{number}") is not None
            assert follower.images[-1].topic(f"t{number}") is not None
            assert await leader.store.fresh() == leader.store.image


async def test_a_full_disk_between_snapshot_and_truncation_ends_no_broker() -> None:
    async with MetadataCluster(3, config=PATIENT) as cluster:
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
    async with MetadataCluster(3, config=PATIENT, heartbeat_ms=150) as cluster:
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
            desired_version = leader.store.image.topics["t"].partitions[0].desired_version
            report = ReportReplicas(
                topic_id=topic_id,
                partition=index,
                desired_version=desired_version,
                voters=tuple(sorted(replicas)),
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
        await asyncio.wait_for(asked.wait(), wait_seconds_max())
        await move(me, other.id)
        answered.set()
        await follower.store.settled(leader.replica.log.end_offset)
        known = [image.topics["t"].partitions[0] for image in follower.images if image.topics]
        assert known[-1].replicas == (me, other.id)
        assert all(me in partition.replicas for partition in known)


async def test_an_isolated_leader_has_no_fresh_image_to_give() -> None:
    async with MetadataCluster(3, config=PATIENT) as cluster:
        leader = await start(cluster)
        cluster.cut_off(leader)
        cluster.use(CONFIG)
        with pytest.raises(RefusedError):
            await leader.store.fresh()
        await until(lambda: leader.store.leader != leader.id, "the fall")
        with pytest.raises(RefusedError) as refused:
            await leader.store.fresh()
        assert refused.value.code is ErrorCode.NOT_CONTROLLER


async def test_a_deposed_leader_goes_on_to_follow() -> None:
    async with MetadataCluster(3, config=PATIENT) as cluster:
        leader = await start(cluster)
        target, _ = await cluster.followers()
        async with asyncio.timeout(wait_seconds_max()):
            while not await leader.driver.transfer(leader.group(), target.id):
                await asyncio.sleep(0.05)
        await until(lambda: target.store.is_leading, "the new leader")
        await target.store.submit(topic("t", 1))
        await until(lambda: leader.images[-1].topic("t") is not None, "the image")
