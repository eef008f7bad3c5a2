"""Decides which segments retention deletes. Pure: the log removes them."""

from collections.abc import Sequence

from moldau.log.interface import LogConfig
from moldau.log.segment import Segment
from moldau.model.ids import Offset, TimestampMs


def expired_count(
    closed: Sequence[Segment], active_bytes: int, config: LogConfig, now: TimestampMs, end: Offset
) -> int:
    """How many of the closed segments, oldest first, may be deleted. All are below `end`.

    By time: every record is older than retention_ms. By size: the log is still at least
    retention_bytes without the segment, as in Kafka.
    """
    if not config.delete_expired:
        return 0
    size = active_bytes + sum(segment.data_bytes for segment in closed)
    for count, segment in enumerate(closed):
        size -= segment.data_bytes
        too_large = config.retention_bytes >= 0 and size >= config.retention_bytes
        if segment.end_offset > end or not (too_large or is_expired(segment, config, now)):
            return count
    return len(closed)


def is_expired(segment: Segment, config: LogConfig, now: TimestampMs) -> bool:
    """Whether all records are older than retention_ms. Records without a timestamp never are."""
    largest = segment.max_timestamp
    return 0 <= config.retention_ms < now - largest and largest >= 0


def is_roll_due(active: Segment, config: LogConfig, now: TimestampMs) -> bool:
    """Whether an idle segment should be closed, so that it can expire."""
    if not active.data_bytes or active.first_timestamp < 0:
        return False
    if config.delete_expired and is_expired(active, config, now):
        return True
    span_ms = config.segment_ms_max
    if config.compact:
        # Only closed segments are compacted.
        span_ms = min(span_ms, config.compaction_lag_ms_max)
    return now - active.first_timestamp > span_ms
