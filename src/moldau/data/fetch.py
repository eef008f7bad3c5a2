"""Owns reads: what a fetch gets now, and fetches parked until there is enough to send.

A parked fetch watches the partitions it asked for; a commit in one of them wakes it, and a timer
answers it at the latest with what there is. One that asks for what lies on the disk alone, or was
never checked since the start, is parked until a thread has read it: nobody else waits for the disk.
"""

from asyncio import AbstractEventLoop, Future, TimerHandle
from collections.abc import Callable, Sequence
from typing import NamedTuple

from moldau.data.partitions import HostedPartition, Partitions
from moldau.log.interface import CheckTask
from moldau.model.errors import CorruptionError, ErrorCode, RefusedError
from moldau.model.ids import Offset
from moldau.model.limits import FETCH_BYTES_MAX
from moldau.model.slices import FileSlice
from moldau.replica.aborted_transactions import AbortedTransaction
from moldau.replica.replica import Replica

_NO_EPOCH = -1


class PartitionFetch(NamedTuple):
    """One partition of a fetch."""

    topic: str | None
    """None: the client named a topic id that does not exist."""
    partition: int
    offset: Offset
    bytes_max: int
    leader_epoch: int
    """What the client believes; -1 if it does not say."""
    reads_committed: bool = False
    """Nothing of transactions that are open, and the list of those that were aborted."""


class PartitionFetchResult(NamedTuple):
    """What one partition answers."""

    error: ErrorCode
    high_watermark: int
    log_start_offset: int
    data: FileSlice | bytes | None
    size: int
    last_stable_offset: int = -1
    aborted: Sequence[AbortedTransaction] | None = None
    """What of the data was aborted; None if the client did not ask."""
    record_count: int = 0
    """From the offset on that was asked for, by offsets."""


