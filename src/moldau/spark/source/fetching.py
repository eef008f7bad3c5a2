"""Owns the fetching of one range of offsets: one request ahead, over elections and lost brokers.

While the records of one answer are decoded and handed to Spark, the next answer is on its way: so
at most two answers are in memory, each of `fetch_bytes_max` or of one batch that is larger. A range
is read as long as it makes progress; only when nothing came for the whole timeout it fails.
"""

import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from moldau.client.errors import (
    ClientError,
    NotFoundError,
    RejectedError,
    TimedOutError,
    UnreachableError,
)
from moldau.client.kafka.client import KafkaClient, TopicLayout
from moldau.client.kafka.connection import KafkaConnection
from moldau.model.errors import ErrorCode
from moldau.model.ids import NO_TOPIC_ID, TopicId
from moldau.records.batch import BatchFormatError
from moldau.spark.source.bodies import (
    AbortedTransaction,
    Bodies,
    Placed,
    readable_bodies,
    whole_batches,
)
from moldau.spark.source.cluster import PASSING
from moldau.spark.source.decoding import scan
from moldau.spark.source.losses import lost
from moldau.spark.source.planning import OffsetRange
from moldau.spark.source.positions import short_id
from moldau.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchResponsePartition,
    FetchTopic,
)

log = logging.getLogger(__name__)

WAIT_MS_MAX: Final = 500
_RETRY_SECONDS: Final = 0.1
_FIRST_BYTES_MIN: Final = 128 * 1024
_RECORD_BYTES: Final = 512
"""A guess, so that a range of a few records does not bring megabytes of what comes after it."""
_NOT_FOUND_COUNT_MAX: Final = 5
_LAST_VERSION_WITH_NAMES: Final = 12

_warned_of: Final[set[str]] = set()
"""Topics, once in a process."""


class FetchLimits(NamedTuple):
    bytes_max: int
    timeout_seconds: float
    read_committed: bool
    fail_on_data_loss: bool


class Taken:
    """What an answer holds of a range, from the offset on that was asked for."""

    def __init__(self, planned: OffsetRange, start: int, answer: FetchResponsePartition) -> None:
        self._planned = planned
        self._start = start
        self._aborted = [
            AbortedTransaction(entry.producer_id, entry.first_offset)
            for entry in answer.aborted_transactions or ()
        ]
        records = answer.records
        self.fetched = records if isinstance(records, memoryview) else memoryview(b"")
        self._batches: list[Placed] = []
        self._packed: bytearray | None = None
        scanned = scan(self.fetched, start, planned.end)
        if scanned is not None:
            next_offset, self._packed = scanned
        else:
            try:
                self._batches = whole_batches(self.fetched, planned.end)
            except BatchFormatError as error:
                raise damaged(planned, start, error) from error
            next_offset = self._batches[-1].header.next_offset if self._batches else start
        self.is_empty = scanned is None and not self._batches
        """No batch came as a whole."""
        self.position = max(start, next_offset)
        """Where to go on."""

    def bodies(self, *, read_committed: bool) -> Iterator[Bodies]:
        planned = self._planned
        if self._packed:
            yield Bodies(self.fetched, [], self._start, self._packed)
        if not read_committed:
            _warn_of_transactions(planned.topic, self._batches)
        try:
            yield from readable_bodies(
                self.fetched, self._batches, self._aborted, start=self._start, end=planned.end
            )
        except BatchFormatError as error:
            raise damaged(planned, self._start, error) from error


