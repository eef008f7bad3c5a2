"""Writes dead letters to their topic: the original message, with headers that give the reason.

The caller retries failed writes. A message that is too large for the topic is written without its
value, which a header says.
"""

import logging
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from moldau.control.topic_service import TopicService
from moldau.data.append_forwarding import AppendForwarder, AppendResult
from moldau.data.produce import ACKS_ALL
from moldau.metadata.image import Topic
from moldau.model import log_events as events
from moldau.model.clock import Clock
from moldau.model.dead_letters import without_earlier_deaths
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import Offset, PartitionIndex
from moldau.model.queue_headers import (
    DEAD_AT_HEADER,
    DEAD_ATTEMPTS_HEADER,
    DEAD_GROUP_HEADER,
    DEAD_KEYLESS_HEADER,
    DEAD_OFFSET_HEADER,
    DEAD_PARTITION_HEADER,
    DEAD_PREFIX,
    DEAD_REASON_HEADER,
    DEAD_TOPIC_HEADER,
    DEAD_TRUNCATED_HEADER,
    DELIVER_AT_HEADER,
    ONLY_GROUP_HEADER,
)
from moldau.queues.reader import size_of
from moldau.records.murmur2 import partition_of
from moldau.records.record import Headers, Record, build_batch

log = logging.getLogger(__name__)

_BATCH_BYTES_MAX: Final = 256 * 1024
"""Well below the default max.message.bytes of topics."""
_APPEND_SECONDS_MAX: Final = 10.0
TOO_LARGE: Final = frozenset({ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE})
RETRY_SINGLY: Final = TOO_LARGE | {ErrorCode.INVALID_RECORD}
"""Possibly caused by single records: a compacted topic rejects records without a key."""

_DROPPED_HEADERS = frozenset((ONLY_GROUP_HEADER, DELIVER_AT_HEADER))


class Origin(NamedTuple):
    """Where a dead letter comes from; a redrive recognizes duplicates by it and the offset."""

    group: str
    topic: str
    partition: PartitionIndex


class DeadLetter(NamedTuple):
    record: Record
    attempts: int
    reason: str
    is_whole: bool = True
    """Otherwise only its offset is known: it could not be read."""