class FetchService:
    """Reads from the partitions of this broker."""

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

    @property
    def parked_count(self) -> int:
        return len(self._parked)

    def read(
        self, requests: Sequence[PartitionFetch], bytes_max: int
    ) -> tuple[list[PartitionFetchResult], int, bool]:
        """Results in order, their total size, and whether anything went wrong."""
        results: list[PartitionFetchResult] = []
        total = 0
        failed = False
        for request in requests:
            result = self._read_one(request, bytes_max - total, is_first=total == 0)
            total += result.size
            failed = failed or result.error is not ErrorCode.NONE
            results.append(result)
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
            # Hardly ever is a transaction open: then one look is enough.
            is_stable = replica.producers.first_unstable is None
            stable = watermark if is_stable else replica.last_stable_offset
            end = stable if request.reads_committed else watermark
            if request.offset >= end or (left <= 0 and not is_first):
                # Appended and not yet to be read is not out of range: whoever asks for it waits.
                # The error would send a consumer that knows the offset of an acks=1 reply back to
                # the start.
                if not start <= request.offset <= replica.log.end_offset:
                    # Nor is what another broker has, that leads by now: a client that does not
                    # name the epoch would be sent elsewhere for good.
                    if request.offset > start and not replica.has_recent_majority():
                        raise RefusedError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
                    raise RefusedError(ErrorCode.OFFSET_OUT_OF_RANGE)
                return _nothing(request, watermark, start, stable)
            read = replica.log.read(request.offset, min(request.bytes_max, left), end)
        except CorruptionError as error:
            if hosted is not None:
                self._partitions.take_offline(hosted, error)
            return PartitionFetchResult(ErrorCode.KAFKA_STORAGE_ERROR, -1, -1, None, 0)
        except RefusedError as error:
            if hosted is None:
                return PartitionFetchResult(error.code, -1, -1, None, 0)
            replica = hosted.replica
            return PartitionFetchResult(
                error.code, replica.high_watermark, replica.log.start_offset, None, 0
            )
        if read.size > left and not is_first:
            # One batch may exceed the limit so that a consumer is never stuck, but only one.
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
    ) -> "ParkedFetch | None":
        """Answer through `on_ready`, at once or later; a parked fetch can be cancelled."""
        bytes_max = min(bytes_max, self._reply_bytes_max)
        # Whole batches seldom fill a reply to the last byte: half of the bound is enough to go.
        bytes_min = min(bytes_min, self._reply_bytes_max // 2)
        if cold := self._find_cold(requests, bytes_max):
            parked = ParkedFetch(self, requests, bytes_min, bytes_max, on_ready)
            self._parked[parked] = None
            parked.is_warming = True
            reading = self._loop.run_in_executor(None, _run_all, [task for _, task in cold])
            reading.add_done_callback(lambda done: self._warmed(done, parked, cold, wait_ms_max))
            return parked
        results, total, failed = self.read(requests, bytes_max)
        if total >= bytes_min or failed or wait_ms_max <= 0:
            if total:
                self.count(requests, results)
            on_ready(results)
            return None
        parked = ParkedFetch(self, requests, bytes_min, bytes_max, on_ready)
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
        parked.timer = self._loop.call_later(wait_ms_max / 1000, parked.answer)
        for request, result in zip(requests, results, strict=True):
            hosted = self._partitions.get(request.topic or "", request.partition)
            if hosted is not None:
                parked.watch(hosted.replica, request, result.size)

    def _find_cold(
        self, requests: Sequence[PartitionFetch], bytes_max: int
    ) -> list[tuple[HostedPartition, CheckTask]]:
        """What of the answer a thread has to read first."""
        cold: list[tuple[HostedPartition, CheckTask]] = []
        for request in requests:
            hosted = self._partitions.get(request.topic or "", request.partition)
            if hosted is None or request.offset >= hosted.replica.high_watermark:
                continue
            size = min(request.bytes_max, bytes_max)
            try:
                task = hosted.replica.log.begin_prefetch(request.offset, size)
            except (CorruptionError, OSError):
                # The read meets it too, and knows what to do.
                continue
            if task is not None:
                cold.append((hosted, task))
                bytes_max -= size
                if bytes_max <= 0:
                    break
        return cold

    def _warmed(
        self,
        reading: "Future[None]",
        parked: "ParkedFetch",
        cold: Sequence[tuple[HostedPartition, CheckTask]],
        wait_ms_max: int,
    ) -> None:
        reading.result()
        for hosted, task in cold:
            try:
                if hosted.replica.is_open:
                    hosted.replica.log.end_check(task)
            except CorruptionError as error:
                self._partitions.take_offline(hosted, error)
        if parked in self._parked:
            parked.is_warming = False
            results = parked.look(is_last=wait_ms_max <= 0)
            if results is not None:
                self._park(parked, parked.requests, results, wait_ms_max)

    def count(
        self, requests: Sequence[PartitionFetch], results: Sequence[PartitionFetchResult]
    ) -> None:
        """What goes out now: a read alone may be for nothing but a look."""
        for request, result in zip(requests, results, strict=True):
            if result.size:
                hosted = self._partitions.get(request.topic or "", request.partition)
                if hosted is not None:
                    hosted.traffic.read_bytes += result.size
                    hosted.traffic.read_records += result.record_count

    def forget(self, parked: "ParkedFetch") -> None:
        self._parked.pop(parked, None)

    def complete_all(self) -> None:
        """The broker stops: nobody shall wait for the timer."""
        for parked in list(self._parked):
            parked.answer()


class ParkedFetch:
    """A fetch that waits for data."""

    __slots__ = (
        "_bytes_max",
        "_bytes_min",
        "_bytes_there",
        "_is_hurried",
        "_on_ready",
        "_service",
        "_watched",
        "is_warming",
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
    ) -> None:
        self._service = service
        self.requests = requests
        self._bytes_min = bytes_min
        self._bytes_max = bytes_max
        self._on_ready = on_ready
        self.timer: TimerHandle | None = None
        self.is_warming = False
        """A thread reads what is asked for."""
        self._is_hurried = False
        self._bytes_there = 0
        self._watched: dict[Replica, list[tuple[PartitionFetch, int]]] = {}
        """What was asked of each, and how much of it was there when last looked at."""

    def watch(self, replica: Replica, request: PartitionFetch, size: int) -> None:
        """Be woken when `replica` has more than the `size` bytes that it has now."""
        replica.watchers[self] = None
        self._watched.setdefault(replica, []).append((request, size))
        self._bytes_there += size

    def _is_enough(self, replica: Replica) -> bool:
        """Whether a full look is worth while: only the partition that moved is looked at here, or
        a fetch of many partitions would cost every small commit a look at all of them."""
        if self._bytes_min <= 1:
            return True
        looked_at = []
        for request, before in self._watched.get(replica, ()):
            _, size, failed = self._service.read((request,), self._bytes_max)
            if failed:
                return True
            self._bytes_there += size - before
            looked_at.append((request, size))
        self._watched[replica] = looked_at
        return self._bytes_there >= self._bytes_min

    def on_progress(self, replica: Replica) -> None:
        if not self._is_enough(replica):
            return
        self.look()

    def look(self, *, is_last: bool = False) -> list[PartitionFetchResult] | None:
        """Answer if there is enough; returns what there is if not."""
        results, total, failed = self._service.read(self.requests, self._bytes_max)
        if total < self._bytes_min and not (failed or is_last or self._is_hurried):
            return results
        self.cancel()
        self._service.count(self.requests, results)
        self._on_ready(results)
        return None

    def on_gone(self, replica: Replica) -> None:
        self.answer()

    def answer(self) -> None:
        """Time is up: send what there is."""
        if self.is_warming:
            # In a moment: not before the thread is done.
            self._is_hurried = True
        else:
            self.look(is_last=True)

    def cancel(self) -> None:
        """Stop waiting, without an answer: the client is gone."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        for replica in self._watched:
            replica.watchers.pop(self, None)
        self._watched.clear()
        self._service.forget(self)


def _run_all(tasks: Sequence[CheckTask]) -> None:
    for task in tasks:
        task.run()


def _nothing(
    request: PartitionFetch, watermark: int, start: int, stable: int
) -> PartitionFetchResult:
    aborted = () if request.reads_committed else None
    return PartitionFetchResult(ErrorCode.NONE, watermark, start, b"", 0, stable, aborted)


def check_epoch(replica: Replica, epoch: int) -> None:
    """Refuse a client whose idea of the leader's epoch differs from ours."""
    if epoch < replica.epoch:
        raise RefusedError(ErrorCode.FENCED_LEADER_EPOCH, f"the epoch is {replica.epoch} now")
    if epoch > replica.epoch:
        raise RefusedError(ErrorCode.UNKNOWN_LEADER_EPOCH, f"the epoch is {replica.epoch} here")