class RangeFetcher:
    """Yields the records of `planned`, as `Bodies`, each from the offset where the last ended."""

    def __init__(self, client: KafkaClient, planned: OffsetRange, limits: FetchLimits) -> None:
        self._client = client
        self._planned = planned
        self._limits = limits
        self._position = planned.start
        self._bytes_max = first_bytes_max(planned, _FIRST_BYTES_MIN, limits.bytes_max)
        self._ahead: KafkaConnection | None = None
        """Where the answer for `_position` is on its way."""
        self._progress_at = time.monotonic()
        self._failure: ClientError | None = None
        self._not_found_count = 0

    def __iter__(self) -> Iterator[Bodies]:
        try:
            while self._position < self._planned.end:
                answer = self._next_answer()
                if answer is None:
                    return
                yield from self._accept(answer)
        finally:
            # A connection with an answer on its way is of no use to whoever comes next.
            self._drop_ahead()

    def _accept(self, answer: FetchResponsePartition) -> Iterator[Bodies]:
        """Take over an answer, and ask for what follows it before anyone looks at it."""
        taken = Taken(self._planned, self._position, answer)
        if taken.is_empty:
            self._nothing_whole(len(taken.fetched), answer)
            return
        self._position = taken.position
        self._progress_at = time.monotonic()
        self._bytes_max = max(self._bytes_max, min(2 * self._bytes_max, self._limits.bytes_max))
        if self._position < self._planned.end:
            self._post_ahead()
        yield from taken.bodies(read_committed=self._limits.read_committed)

    def _nothing_whole(self, size: int, answer: FetchResponsePartition) -> None:
        if size:
            # A broker that does not send the first batch whole; give it room.
            self._bytes_max = max(2 * self._bytes_max, size)
        readable = answer.last_stable_offset if self._limits.read_committed else -1
        end = readable if readable >= 0 else answer.high_watermark
        self._failure = TimedOutError(
            f"offset {self._position} of {self._planned.topic}-{self._planned.partition} cannot be "
            f"read: the partition can be read up to {end}"
        )
        self._check_patience()

    # -- asking

    def _next_answer(self) -> FetchResponsePartition | None:
        """The answer for `_position`; None if there is nothing left to read of the range."""
        while True:
            try:
                answer, code = self._ask()
                if code == ErrorCode.OFFSET_OUT_OF_RANGE:
                    if not self._skip_deleted():
                        return None
                    continue
            except NotFoundError as error:
                # A broker that has just started may not have heard of the topic yet.
                self._not_found_count += 1
                if self._not_found_count < _NOT_FOUND_COUNT_MAX:
                    self._again(error)
                    continue
                lost(
                    f"{self._planned} cannot be read: {error}", fail=self._limits.fail_on_data_loss
                )
                return None
            except RejectedError as error:
                if error.code not in PASSING:
                    raise
                self._again(error)
                continue
            except (UnreachableError, TimedOutError) as error:
                self._again(error)
                continue
            if not code:
                return answer
            if code in PASSING:
                self._again(self._rejected(code))
            elif code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                # Also said by a broker that has only just heard of the partition.
                self._client.forget(self._planned.topic)
                self._again(self._rejected(code))
            elif code == ErrorCode.CORRUPT_MESSAGE:
                raise damaged(self._planned, self._position, self._rejected(code))
            else:
                raise self._rejected(code)

    def _ask(self) -> tuple[FetchResponsePartition, int]:
        """The answer that is on its way, or one that is asked for now, and its error code."""
        connection, self._ahead = self._ahead, None
        if connection is None:
            connection = self._post()
        return _only_partition(connection.receive())

    def _post(self) -> KafkaConnection:
        """Send the request for `_position` to whoever leads."""
        planned = self._planned
        layout = layout_of(self._client, planned)
        connection = free_leader(self._client, planned)
        asked = FetchPartition(
            partition=planned.partition,
            fetch_offset=self._position,
            partition_max_bytes=self._bytes_max,
        )
        topic = FetchTopic(topic=planned.topic, topic_id=layout.topic_id, partitions=[asked])
        request = fetch_request([topic], bytes_max=self._bytes_max, limits=self._limits)
        connection.post(request, fetch_version(connection, request, [layout.topic_id]))
        return connection

    def _post_ahead(self) -> None:
        try:
            self._ahead = self._post()
        except (RejectedError, UnreachableError, TimedOutError, NotFoundError):
            # Tried again, and reported, when the answer is needed.
            self._client.forget(self._planned.topic)

    def _drop_ahead(self) -> None:
        connection, self._ahead = self._ahead, None
        if connection is not None:
            connection.close()

    # -- what goes wrong

    def _again(self, error: ClientError) -> None:
        """Forget who led, wait a little, and give up when nothing came for too long."""
        self._failure = error
        self._client.forget(self._planned.topic)
        self._check_patience()
        time.sleep(_RETRY_SECONDS)

    def _check_patience(self) -> None:
        waited = time.monotonic() - self._progress_at
        if waited < self._limits.timeout_seconds:
            return
        raise TimedOutError(
            f"cannot read {self._planned} from {self._position} on: nothing came for "
            f"{waited:.0f} s ({self._failure})",
            hint="are the brokers up? to wait longer: option kafka.request.timeout.ms",
        ) from self._failure

    def _skip_deleted(self) -> bool:
        """Step over what was deleted; False if nothing of the range is left."""
        planned, fail = self._planned, self._limits.fail_on_data_loss
        first = self._client.list_offset(planned.topic, planned.partition, -2)
        if first > self._position:
            until = min(first, planned.end)
            lost(
                f"offsets {self._position} to {until - 1} of {planned.topic}-{planned.partition} "
                f"were deleted (the partition starts at {first})",
                fail=fail,
            )
            self._position = until
            self._progress_at = time.monotonic()
            return self._position < planned.end
        end = self._client.list_offset(planned.topic, planned.partition)
        if end <= self._position:
            lost(
                f"{planned} are not there: the partition ends at {end}; was it deleted and made "
                "again?",
                fail=fail,
            )
            return False
        # It moved while we asked.
        self._again(self._rejected(ErrorCode.OFFSET_OUT_OF_RANGE))
        return True

    def _rejected(self, code: int) -> RejectedError:
        error = RejectedError("", code)
        return RejectedError(f"cannot read {self._planned}: {error.name}", code)


