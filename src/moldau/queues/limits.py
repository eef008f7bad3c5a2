"""Owns the bounds of what a broker takes in for its queues. Noun, unit, bound."""

from msgspec import Struct


class QueueLimits(Struct, frozen=True, kw_only=True):
    """They protect a broker from its workers; none is a setting of a group."""

    poll_count_max: int = 1_000
    """Messages of one poll; who asks for more gets so many."""
    poll_bytes_max: int = 3 * 1024 * 1024 + 512 * 1024
    """Of the messages in one answer: less than the 4 MB that clients of gRPC take unless told.
    One message may exceed it."""
    poll_wait_seconds_max: float = 60.0
    tokens_per_call_max: int = 10_000
    parked_per_queue_max: int = 2_000
    parked_max: int = 20_000
    commands_waiting_max: int = 1_000
    """Per queue: calls that wait for the write before theirs."""
    tokens_waiting_max: int = 100_000
    """Per queue, of those calls together: some twenty megabytes."""
    tokens_per_round_max: int = 10_000
    """That are decided about in one turn of the loop; of one call, always all."""
    commands_per_write_max: int = 80
    """And half as many polls: fewer than there are records between snapshots, so that a write
    holds one at most."""
    round_count_max: int = 500
    """Messages that are decided about in one turn of the loop, some five milliseconds."""
    read_bytes: int = 64 * 1024
    """Of the log, in one turn of the loop."""
    reads_per_round_max: int = 64
    """Where markers, or what was aborted, fill the log, a queue moves on in such steps."""
    ahead_bytes_max: int = 8 * 1024 * 1024
    """Of a queue's messages that were read and not delivered yet; and of those that come again, as
    far as they are read together."""
    cache_bytes_max: int = 2 * 1024 * 1024
    """Of a queue's messages that are out, in case they come back."""
    held_bytes_max: int = 256 * 1024 * 1024
    """Of messages, of all queues of a broker: those that were used longest ago let go of theirs."""
    timer_seconds_max: float = 5.0
    """Leases end by the wall clock, which may be set: it is looked at so often at least."""
    pause_seconds_min: float = 0.05
    pause_seconds_max: float = 5.0
    """Between tries, of loading and of dead letters."""
    dead_per_write_max: int = 100
    idle_seconds_max: float = 600.0
    """A queue that nobody asks for is let go; it is loaded again when somebody does."""
    sweep_seconds: float = 30.0
