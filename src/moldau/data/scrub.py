"""Scrubs the logs: reads every stored batch from time to time, slowly, and verifies its checksum.

Bit rot is found only when data is read, and old data of a follower may not be read for months. A
corrupt replica is rebuilt from the others (replica_repair.py) if they can lose it; otherwise it is
logged, and the intact part is still served.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from msgspec import Struct

from moldau.data.partitions import HostedPartition, Partitions
from moldau.log.interface import PartitionLog
from moldau.model import log_events as events
from moldau.model.errors import CorruptionError
from moldau.model.ids import Offset

log = logging.getLogger(__name__)

_STEP_BYTES: Final = 1024 * 1024


class ScrubMetrics(Struct):
    """Since the start."""

    bytes: int = 0
    corrupt: int = 0
    """Partitions found corrupt."""


class Scrubber:
    def __init__(
        self,
        *,
        partitions: Partitions,
        interval_seconds: float,
        bytes_per_second: int,
        can_lose: Callable[[HostedPartition], Awaitable[bool]],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`can_lose`: whether the partition can lose this replica."""
        self._partitions = partitions
        self._interval_seconds = interval_seconds
        self._bytes_per_second = bytes_per_second
        self._can_lose = can_lose
        self._sleep = sleep
        self.metrics = ScrubMetrics()

    async def run(self) -> None:
        """Until cancelled. The first scrub waits for one interval, to keep the start fast."""
        while True:
            await self._sleep(self._interval_seconds)
            await self.scrub_all()

    async def scrub_all(self) -> None:
        for hosted in self._partitions:
            try:
                await self._check(hosted)
            except CorruptionError as error:
                await self._on_corruption(hosted, error)
            except OSError as error:
                # Too many open files, or a bad disk, which other reads report.
                log.warning(
                    "scrub of %s skipped this time: %s",
                    hosted.replica.partition,
                    error,
                    extra=events.SCRUB_SKIPPED(),
                )

    async def _check(self, hosted: HostedPartition) -> None:
        """Raises CorruptionError."""
        partition_log: PartitionLog = hosted.replica.log
        offset = Offset(0)

        def is_open() -> bool:
            return hosted.replica.is_open

        while is_open():
            offset = max(offset, partition_log.start_offset)
            task = partition_log.begin_check(offset, _STEP_BYTES)
            if task is None:
                return
            await asyncio.to_thread(task.run)
            if not is_open():
                return
            after = partition_log.end_check(task)
            self.metrics.bytes += task.size
            await self._sleep(task.size / self._bytes_per_second)
            if after <= offset:
                # The log was truncated meanwhile: continue next time.
                return
            offset = after

    async def _on_corruption(self, hosted: HostedPartition, error: CorruptionError) -> None:
        self.metrics.corrupt += 1
        if await self._can_lose(hosted):
            self._partitions.take_offline(hosted, error)
        else:
            log.error(
                "%s is corrupt and cannot be rebuilt: too few other replicas are in sync; "
                "its intact records are still served: %s",
                hosted.replica.partition,
                error,
                extra=events.REPLICA_CORRUPT(),
            )
