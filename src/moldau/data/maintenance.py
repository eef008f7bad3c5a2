"""Periodic work: retention, interval flushes, snapshots, disk space checks and repair."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

from msgspec import Struct

from moldau.data.disk_space import DiskGuard
from moldau.data.partitions import HostedPartition, Partitions
from moldau.model import log_events as events
from moldau.model.clock import Clock
from moldau.model.errors import DiskFullError
from moldau.model.ids import TimestampMs

log = logging.getLogger(__name__)

_DISK_CHECK_SECONDS = 1.0
_SNAPSHOT_CHECK_SECONDS = 5.0
_REPAIR_SECONDS = 5.0
_PARTITIONS_PER_TURN = 50
"""Requests are served after this many partitions."""
_LOOKS_PER_TURN = 1_000
"""The same, where most partitions only cost a look."""


class MaintenanceConfig(Struct, frozen=True, kw_only=True):
    retention_check_ms: int
    flush_interval_ms: int
    producer_id_expiry_ms: int
    disk_reserve_bytes: int


@contextlib.contextmanager
def _skip_if_disk_full() -> Iterator[None]:
    """Work that can wait: on a full disk it is retried at the next interval."""
    try:
        yield
    except DiskFullError as error:
        log.warning(
            "maintenance skipped until there is free disk space: %s",
            error,
            extra=events.MAINTENANCE_SKIPPED(),
        )


class Maintenance:
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
            tasks.create_task(self._run_retention())
            tasks.create_task(self._run_flushes())
            tasks.create_task(self._run_snapshots())
            tasks.create_task(self._run_disk_checks())
            tasks.create_task(self._run_repair())

    async def _in_turns(self) -> AsyncIterator[HostedPartition]:
        """All partitions, with a pause for requests after every few of them."""
        for number, hosted in enumerate(self._partitions, 1):
            # A topic may be deleted during the pause.
            if hosted.replica.is_open:
                yield hosted
            if number % _PARTITIONS_PER_TURN == 0:
                await asyncio.sleep(0)

    async def _run_retention(self) -> None:
        while True:
            await asyncio.sleep(self._config.retention_check_ms / 1000)
            now = self._clock.wall_ms()
            expire_before = TimestampMs(now - self._config.producer_id_expiry_ms)
            async for hosted in self._in_turns():
                has_deleted = False
                with _skip_if_disk_full():
                    has_deleted = hosted.replica.retain(now)
                if has_deleted:
                    # Unlinking gigabytes is slow: let requests run.
                    await asyncio.sleep(0)
                hosted.replica.expire_producers(expire_before)

    async def _run_flushes(self) -> None:
        while True:
            await asyncio.sleep(self._config.flush_interval_ms / 1000)
            # Every second, and few partitions have this policy: without a turn for every few.
            for number, hosted in enumerate(self._partitions, 1):
                if hosted.flushes_at_intervals and hosted.replica.is_open:
                    hosted.replica.flush_soon()
                if number % _LOOKS_PER_TURN == 0:
                    await asyncio.sleep(0)

    async def _run_snapshots(self) -> None:
        while True:
            await asyncio.sleep(_SNAPSHOT_CHECK_SECONDS)
            async for hosted in self._in_turns():
                has_saved = False
                with _skip_if_disk_full():
                    has_saved = hosted.replica.snapshot_if_due()
                if has_saved:
                    # It waited for the disk: let requests run.
                    await asyncio.sleep(0)
                # Closed segments are flushed under every policy, to keep recovery short.
                hosted.replica.flush_soon()

    async def _run_disk_checks(self) -> None:
        while True:
            self.check_disk()
            await asyncio.sleep(_DISK_CHECK_SECONDS)

    async def _run_repair(self) -> None:
        while True:
            await asyncio.sleep(_REPAIR_SECONDS)
            if not self._disk.is_full:
                with _skip_if_disk_full():
                    await self._repair()

    def check_disk(self) -> None:
        """Rejects produce requests while less than the reserve is free."""
        is_full = self._free_bytes() < self._config.disk_reserve_bytes
        if is_full != self._disk.is_full:
            self._disk.is_full = is_full
            if is_full:
                log.error(
                    "less than %d bytes free on the data disk: produce requests are rejected until "
                    "there is more space (setting log.disk_reserve_bytes)",
                    self._config.disk_reserve_bytes,
                    extra=events.DISK_RESERVE_REACHED(),
                )
            else:
                log.warning(
                    "the data disk has free space again: produce requests are accepted",
                    extra=events.DISK_RESERVE_FREE(),
                )
        if not is_full:
            self._partitions.retry_offline()
        self._partitions.finish_moves()
