"""Internal limits of the queues of a broker; those of requests are in model/queue_limits.py."""

from msgspec import Struct

from moldau.model.queue_limits import POLL_RESPONSE_BYTES_MAX, POLL_RESPONSE_MESSAGES_MAX


class QueueLimits(Struct, frozen=True, kw_only=True):
    """They protect a broker from its workers; none is a setting."""

    poll_count_max: int = POLL_RESPONSE_MESSAGES_MAX
    poll_bytes_max: int = POLL_RESPONSE_BYTES_MAX
    parked_per_queue_max: int = 2_000
    parked_max: int = 20_000
    commands_waiting_max: int = 1_000
    """Calls that wait for the write in progress, per queue."""
    tokens_waiting_max: int = 100_000
    """Tokens of those calls together, per queue: some twenty megabytes."""
    tokens_per_round_max: int = 10_000
    """Tokens decided in one turn of the event loop; a call is never split."""
    commands_per_write_max: int = 80
    """And half as many polls: fewer than the records between two snapshots, so that a write
    contains at most one."""
    round_count_max: int = 500
    """Messages decided in one turn of the event loop: some five milliseconds."""
    read_bytes: int = 64 * 1024
    """Bytes of the log that are read in one turn of the event loop."""
    reads_per_round_max: int = 64
    """Bounds a round where the log consists of markers or aborted records."""
    ahead_bytes_max: int = 8 * 1024 * 1024
    """Messages of a queue that were read and not delivered yet, and redeliveries that are read
    together."""
    cache_bytes_max: int = 2 * 1024 * 1024
    """Leased messages of a queue that are kept for a redelivery."""
    held_bytes_max: int = 256 * 1024 * 1024
    """Messages in memory, of all queues; the least recently used queues drop theirs."""
    timer_seconds_max: float = 5.0
    """Leases expire by the wall clock, which may be changed: check it at this interval."""
    pause_seconds_min: float = 0.05
    pause_seconds_max: float = 5.0
    """Backoff of loading and of moving dead letters."""
    dead_per_write_max: int = 100
    idle_seconds_max: float = 600.0
    """An unused queue is unloaded after this; the next request loads it again."""
    sweep_seconds: float = 30.0