def fetch_request(topics: list[FetchTopic], *, bytes_max: int, limits: FetchLimits) -> FetchRequest:
    return FetchRequest(
        max_wait_ms=min(WAIT_MS_MAX, int(limits.timeout_seconds * 500)),
        min_bytes=1,
        max_bytes=bytes_max,
        isolation_level=int(limits.read_committed),
        topics=topics,
    )


def fetch_version(
    connection: KafkaConnection, request: FetchRequest, ids: Iterable[bytes | TopicId]
) -> int:
    """Brokers may have topics without an id: then they are asked for by name."""
    version = connection.version_for(request)
    if any(topic_id == NO_TOPIC_ID for topic_id in ids):
        version = min(version, _LAST_VERSION_WITH_NAMES)
    return version


def first_bytes_max(planned: OffsetRange, least: int, most: int) -> int:
    return min(most, max(least, planned.size * _RECORD_BYTES))


def free_leader(client: KafkaClient, planned: OffsetRange) -> KafkaConnection:
    """The connection to the leader, without answers on their way."""
    connection = client.leader(planned.topic, planned.partition)
    if connection.pending_count:
        # Left by a reader that was stopped half-way.
        connection.close()
        connection = client.leader(planned.topic, planned.partition)
    return connection


def layout_of(client: KafkaClient, planned: OffsetRange) -> TopicLayout:
    """Raises NotFoundError if the topic is another one than was planned for."""
    layout = client.layout(planned.topic)
    if planned.topic_id is not None and short_id(layout.topic_id) != planned.topic_id:
        raise NotFoundError(f"{planned.topic} was deleted and made again")
    return layout


def damaged(planned: OffsetRange, offset: int, error: Exception) -> ClientError:
    return ClientError(
        f"{planned.topic}-{planned.partition} holds a batch from offset {offset} on that "
        f"cannot be read: {error}",
        hint="to go on behind it, use startingOffsets or a filter on the offset",
    )


def _warn_of_transactions(topic: str, batches: Sequence[Placed]) -> None:
    """Whoever did not think of it reads what was aborted, too."""
    if topic in _warned_of or not any(placed.header.is_transactional for placed in batches):
        return
    _warned_of.add(topic)
    log.warning(
        "%s holds transactions, and is read with those that are open or were aborted: to read "
        "only what was committed, set option kafka.isolation.level to read_committed",
        topic,
    )


def _only_partition(response: object) -> tuple[FetchResponsePartition, int]:
    if not isinstance(response, FetchResponse):
        raise ClientError(f"a fetch is answered with {type(response).__name__}")
    if response.error_code:
        nothing = FetchResponsePartition(partition_index=-1, high_watermark=-1, records=None)
        return nothing, response.error_code
    partitions = [found for topic in response.topics for found in topic.partitions]
    if len(partitions) != 1:
        raise ClientError(f"a fetch of one partition is answered for {len(partitions)}")
    return partitions[0], partitions[0].error_code
