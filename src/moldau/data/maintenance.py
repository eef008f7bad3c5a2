"""Owns what a broker does by the clock: retention, interval flushes, watching the disk, repair."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

from msgspec import Struct

from moldau.data.disk_space import DiskGuard
from moldau.data.partitions import HostedPartition, Partitions
from moldau.model.clock import Clock
from moldau.model.errors import DiskFullError
from moldau.model.flush import FlushPolicy
from moldau.model.ids import TimestampMs

log = logging.getLogger(__name__)

_DISK_CHECK_SECONDS = 1.0
_SNAPSHOT_CHECK_SECONDS = 5.0
_REPAIR_SECONDS = 5.0
_PARTITIONS_PER_TURN = 50
"""After so many of them, requests get their turn."""


class MaintenanceConfig(Struct, frozen=True, kw_only=True):
    """How often, and how much room to keep."""

    retention_check_ms: int
    flush_interval_ms: int
    producer_id_expiry_ms: int
    disk_reserve_bytes: int


@contextlib.contextmanager
def _room_needed() -> Iterator[None]:
    """Work that can wait: on a full disk it is left for the next time."""
    try:
        yield
    except DiskFullError as error:
        log.warning("upkeep waits for room on the disk: %s", error)


class Maintenance:
    """Background work over all partitions."""

    def __init__(
        self,
        *,
        config: MaintenanceConfig,
        partitions: Partitions,
        disk: DiskGuard,
        clock: Clock,
        free_bytes: Callable[[], int],
        repair: Callable[[], Awaitable[None]],
    ) -> None:
        self._config = config
        self._partitions = partitions
        self._disk = disk
        self._clock = clock
        self._free_bytes = free_bytes
        self._repair = repair

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._keep_retaining())
            tasks.create_task(self._keep_flushing())
            tasks.create_task(self._keep_snapshotting())
            tasks.create_task(self._keep_watching_disk())
            tasks.create_task(self._keep_repairing())

    async def _in_turns(self) -> AsyncIterator[HostedPartition]:
        """All partitions; after some of them it is the clients' turn."""
        for number, hosted in enumerate(self._partitions, 1):
            # A topic may be deleted while this sleeps.
            if hosted.replica.is_open:
                yield hosted
            if number % _PARTITIONS_PER_TURN == 0:
                await asyncio.sleep(0)

    async def _keep_retaining(self) -> None:
        while True:
            await asyncio.sleep(self._config.retention_check_ms / 1000)
            now = self._clock.wall_ms()
            expire_before = TimestampMs(now - self._config.producer_id_expiry_ms)
            async for hosted in self._in_turns():
                has_deleted = False
                with _room_needed():
                    has_deleted = hosted.replica.retain(now)
                if has_deleted:
                    # Unlinking gigabytes takes its time: then it is the clients' turn.
                    await asyncio.sleep(0)
                hosted.replica.expire_producers(expire_before)

    async def _keep_flushing(self) -> None:
        while True:
            await asyncio.sleep(self._config.flush_interval_ms / 1000)
            async for hosted in self._in_turns():
                if hosted.replica.log.config.flush is FlushPolicy.INTERVAL:
                    hosted.replica.flush_soon()

    async def _keep_snapshotting(self) -> None:
        while True:
            await asyncio.sleep(_SNAPSHOT_CHECK_SECONDS)
            async for hosted in self._in_turns():
                has_saved = False
                with _room_needed():
                    has_saved = hosted.replica.snapshot_if_due()
                if has_saved:
                    # It waited for the disk: then it is the clients' turn.
                    await asyncio.sleep(0)
                # Closed segments are flushed under every policy, to keep a restart short.
                hosted.replica.flush_soon()

    async def _keep_watching_disk(self) -> None:
        while True:
            self.check_disk()
            await asyncio.sleep(_DISK_CHECK_SECONDS)

    async def _keep_repairing(self) -> None:
        while True:
            await asyncio.sleep(_REPAIR_SECONDS)
            if not self._disk.is_full:
                with _room_needed():
                    await self._repair()

    def check_disk(self) -> None:
        """Refuse produce while there is less room than the reserve; accept again by itself."""
        is_full = self._free_bytes() < self._config.disk_reserve_bytes
        if is_full != self._disk.is_full:
            self._disk.is_full = is_full
            if is_full:
                log.error(
                    "less than %d bytes are free on the data disk: produce is refused until "
                    "there is room (log.disk_reserve_bytes)",
                    self._config.disk_reserve_bytes,
                )
            else:
                log.warning("there is room on the data disk again: produce is accepted")
        if not is_full:
            self._partitions.retry_offline()
        self._partitions.finish_moves()
