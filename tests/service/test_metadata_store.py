"""The metadata store: one decision at a time, applied only when committed, rebuilt from the log."""

import asyncio

import pytest

from moldau.log.interface import LogConfig
from moldau.log.memory import MemoryLog
from moldau.metadata.commands import CreateCluster, CreateTopic, RegisterBroker
from moldau.metadata.image import Image
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import (
    TopicId,
)
from moldau.service.metadata_store import MetadataStore
from moldau.testing.replicas import ME, SetClock, lead_replica, make_flusher


async def open_store(log: MemoryLog) -> tuple[MetadataStore, list[Image]]:
    replica = lead_replica(log, make_flusher(), topic="__cluster_metadata")
    images: list[Image] = []

    async def note(image: Image) -> None:
        images.append(image)

    store = MetadataStore(replica, SetClock(), note)
    store.replay()
    return store, images


def topic(name: str, number: int) -> CreateTopic:
    return CreateTopic(
        name=name, topic_id=TopicId(bytes([number] * 16)), partitions=1, replication_factor=1
    )


async def set_up(log: MemoryLog) -> tuple[MetadataStore, list[Image]]:
    store, images = await open_store(log)
    await store.submit(CreateCluster(cluster_id="c"))
    await store.submit(RegisterBroker(id=ME, host="h", port=1, incarnation="i"))
    return store, images


async def test_of_two_who_create_the_same_topic_at_once_one_is_refused() -> None:
    store, _ = await set_up(MemoryLog(LogConfig()))
    results = await asyncio.gather(
        store.submit(topic("t", 1)), store.submit(topic("t", 2)), return_exceptions=True
    )
    refusals = [result for result in results if isinstance(result, RefusedError)]
    assert [refusal.code for refusal in refusals] == [ErrorCode.TOPIC_ALREADY_EXISTS]
    assert len(store.image.topics) == len(store.image.topics_by_id) == 1


async def test_a_change_is_seen_only_once_it_is_committed() -> None:
    store, images = await set_up(MemoryLog(LogConfig()))
    before = len(images)
    submitting = asyncio.create_task(store.submit(topic("t", 1)))
    await asyncio.sleep(0)
    assert store.image.topic("t") is None
    await submitting
    assert store.image.topic("t") is not None
    assert [image.topic("t") is not None for image in images[before:]] == [True]


async def test_a_refused_command_changes_nothing() -> None:
    log = MemoryLog(LogConfig())
    store, images = await set_up(log)
    end, count = log.end_offset, len(images)
    with pytest.raises(RefusedError):
        await store.submit(topic("..", 1))
    assert (log.end_offset, len(images)) == (end, count)


async def test_a_preview_changes_nothing_either() -> None:
    log = MemoryLog(LogConfig())
    store, _ = await set_up(log)
    end = log.end_offset
    assert store.preview(topic("t", 1)).topic("t") is not None
    assert (store.image.topic("t"), log.end_offset) == (None, end)


async def test_the_image_is_rebuilt_from_the_log() -> None:
    log = MemoryLog(LogConfig())
    store, _ = await set_up(log)
    for number in range(5):
        await store.submit(topic(f"t{number}", number + 1))
    again, images = await open_store(log)
    assert again.image == store.image
    assert images == []
