"""Settings of a Raft group. Times are milliseconds of the driver's monotonic clock."""

from msgspec import Struct


class RaftConfig(Struct, frozen=True, kw_only=True):
    """Shared by all groups of a broker."""

    election_ms_min: int = 1000
    """A follower votes for no other broker within this time after its leader's last message, unless
    the leader's process exited; a leader without contact to a majority for this long steps down."""
    election_ms_max: int = 2000
    """Each follower waits a random time between the two before it starts an election."""
    retry_ms: int = 500
    """A message without a response for this long counts as lost, and is sent again."""
    snapshot_retry_ms: int = 10_000
    transfer_ms_max: int = 1000
    """A transfer that takes longer is given up, and writes continue on the old leader."""
    append_bytes_max: int = 1024 * 1024
    """In one message; a larger batch is sent alone."""
    inflight_bytes_max: int = 8 * 1024 * 1024
    """Sent to one follower without a response yet."""
    inflight_count_max: int = 64
    """The same, counted in messages."""
