"""Every stored batch is read again, slowly, and damage is found before somebody needs the data."""

import asyncio

import pytest
from partitions_world import OTHER, THIRD, World, creation

from moldau.data.partitions import HostedPartition
from moldau.data.scrub import Scrubber
from moldau.model.ids import BrokerId, Epoch
from moldau.testing.logs import append, flush

pytestmark = pytest.mark.inprocess

ME = BrokerId(1)


class Scrubbed:
    """Two partitions with records, one of a partner's and one that may be damaged."""

    def __init__(self, *, can_lose: bool) -> None:
        self.world = World(brokers=3)
        self.world.submit(creation(assignments={key: [ME, OTHER, THIRD] for key in range(2)}))
        for index in range(2):
            log = self.world.logs[index]
            for _ in range(20):
                append(log, epoch=Epoch(1), value=b"x" * 100)
            flush(log)
        self.slept: list[float] = []
        self.can_lose = can_lose
        self.scrub = Scrubber(
            partitions=self.world.partitions,
            interval_seconds=60.0,
            bytes_per_second=1000,
            can_lose=self._can_lose,
            sleep=self._sleep,
        )

    async def _can_lose(self, hosted: HostedPartition) -> bool:
        return self.can_lose

    async def _sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        await asyncio.sleep(0)

    def damage(self, index: int) -> None:
        batches = self.world.logs[index]._batches
        batches[7] = batches[7][:-1] + b"?"

    def hosted(self, index: int) -> HostedPartition | None:
        return self.world.partitions.get("t", index)

    @property
    def stored(self) -> int:
        return sum(log.size_bytes for log in self.world.logs.values())

    def stop(self) -> None:
        self.world.driver.stop()
        self.world.flusher.stop()


async def test_all_is_read_no_faster_than_it_may() -> None:
    scrubbed = Scrubbed(can_lose=True)
    await scrubbed.scrub.scrub_all()
    assert scrubbed.scrub.metrics.bytes == scrubbed.stored
    assert sum(scrubbed.slept) == pytest.approx(scrubbed.stored / 1000)
    assert scrubbed.scrub.metrics.corrupt == 0
    scrubbed.stop()


async def test_a_damaged_replica_that_can_be_spared_goes_offline_to_be_repaired() -> None:
    scrubbed = Scrubbed(can_lose=True)
    scrubbed.damage(0)
    await scrubbed.scrub.scrub_all()
    assert (scrubbed.hosted(0), scrubbed.scrub.metrics.corrupt) == (None, 1)
    assert list(scrubbed.world.partitions.offline) == [("t", 0)]
    assert scrubbed.hosted(1) is not None
    scrubbed.stop()


async def test_one_that_cannot_be_spared_is_still_served_and_reported(
    caplog: pytest.LogCaptureFixture,
) -> None:
    scrubbed = Scrubbed(can_lose=False)
    scrubbed.damage(1)
    await scrubbed.scrub.scrub_all()
    assert scrubbed.hosted(1) is not None
    assert scrubbed.scrub.metrics.corrupt == 1
    assert "t-1 is corrupt and cannot be rebuilt" in caplog.text
    scrubbed.stop()


async def test_it_begins_after_the_interval_and_begins_again() -> None:
    scrubbed = Scrubbed(can_lose=True)
    running = asyncio.create_task(scrubbed.scrub.run())
    while scrubbed.scrub.metrics.bytes < 2 * scrubbed.stored:
        await asyncio.sleep(0)
    running.cancel()
    assert scrubbed.slept[0] == 60.0
    assert scrubbed.slept.count(60.0) >= 2
    scrubbed.stop()
