"""Where reading starts: the values of `--offset`, and how they resolve to offsets."""

import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import click

from moldau.cli.errors import CommandError, ExitCode
from moldau.cli.options import ParamType
from moldau.cli.output import NO_LEADER_HINT, say
from moldau.client.timestamps import parse_timestamp_ms

if TYPE_CHECKING:
    from collections.abc import Sequence

    from confluent_kafka import Consumer, TopicPartition

    from moldau.client.kafka.admin import Admin

_RESOLVE_SECONDS_MAX = 5.0
# librdkafka's special offsets; _TAIL_BASE - N means N before the end.
_BEGINNING = -2
_END = -1
_TAIL_BASE = -2000


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """A position in every partition of a topic: an offset or a timestamp."""

    offset: int = _END
    time_ms: int | None = None

    @classmethod
    def beginning(cls) -> Self:
        return cls(offset=_BEGINNING)

    @classmethod
    def end(cls) -> Self:
        return cls(offset=_END)

    @classmethod
    def before_end(cls, count: int) -> Self:
        return cls(offset=_TAIL_BASE - count)

    def within(self, first: int, end: int) -> int:
        """The offset within a partition's range; not for a timestamp."""
        if self.offset <= _TAIL_BASE:
            return max(first, end - (_TAIL_BASE - self.offset))
        if self.offset == _BEGINNING:
            return first
        return end if self.offset == _END else min(max(self.offset, first), end)

    def resolve(
        self, consumer: "Consumer", topic: str, partitions: list[int]
    ) -> "list[TopicPartition]":
        """The partitions with their offsets, for `assign`."""
        from confluent_kafka import KafkaException, TopicPartition

        from moldau.client.kafka.connect import translate

        try:
            if self.time_ms is not None:
                wanted = [TopicPartition(topic, number, self.time_ms) for number in partitions]
                return consumer.offsets_for_times(wanted, timeout=_RESOLVE_SECONDS_MAX)
            parts = [TopicPartition(topic, number, self.offset) for number in partitions]
            return [_within(consumer, part) for part in parts] if self.offset >= 0 else parts
        except KafkaException as error:
            raise translate(error, doing=f"find the offsets of topic {topic}") from error


def _within(consumer: "Consumer", part: "TopicPartition") -> "TopicPartition":
    """Clamp the offset to the partition's range.

    librdkafka would start at the beginning for any offset out of range.
    """
    first, end = consumer.get_watermark_offsets(part, timeout=_RESOLVE_SECONDS_MAX)
    wanted = part.offset
    part.offset = min(max(wanted, first), end)
    if part.offset != wanted:
        name = f"{part.topic}-{part.partition}"
        say(
            f"{name} has offsets {first} to {end - 1}; starting at {part.offset}"
            if end > first
            else f"{name} is empty; starting at {part.offset}"
        )
    return part


class PositionParam(ParamType["Position"]):
    """beginning, end, N, -N, @TIME, @-DURATION."""

    name = "position"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Position:
        if isinstance(value, Position):
            return value
        text = str(value).strip()
        position = parse_position(text)
        if position is None:
            self.fail(
                f"{text!r} is not a valid position; write beginning, end, N, -N, @TIME or @-10m",
                param,
                ctx,
            )
        return position


def parse_position(text: str) -> Position | None:
    """The position, or None if the text is not valid."""
    if text in ("beginning", "earliest", "start"):
        return Position.beginning()
    if text in ("end", "latest"):
        return Position.end()
    if re.fullmatch(r"\d{1,18}", text):
        return Position(offset=int(text))
    if re.fullmatch(r"-\d{1,9}", text):
        return Position.before_end(int(text[1:]))
    if not text.startswith("@"):
        return None
    timestamp = parse_timestamp_ms(text[1:], now_ms=time.time_ns() // 1_000_000)
    return None if timestamp is None else Position(time_ms=timestamp)


def resolve_offsets(
    admin: "Admin", position: Position, parts: "Sequence[tuple[str, int]]"
) -> dict[tuple[str, int], int]:
    """The offset of a position in each partition, within its range. Raises CommandError."""
    ranges = admin.offset_range(parts)
    if missing := [f"{topic}-{number}" for topic, number in parts if (topic, number) not in ranges]:
        raise CommandError(
            f"no leader for {', '.join(missing)}; nothing was changed",
            hint=NO_LEADER_HINT,
            code=ExitCode.UNREACHABLE,
        )
    if position.time_ms is not None:
        found = admin.offsets_at(parts, position.time_ms)
        # No message at or after that time: use the end.
        return {part: at if at >= 0 else ranges[part][1] for part, at in found.items()}
    return {part: position.within(*ranges[part]) for part in parts}
