"""Owns the compaction of the broker's partitions: which one is next, and what came of it.

Every replica cleans its own log, leader or not: what is committed is cleaned, and nobody has to
agree on when. Only tombstones and markers wait until all replicas have them (held.py). The work is
done by another process; here only the outcome is swapped in. A cleaning that fails is an error line
and a later retry, longer with each failure, never the broker's end.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from moldau.data.cleaner_process import WorkerLostError
from moldau.data.partitions import HostedPartition, Partitions
from moldau.log.clean import AbortedRange, CleanRequest, CleanResult
from moldau.log.clean_worker import (
    Asked,
    CleanCommand,
    CleanDone,
    RemoveFilesCommand,
    WorkerReply,
    WorkFailed,
)
from moldau.log.disk_cleaning import DiskClean
from moldau.log.keymap import MAP_BYTES_MAX
from moldau.model.clock import Clock
from moldau.model.errors import DiskFullError
from moldau.model.ids import Offset, TopicPartition
from moldau.replica.flusher import Flusher
from moldau.replica.replica import Replica

log = logging.getLogger(__name__)

_RETRY_SECONDS_MAX: Final = 600.0
Ask = Callable[[Asked], Awaitable[WorkerReply]]
AskHeld = Callable[[Iterable[Replica]], Awaitable[Mapping[TopicPartition, Offset]]]
_NOTHING_HELD: Final = Offset(0)


class CleanerConfig(Struct, frozen=True, kw_only=True):
    """How often to look for work, and with how much memory to do it."""

    check_seconds: float = 15.0
    retry_seconds: float = 15.0
    map_bytes_max: int = MAP_BYTES_MAX
    merges: bool = True


class CleanerMetrics:
    """Since the start of the broker; `due` now: how many logs need a cleaning."""

    def __init__(self, due: Callable[[], int]) -> None:
        self.due = due
        self.cleanings = 0
        self.failures = 0
        self.bytes_read = 0
        self.bytes_written = 0
        self.records_read = 0
        self.records_dropped = 0
        self.seconds = 0.0
        self.last_error = ""

    def add(self, result: CleanResult) -> None:
        counts = result.counts
        self.cleanings += 1
        self.bytes_read += counts.bytes_read
        self.bytes_written += counts.bytes_written
        self.records_read += counts.records_read
        self.records_dropped += counts.records_dropped
        self.seconds += counts.seconds


class _Failed:
    """A partition whose last cleaning failed."""

    __slots__ = ("count", "retry_at")

    def __init__(self) -> None:
        self.count = 0
        self.retry_at = 0.0


class Cleaner:
    """Cleans one partition after another, the dirtiest first."""

    def __init__(
        self,
        *,
        config: CleanerConfig,
        partitions: Partitions,
        flusher: Flusher,
        clock: Clock,
        ask: Ask,
        replicated_offsets: AskHeld,
        room_bytes: Callable[[], int],
    ) -> None:
        """`ask` the worker, `replicated_offsets` below which offsets all replicas hold everything.

        `room_bytes`: what may still be written before producers would be refused.
        """
        self._config = config
        self._partitions = partitions
        self._flusher = flusher
        self._clock = clock
        self._ask = ask
        self._ask_held = replicated_offsets
        self._held: dict[TopicPartition, Offset] = {}
        self._room_bytes = room_bytes
        self._failed: dict[TopicPartition, _Failed] = {}
        self._stale: list[str] = []
        """Files to be removed. Their names never come back, so there is no hurry."""
        self.metrics = CleanerMetrics(self._due_count)

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(self._config.check_seconds)
            await self.refresh_replicated_offsets()
            while await self.clean_next():
                pass

    async def refresh_replicated_offsets(self) -> None:
        """Of the logs that are compacted: enough to see which of them have something to do."""
        compacted = [
            hosted.replica
            for hosted in self._partitions
            if hosted.is_compacted and hosted.replica.is_open
        ]
        self._held = dict(await self._ask_held(compacted))

    async def clean_next(self) -> bool:
        """Clean the log that needs it most; False if none does, or it failed."""
        hosted = self._most_urgent()
        if hosted is None:
            return False
        try:
            error = await self._clean(hosted)
        except WorkerLostError as lost:
            error = str(lost)
        except DiskFullError as full:
            error = str(full)
        key = hosted.replica.partition
        if not error:
            self._failed.pop(key, None)
            return True
        failed = self._failed.setdefault(key, _Failed())
        failed.count += 1
        seconds = min(self._config.retry_seconds * 2 ** (failed.count - 1), _RETRY_SECONDS_MAX)
        failed.retry_at = self._clock.monotonic() + seconds
        self.metrics.failures += 1
        self.metrics.last_error = error
        log.error(
            "compaction of %s failed, next try in %d s: %s",
            hosted.replica.partition,
            seconds,
            error,
        )
        return True

    def _look(self, hosted: HostedPartition) -> CleanRequest:
        """Enough to see whether there is something to do."""
        replica = hosted.replica
        return CleanRequest(
            now=self._clock.wall_ms(),
            end_offset=replica.high_watermark,
            replicated_offset=self._held.get(replica.partition, _NOTHING_HELD),
            first_unstable=replica.producers.first_unstable,
            merges=self._config.merges,
            map_bytes_max=self._config.map_bytes_max,
        )

    def _request(self, hosted: HostedPartition) -> CleanRequest:
        """All that the log must be told by those who know."""
        producers = hosted.replica.producers
        return replace(
            self._look(hosted),
            aborted=[
                AbortedRange(span.producer_id, span.first, span.last)
                for span in producers.aborted.all()
            ],
            producers=[producer for producer, _ in producers],
        )

    def _due_count(self) -> int:
        """Also of those whose last cleaning failed, and that wait for the next try."""
        return sum(
            hosted.is_compacted
            and hosted.replica.is_open
            and hosted.replica.log.clean_urgency(self._look(hosted)) > 0
            for hosted in self._partitions
        )

    def _most_urgent(self) -> HostedPartition | None:
        now = self._clock.monotonic()
        best: HostedPartition | None = None
        best_due = 0.0
        known = set()
        for hosted in self._partitions:
            known.add(hosted.replica.partition)
            if not hosted.is_compacted or not hosted.replica.is_open:
                continue
            failed = self._failed.get(hosted.replica.partition)
            if failed is not None and now < failed.retry_at:
                continue
            due = hosted.replica.log.clean_urgency(self._look(hosted))
            if due > best_due:
                best, best_due = hosted, due
        for key in self._failed.keys() - known:
            del self._failed[key]
        return best

    async def _clean(self, hosted: HostedPartition) -> str:
        """Empty, or why it failed."""
        replica = hosted.replica
        partition_log = replica.log
        # Anew, for the round may be long: it falls when a replica is added.
        told = await self._ask_held((replica,))
        self._held[replica.partition] = told.get(replica.partition, _NOTHING_HELD)
        task = partition_log.begin_clean(self._request(hosted))
        if task is None:
            return ""
        if isinstance(task, DiskClean):
            # The old and the new lie side by side for a while.
            bytes_max = sum(fact.position for fact in task.job.sources)
            if bytes_max > self._room_bytes():
                return f"it may take {bytes_max} bytes, and there is no room for them on the disk"
            answer = await self._ask(CleanCommand(task.job))
            if not replica.is_open:
                # Deleted or moved away meanwhile, with all its files.
                return ""
            if isinstance(answer, WorkFailed):
                return answer.reason
            if not isinstance(answer, CleanDone):
                return f"the cleaner's process answered {type(answer).__name__}"
            result = answer.result
        else:
            result = task.run()
        with self._flusher.fencing():
            is_swapped = partition_log.end_clean(task, result)
        if is_swapped:
            # Of what was aborted below nothing is left that a reader would have to leave out.
            replica.producers.aborted.forget_below(result.first_dirty)
            self.metrics.add(result)
            counts = result.counts
            log.info(
                "compacted %s to offset %d: %d of %d records dropped, %d bytes read, "
                "%d written, %.1f s",
                replica.partition,
                result.first_dirty,
                counts.records_dropped,
                counts.records_read,
                counts.bytes_read,
                counts.bytes_written,
                counts.seconds,
            )
        self._stale += partition_log.take_stale_files()
        return await self._remove_stale()

    async def _remove_stale(self) -> str:
        """Empty, or why it failed: then they are tried again after the next cleaning."""
        if not self._stale:
            return ""
        paths = list(self._stale)
        answer = await self._ask(RemoveFilesCommand(paths))
        if isinstance(answer, WorkFailed):
            return answer.reason
        del self._stale[: len(paths)]
        return ""
