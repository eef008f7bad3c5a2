"""Owns the metadata image: decides commands, commits their records, applies them, tells others.

One command at a time: a decision rests on the image, so the image must not change between the
decision and the commit of its records.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from moldau.metadata.apply import apply
from moldau.metadata.commands import Command
from moldau.metadata.decide import decide
from moldau.metadata.image import EMPTY_IMAGE, Image, Topic
from moldau.metadata.records import MetadataRecord, TopicDeleted, decode_record, encode_record
from moldau.model.clock import Clock
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import Offset
from moldau.records.record import Record, build_batch, read_records
from moldau.replica.replica import Replica
from moldau.service.commit import commit_batch

log = logging.getLogger(__name__)


class MetadataStore:
    """The cluster's metadata on this broker."""

    def __init__(
        self, replica: Replica, clock: Clock, on_change: Callable[[Image], Awaitable[None]]
    ) -> None:
        self._replica = replica
        self._clock = clock
        self._on_change = on_change
        self._lock = asyncio.Lock()
        self.image = EMPTY_IMAGE

    def replay(self) -> list[Topic]:
        """Rebuild the image from the log, at start; returns the topics that were deleted in it.

        A crash may have come between a deletion and the removal of the topic's files.
        """
        image = self.image
        count = 0
        deleted: list[Topic] = []
        for batch in self._replica.log.batches(self._replica.log.start_offset):
            for record in read_records(batch):
                if record.value is None:
                    continue
                change = decode_record(record.value)
                if isinstance(change, TopicDeleted):
                    topic = image.topic_by_id(change.topic_id)
                    deleted += [topic] if topic is not None else []
                image = apply(image, change)
                count += 1
        self.image = image
        log.debug("metadata replayed: %d records, %d topics", count, len(image.topics))
        return deleted

    async def submit(self, command: Command) -> list[MetadataRecord]:
        """Carry out a command; returns its records once they are committed and applied.

        Raises RefusedError if it cannot be done; nothing has changed then.
        """
        async with self._lock:
            records = decide(command, self.image)
            if not records:
                return records
            now = self._clock.wall_ms()
            batch = build_batch(
                [Record(Offset(0), now, None, encode_record(record), []) for record in records]
            )
            error = await commit_batch(self._replica, batch)
            if error is not ErrorCode.NONE:
                raise RefusedError(error, "the metadata log did not take the change")
            image = self.image
            for record in records:
                image = apply(image, record)
            self.image = image
            await self._on_change(image)
            return records

    def preview(self, command: Command) -> Image:
        """The image as it would be: for validate_only requests. Raises RefusedError."""
        image = self.image
        for record in decide(command, image):
            image = apply(image, record)
        return image
