"""Watching the disk: produce is refused below the reserve, and what waited for room comes back."""

import asyncio
from collections.abc import Iterator
from types import SimpleNamespace
from typing import cast
from unittest.mock import Mock

import pytest

from harness.virtual_loop import run_virtually
from moldau.data.disk_space import DiskGuard
from moldau.data.maintenance import Maintenance, MaintenanceConfig
from moldau.data.partitions import Partitions
from moldau.model.errors import RefusedError
from moldau.testing.replicas import ManualClock

RESERVE = 1000


class World:
    """A disk whose free space the test sets, and partitions that count how often they are tried."""

    def __init__(self) -> None:
        self.free = RESERVE
        self.retries = 0
        self.hosted: list[SimpleNamespace] = []
        self.disk = DiskGuard()
        self.upkeep = Maintenance(
            config=MaintenanceConfig(
                retention_check_ms=1000,
                flush_interval_ms=1000,
                producer_id_expiry_ms=1000,
                disk_reserve_bytes=RESERVE,
            ),
            partitions=cast(Partitions, self),
            disk=self.disk,
            clock=ManualClock(),
            free_bytes=lambda: self.free,
            repair=self.repair,
        )

    async def repair(self) -> None:
        pass

    def __iter__(self) -> Iterator[SimpleNamespace]:
        return iter(self.hosted)

    def host(self, *, flushes_at_intervals: bool, is_open: bool = True) -> Mock:
        """What a flush is requested with."""
        replica = Mock(is_open=is_open)
        self.hosted.append(
            SimpleNamespace(replica=replica, flushes_at_intervals=flushes_at_intervals)
        )
        return cast(Mock, replica.flush_soon)

    def finish_moves(self) -> None:
        pass

    def retry_offline(self) -> None:
        self.retries += 1

    def look(self, free: int) -> tuple[bool, int]:
        """Whether the disk counts as full then, and how often partitions were tried."""
        before = self.retries
        self.free = free
        self.upkeep.check_disk()
        return self.disk.is_full, self.retries - before


def test_the_disk_is_full_below_the_reserve_and_not_at_it() -> None:
    world = World()
    assert world.look(RESERVE)[0] is False
    assert world.look(RESERVE - 1)[0] is True
    with pytest.raises(RefusedError, match="full"):
        world.disk.check()
    assert world.look(RESERVE)[0] is False
    world.disk.check()


def test_offline_partitions_are_tried_again_at_every_look_that_finds_room_and_at_no_other() -> None:
    world = World()
    tried = [world.look(free)[1] for free in (RESERVE, 0, 0, RESERVE, RESERVE * 2)]
    assert tried == [1, 0, 0, 1, 1]


def test_partitions_with_that_policy_are_flushed_at_every_interval_and_no_others() -> None:
    world = World()
    asked = world.host(flushes_at_intervals=True)
    others = [
        world.host(flushes_at_intervals=False),
        world.host(flushes_at_intervals=True, is_open=False),
    ]

    async def scenario() -> None:
        flushes = asyncio.create_task(world.upkeep._run_flushes())
        await asyncio.sleep(3.5)
        flushes.cancel()

    run_virtually(scenario())
    assert asked.call_count == 3
    assert [other.call_count for other in others] == [0, 0]
