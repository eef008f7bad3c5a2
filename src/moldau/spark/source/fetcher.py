"""Responsible for what a task does: it fetches ranges of offsets, over elections and lost brokers,
and makes Arrow batches of a good size for Spark of them.

Each leader gets one request for all that it leads, all leaders at once: a micro-batch of a topic
with hundreds of partitions has a few rows of each, and to ask for each would take longer than all
the rest. While the records of one answer are decoded and handed to
Spark, the next answer is on its way: so at most two answers of each leader are in memory, each of
`fetch_bytes_max` or of one batch that is larger. Fetching goes on as long as anything comes; only
when nothing came for the whole timeout it fails.
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
from moldau.spark.hints import hints_told
from moldau.spark.options import warn_once
from moldau.spark.source.decoding import record_batch, scan
from moldau.spark.source.fetched_batches import BatchBodies, readable_bodies, whole_batches
from moldau.spark.source.planning import OffsetRange
from moldau.spark.source.positions import lost, short_id
from moldau.spark.source.read_options import ReadOptions
from moldau.spark.source.source_client import client_for
from moldau.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchResponsePartition,
    FetchTopic,
)

TRANSACTIONS: Final = (
    "holds transactions, and is read with those that are open or were aborted: to read only what "
    "was committed, set option kafka.isolation.level to read_committed"
)
WAIT_MS_MAX: Final = 500
_RETRY_SECONDS: Final = 0.1
_FIRST_BYTES_MIN: Final = 128 * 1024
_FIRST_BYTES_MIN_OF_MANY: Final = 32 * 1024
_RECORD_BYTES: Final = 512
"""A guess, so that a range of a few records does not bring megabytes of what comes after it."""
_NOT_FOUND_COUNT_MAX: Final = 5
_LAST_VERSION_WITH_NAMES: Final = 12
_NOTHING_SAID: Final = ErrorCode.NETWORK_EXCEPTION

ROWS_MIN: Final = 10_000
BYTES_MIN: Final = 1024 * 1024
"""What is smaller than both is held back and joined with what follows: a batch costs Spark about
as much as some thousand rows."""
ROWS_MAX: Final = 50_000
KEPT_BYTES_MAX: Final = 32 * 1024 * 1024
"""Of memory that was freed, for the next buffers; glibc takes no larger number."""
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3

_clients: Final[dict[tuple[object, ...], KafkaClient]] = {}


@atexit.register
def _close_clients() -> None:
    for client in _clients.values():
        client.close()


def read_ranges(options: ReadOptions, ranges: Iterable[OffsetRange]) -> Iterator[Any]:
    """The rows of some ranges, as pyarrow.RecordBatch. Raises ClientError."""
    settle_once()
    # Connections outlive a task, as Spark's worker processes do: small batches are the rule.
    key = (options.bootstrap, options.security, options.client_id, options.timeout_seconds)
    client = _clients.get(key) or _clients.setdefault(key, client_for(options))
    held: list[Any] = []
    row_count = size = 0
    with hints_told():
        for rows in RangesFetcher(client, tuple(ranges), options):
            held.append(rows)
            row_count += rows.num_rows
            size += rows.get_total_buffer_size()
            if row_count >= ROWS_MIN or size >= BYTES_MIN:
                yield from _joined(held)
                held.clear()
                row_count = size = 0
        yield from _joined(held)


def _joined(held: list[Any]) -> Iterator[Any]:
    """One batch, or several where a batch of tiny records would have too many rows."""
    # More than one of them where bytes are too many for one column.
    wholes = held if len(held) < 2 else pa.Table.from_batches(held).combine_chunks().to_batches()
    for whole in wholes:
        for first in range(0, whole.num_rows, ROWS_MAX):
            yield whole.slice(first, ROWS_MAX)


@functools.cache
def settle_once() -> None:
    """Make a worker of Spark one that reads: it lives long, and handles buffers of megabytes."""
    # Workers collect garbage after every task: spare them what was imported for good.
    gc.freeze()
    # Buffers are freed and taken again at once. By default their memory goes back to the system
    # each time, and getting it anew takes longer than to decode what goes into it.
    with contextlib.suppress(AttributeError, OSError):  # Only glibc has it, and needs it.
        for setting in (_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD):
            ctypes.CDLL(None).mallopt(setting, KEPT_BYTES_MAX)


@dataclass(slots=True, eq=False)
class _Part:
    """What is left to read of a range."""

    planned: OffsetRange
    position: int
    bytes_max: int
    topic_id: bytes = NO_TOPIC_ID
    served_in: int = 0
    """The round in which something came of it."""
    not_found_count: int = 0


class RangesFetcher:
    """Yields the records of all ranges, as pyarrow.RecordBatch with one row at least."""

    def __init__(
        self, client: KafkaClient, ranges: Sequence[OffsetRange], options: ReadOptions
    ) -> None:
        self._client = client
        self._options = options
        least = _FIRST_BYTES_MIN if len(ranges) == 1 else _FIRST_BYTES_MIN_OF_MANY
        self._waiting = []
        for planned in ranges:
            bytes_max = min(options.fetch_bytes_max, max(least, planned.size * _RECORD_BYTES))
            self._waiting += [_Part(planned, planned.start, bytes_max)] if planned.size else []
        self._under_way: dict[KafkaConnection, dict[TopicPartition, _Part]] = {}
        self._failed: list[tuple[_Part, ClientError]] = []
        self._round = 0
        self._quiet_since = 0.0
        """Nothing has come since then."""

    def __iter__(self) -> Iterator[Any]:
        with_headers = self._options.include_headers
        self._quiet_since = time.monotonic()
        try:
            self._post()
            while self._waiting:
                taken = self._receive()
                self._post()
                for planned, start, found in taken:
                    try:
                        for bodies in found:
                            rows = record_batch(bodies, planned, with_headers)
                            if rows.num_rows:
                                yield rows
                    except BatchFormatError as error:
                        raise _damaged(planned, start, error) from error
                if taken:
                    self._quiet_since = time.monotonic()
        finally:
            # A connection with an answer on its way is of no use to whoever comes next.
            for leader in self._under_way:
                leader.close()

    # -- asking

    def _post(self) -> None:
        """Ask each leader for what is left of all that it leads."""
        by_leader: dict[KafkaConnection, dict[TopicPartition, _Part]] = {}
        for part in self._waiting:
            try:
                # A partition can stand in a request once only: its second range waits.
                by_leader.setdefault(self._leader(part), {}).setdefault(part.planned.place, part)
            except ClientError as error:
                self._failed.append((part, error))
        # Not before all leaders are known: to ask for them needs connections without answers.
        for leader, parts in by_leader.items():
            try:
                self._post_to(leader, list(parts.values()))
                self._under_way[leader] = parts
            except ClientError as error:
                self._failed += [(part, error) for part in parts.values()]

    def _post_to(self, leader: KafkaConnection, parts: list[_Part]) -> None:
        topics: dict[str, FetchTopic] = {}
        for part in parts:
            name, partition = part.planned.place
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
            # Brokers may have topics without an id: then they are asked for by name.
            version = min(version, _LAST_VERSION_WITH_NAMES)
        leader.post(request, version)

    def _leader(self, part: _Part) -> KafkaConnection:
        """The connection to the leader, without answers on their way."""
        topic, planned_id = part.planned.topic, part.planned.topic_id
        part.topic_id = bytes(self._client.layout(topic).topic_id)
        if planned_id is not None and short_id(part.topic_id) != planned_id:
            raise NotFoundError(f"{topic} was deleted and made again")
        leader = self._client.leader(*part.planned.place)
        if leader.pending_count:
            # Left by a reader that was stopped half-way.
            leader.close()
            leader = self._client.leader(*part.planned.place)
        return leader

    # -- what comes

    def _receive(self) -> list[tuple[OffsetRange, int, Iterable[BatchBodies]]]:
        """Take over what came. What did not is asked for again, or told to be lost."""
        self._round += 1
        taken = []
        empty: list[tuple[_Part, ClientError]] = []
        failed, self._failed = self._failed, []
        for part, answer in self._answers():
            if isinstance(answer, ClientError):
                failed.append((part, answer))
                continue
            start, found = part.position, self._take(part, answer)
            if found is not None:
                taken.append((part.planned, start, found))
                continue
            # Others had all the room there is in the answer, or there is nothing yet.
            is_stable = self._options.read_committed and answer.last_stable_offset >= 0
            end = answer.last_stable_offset if is_stable else answer.high_watermark
            empty.append((part, TimedOutError(f"the partition can be read up to {end}")))
        for part, error in failed:
            self._fail(part, error)
        # Those that an answer had no room for come first in the next.
        rest = [part for part in self._waiting if part.position < part.planned.end]
        self._waiting = sorted(rest, key=lambda part: part.served_in)
        waited = 0.0 if taken else time.monotonic() - self._quiet_since
        for part, error in (*empty, *failed):
            if waited >= self._options.timeout_seconds and part in rest:
                raise TimedOutError(
                    f"cannot read {part.planned} from {part.position} on: nothing came for "
                    f"{waited:.0f} s ({error})",
                    hint="are the brokers up? to wait longer: option kafka.request.timeout.ms",
                ) from error
        if failed and rest:
            time.sleep(_RETRY_SECONDS)
        return taken

    def _answers(self) -> Iterator[tuple[_Part, FetchResponsePartition | ClientError]]:
        for leader, parts in self._under_way.items():
            names = {part.topic_id: part.planned.topic for part in parts.values()}
            try:
                response = leader.receive()
            except ClientError as error:
                yield from ((part, error) for part in parts.values())
                continue
            if not isinstance(response, FetchResponse):
                raise ClientError(f"a fetch is answered with {type(response).__name__}")
            found = {
                (topic.topic or names.get(topic.topic_id, ""), answer.partition_index): answer
                for topic in response.topics
                for answer in topic.partitions
            }
            for place, part in parts.items():
                answer = found.get(place)
                code = answer.error_code if answer else response.error_code or _NOTHING_SAID
                if answer and not code:
                    yield part, answer
                else:
                    name = RejectedError("", code).name
                    yield part, RejectedError(f"cannot read {part.planned}: {name}", code)
        self._under_way.clear()

    def _take(self, part: _Part, answer: FetchResponsePartition) -> Iterable[BatchBodies] | None:
        """What an answer holds of a part, which goes on behind it; None without a whole batch."""
        start, end, most = part.position, part.planned.end, self._options.fetch_bytes_max
        fetched = answer.records if isinstance(answer.records, memoryview) else memoryview(b"")
        found: Iterable[BatchBodies]
        scanned = scan(fetched, start, end)
        if scanned is not None:
            next_offset, packed = scanned
            found = [BatchBodies(fetched, [], start, packed)] if packed else []
        else:
            try:
                batches = whole_batches(fetched, end)
            except BatchFormatError as error:
                raise _damaged(part.planned, start, error) from error
            if not batches:
                if fetched:
                    # A broker that does not send the first batch whole: give it room.
                    part.bytes_max = max(2 * part.bytes_max, len(fetched))
                return None
            next_offset = batches[-1].header.next_offset
            aborted = answer.aborted_transactions or ()
            found = readable_bodies(fetched, batches, aborted, start=start, end=end)
            is_transactional = any(placed.header.is_transactional for placed in batches)
            if is_transactional and not self._options.read_committed:
                # Whoever did not think of it reads what was aborted, too.
                warn_once(f"{part.planned.topic} {TRANSACTIONS}")
        part.position = max(start, next_offset)
        part.served_in = self._round
        part.bytes_max = max(part.bytes_max, min(2 * part.bytes_max, most))
        return found

    # -- what goes wrong

    def _fail(self, part: _Part, error: ClientError) -> None:
        """Step over what is lost. What may pass stays as it is, and is asked for again."""
        planned = part.planned
        self._client.forget(planned.topic)
        code = error.code if isinstance(error, RejectedError) else 0
        if isinstance(error, NotFoundError):
            # A broker that has just started may not have heard of the topic yet.
            part.not_found_count += 1
            if part.not_found_count >= _NOT_FOUND_COUNT_MAX:
                self._lose(part, planned.end, f"{planned} cannot be read: {error}")
        elif code == ErrorCode.OFFSET_OUT_OF_RANGE:
            try:
                first = self._client.list_offset(*planned.place, OFFSET_EARLIEST)
                end = self._client.list_offset(*planned.place)
            except ClientError as unknown:
                if not is_retriable(unknown) and not isinstance(unknown, NotFoundError):
                    raise
                return
            if first > part.position:
                until = min(first, planned.end)
                gone = replace(planned, start=part.position, end=until)
                self._lose(part, until, f"{gone} were deleted (the partition starts at {first})")
            elif end <= part.position:
                said = f"{planned} are not there: the partition ends at {end}"
                self._lose(part, planned.end, f"{said}; was it deleted and made again?")
            # Else it moved while we asked.
        elif code == ErrorCode.CORRUPT_MESSAGE:
            raise _damaged(planned, part.position, error)
        elif code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and not is_retriable(error):
            # A broker that has only just heard of a partition says that it does not know it.
            raise error

    def _lose(self, part: _Part, until: int, message: str) -> None:
        lost(message, fail=self._options.fail_on_data_loss)
        part.position = until


def _damaged(planned: OffsetRange, offset: int, error: Exception) -> ClientError:
    return ClientError(
        f"{planned.place} holds a batch from offset {offset} on that cannot be read: {error}",
        hint="to go on behind it, use startingOffsets or a filter on the offset",
    )
