"""Owns the settings of a Raft group. Times are milliseconds of the driver's steady clock."""

from msgspec import Struct


class RaftConfig(Struct, frozen=True, kw_only=True):
    """Shared by all groups of a broker."""

    election_ms_min: int = 1000
    """A follower that heard its leader within this time, and does not know that its process ended,
    helps nobody else to be elected; a leader that heard no majority for this long steps down."""
    election_ms_max: int = 2000
    """Each follower waits a random time between the two before it stands for election."""
    retry_ms: int = 500
    """What a follower has not answered for this long counts as lost, and is sent again."""
    snapshot_retry_ms: int = 10_000
    transfer_ms_max: int = 1000
    """A transfer that has not ended by then is given up, and writes go on here."""
    append_bytes_max: int = 1024 * 1024
    """In one message; a larger batch goes alone."""
    inflight_bytes_max: int = 8 * 1024 * 1024
    """Sent to one follower and not yet answered."""
    inflight_count_max: int = 64
    """The same in messages."""
