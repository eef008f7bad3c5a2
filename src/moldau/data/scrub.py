"""Owns the scrub: every stored batch is read again now and then, slowly, and its checksum checked.

Rot shows where data is read, and old data of a follower may be read by nobody for months: until it
leads, or until the other copies are gone. What the scrub finds is repaired from the others
(repair.py) where they can spare this replica; else it is said, and what is intact is served on.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from msgspec import Struct

from moldau.data.partitions import HostedPartition, Partitions
from moldau.log.interface import PartitionLog
from moldau.model.errors import CorruptionError
from moldau.model.ids import Offset

log = logging.getLogger(__name__)

_STEP_BYTES: Final = 1024 * 1024


class ScrubMetrics(Struct):
    """Counted since the start."""

    bytes: int = 0
    damaged: int = 0
    """Partitions in which damage was found."""


class Scrubber:
    """Goes through all partitions, again and again."""

    def __init__(
        self,
        *,
        partitions: Partitions,
        interval_seconds: float,
        bytes_per_second: int,
        is_spare: Callable[[HostedPartition], Awaitable[bool]],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`is_spare`: whether the others of a group go on without this replica."""
        self._partitions = partitions
        self._interval_seconds = interval_seconds
        self._bytes_per_second = bytes_per_second
        self._is_spare = is_spare
        self._sleep = sleep
        self.metrics = ScrubMetrics()

    async def run(self) -> None:
        """Until cancelled. Not at once: a start has other things to do."""
        while True:
            await self._sleep(self._interval_seconds)
            await self.scrub_all()

    async def scrub_all(self) -> None:
        """All partitions, once."""
        for hosted in self._partitions:
            try:
                await self._check(hosted)
            except CorruptionError as error:
                await self._found(hosted, error)
            except OSError as error:
                # Too many open files, or a disk that will tell whoever needs the data.
                log.warning("%s cannot be looked at now: %s", hosted.replica.partition, error)

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
                # It was cut under the look: the next time.
                return
            offset = after

    async def _found(self, hosted: HostedPartition, error: CorruptionError) -> None:
        self.metrics.damaged += 1
        if await self._is_spare(hosted):
            self._partitions.take_offline(hosted, error)
        else:
            log.error(
                "%s is damaged, but its group cannot do without it; what is good is served: %s",
                hosted.replica.partition,
                error,
            )
