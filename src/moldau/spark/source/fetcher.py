"""Fetches the offset ranges of a task and yields Arrow batches of a good size for Spark.

Each leader gets one request for all its partitions, all leaders at once: a micro-batch of a topic
with hundreds of partitions has a few rows of each, and single requests would dominate its time.
While one response is decoded, the next is in flight, so at most two responses of each leader are in
memory, each of `fetch_bytes_max` or of one larger batch. Errors such as elections are retried; the
task fails if no records arrive for the whole timeout.
"""

import atexit
import contextlib
import ctypes
import functools
import gc
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow as pa

from moldau.client.errors import ClientError, NotFoundError, RejectedError, TimedOutError
from moldau.client.retry import is_retriable
from moldau.client.wire.client import OFFSET_EARLIEST, KafkaClient
from moldau.client.wire.connection import KafkaConnection
from moldau.model.errors import ErrorCode
from moldau.model.ids import NO_TOPIC_ID, TopicPartition
from moldau.records.batch import BatchFormatError
from moldau.spark.hints import shows_hints
from moldau.spark.options import warn_once
from moldau.spark.source.fetched_batches import BatchBodies, readable_bodies, whole_batches
from moldau.spark.source.planning import OffsetRange
from moldau.spark.source.positions import report_data_loss, short_id
from moldau.spark.source.read_options import ReadOptions
from moldau.spark.source.record_decoder import record_batch, scan
from moldau.spark.source.source_client import REQUEST_SECONDS_MAX
from moldau.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchResponsePartition,
    FetchTopic,
)

TRANSACTIONS: Final = (
    "holds transactions, and records of open and aborted ones are read as well: to skip them, set "
    "option kafka.isolation.level to read_committed"
)
WAIT_MS_MAX: Final = 500
_RETRY_SECONDS: Final = 0.1
_FIRST_BYTES_MIN: Final = 128 * 1024
_FIRST_BYTES_MIN_OF_MANY: Final = 32 * 1024
_RECORD_BYTES: Final = 512
"""An estimate, so that a range of a few records does not fetch megabytes beyond its end."""
_NOT_FOUND_COUNT_MAX: Final = 5
_LAST_VERSION_WITH_NAMES: Final = 12
_NO_RESULT: Final = ErrorCode.NETWORK_EXCEPTION
"""The error of a partition that is missing in a response."""

ROWS_MIN: Final = 10_000
BYTES_MIN: Final = 1024 * 1024
"""Smaller batches are joined: a batch costs Spark as much as thousands of rows."""
ROWS_MAX: Final = 50_000
KEPT_BYTES_MAX: Final = 32 * 1024 * 1024
"""Freed memory that glibc keeps for the next buffers; its largest possible value."""
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3

_clients: Final[dict[tuple[object, ...], KafkaClient]] = {}


@atexit.register
def _close_clients() -> None:
    for client in _clients.values():
        client.close()


def read_ranges(options: ReadOptions, ranges: Iterable[OffsetRange]) -> Iterator[Any]:
    """The rows of the ranges, as pyarrow.RecordBatch. Raises ClientError."""
    tune_worker_once()
    # Connections outlive a task, as Spark's worker processes do, for the sake of small batches.
    key = (options.bootstrap, options.security, options.client_id, options.timeout_seconds)
    if (client := _clients.get(key)) is None:
        client = _clients[key] = options.new_client(request_seconds_max=REQUEST_SECONDS_MAX)
    pending: list[Any] = []
    row_count = size = 0
    with shows_hints():
        for rows in RangesFetcher(client, tuple(ranges), options):
            pending.append(rows)
            row_count += rows.num_rows
            size += rows.get_total_buffer_size()
            if row_count >= ROWS_MIN or size >= BYTES_MIN:
                yield from _joined(pending)
                pending.clear()
                row_count = size = 0
        yield from _joined(pending)


def _joined(pending: list[Any]) -> Iterator[Any]:
    """One batch; several if it would exceed ROWS_MAX or the size of an Arrow column."""
    joined = pending
    if len(pending) > 1:
        joined = pa.Table.from_batches(pending).combine_chunks().to_batches()
    for batch in joined:
        for first in range(0, batch.num_rows, ROWS_MAX):
            yield batch.slice(first, ROWS_MAX)


@functools.cache
def tune_worker_once() -> None:
    """Tunes a Spark worker process for reading: it lives long, and uses buffers of megabytes."""
    # Workers collect garbage after every task: exclude what was imported.
    gc.freeze()
    # Buffers are freed and allocated again at once. By default their memory is returned to the
    # system each time, and getting it back takes longer than decoding.
    with contextlib.suppress(AttributeError, OSError):  # Only glibc has and needs it.
        for setting in (_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD):
            ctypes.CDLL(None).mallopt(setting, KEPT_BYTES_MAX)


