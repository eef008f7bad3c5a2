"""Owns shelves: where messages that are to be delivered much later wait, outside the open ones.

A shelf is a span of time and a stretch of the log. On it are all messages of the stretch whose
`deliver_at` is in the span. The log holds them: a shelf for a million takes no more room than one
for a single message. Before its time comes, the stretch is read again (`Recall`), and what is on
the shelf goes to shelves of shorter spans, and in the end to the open messages.

For this to hold, a message for whose time there is a shelf goes onto that shelf, whatever else
could be done with it; and onto the one of the longest span, if there are several. So a shelf's
stretch never covers a message of its span that is open or settled, and nothing is delivered twice.
"""

from typing import Final

from msgspec import Struct

from moldau.model.ids import Offset, TimestampMs
from moldau.model.queue_headers import DELIVER_DAYS_MAX

MINUTE_MS: Final = 60_000
HOUR_MS: Final = 60 * MINUTE_MS
DAY_MS: Final = 24 * HOUR_MS
SPANS_MS: Final = (DAY_MS, HOUR_MS, MINUTE_MS)
"""Of shelves, the longest first."""
DELIVER_MS_MAX: Final = DELIVER_DAYS_MAX * DAY_MS
"""How far ahead `deliver_at` may be, which bounds the number of shelves."""
BUCKETS_MAX: Final = DELIVER_DAYS_MAX + 1 + 49 + 121 + 61
"""Days, hours and minutes that can be in use at a time, and those of a clock that was set back."""

BucketKey = tuple[int, TimestampMs]
"""Length and begin of the span."""


class DelayBucket(Struct, frozen=True):
    """One that is empty, `first` at `end`, is no more."""

    span_ms: int
    begin: TimestampMs
    first: Offset
    """What was before in the log has been taken off."""
    end: Offset
    count: int
    """Messages on it: no more than these, compaction may have taken some."""

    @property
    def key(self) -> BucketKey:
        return self.span_ms, self.begin

    @property
    def is_empty(self) -> bool:
        return self.first >= self.end

    @property
    def recall_at(self) -> TimestampMs:
        """Early enough to read a long stretch of the log."""
        return TimestampMs(self.begin - self.span_ms)

    def covers(self, time: TimestampMs) -> bool:
        return self.begin <= time < self.begin + self.span_ms


def bucket_keys(time: TimestampMs) -> tuple[BucketKey, ...]:
    """Of all shelves on which a message of that time may be, the longest span first."""
    return tuple((span, TimestampMs(time - time % span)) for span in SPANS_MS)


def span_for(ahead_ms: int) -> int:
    """Of a new shelf: recalled when the time is one to two such spans ahead."""
    if ahead_ms >= 2 * DAY_MS:
        return DAY_MS
    return HOUR_MS if ahead_ms >= 2 * HOUR_MS else MINUTE_MS
