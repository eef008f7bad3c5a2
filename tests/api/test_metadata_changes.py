"""Waiting for the leaders of a new topic."""

import asyncio

from handler_calls import FakeCluster, broker_of, brokers, image, topic

from harness.virtual_loop import run_virtually
from moldau.api.metadata_changes import await_leaders


def cluster_with_a_leaderless_partition() -> FakeCluster:
    cluster = FakeCluster(image(brokers(1, 2), topic("t", (1, 2), (1, 2))))
    cluster.lead("t", 0, 2, 5)
    return cluster


def test_the_wait_ends_when_all_partitions_have_leaders():
    async def run() -> None:
        cluster = cluster_with_a_leaderless_partition()
        waiting = asyncio.ensure_future(await_leaders(broker_of(cluster), ["t", "not-there"]))
        await asyncio.sleep(0.01)
        assert not waiting.done()
        cluster.lead("t", 1, 1, 1)
        async with asyncio.timeout(0.5):
            await waiting

    run_virtually(run())


def test_the_wait_has_a_limit():
    async def run() -> None:
        async with asyncio.timeout(1.5):
            await await_leaders(broker_of(cluster_with_a_leaderless_partition()), ["t"], 1.0)

    run_virtually(run())
