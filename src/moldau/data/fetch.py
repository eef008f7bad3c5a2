"""Fetches: reads what is available, and parks fetches until there is enough data.

A parked fetch watches its partitions; a commit in one of them wakes it, and after its timeout it
completes with what there is. A fetch of data that is not in the page cache, or was not verified
since the start, is parked until a thread has read it, so that the event loop never waits for disks.
"""

import logging
from asyncio import AbstractEventLoop, Future, TimerHandle
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Final, NamedTuple

from moldau.data.partitions import HostedPartition, Partitions
from moldau.log.interface import PrefetchTask
from moldau.log.read_failure import read_failure
from moldau.model import log_events as events
from moldau.model.errors import CorruptionError, ErrorCode, RefusedError
from moldau.model.histogram import Histogram
from moldau.model.ids import Offset
from moldau.model.limits import FETCH_BYTES_MAX
from moldau.model.slices import FileSlice
from moldau.replica.aborted_transactions import AbortedTransaction
from moldau.replica.cold_reads import read_cold
from moldau.replica.replica import Replica

log = logging.getLogger(__name__)

_NO_EPOCH = -1


class PartitionFetch(NamedTuple):
    topic: str | None
    """None: unknown topic id."""
    partition: int
    offset: Offset
    bytes_max: int
    leader_epoch: int
    """As the client knows it; -1 if not given."""
    reads_committed: bool = False
    """Only up to the last stable offset, with the list of aborted transactions."""


class PartitionFetchResult(NamedTuple):
    error: ErrorCode
    high_watermark: int
    log_start_offset: int
    data: FileSlice | bytes | None
    size: int
    last_stable_offset: int = -1
    aborted: Sequence[AbortedTransaction] | None = None
    """Aborted transactions in the data; None unless `reads_committed`."""
    record_count: int = 0
    """By offsets, from the requested offset on."""


