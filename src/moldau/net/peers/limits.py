"""The limits of one link to a peer."""

from msgspec import Struct


class LinkLimits(Struct, frozen=True, kw_only=True):
    """Limits of one link."""

    queue_bytes_max: int = 2 * 1024 * 1024
    queue_chunks_max: int = 4096
    retry_seconds_min: float = 0.05
    retry_seconds_max: float = 2.0
    refused_seconds_min: float = 0.2
    """Backoff after a rejected hello: the peer may learn of this broker soon."""
    unsent_bytes_max: int = 1024 * 1024
    """Unsent bytes in the kernel, where heartbeats cannot overtake them."""
    unacknowledged_ms_max: int = 10_000
    """The connection is closed if the peer acknowledges no data for this long."""
