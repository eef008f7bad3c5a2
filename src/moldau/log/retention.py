"""Owns the choice of what retention lets go. Pure: disk.py removes the segments."""

from collections.abc import Sequence

from moldau.log.interface import LogConfig
from moldau.log.segment import Segment
from moldau.model.ids import Offset, TimestampMs


def expired_count(
    closed: Sequence[Segment], active_bytes: int, config: LogConfig, now: TimestampMs, end: Offset
) -> int:
    """How many of the closed segments, oldest first, may go. All lie below `end`.

    By time: every record is older than retention_ms. By size: the log is still at least
    retention_bytes without the segment, as in Kafka.
    """
    if not config.delete_expired:
        return 0
    size = active_bytes + sum(segment.data_bytes for segment in closed)
    for count, segment in enumerate(closed):
        too_old = config.retention_ms >= 0 and now - segment.max_timestamp > config.retention_ms
        size -= segment.data_bytes
        too_large = config.retention_bytes >= 0 and size >= config.retention_bytes
        if segment.end_offset > end or not (too_old or too_large):
            return count
    return len(closed)


def is_roll_due(active: Segment, config: LogConfig, now: TimestampMs) -> bool:
    """Whether a segment that is written to no more should be closed, so that it can expire."""
    if not active.data_bytes:
        return False
    expired = (
        config.delete_expired
        and config.retention_ms >= 0
        and now - active.max_timestamp > config.retention_ms
    )
    return expired or now - active.first_timestamp > config.segment_ms_max
