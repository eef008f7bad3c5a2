"""One broker's metadata store: a decision at a time, applied when committed, read from the log."""

import asyncio
import gc
from pathlib import Path

import pytest
from metadata_world import World, registration, set_up, topic
from replica_brokers import members

from moldau.control import metadata_store
from moldau.control.metadata_store import MetadataStore
from moldau.data.commit import commit_batch
from moldau.log.disk_log import open_disk_log
from moldau.log.interface import LogConfig
from moldau.log.os_filesystem import OsFiles
from moldau.metadata.commands import CreateTopic, DeleteTopic, ReassignPartition, ReportReplicas
from moldau.metadata.image import EMPTY_IMAGE
from moldau.metadata.snapshot import encode_image
from moldau.model.errors import CorruptionError, ErrorCode, RefusedError
from moldau.model.ids import BrokerId, Offset, PartitionIndex, TopicId
from moldau.replica.replica import Replica
from moldau.testing.replicas import ME
from moldau.testing.waiting import until

pytestmark = pytest.mark.inprocess

OTHER = BrokerId(2)


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
    commit, reached, gate = commit_batch, asyncio.Event(), asyncio.Event()

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


async def test_a_refusal_without_a_waiting_request_is_not_a_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = await set_up()
    reached, gate = asyncio.Event(), asyncio.Event()

    async def refuse_late(replica: Replica, batch: bytes) -> ErrorCode:
        reached.set()
        await gate.wait()
        return ErrorCode.NOT_CONTROLLER

    failures: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
    monkeypatch.setattr(metadata_store, "commit_batch", refuse_late)
    impatient = asyncio.create_task(world.store.submit(topic("t", 1)))
    await reached.wait()
    impatient.cancel()
    with pytest.raises(asyncio.CancelledError):
        await impatient
    gate.set()
    while world.store._deciding:
        await asyncio.sleep(0)
    gc.collect()
    assert failures == []
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
    await until(lambda: world.store.image.topic("t") is not None, "the image has it")
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
    await until(lambda: world.following.topic("t") is not None, "the broker follows the image")
    second = asyncio.create_task(world.store.submit(topic("u", 2)))
    await until(lambda: world.store.image.topic("u") is not None, "the image has it")
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
    await until(lambda: world.store.image.topic("t") is not None, "the image has it")
    asking = asyncio.create_task(world.store.fresh())
    await asyncio.sleep(0.02)
    assert not asking.done()
    world.gate.set()
    assert (await asking).topic("t") is not None
    assert world.images[-1].topic("t") is not None
    await submitting
    world.crash()


async def test_a_wait_for_the_broker_that_times_out_says_that_the_change_is_made() -> None:
    world = await set_up()
    world.gate.clear()
    with pytest.raises(RefusedError, match="the change is committed") as refused:
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
    await until(
        lambda: len(again.images) > 0 and len(again.images[-1].brokers) == 1, "the image has it"
    )
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
    with pytest.raises(CorruptionError, match="is corrupt or missing"):
        World(world.log).prepare()


async def test_an_older_snapshot_than_the_beginning_of_the_log_is_refused() -> None:
    """It would bring back what was deleted, and forget what was made since."""
    world = await set_up()
    old = world.log.end_offset
    world.log.save_snapshot(old, encode_image(world.store.image))
    await world.store.submit(topic("t", 1))
    world.crash()
    start = world.log.end_offset
    world.log.delete_before(start)
    with pytest.raises(CorruptionError, match=f"{start:020d}.snapshot.*--join-addr"):
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
            desired_version=found.partitions[0].desired_version,
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


async def test_what_was_removed_before_a_crash_is_reported_until_the_broker_has_followed() -> None:
    world = await set_up()
    await world.store.submit(topic("t", 1))
    world.gate.clear()
    deleting = asyncio.create_task(world.store.submit(DeleteTopic(name="t")))
    await until(lambda: world.store.image.topic("t") is None, "the image has it")
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
    assert [type(error) for error in world.failures] == [CorruptionError]
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


async def test_a_topic_that_is_recreated_at_once_is_reported_as_deleted_first() -> None:
    world = await set_up()
    store = world.store
    await store.submit(topic("t", 1))
    first, second = TopicId(bytes([1] * 16)), TopicId(bytes([2] * 16))
    told: list[tuple[TopicId, bool]] = []
    store.on_deleted = lambda topics: told.extend(
        (one.topic_id, store.image.topic_by_id(second) is None) for one in topics
    )
    await asyncio.gather(store.submit(DeleteTopic(topic_id=first)), store.submit(topic("t", 2)))
    assert store.image.topic_by_id(second) is not None
    assert told == [(first, True)]
    world.crash()
