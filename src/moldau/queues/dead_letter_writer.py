"""Owns how dead messages get to their dead-letter topic: as they were, with headers that say why.

What cannot be written now is tried again by whoever asked. What can never be written as it is, is
written without its value, and says so.
"""

import logging
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, Protocol

from moldau.data.append_forwarding import AppendResult
from moldau.data.produce import ACKS_ALL
from moldau.metadata.image import Topic
from moldau.model.clock import Clock
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
"""Well below what topics take, unless somebody made it small."""
_APPEND_SECONDS_MAX: Final = 10.0
_TOO_LARGE: Final = frozenset({ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE})
_ONE_BY_ONE: Final = _TOO_LARGE | {ErrorCode.INVALID_RECORD}
"""Because of some, perhaps: a topic that is compacted takes none without a key."""

_NOT_KEPT = frozenset((ONLY_GROUP_HEADER, DELIVER_AT_HEADER))


class Origin(NamedTuple):
    """Where dead messages come from: whoever redrives them tells by it what it has had before."""

    group: str
    topic: str
    partition: PartitionIndex


class Letter(NamedTuple):
    """A dead message."""

    record: Record
    attempts: int
    reason: str
    is_whole: bool = True
    """Else there is nothing of it but its place."""


class Topics(Protocol):
    """`TopicService`."""

    async def ensure(self, name: str) -> Topic: ...


class Appends(Protocol):
    """`AppendService`."""

    async def append(
        self, topic: Topic, partition: int, batches: bytes, *, acks: int, timeout_seconds: float
    ) -> AppendResult: ...


class DeadLetterWriter:
    """Writes them; for all queues of a broker."""

    def __init__(self, *, clock: Clock, topics: Topics, appends: Appends) -> None:
        self._clock = clock
        self._topics = topics
        self._appends = appends
        self._spread = 0

    async def write(
        self, origin: Origin, topic_name: str, letters: Sequence[Letter]
    ) -> frozenset[Offset]:
        """The offsets of those that are safe now. Raises RefusedError if none is."""
        topic = await self._topics.ensure(topic_name)
        safe: set[Offset] = set()
        failure: RefusedError | None = None
        for partition, some in self._placed(topic, letters).items():
            for chunk in _chunks(some):
                try:
                    await self._write_chunk(origin, topic, partition, chunk, safe)
                except RefusedError as error:
                    failure = error
        if failure is not None and not safe:
            raise failure
        return frozenset(safe)

    def _placed(self, topic: Topic, letters: Iterable[Letter]) -> dict[int, list[Letter]]:
        placed: dict[int, list[Letter]] = defaultdict(list)
        count = len(topic.partitions)
        for letter in letters:
            key = letter.record.key
            if key is None:
                self._spread += 1
                placed[self._spread % count].append(letter)
            else:
                placed[partition_of(key, count)].append(letter)
        return placed

    async def _write_chunk(
        self,
        origin: Origin,
        topic: Topic,
        partition: int,
        letters: list[Letter],
        safe: set[Offset],
    ) -> None:
        records = [self._record(origin, letter) for letter in letters]
        appended = await self._append(topic, partition, records)
        if appended.error in _ONE_BY_ONE:
            failure: RefusedError | None = None
            for letter in letters:
                try:
                    await self._write_one(origin, topic, partition, letter)
                    safe.add(letter.record.offset)
                except RefusedError as error:
                    # The others may be better.
                    failure = error
            if failure is not None:
                raise failure
        elif appended.error is not ErrorCode.NONE:
            raise _refusal(topic, appended)
        else:
            safe.update(letter.record.offset for letter in letters)

    async def _write_one(
        self, origin: Origin, topic: Topic, partition: int, letter: Letter
    ) -> None:
        """Each smaller than the one before, until one is taken."""
        whole = self._record(origin, letter)
        bare: Headers = [item for item in whole.headers if item[0].startswith(DEAD_PREFIX)]
        tries = (
            whole,
            whole._replace(value=None, headers=[*whole.headers, _truncated("value")]),
            whole._replace(
                key=None, value=None, headers=[*bare, _truncated("key, value, headers")]
            ),
        )
        appended = AppendResult(ErrorCode.NONE)
        for record in tries:
            appended = await self._append(topic, partition, [record])
            if appended.error is ErrorCode.INVALID_RECORD and record.key is None:
                keyed = _with_key(origin, record, letter.record.offset)
                appended = await self._append(topic, partition, [keyed])
            if appended.error not in _TOO_LARGE:
                break
        if appended.error in _TOO_LARGE:
            log.warning(
                "a dead message is lost, since %s takes nothing of its size: offset %d of %s-%d, "
                "group %s: %s",
                *(topic.name, letter.record.offset, origin.topic, origin.partition),
                *(origin.group, letter.reason),
            )
        elif appended.error is not ErrorCode.NONE:
            raise _refusal(topic, appended)
        elif record is not whole:
            log.warning(
                "a dead message is too large for %s, and written without its value: offset %d "
                "of %s-%d, group %s",
                *(topic.name, letter.record.offset, origin.topic, origin.partition),
                origin.group,
            )

    async def _append(self, topic: Topic, partition: int, records: list[Record]) -> AppendResult:
        return await self._appends.append(
            topic,
            partition,
            build_batch(records),
            acks=ACKS_ALL,
            timeout_seconds=_APPEND_SECONDS_MAX,
        )

    def _record(self, origin: Origin, letter: Letter) -> Record:
        """With the time of now: by its own it might be too old to be kept."""
        now = self._clock.wall_ms()
        # One that died before, and was sent again, says so once.
        # And what said for whom it was, and when, says nothing here: its readers are others.
        headers = [
            item
            for item in letter.record.headers
            if not item[0].startswith(DEAD_PREFIX) and item[0] not in _NOT_KEPT
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


def _refusal(topic: Topic, appended: AppendResult) -> RefusedError:
    return RefusedError(appended.error, f"{topic.name}: {appended.message}")


def _chunks(letters: Sequence[Letter]) -> Iterable[list[Letter]]:
    chunk: list[Letter] = []
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
