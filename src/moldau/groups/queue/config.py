"""Owns the settings of a queue: how often a message is tried, and how much may be open at once."""

from typing import Final

from msgspec import Struct

from moldau.groups.queue.delay_buckets import BUCKETS_MAX
from moldau.model.errors import ConfigError

ATTEMPTS_LIMIT: Final = 2**31 - 1
_RECORD_BYTES_MAX: Final = 1_020_000
"""A snapshot is one record, and must fit into one batch of the internal topic."""
_SHELF_BYTES_MAX: Final = 34
"""What a shelf takes in a snapshot at most."""
_OPEN_BYTES_MAX: Final = 28
"""What an offset that is open takes in a snapshot at most, without its text."""


class QueueConfig(Struct, frozen=True, kw_only=True):
    """Read by decisions only: replaying records gives the same state under any settings."""

    attempts_max: int = 5
    """A message that was delivered so often without an ack is dead."""
    backoff_ms_min: int = 1_000
    backoff_ms_max: int = 300_000
    """A message that was sent back waits so long; the pause doubles with each attempt."""
    visibility_ms_default: int = 30_000
    visibility_ms_max: int = 12 * 3_600_000
    """How long a lease may last, and how much an extension may add."""
    delay_ms_max: int = 7 * 24 * 3_600_000
    """How long a worker may put a message off."""
    leases_max: int = 4_000
    """Messages that are leased, or dead and not yet moved, at a time. Polls give fewer then."""
    open_max: int = 18_000
    """Messages that are known and not settled at a time: those, and the ones that wait."""
    text_bytes_max: int = 120
    """Longest name of a member. A longer reason is cut."""

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
        if self.attempts_max > ATTEMPTS_LIMIT:
            raise ConfigError(
                f"queue.attempts_max is {self.attempts_max}, but must be at most {ATTEMPTS_LIMIT}"
            )
        size = self.open_max * _OPEN_BYTES_MAX + self.leases_max * self.text_bytes_max
        size += BUCKETS_MAX * _SHELF_BYTES_MAX
        if size > _RECORD_BYTES_MAX:
            raise ConfigError(
                f"queue.open_max and queue.leases_max make records of up to {size} bytes, "
                f"but at most {_RECORD_BYTES_MAX} fit; lower one of them or queue.text_bytes_max"
            )
