"""Sends dead letters back to their topics, each once.

The dead-letter topic is read through its own queue group, so that redriven messages stay done.
After a failover a dead letter may be there twice: with the same origin and the same content.
"""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from typing import Final, NamedTuple

from moldau.client.errors import ClientError, RejectedError, SendFailedError
from moldau.client.queue.outgoing import Sent
from moldau.client.queue.worker import AsyncQueueMessage, AsyncWorker
from moldau.model.dead_letters import REDRIVE_SUFFIX as REDRIVE_SUFFIX
from moldau.model.dead_letters import (
    DeadLetterNote,
    DeadOrigin,
    digest_of,
    note_of,
    restored_headers,
)
from moldau.model.errors import ErrorCode
from moldau.model.queue_headers import EARLIER_DEATH_HEADER
from moldau.proto.v1 import queue_pb2 as pb

log = logging.getLogger(__name__)

BATCH_MESSAGES: Final = 100
IDLE_SECONDS: Final = 2.0

SendMany = Callable[[str, list[pb.OutgoingMessage]], Awaitable[list[Sent]]]


class RedriveProgress(NamedTuple):
    """Totals of the run so far."""

    sent: int
    duplicates: int
    """Duplicates that were dropped."""
    skipped: int
    """Skipped: not a dead letter, of another group or topic, or without its value or key."""


async def redrive(
    worker: AsyncWorker,
    send_many: SendMany,
    *,
    group: str | None,
    limit: int | None,
    idle: float = IDLE_SECONDS,
    to: str | None = None,
    topics: Collection[str] = (),
) -> AsyncIterator[RedriveProgress]:
    """Send dead letters back until none arrives for `idle` seconds, or `limit` were sent.

    Only the group that dead-lettered a message gets it again; other queue groups of the topic skip
    it. Messages sent to another topic, `to`, are for all its readers.

    Headers name the topic of a dead letter, and who writes to the dead-letter topic can make them
    up: without `to`, none is sent to a topic that is not of `topics`, those of the group.

    A message is acked after it was sent: a crash in between sends it twice, and never loses it.
    """
    sums = RedriveProgress(0, 0, 0)
    seen: set[bytes] = set()
    while limit is None or sums.sent < limit:
        count = BATCH_MESSAGES if limit is None else min(BATCH_MESSAGES, limit - sums.sent)
        messages = await worker.poll(count, idle)
        if not messages:
            return
        back: dict[str, list[AsyncQueueMessage]] = {}
        done: list[AsyncQueueMessage] = []
        for message in messages:
            note = note_of(message.headers)
            if (
                note is None
                or (group is not None and note.origin.group != group)
                or (to is None and not _is_of(note.origin, topics))
                or _is_truncated(note)
            ):
                sums = sums._replace(skipped=sums.skipped + 1)
                done.append(message)
                continue
            digest = digest_of(note, message.key, message.value, message.headers)
            if digest in seen:
                sums = sums._replace(duplicates=sums.duplicates + 1)
                done.append(message)
            else:
                seen.add(digest)
                back.setdefault(to or note.origin.topic, []).append(message)
        for topic, own in back.items():
            await _send(worker, send_many, topic, own, is_back=to is None)
            sums = sums._replace(sent=sums.sent + len(own))
        for refused in await worker.ack([*done, *(m for own in back.values() for m in own)]):
            log.warning("dead letter may be redriven again: %s", refused.error())
        yield sums


async def _send(
    worker: AsyncWorker,
    send_many: SendMany,
    topic: str,
    messages: list[AsyncQueueMessage],
    *,
    is_back: bool,
) -> None:
    restored = [_restored(message, is_back=is_back) for message in messages]
    try:
        try:
            await send_many(topic, restored)
        except SendFailedError as error:
            if not all(_is_too_large(one) for one in error.failures.values()):
                raise
            await send_many(topic, [_forgetful(restored[index]) for index in error.failures])
    except ClientError:
        await worker.nack(messages, delay=0, reason="redrive failed")
        raise


def _is_too_large(error: ClientError) -> bool:
    return isinstance(error, RejectedError) and error.code == ErrorCode.MESSAGE_TOO_LARGE


def _forgetful(message: pb.OutgoingMessage) -> pb.OutgoingMessage:
    """Without its earlier deaths, which are not worth a message."""
    kept = [header for header in message.headers if header.key != EARLIER_DEATH_HEADER]
    del message.headers[:]
    message.headers.extend(kept)
    return message


def _is_of(origin: DeadOrigin, topics: Collection[str]) -> bool:
    if origin.topic in topics:
        return True
    log.warning(
        "dead letter is not redriven: it says that it is of topic %r, which group %s does not have",
        *(origin.topic, origin.group),
    )
    return False


def _is_truncated(note: DeadLetterNote) -> bool:
    """Whether its value or key is missing: it would be another message, and in a compacted topic a
    tombstone."""
    if note.missing:
        log.warning(
            "dead letter of %s is not redriven: %r is missing", tuple(note.origin), note.missing
        )
    return bool(note.missing)


def _restored(message: AsyncQueueMessage, *, is_back: bool) -> pb.OutgoingMessage:
    """As it was: without what made it a dead letter, and due at once."""
    note = note_of(message.headers)
    is_keyless = note is not None and note.is_keyless
    only_group = note.origin.group.encode() if is_back and note is not None else None
    key = None if is_keyless else message.key
    restored = pb.OutgoingMessage(key=key, value=message.value)
    for name, value in restored_headers(message.headers, only_group):
        restored.headers.add(key=name, value=value)
    return restored
