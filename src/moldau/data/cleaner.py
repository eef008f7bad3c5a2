"""Compacts the logs of this broker, one partition after another.

Every replica compacts its own log, leader or not, and at its own time. Only tombstones and markers
are kept until all replicas have them (replicated_offsets.py). Another process does the work; the
result is swapped in here. Failures are logged and retried with a backoff.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from moldau.data.cleaner_process import WorkerLostError
from moldau.data.partitions import HostedPartition, Partitions
from moldau.log.compaction.job import AbortedRange, CompactionRequest, CompactionResult
from moldau.log.compaction.key_map import MAP_BYTES_MAX
from moldau.log.compaction.swap import DiskCompaction
from moldau.log.compaction.worker import (
    CompactCommand,
    CompactionDone,
    RemoveFilesCommand,
    WorkerCommand,
    WorkerReply,
    WorkFailed,
)
from moldau.model import log_events as events
from moldau.model.clock import Clock
from moldau.model.errors import DiskFullError
from moldau.model.ids import Offset, TopicPartition
from moldau.replica.flusher import Flusher
from moldau.replica.replica import Replica

log = logging.getLogger(__name__)

_RETRY_SECONDS_MAX: Final = 600.0
RunCommand = Callable[[WorkerCommand], Awaitable[WorkerReply]]
QueryReplicatedOffsets = Callable[[Iterable[Replica]], Awaitable[Mapping[TopicPartition, Offset]]]
_NOTHING_REPLICATED: Final = Offset(0)


class CleanerConfig(Struct, frozen=True, kw_only=True):
    check_seconds: float = 15.0
    retry_seconds: float = 15.0
    map_bytes_max: int = MAP_BYTES_MAX


class CleanerMetrics:
    """Since the start of the broker; `due()` is the number of logs to compact now."""

    def __init__(self, due: Callable[[], int]) -> None:
        self.due = due
        self.cleanings = 0
        self.failures = 0
        self.bytes_read = 0
        self.bytes_written = 0
        self.records_read = 0
        self.records_dropped = 0
        self.seconds = 0.0

    def add(self, result: CompactionResult) -> None:
        counts = result.counts
        self.cleanings += 1
        self.bytes_read += counts.bytes_read
        self.bytes_written += counts.bytes_written
        self.records_read += counts.records_read
        self.records_dropped += counts.records_dropped
        self.seconds += counts.seconds


class _Failed:
    """A partition whose last compaction failed."""

    __slots__ = ("count", "retry_at")

    def __init__(self) -> None:
        self.count = 0
        self.retry_at = 0.0


class Cleaner:
    """Compacts one partition after another, the dirtiest first."""

    def __init__(
        self,
        *,
        config: CleanerConfig,
        partitions: Partitions,
        flusher: Flusher,
        clock: Clock,
        run_command: RunCommand,
        replicated_offsets: QueryReplicatedOffsets,
        free_bytes: Callable[[], int],
    ) -> None:
        """`run_command` in the cleaner process; `replicated_offsets`: see replicated_offsets.py.

        `free_bytes`: what may be written before producers are rejected.
        """
        self._config = config
        self._partitions = partitions
        self._flusher = flusher
        self._clock = clock
        self._run_command = run_command
        self._query_replicated_offsets = replicated_offsets
        self._replicated: dict[TopicPartition, Offset] = {}
        self._free_bytes = free_bytes
        self._failed: dict[TopicPartition, _Failed] = {}
        self._stale: list[str] = []
        """Files to remove. Their names are never reused, so there is no hurry."""
        self.metrics = CleanerMetrics(self._due_count)

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(self._config.check_seconds)
            await self.refresh_replicated_offsets()
            while await self.clean_next():
                pass

    async def refresh_replicated_offsets(self) -> None:
        """Of all compacted logs, to see which of them need a compaction."""
        compacted = [
            hosted.replica
            for hosted in self._partitions
            if hosted.is_compacted and hosted.replica.is_open
        ]
        self._replicated = dict(await self._query_replicated_offsets(compacted))

    async def clean_next(self) -> bool:
        """Compacts the dirtiest log; False if none is due."""
        hosted = self._most_urgent()
        if hosted is None:
            return False
        try:
            error = await self._clean(hosted)
        except (WorkerLostError, DiskFullError) as failure:
            error = str(failure)
        key = hosted.replica.partition
        if not error:
            self._failed.pop(key, None)
            return True
        failed = self._failed.setdefault(key, _Failed())
        failed.count += 1
        seconds = min(self._config.retry_seconds * 2 ** (failed.count - 1), _RETRY_SECONDS_MAX)
        failed.retry_at = self._clock.monotonic() + seconds
        self.metrics.failures += 1
        log.error(
            "compaction of %s failed, retrying in %d s: %s",
            hosted.replica.partition,
            seconds,
            error,
            extra=events.COMPACTION_FAILED(),
        )
        return True

    def _check_request(self, hosted: HostedPartition) -> CompactionRequest:
        """Enough to see whether a compaction is due."""
        replica = hosted.replica
        return CompactionRequest(
            now=self._clock.wall_ms(),
            end_offset=replica.high_watermark,
            replicated_offset=self._replicated.get(replica.partition, _NOTHING_REPLICATED),
            first_unstable=replica.producers.first_unstable,
            map_bytes_max=self._config.map_bytes_max,
        )

    def _request(self, hosted: HostedPartition) -> CompactionRequest:
        producers = hosted.replica.producers
        return replace(
            self._check_request(hosted),
            aborted=[
                AbortedRange(span.producer_id, span.first, span.last)
                for span in producers.aborted.all()
            ],
            producers=[producer for producer, _ in producers],
        )

    def _due_count(self) -> int:
        """Including logs that wait for a retry."""
        return sum(
            hosted.is_compacted
            and hosted.replica.is_open
            and hosted.replica.log.compaction_urgency(self._check_request(hosted)) > 0
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
            due = hosted.replica.log.compaction_urgency(self._check_request(hosted))
            if due > best_due:
                best, best_due = hosted, due
        for key in self._failed.keys() - known:
            del self._failed[key]
        return best

    async def _clean(self, hosted: HostedPartition) -> str:
        """Empty, or why it failed."""
        replica = hosted.replica
        partition_log = replica.log
        # Queried again, as the round may take long: it falls when a replica is added.
        offsets = await self._query_replicated_offsets((replica,))
        self._replicated[replica.partition] = offsets.get(replica.partition, _NOTHING_REPLICATED)
        task = partition_log.begin_compaction(self._request(hosted))
        if task is None:
            return ""
        if isinstance(task, DiskCompaction):
            # The old and the new files coexist for a while.
            bytes_max = sum(fact.position for fact in task.job.sources)
            if bytes_max > self._free_bytes():
                return f"it may need {bytes_max} bytes, which are not free on the disk"
            reply = await self._run_command(CompactCommand(task.job))
            if not replica.is_open:
                # Deleted or moved meanwhile, with all its files.
                return ""
            if isinstance(reply, WorkFailed):
                return reply.reason
            if not isinstance(reply, CompactionDone):
                return f"unexpected reply of the log cleaner process: {type(reply).__name__}"
            result = reply.result
        else:
            result = task.run()
        with self._flusher.fencing():
            is_swapped = partition_log.end_compaction(task, result)
        if is_swapped:
            # No records of aborted transactions remain below it.
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
        """Empty, or why it failed; retried after the next compaction."""
        if not self._stale:
            return ""
        paths = list(self._stale)
        reply = await self._run_command(RemoveFilesCommand(paths))
        if isinstance(reply, WorkFailed):
            return reply.reason
        del self._stale[: len(paths)]
        return ""
