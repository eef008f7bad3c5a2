"""Delay buckets: messages that are due much later wait here, instead of among the open ones.

A bucket is a time span and an offset range. It contains all messages of the range whose
`deliver_at` is in the span. The messages stay in the log: a bucket of a million messages takes as
much memory as a bucket of one. Before the span begins, the range is read again (`Recall`), and its
messages move to buckets of shorter spans, and finally to the open messages.

A message must go into a bucket if there is one for its time, and into the one with the longest
span if there are several. So the range of a bucket never covers a message of its span that is open
or settled, and no message is delivered twice.
"""

from typing import Final

from msgspec import Struct

from moldau.model.ids import Offset, TimestampMs
from moldau.model.queue_headers import DELIVER_DAYS_MAX

MINUTE_MS: Final = 60_000
HOUR_MS: Final = 60 * MINUTE_MS
DAY_MS: Final = 24 * HOUR_MS
SPANS_MS: Final = (DAY_MS, HOUR_MS, MINUTE_MS)
"""Spans of buckets, the longest first."""
DELIVER_MS_MAX: Final = DELIVER_DAYS_MAX * DAY_MS
"""How far ahead `deliver_at` may be, which bounds the number of buckets."""
BUCKETS_MAX: Final = DELIVER_DAYS_MAX + 1 + 49 + 121 + 61
"""Days, hours and minutes that can be in use at once, with some for a clock that was set back."""

BucketKey = tuple[int, TimestampMs]
"""Length and start of the span."""


class DelayBucket(Struct, frozen=True):
    """An empty bucket (`first` at `end`) is removed."""

    span_ms: int
    begin: TimestampMs
    first: Offset
    """Messages at lower offsets were already taken out."""
    end: Offset
    count: int
    """Upper bound of its messages: compaction may have removed some."""

    @property
    def key(self) -> BucketKey:
        return self.span_ms, self.begin

    @property
    def is_empty(self) -> bool:
        return self.first >= self.end

    @property
    def recall_at(self) -> TimestampMs:
        """Early enough to read a long offset range."""
        return TimestampMs(self.begin - self.span_ms)

    def covers(self, time: TimestampMs) -> bool:
        return self.begin <= time < self.begin + self.span_ms


def bucket_keys(time: TimestampMs) -> tuple[BucketKey, ...]:
    """Keys of all buckets that may contain a message of that time, the longest span first."""
    return tuple((span, TimestampMs(time - time % span)) for span in SPANS_MS)


def span_for(ahead_ms: int) -> int:
    """Span of a new bucket: it is recalled one to two spans ahead of the time."""
    if ahead_ms >= 2 * DAY_MS:
        return DAY_MS
    return HOUR_MS if ahead_ms >= 2 * HOUR_MS else MINUTE_MS
