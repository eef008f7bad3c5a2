"""Settings of a queue: attempts, backoff, lease times, and how much may be open at once."""

from typing import Final

from msgspec import Struct

from moldau.leases.delay_buckets import BUCKETS_MAX
from moldau.model.errors import ConfigError
from moldau.model.queue_limits import ATTEMPTS_MAX, BACKOFF_MS_MAX, VISIBILITY_MS_MAX

_RECORD_BYTES_MAX: Final = 1_020_000
"""A snapshot is one record, which must fit into one batch of the internal topic."""
_BUCKET_BYTES_MAX: Final = 34
"""Largest encoded size of a delay bucket in a snapshot."""
_OPEN_BYTES_MAX: Final = 28
"""Largest encoded size of an open offset in a snapshot, without its text."""


class QueueConfig(Struct, frozen=True, kw_only=True):
    """Used by decisions only: replaying records gives the same state under any settings."""

    attempts_max: int = 5
    """Deliveries without an ack after which a message is dead-lettered."""
    backoff_ms_min: int = 1_000
    backoff_ms_max: int = 300_000
    """Delay after a nack; it doubles with each attempt."""
    visibility_ms_default: int = 30_000
    visibility_ms_max: int = VISIBILITY_MS_MAX
    """Longest lease, and longest extension."""
    delay_ms_max: int = BACKOFF_MS_MAX
    """Longest delay of a nack."""
    leases_max: int = 4_000
    """Messages that are leased, or dead and not yet moved. At the limit, polls return fewer."""
    open_max: int = 18_000
    """Messages that are not settled: leased, dead or waiting."""
    text_bytes_max: int = 120
    """Longest name of a member. A longer reason is truncated."""

    def __post_init__(self) -> None:
        for name, value, least in (
            ("attempts_max", self.attempts_max, 1),
            ("backoff_ms_min", self.backoff_ms_min, 0),
            ("backoff_ms_max", self.backoff_ms_max, self.backoff_ms_min),
            ("visibility_ms_default", self.visibility_ms_default, 1),
            ("visibility_ms_max", self.visibility_ms_max, self.visibility_ms_default),
            ("delay_ms_max", self.delay_ms_max, 0),
            ("leases_max", self.leases_max, 1),
            ("open_max", self.open_max, self.leases_max),
            ("text_bytes_max", self.text_bytes_max, 1),
        ):
            if value < least:
                raise ConfigError(f"queue.{name} is {value}, but must be at least {least}")
        if self.attempts_max > ATTEMPTS_MAX:
            raise ConfigError(
                f"queue.attempts_max is {self.attempts_max}, but must be at most {ATTEMPTS_MAX}"
            )
        size = self.open_max * _OPEN_BYTES_MAX + self.leases_max * self.text_bytes_max
        size += BUCKETS_MAX * _BUCKET_BYTES_MAX
        if size > _RECORD_BYTES_MAX:
            raise ConfigError(
                f"queue.open_max and queue.leases_max allow records of up to {size} bytes; "
                f"the limit is {_RECORD_BYTES_MAX}: lower one of them or queue.text_bytes_max"
            )
