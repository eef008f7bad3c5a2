"""Sends dead letters back to their topics, each once.

The dead-letter topic is read through its own queue group, so that redriven messages stay done.
After a failover a dead letter may be there twice; its origin identifies duplicates.
"""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from typing import Final, NamedTuple

from moldau.client.errors import ClientError
from moldau.client.queue.outgoing import Sent
from moldau.client.queue.worker import AsyncQueueMessage, AsyncWorker
from moldau.model.queue_headers import (
    DEAD_GROUP_HEADER,
    DEAD_KEYLESS_HEADER,
    DEAD_OFFSET_HEADER,
    DEAD_PARTITION_HEADER,
    DEAD_PREFIX,
    DEAD_TOPIC_HEADER,
    DEAD_TRUNCATED_HEADER,
    DELIVER_AT_HEADER,
    ONLY_GROUP_HEADER,
)
from moldau.proto.v1 import queue_pb2 as pb

log = logging.getLogger(__name__)

REDRIVE_SUFFIX: Final = ".redrive"
_OLD_HEADERS: Final = frozenset({DELIVER_AT_HEADER, ONLY_GROUP_HEADER})
BATCH_MESSAGES: Final = 100
IDLE_SECONDS: Final = 2.0

Origin = tuple[str, str, str, str]
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
    seen: set[Origin] = set()
    while limit is None or sums.sent < limit:
        count = BATCH_MESSAGES if limit is None else min(BATCH_MESSAGES, limit - sums.sent)
        messages = await worker.poll(count, idle)
        if not messages:
            return
        back: dict[str, list[AsyncQueueMessage]] = {}
        done: list[AsyncQueueMessage] = []
        for message in messages:
            origin = _origin(message)
            if (
                origin is None
                or (group is not None and origin[0] != group)
                or (to is None and not _is_of(origin, topics))
                or _is_truncated(message)
            ):
                sums = sums._replace(skipped=sums.skipped + 1)
                done.append(message)
            elif origin in seen:
                sums = sums._replace(duplicates=sums.duplicates + 1)
                done.append(message)
            else:
                seen.add(origin)
                back.setdefault(to or origin[1], []).append(message)
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
    try:
        await send_many(topic, [_restored(message, is_back=is_back) for message in messages])
    except ClientError:
        await worker.nack(messages, delay=0, reason="redrive failed")
        raise


def _origin(message: AsyncQueueMessage) -> Origin | None:
    headers = {name: (value or b"").decode("utf-8", "replace") for name, value in message.headers}
    topic = headers.get(DEAD_TOPIC_HEADER)
    if not topic:
        return None
    return (
        headers.get(DEAD_GROUP_HEADER, ""),
        topic,
        headers.get(DEAD_PARTITION_HEADER, ""),
        headers.get(DEAD_OFFSET_HEADER, ""),
    )


def _is_of(origin: Origin, topics: Collection[str]) -> bool:
    if origin[1] in topics:
        return True
    log.warning(
        "dead letter is not redriven: it says that it is of topic %r, which group %s does not have",
        *(origin[1], origin[0]),
    )
    return False


def _is_truncated(message: AsyncQueueMessage) -> bool:
    """Whether its value or key is missing: it would be another message, and in a compacted topic a
    tombstone."""
    missing = [value for name, value in message.headers if name == DEAD_TRUNCATED_HEADER]
    if missing:
        log.warning(
            "dead letter of %s is not redriven: %r is missing", _origin(message), missing[0]
        )
    return bool(missing)


def _restored(message: AsyncQueueMessage, *, is_back: bool) -> pb.OutgoingMessage:
    """As it was: without what made it a dead letter, and due at once."""
    is_keyless = any(name == DEAD_KEYLESS_HEADER for name, _ in message.headers)
    key = None if is_keyless else message.key
    restored = pb.OutgoingMessage(key=key, value=message.value)
    for name, value in message.headers:
        if not name.startswith(DEAD_PREFIX) and name not in _OLD_HEADERS:
            restored.headers.add(key=name, value=value)
    if is_back:
        group = next(value for name, value in message.headers if name == DEAD_GROUP_HEADER)
        restored.headers.add(key=ONLY_GROUP_HEADER, value=group)
    return restored