class FetchService:
    def __init__(
        self,
        loop: AbstractEventLoop,
        partitions: Partitions,
        reply_bytes_max: int = FETCH_BYTES_MAX,
    ) -> None:
        self._loop = loop
        self._reply_bytes_max = reply_bytes_max
        self._partitions = partitions
        self._parked: dict[ParkedFetch, None] = {}
        self.wait_seconds: Final = Histogram()
        """How long those fetches waited that were not answered at once."""

    @property
    def parked_count(self) -> int:
        return len(self._parked)

    def read(
        self, requests: Sequence[PartitionFetch], bytes_max: int, *, stops_when_full: bool = False
    ) -> tuple[list[PartitionFetchResult], int, bool]:
        """Results in order, their total size, and whether any failed.

        With `stops_when_full` there are fewer results if there is no room for data of the others.
        """
        results: list[PartitionFetchResult] = []
        total = 0
        failed = False
        for request in requests:
            result = self._read_one(request, bytes_max - total, is_first=total == 0)
            total += result.size
            failed = failed or result.error is not ErrorCode.NONE
            results.append(result)
            if stops_when_full and total >= bytes_max:
                break
        return results, total, failed

    def _read_one(self, request: PartitionFetch, left: int, is_first: bool) -> PartitionFetchResult:
        topic = request.topic
        if topic is None:
            return PartitionFetchResult(ErrorCode.UNKNOWN_TOPIC_ID, -1, -1, None, 0)
        hosted = self._partitions.get(topic, request.partition)
        try:
            if hosted is None:
                hosted = self._partitions.find(topic, request.partition)
            replica = hosted.replica
            if not replica.is_leader:
                replica.check_leadership()
            if request.leader_epoch != _NO_EPOCH:
                check_epoch(replica, request.leader_epoch)
            watermark = replica.high_watermark
            start = replica.log.start_offset
            # Fast path: no transaction is open.
            is_stable = replica.producers.first_unstable is None
            stable = watermark if is_stable else replica.last_stable_offset
            end = stable if request.reads_committed else watermark
            if request.offset >= end or (left <= 0 and not is_first):
                # An offset above the high watermark but in the log is not out of range: the fetch
                # waits. The error would reset a consumer that knows the offset of an acks=1 reply.
                if not start <= request.offset <= replica.log.end_offset:
                    # A newer leader may have the offset: OFFSET_OUT_OF_RANGE would reset a client
                    # that does not send the epoch.
                    if request.offset > start and not replica.has_recent_majority():
                        raise RefusedError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
                    raise RefusedError(ErrorCode.OFFSET_OUT_OF_RANGE)
                return _nothing(request, watermark, start, stable)
            read = replica.log.read(request.offset, min(request.bytes_max, left), end)
        except CorruptionError as corruption:
            if hosted is not None:
                self._partitions.take_offline(hosted, corruption)
            return PartitionFetchResult(ErrorCode.KAFKA_STORAGE_ERROR, -1, -1, None, 0)
        except OSError as unread:
            failure = read_failure(unread)
            if hosted is not None and isinstance(failure, CorruptionError):
                self._partitions.take_offline(hosted, failure)
            return PartitionFetchResult(ErrorCode.KAFKA_STORAGE_ERROR, -1, -1, None, 0)
        except RefusedError as error:
            if hosted is None:
                return PartitionFetchResult(error.code, -1, -1, None, 0)
            replica = hosted.replica
            return PartitionFetchResult(
                error.code, replica.high_watermark, replica.log.start_offset, None, 0
            )
        if read.size > left and not is_first:
            # Only the first batch may exceed the limit, so that a consumer always progresses.
            return _nothing(request, watermark, start, stable)
        aborted = None
        if request.reads_committed:
            aborted = replica.producers.aborted.between(request.offset, read.next_offset)
        return PartitionFetchResult(
            ErrorCode.NONE,
            watermark,
            start,
            read.data,
            read.size,
            stable,
            aborted,
            read.next_offset - request.offset,
        )

    def fetch(
        self,
        requests: Sequence[PartitionFetch],
        *,
        bytes_min: int,
        bytes_max: int,
        wait_ms_max: int,
        on_ready: Callable[[list[PartitionFetchResult]], None],
        in_session: bool = False,
    ) -> "ParkedFetch | None":
        """Calls `on_ready`, now or later; a parked fetch can be cancelled.

        `requests` name each partition once. In a session there may be fewer results than requests:
        those without room come first in the next fetch; and requests may join while it waits.
        """
        bytes_max = min(bytes_max, self._reply_bytes_max)
        # Whole batches seldom fill a reply: half of the limit is enough.
        bytes_min = min(bytes_min, self._reply_bytes_max // 2)
        if in_session:
            # A full reply is enough: it would not get longer.
            bytes_max = max(bytes_max, 1)
            bytes_min = min(bytes_min, bytes_max)
        if cold := self._find_cold(requests, bytes_max):
            parked = ParkedFetch(self, requests, bytes_min, bytes_max, on_ready, in_session)
            reading = read_cold(self._loop, [task for _, task in cold])
            parked.prefetch = reading
            self._parked[parked] = None
            reading.add_done_callback(
                lambda done: self._on_prefetched(done, parked, cold, wait_ms_max)
            )
            return parked
        results, total, failed = self.read(requests, bytes_max, stops_when_full=in_session)
        if total >= bytes_min or failed or wait_ms_max <= 0:
            if total:
                self.count(requests, results)
            on_ready(results)
            return None
        parked = ParkedFetch(self, requests, bytes_min, bytes_max, on_ready, in_session)
        self._park(parked, requests, results, wait_ms_max)
        return parked

    def _park(
        self,
        parked: "ParkedFetch",
        requests: Sequence[PartitionFetch],
        results: Sequence[PartitionFetchResult],
        wait_ms_max: int,
    ) -> None:
        self._parked[parked] = None
        parked.timer = self._loop.call_later(wait_ms_max / 1000, parked.complete)
        for request, result in zip(requests, results, strict=True):
            hosted = self._partitions.get(request.topic or "", request.partition)
            if hosted is not None:
                parked.watch(hosted.replica, request, result)

    def _find_cold(
        self, requests: Sequence[PartitionFetch], bytes_max: int
    ) -> list[tuple[HostedPartition, PrefetchTask]]:
        """Reads that a thread has to do first."""
        cold: list[tuple[HostedPartition, PrefetchTask]] = []
        for request in requests:
            hosted = self._partitions.get(request.topic or "", request.partition)
            if hosted is None or request.offset >= hosted.replica.high_watermark:
                continue
            size = min(request.bytes_max, bytes_max)
            try:
                task = hosted.replica.log.begin_prefetch(request.offset, size)
            except (CorruptionError, OSError):
                # The read meets the same error, and handles it.
                continue
            if task is not None:
                cold.append((hosted, task))
                # Others follow in the same reply if there is less.
                bytes_max -= task.bytes_max
                if bytes_max <= 0:
                    break
        return cold

    def _on_prefetched(
        self,
        reading: "Future[None]",
        parked: "ParkedFetch",
        cold: Sequence[tuple[HostedPartition, PrefetchTask]],
        wait_ms_max: int,
    ) -> None:
        if reading.cancelled():
            # Nobody waits for it.
            return
        if (error := reading.exception()) is not None:
            # The read does without it, or meets the same error.
            log.error(
                "a cold read failed: %r", error, exc_info=error, extra=events.INTERNAL_ERROR()
            )
        else:
            self._end_checks(cold)
        if parked in self._parked:
            parked.prefetch = None
            results = parked.try_complete(is_last=wait_ms_max <= 0)
            if results is not None:
                self._park(parked, parked.requests, results, wait_ms_max)

    def _end_checks(self, cold: Sequence[tuple[HostedPartition, PrefetchTask]]) -> None:
        for hosted, task in cold:
            try:
                if hosted.replica.is_open:
                    hosted.replica.log.end_check(task)
            except CorruptionError as damage:
                self._partitions.take_offline(hosted, damage)

    def count(
        self, requests: Sequence[PartitionFetch], results: Sequence[PartitionFetchResult]
    ) -> None:
        """Counts what is sent; a read alone may only be a check."""
        for request, result in zip(requests, results, strict=False):
            if result.size:
                hosted = self._partitions.get(request.topic or "", request.partition)
                if hosted is not None:
                    hosted.traffic.read_bytes += result.size
                    hosted.traffic.read_records += result.record_count

    def forget(self, parked: "ParkedFetch") -> None:
        self._parked.pop(parked, None)

    def complete_all(self) -> None:
        """The broker is stopping: no fetch waits for its timeout."""
        for parked in list(self._parked):
            parked.complete()


class ParkedFetch:
    __slots__ = (
        "_bytes_available",
        "_bytes_max",
        "_bytes_min",
        "_in_session",
        "_is_timed_out",
        "_on_ready",
        "_service",
        "_unread",
        "parked_at",
        "prefetch",
        "requests",
        "timer",
    )

    def __init__(
        self,
        service: FetchService,
        requests: Sequence[PartitionFetch],
        bytes_min: int,
        bytes_max: int,
        on_ready: Callable[[list[PartitionFetchResult]], None],
        in_session: bool = False,
    ) -> None:
        self._in_session = in_session
        self._service = service
        self.requests = requests
        self._bytes_min = bytes_min
        self._bytes_max = bytes_max
        self._on_ready = on_ready
        self.parked_at = perf_counter()
        self.timer: TimerHandle | None = None
        self.prefetch: Future[None] | None = None
        """A thread reads its data from disk."""
        self._is_timed_out = False
        self._bytes_available = 0
        self._unread: dict[Replica, PartitionFetch | None] = {}
        """What each replica may still add to `_bytes_available`; None: it has as many as fit."""

    def watch(
        self, replica: Replica, request: PartitionFetch, result: PartitionFetchResult
    ) -> None:
        """Wakes the fetch when `replica` has more than the `result`."""
        replica.watchers[self] = None
        self._note(replica, request, result)

    def join(self, replica: Replica, request: PartitionFetch) -> None:
        """In a session: `requests` have one more, whose replica has changed."""
        if self.prefetch is None:
            replica.watchers[self] = None
            self._unread[replica] = request
            self.on_progress(replica)

    def _note(
        self, replica: Replica, request: PartitionFetch, result: PartitionFetchResult
    ) -> None:
        self._bytes_available += result.size
        left = request.bytes_max - result.size
        self._unread[replica] = (
            None
            if result.size and left <= 0
            else request._replace(
                offset=Offset(request.offset + result.record_count), bytes_max=left
            )
        )

    def _is_enough(self, replica: Replica) -> bool:
        """Whether to read all partitions: here only what is new in one of them is read, or every
        small commit would cost the broker, and so other clients, a read of all that is named."""
        request = self._unread.get(replica)
        if request is None:
            return False
        (result,), _, failed = self._service.read((request,), self._bytes_max)
        self._note(replica, request, result)
        return failed or self._bytes_available >= self._bytes_min

    def on_progress(self, replica: Replica) -> None:
        if self._bytes_min <= 1 and len(self.requests) == 1:
            # The usual case: nothing is read twice.
            self.try_complete()
        elif self._is_enough(replica):
            # Also with less, if not all of it fits in one reply: to try again would not help.
            self.try_complete(is_last=True)

    def try_complete(self, *, is_last: bool = False) -> list[PartitionFetchResult] | None:
        """Completes if there is enough data; otherwise returns what there is."""
        results, total, failed = self._service.read(
            self.requests, self._bytes_max, stops_when_full=self._in_session
        )
        if self not in self._service._parked:
            # The read failed, which has completed it.
            return None
        if total < self._bytes_min and not (failed or is_last or self._is_timed_out):
            return results
        self.cancel()
        self._service.wait_seconds.add(perf_counter() - self.parked_at)
        self._service.count(self.requests, results)
        self._on_ready(results)
        return None

    def on_unavailable(self, replica: Replica) -> None:
        self.complete()

    def complete(self) -> None:
        """Timed out: completes with what there is."""
        if self.prefetch is not None:
            # As soon as the thread is done.
            self._is_timed_out = True
        else:
            self.try_complete(is_last=True)

    def cancel(self) -> None:
        """Stops waiting without a reply: the client disconnected."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        if self.prefetch is not None:
            # Others wait for the disk, too.
            self.prefetch.cancel()
            self.prefetch = None
        for replica in self._unread:
            replica.watchers.pop(self, None)
        self._unread.clear()
        self._service.forget(self)


def _nothing(
    request: PartitionFetch, watermark: int, start: int, stable: int
) -> PartitionFetchResult:
    aborted = () if request.reads_committed else None
    return PartitionFetchResult(ErrorCode.NONE, watermark, start, b"", 0, stable, aborted)


def check_epoch(replica: Replica, epoch: int) -> None:
    """Raises RefusedError if the client knows another leader epoch."""
    if epoch < replica.epoch:
        raise RefusedError(
            ErrorCode.FENCED_LEADER_EPOCH,
            f"epoch {epoch} is old; the current leader epoch is {replica.epoch}",
        )
    if epoch > replica.epoch:
        raise RefusedError(
            ErrorCode.UNKNOWN_LEADER_EPOCH,
            f"epoch {epoch} is unknown; this broker knows leader epoch {replica.epoch}",
        )