class DeadLetterWriter:
    """Writes the dead letters of all queues of a broker."""

    def __init__(self, *, clock: Clock, topics: TopicService, appends: AppendForwarder) -> None:
        self._clock = clock
        self._topics = topics
        self._appends = appends
        self._spread = 0

    async def write(
        self, origin: Origin, topic_name: str, letters: Sequence[DeadLetter]
    ) -> frozenset[Offset]:
        """Returns the offsets that are committed. Raises RefusedError if there are none."""
        topic = await self._topics.ensure(topic_name)
        written: set[Offset] = set()
        failure: RefusedError | None = None
        for partition, theirs in self._by_partition(topic, letters).items():
            for chunk in _chunks(theirs):
                try:
                    await self._write_chunk(origin, topic, partition, chunk, written)
                except RefusedError as error:
                    failure = error
        if failure is not None and not written:
            raise failure
        return frozenset(written)

    def _by_partition(
        self, topic: Topic, letters: Iterable[DeadLetter]
    ) -> dict[int, list[DeadLetter]]:
        by_partition: dict[int, list[DeadLetter]] = defaultdict(list)
        count = len(topic.partitions)
        for letter in letters:
            key = letter.record.key
            if key is None:
                self._spread += 1
                by_partition[self._spread % count].append(letter)
            else:
                by_partition[partition_of(key, count)].append(letter)
        return by_partition

    async def _write_chunk(
        self,
        origin: Origin,
        topic: Topic,
        partition: int,
        letters: list[DeadLetter],
        written: set[Offset],
    ) -> None:
        records = [self._record(origin, letter) for letter in letters]
        appended = await self._append(topic, partition, records)
        if appended.error in RETRY_SINGLY:
            failure: RefusedError | None = None
            for letter in letters:
                try:
                    await self._write_one(origin, topic, partition, letter)
                    written.add(letter.record.offset)
                except RefusedError as error:
                    # The others may succeed.
                    failure = error
            if failure is not None:
                raise failure
        elif appended.error is not ErrorCode.NONE:
            raise _error(topic, appended)
        else:
            written.update(letter.record.offset for letter in letters)

    async def _write_one(
        self, origin: Origin, topic: Topic, partition: int, letter: DeadLetter
    ) -> None:
        """Tries a smaller version each time the topic rejects one as too large."""
        whole = self._record(origin, letter)
        forgetful = whole._replace(headers=without_earlier_deaths(whole.headers))
        bare: Headers = [item for item in whole.headers if item[0].startswith(DEAD_PREFIX)]
        versions = (
            *((whole,) if forgetful == whole else (whole, forgetful)),
            forgetful._replace(value=None, headers=[*forgetful.headers, _truncated("value")]),
            whole._replace(
                key=None, value=None, headers=[*bare, _truncated("key, value, headers")]
            ),
        )
        appended = AppendResult(ErrorCode.NONE)
        for record in versions:
            appended = await self._append(topic, partition, [record])
            if appended.error is ErrorCode.INVALID_RECORD and record.key is None:
                keyed = _with_key(origin, record, letter.record.offset)
                appended = await self._append(topic, partition, [keyed])
            if appended.error not in TOO_LARGE:
                break
        if appended.error in TOO_LARGE:
            log.warning(
                "dead letter lost: it exceeds max.message.bytes of %s even without its value: "
                "offset %d of %s-%d, group %s, reason: %s",
                *(topic.name, letter.record.offset, origin.topic, origin.partition),
                *(origin.group, letter.reason),
                extra=events.DEAD_LETTER_LOST(
                    group=origin.group, topic=origin.topic, partition=origin.partition
                ),
            )
        elif appended.error is not ErrorCode.NONE:
            raise _error(topic, appended)
        elif record not in (whole, forgetful):
            log.warning(
                "dead letter exceeds max.message.bytes of %s, written without its value: offset %d "
                "of %s-%d, group %s",
                *(topic.name, letter.record.offset, origin.topic, origin.partition),
                origin.group,
                extra=events.DEAD_LETTER_TRUNCATED(
                    group=origin.group, topic=origin.topic, partition=origin.partition
                ),
            )

    async def _append(self, topic: Topic, partition: int, records: list[Record]) -> AppendResult:
        return await self._appends.append(
            topic,
            partition,
            build_batch(records),
            acks=ACKS_ALL,
            timeout_seconds=_APPEND_SECONDS_MAX,
        )

    def _record(self, origin: Origin, letter: DeadLetter) -> Record:
        """With the current time: by its own, retention might delete it at once."""
        now = self._clock.wall_ms()
        # Headers of an earlier dead-lettering are replaced; those that address a group or delay
        # the delivery do not apply to readers of the dead-letter topic.
        headers = [
            item
            for item in letter.record.headers
            if not item[0].startswith(DEAD_PREFIX) and item[0] not in _DROPPED_HEADERS
        ]
        for name, value in (
            (DEAD_REASON_HEADER, letter.reason),
            (DEAD_ATTEMPTS_HEADER, str(letter.attempts)),
            (DEAD_GROUP_HEADER, origin.group),
            (DEAD_TOPIC_HEADER, origin.topic),
            (DEAD_PARTITION_HEADER, str(origin.partition)),
            (DEAD_OFFSET_HEADER, str(letter.record.offset)),
            (DEAD_AT_HEADER, str(now)),
        ):
            headers.append((name, value.encode()))
        if not letter.is_whole:
            headers.append(_truncated("key, value, headers"))
        return letter.record._replace(timestamp=now, headers=headers)


def _with_key(origin: Origin, record: Record, offset: Offset) -> Record:
    key = f"{origin.group}/{origin.topic}-{origin.partition}/{offset}".encode()
    return record._replace(key=key, headers=[*record.headers, (DEAD_KEYLESS_HEADER, b"")])


def _truncated(what: str) -> tuple[str, bytes]:
    return DEAD_TRUNCATED_HEADER, what.encode()


def _error(topic: Topic, appended: AppendResult) -> RefusedError:
    return RefusedError(appended.error, f"{topic.name}: {appended.message}")


def _chunks(letters: Sequence[DeadLetter]) -> Iterable[list[DeadLetter]]:
    chunk: list[DeadLetter] = []
    size = 0
    for letter in letters:
        size += size_of(letter.record)
        if chunk and size > _BATCH_BYTES_MAX:
            yield chunk
            chunk = []
            size = size_of(letter.record)
        chunk.append(letter)
    if chunk:
        yield chunk