@dataclass(slots=True, eq=False)
class _Part:
    """The rest of a range."""

    planned: OffsetRange
    position: int
    bytes_max: int
    topic_id: bytes = NO_TOPIC_ID
    served_in: int = 0
    """The last round with a result for it."""
    not_found_count: int = 0


class RangesFetcher:
    """Yields the records of all ranges, as pyarrow.RecordBatch with at least one row."""

    def __init__(
        self, client: KafkaClient, ranges: Sequence[OffsetRange], options: ReadOptions
    ) -> None:
        self._client = client
        self._options = options
        least = _FIRST_BYTES_MIN if len(ranges) == 1 else _FIRST_BYTES_MIN_OF_MANY
        self._unread = []
        for planned in ranges:
            bytes_max = min(options.fetch_bytes_max, max(least, planned.size * _RECORD_BYTES))
            self._unread += [_Part(planned, planned.start, bytes_max)] if planned.size else []
        self._in_flight: dict[KafkaConnection, dict[TopicPartition, _Part]] = {}
        self._failed: list[tuple[_Part, ClientError]] = []
        self._round = 0
        self._last_progress_at = 0.0

    def __iter__(self) -> Iterator[Any]:
        with_headers = self._options.include_headers
        self._last_progress_at = time.monotonic()
        try:
            self._send_all()
            while self._unread:
                received = self._receive()
                self._send_all()
                for planned, start, found in received:
                    try:
                        for bodies in found:
                            rows = record_batch(bodies, planned, with_headers)
                            if rows.num_rows:
                                yield rows
                    except BatchFormatError as error:
                        raise _corrupt(planned, start, error) from error
                if received:
                    self._last_progress_at = time.monotonic()
        finally:
            # The next task could not use a connection with a pending response.
            for leader in self._in_flight:
                leader.close()

    # -- requests

    def _send_all(self) -> None:
        """Sends each leader one request for the rest of all its ranges."""
        by_leader: dict[KafkaConnection, dict[TopicPartition, _Part]] = {}
        for part in self._unread:
            try:
                # A request can name a partition only once: its second range waits.
                by_leader.setdefault(self._leader(part), {}).setdefault(part.planned.tp, part)
            except ClientError as error:
                self._failed.append((part, error))
        # Only after all leaders are known: metadata requests need idle connections.
        for leader, parts in by_leader.items():
            try:
                self._send_to(leader, list(parts.values()))
                self._in_flight[leader] = parts
            except ClientError as error:
                self._failed += [(part, error) for part in parts.values()]

    def _send_to(self, leader: KafkaConnection, parts: list[_Part]) -> None:
        topics: dict[str, FetchTopic] = {}
        for part in parts:
            name, partition = part.planned.tp
            topic = FetchTopic(topic=name, topic_id=part.topic_id, partitions=[])
            topics.setdefault(name, topic).partitions.append(
                FetchPartition(
                    partition=partition,
                    fetch_offset=part.position,
                    partition_max_bytes=part.bytes_max,
                )
            )
        request = FetchRequest(
            max_wait_ms=min(WAIT_MS_MAX, int(self._options.timeout_seconds * 500)),
            min_bytes=1,
            max_bytes=max(self._options.fetch_bytes_max, *(part.bytes_max for part in parts)),
            isolation_level=int(self._options.read_committed),
            topics=list(topics.values()),
        )
        version = leader.version_for(request)
        if any(part.topic_id == NO_TOPIC_ID for part in parts):
            # Topics without an id can only be fetched by name.
            version = min(version, _LAST_VERSION_WITH_NAMES)
        leader.post(request, version)

    def _leader(self, part: _Part) -> KafkaConnection:
        """The connection to the leader, without pending responses."""
        topic, planned_id = part.planned.topic, part.planned.topic_id
        part.topic_id = bytes(self._client.layout(topic).topic_id)
        if planned_id is not None and short_id(part.topic_id) != planned_id:
            raise NotFoundError(f"{topic} was deleted and recreated")
        leader = self._client.leader(*part.planned.tp)
        if leader.pending_count:
            # Left by a task that was stopped half-way.
            leader.close()
            leader = self._client.leader(*part.planned.tp)
        return leader

    # -- responses

    def _receive(self) -> list[tuple[OffsetRange, int, Iterable[BatchBodies]]]:
        """The records of one round. Ranges without a result are retried or reported as lost."""
        self._round += 1
        received = []
        empty: list[tuple[_Part, ClientError]] = []
        failed, self._failed = self._failed, []
        for part, result in self._results():
            if isinstance(result, ClientError):
                failed.append((part, result))
                continue
            start, found = part.position, self._take(part, result)
            if found is not None:
                received.append((part.planned, start, found))
                continue
            # Other partitions filled the response, or there are no records yet.
            is_stable = self._options.read_committed and result.last_stable_offset >= 0
            end = result.last_stable_offset if is_stable else result.high_watermark
            empty.append((part, TimedOutError(f"the partition can be read up to {end}")))
        for part, error in failed:
            self._fail(part, error)
        # Partitions for which a response had no room come first in the next.
        rest = [part for part in self._unread if part.position < part.planned.end]
        self._unread = sorted(rest, key=lambda part: part.served_in)
        waited = 0.0 if received else time.monotonic() - self._last_progress_at
        for part, error in (*empty, *failed):
            if waited >= self._options.timeout_seconds and part in rest:
                raise TimedOutError(
                    f"cannot read {part.planned} from {part.position} on: timed out after "
                    f"{waited:.0f} s without records ({error})",
                    hint="are the brokers up? to wait longer: option kafka.request.timeout.ms",
                ) from error
        if failed and rest:
            time.sleep(_RETRY_SECONDS)
        return received

    def _results(self) -> Iterator[tuple[_Part, FetchResponsePartition | ClientError]]:
        for leader, parts in self._in_flight.items():
            names = {part.topic_id: part.planned.topic for part in parts.values()}
            try:
                response = leader.receive()
            except ClientError as error:
                yield from ((part, error) for part in parts.values())
                continue
            if not isinstance(response, FetchResponse):
                raise ClientError(f"unexpected response to a fetch: {type(response).__name__}")
            found = {
                (topic.topic or names.get(topic.topic_id, ""), result.partition_index): result
                for topic in response.topics
                for result in topic.partitions
            }
            for tp, part in parts.items():
                result = found.get(tp)
                code = result.error_code if result else response.error_code or _NO_RESULT
                if result and not code:
                    yield part, result
                else:
                    name = RejectedError("", code).name
                    yield part, RejectedError(f"cannot read {part.planned}: {name}", code)
        self._in_flight.clear()

    def _take(self, part: _Part, result: FetchResponsePartition) -> Iterable[BatchBodies] | None:
        """The records of a part, whose position then moves on; None if no batch is complete."""
        start, end, most = part.position, part.planned.end, self._options.fetch_bytes_max
        fetched = result.records if isinstance(result.records, memoryview) else memoryview(b"")
        found: Iterable[BatchBodies]
        scanned = scan(fetched, start, end)
        if scanned is not None:
            next_offset, packed = scanned
            found = [BatchBodies(fetched, [], start, packed)] if packed else []
        else:
            try:
                batches = whole_batches(fetched, end)
            except BatchFormatError as error:
                raise _corrupt(part.planned, start, error) from error
            if not batches:
                if fetched:
                    # This broker truncates even the first batch: raise the limit.
                    part.bytes_max = max(2 * part.bytes_max, len(fetched))
                return None
            next_offset = batches[-1].header.next_offset
            aborted = result.aborted_transactions or ()
            found = readable_bodies(fetched, batches, aborted, start=start, end=end)
            is_transactional = any(batch.header.is_transactional for batch in batches)
            if is_transactional and not self._options.read_committed:
                warn_once(f"{part.planned.topic} {TRANSACTIONS}")
        part.position = max(start, next_offset)
        part.served_in = self._round
        part.bytes_max = max(part.bytes_max, min(2 * part.bytes_max, most))
        return found

    # -- errors

    def _fail(self, part: _Part, error: ClientError) -> None:
        """Skips lost records. After a retriable error the part stays as it is, and is retried."""
        planned = part.planned
        self._client.forget(planned.topic)
        code = error.code if isinstance(error, RejectedError) else 0
        if isinstance(error, NotFoundError):
            # A broker that has just started may not know the topic yet.
            part.not_found_count += 1
            if part.not_found_count >= _NOT_FOUND_COUNT_MAX:
                self._skip(part, planned.end, f"{planned} cannot be read: {error}")
        elif code == ErrorCode.OFFSET_OUT_OF_RANGE:
            try:
                first = self._client.list_offset(*planned.tp, OFFSET_EARLIEST)
                end = self._client.list_offset(*planned.tp)
            except ClientError as unknown:
                if not is_retriable(unknown) and not isinstance(unknown, NotFoundError):
                    raise
                return
            if first > part.position:
                until = min(first, planned.end)
                deleted = replace(planned, start=part.position, end=until)
                self._skip(part, until, f"{deleted} were deleted (the log starts at {first})")
            elif end <= part.position:
                what = f"{planned} do not exist: the partition ends at {end}"
                self._skip(part, planned.end, f"{what}; was it deleted and recreated?")
            # Otherwise the partition moved in between: retry.
        elif code == ErrorCode.CORRUPT_MESSAGE:
            raise _corrupt(planned, part.position, error)
        elif code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and not is_retriable(error):
            # UNKNOWN_TOPIC_OR_PARTITION: the broker may not have loaded the partition yet.
            raise error

    def _skip(self, part: _Part, until: int, message: str) -> None:
        report_data_loss(message, fail=self._options.fail_on_data_loss)
        part.position = until


def _corrupt(planned: OffsetRange, offset: int, error: Exception) -> ClientError:
    return ClientError(
        f"{planned.tp} has a corrupt batch at or after offset {offset}: {error}",
        hint="to continue after it, use startingOffsets or a filter on the offset",
    )
