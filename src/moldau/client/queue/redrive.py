"""Owns the way back of dead letters: each to the topic that it came from, once.

The dead-letter topic is read through a queue group of its own, so what was brought back stays done.
A dead letter may be there twice, after a fail-over; its origin tells.
"""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final, NamedTuple

from moldau.client.errors import ClientError
from moldau.client.queue.message import AsyncQueueMessage
from moldau.client.queue.outgoing import Sent
from moldau.client.queue.worker import AsyncWorker
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
_OF_BEFORE: Final = frozenset({DELIVER_AT_HEADER, ONLY_GROUP_HEADER})
BATCH_MESSAGES: Final = 100
IDLE_SECONDS: Final = 2.0

Origin = tuple[str, str, str, str]
SendMany = Callable[[str, list[pb.OutgoingMessage]], Awaitable[list[Sent]]]


class RedriveProgress(NamedTuple):
    """How far it is: sums of the run so far."""

    sent: int
    doubles: int
    """Dropped: the same message was there before."""
    strangers: int
    """Passed: no dead letters, of another group, or without what was in them."""


async def redrive(
    worker: AsyncWorker,
    send_many: SendMany,
    *,
    group: str | None,
    limit: int | None,
    idle: float = IDLE_SECONDS,
    to: str | None = None,
) -> AsyncIterator[RedriveProgress]:
    """Bring dead letters back until none comes for `idle` seconds, or `limit` were sent.

    Each is for the group that could not do it: other queue groups of its topic pass it. All that
    are sent to another topic, `to`, are for whoever reads that.

    A message is acked when it is sent: after a crash in between it comes twice, and is never lost.
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
            if origin is None or (group is not None and origin[0] != group) or _is_cut(message):
                sums = sums._replace(strangers=sums.strangers + 1)
                done.append(message)
            elif origin in seen:
                sums = sums._replace(doubles=sums.doubles + 1)
                done.append(message)
            else:
                seen.add(origin)
                back.setdefault(to or origin[1], []).append(message)
        for topic, own in back.items():
            await _send(worker, send_many, topic, own, is_back=to is None)
            sums = sums._replace(sent=sums.sent + len(own))
        for refused in await worker.ack([*done, *(m for own in back.values() for m in own)]):
            log.warning("it may be sent back again: %s", refused.error())
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
        await worker.nack(messages, delay=0, reason="could not be sent back")
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


def _is_cut(message: AsyncQueueMessage) -> bool:
    """Whether there is not all of it: what would be sent back is another message, and where topics
    are compacted, one that deletes."""
    missing = [value for name, value in message.headers if name == DEAD_TRUNCATED_HEADER]
    if missing:
        log.warning("a dead letter without %r is not sent back: %s", missing[0], _origin(message))
    return bool(missing)


def _restored(message: AsyncQueueMessage, *, is_back: bool) -> pb.OutgoingMessage:
    """As it was: without what made it a dead letter, and due at once."""
    is_keyless = any(name == DEAD_KEYLESS_HEADER for name, _ in message.headers)
    key = None if is_keyless else message.key
    restored = pb.OutgoingMessage(key=key, value=message.value)
    for name, value in message.headers:
        if not name.startswith(DEAD_PREFIX) and name not in _OF_BEFORE:
            restored.headers.add(key=name, value=value)
    if is_back:
        group = next(value for name, value in message.headers if name == DEAD_GROUP_HEADER)
        restored.headers.add(key=ONLY_GROUP_HEADER, value=group)
    return restored
