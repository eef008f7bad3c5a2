"""Topics through the metadata of three brokers, and records deleted through the partition's log."""

import asyncio
from itertools import count
from types import SimpleNamespace
from typing import cast

import pytest
from memory_log import MemoryLog
from raft_brokers import PATIENT
from replica_brokers import MetadataCluster, make_batch, write

from moldau.control.metadata_store import MetadataStore
from moldau.control.topic_service import HIGH_WATERMARK, TopicService
from moldau.data.disk_space import DiskGuard
from moldau.data.partitions import Partitions
from moldau.log.interface import LogConfig
from moldau.metadata.commands import CreateCluster, RegisterBroker
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import BrokerId, Offset, TopicId
from moldau.testing.replicas import lead_replica, make_driver, make_flusher

pytestmark = pytest.mark.inprocess

_numbers = count(1)


def topics(
    metadata: MetadataStore | None = None,
    partitions: object = None,
    disk: DiskGuard | None = None,
    segment_bytes: int = 1 << 30,
) -> TopicService:
    return TopicService(
        metadata=cast(MetadataStore, metadata),
        partitions=cast(Partitions, partitions),
        disk=disk or DiskGuard(),
        new_topic_id=lambda: TopicId(next(_numbers).to_bytes(16, "big")),
        default_partitions=2,
        default_replication_factor=3,
        default_segment_bytes=segment_bytes,
    )


async def start(cluster: MetadataCluster) -> list[TopicService]:
    """The topics as each broker serves them, the leader's first."""
    cluster.add_group()
    leader = await cluster.ready()
    await leader.store.submit(CreateCluster(cluster_id="c"))
    for number in cluster.brokers:
        await leader.store.submit(
            RegisterBroker(id=BrokerId(number), host="h", port=1, incarnation=f"{number}")
        )
    brokers = [leader, *await cluster.followers()]
    return [topics(broker.store) for broker in brokers]


async def test_all_who_need_a_topic_at_once_get_the_same_one_on_any_broker() -> None:
    async with MetadataCluster(3, config=PATIENT, heartbeat_ms=150) as cluster:
        services = await start(cluster)
        for broker in cluster.running:
            # Followers hear of commits late.
            broker.store._on_committed = lambda: None
        for name in ("a", "b", "c"):
            found = await asyncio.gather(*(service.ensure(name) for service in services * 2))
            assert len({topic.topic_id for topic in found}) == 1
            assert [len(partition.replicas) for partition in found[0].partitions] == [3, 3]


async def test_a_topic_of_the_brokers_own_has_as_many_replicas_as_there_are_brokers() -> None:
    async with MetadataCluster(3, config=PATIENT) as cluster:
        _, follower, _ = await start(cluster)
        topic = await follower.ensure("__consumer_offsets", internal=True, partitions=1)
        assert (topic.internal, len(topic.partitions[0].replicas)) == (True, 3)


@pytest.mark.parametrize(("of_others", "own"), [(4096, 4096), (1 << 30, 100 * 1024 * 1024)])
async def test_a_topic_of_the_brokers_own_closes_segments_early_so_that_they_are_compacted(
    of_others: int, own: int
) -> None:
    async with MetadataCluster(1) as cluster:
        await start(cluster)
        service = topics(cluster.at(1).store, segment_bytes=of_others)
        topic = await service.ensure("__consumer_offsets", internal=True, partitions=1)
        assert topic.configs == {"cleanup.policy": "compact", "segment.bytes": str(own)}


async def test_a_check_changes_nothing_and_a_full_disk_creates_nothing() -> None:
    async with MetadataCluster(1) as cluster:
        await start(cluster)
        disk = DiskGuard()
        service = topics(cluster.at(1).store, disk=disk)
        planned = await service.create("t", replication_factor=1, validate_only=True)
        assert len(planned.partitions) == 2
        disk.is_full = True
        with pytest.raises(RefusedError):
            await service.create("t", replication_factor=1)
        assert service.image.topic("t") is None
        disk.is_full = False
        await service.create("t", replication_factor=1)
        await service.add_partitions("t", 5, None, validate_only=True)
        assert len(service.image.topics["t"].partitions) == 2
        await service.add_partitions("t", 5, None, validate_only=False)
        assert len(service.image.topics["t"].partitions) == 5
        await service.delete(name="t")
        assert service.image.topic("t") is None


async def test_records_are_deleted_up_to_what_is_committed_and_not_beyond() -> None:
    flusher = make_flusher()
    driver = make_driver(flusher)
    replica = await lead_replica(MemoryLog(LogConfig()), flusher, driver=driver)
    hosted = SimpleNamespace(replica=replica, internal=False, deletes=True)
    service = topics(partitions=SimpleNamespace(lead=lambda topic, partition: hosted))
    for _ in range(5):
        await write(replica, make_batch(b"v"))
    assert await service.delete_records("t", 0, 2) == 2
    # The start never falls.
    assert await service.delete_records("t", 0, 1) == 2
    for wrong in (6, -2):
        with pytest.raises(RefusedError) as refused:
            await service.delete_records("t", 0, wrong)
        assert refused.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
    # Retention is each replica's own, and what is answered holds for all.
    replica.log.delete_before(Offset(4))
    before = replica.group.core.end
    assert await service.delete_records("t", 0, 3) == 4
    assert replica.group.core.end == before + 1
    # What is agreed is not written again.
    assert await service.delete_records("t", 0, 4) == 4
    assert replica.group.core.end == before + 1
    assert await service.delete_records("t", 0, HIGH_WATERMARK) == 5
    assert replica.log.start_offset == replica.log.end_offset == 5
    hosted.deletes = False
    with pytest.raises(RefusedError) as refused:
        await service.delete_records("t", 0, 5)
    assert refused.value.code is ErrorCode.POLICY_VIOLATION
    hosted.internal = True
    with pytest.raises(RefusedError) as refused:
        await service.delete_records("t", 0, 5)
    assert refused.value.code is ErrorCode.INVALID_TOPIC_EXCEPTION
    driver.stop()
    flusher.stop()
