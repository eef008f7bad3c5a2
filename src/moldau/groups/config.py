"""Settings of the group coordinator."""

from msgspec import Struct

from moldau.groups.records import TEXT_BYTES_MAX
from moldau.model.errors import ConfigError


class GroupConfig(Struct, frozen=True, kw_only=True):
    """Defaults are Kafka's, where Kafka has a bound; validated on construction."""

    initial_rebalance_delay_ms: int = 3_000
    """How long a new group waits for more members before its first generation."""
    session_timeout_ms_min: int = 6_000
    session_timeout_ms_max: int = 1_800_000
    group_size_max: int = 5_000
    member_bytes_max: int = 1 << 20
    """What one member may send: its names and subscriptions, or its assignment."""
    group_bytes_max: int = 16 << 20
    groups_bytes_max: int = 256 << 20
    """All groups of a broker; see `weights` for what is counted."""
    pending_timeout_ms_max: int = 60_000
    """A member id that was given out is forgotten if it is not used within this time."""
    offset_metadata_bytes_max: int = 4_096
    offsets_retention_ms: int = 7 * 24 * 3_600_000
    """How long offsets are kept after the last member left."""
    offsets_retention_check_ms: int = 600_000
    new_member_timeout_ms: int = 300_000
    """A new member that waits longer than this for its join response is removed."""
    consumer_heartbeat_interval_ms: int = 5_000
    """Consumer protocol (KIP-848): the broker sets the heartbeat interval of members."""
    consumer_session_timeout_ms: int = 45_000
    consumer_group_size_max: int = 5_000
    persist_bytes_max: int = 512 * 1024
    """Commits are merged into one write up to this size; a single commit may be larger."""

    def __post_init__(self) -> None:
        for name, value, least in (
            ("initial_rebalance_delay_ms", self.initial_rebalance_delay_ms, 0),
            ("session_timeout_ms_min", self.session_timeout_ms_min, 1),
            ("session_timeout_ms_max", self.session_timeout_ms_max, self.session_timeout_ms_min),
            ("group_size_max", self.group_size_max, 1),
            ("member_bytes_max", self.member_bytes_max, 1),
            ("group_bytes_max", self.group_bytes_max, 1),
            ("groups_bytes_max", self.groups_bytes_max, 1),
            ("pending_timeout_ms_max", self.pending_timeout_ms_max, 1),
            ("offset_metadata_bytes_max", self.offset_metadata_bytes_max, 0),
            ("offsets_retention_ms", self.offsets_retention_ms, 1),
            ("offsets_retention_check_ms", self.offsets_retention_check_ms, 1),
            ("new_member_timeout_ms", self.new_member_timeout_ms, 1),
            ("consumer_heartbeat_interval_ms", self.consumer_heartbeat_interval_ms, 1),
            ("consumer_session_timeout_ms", self.consumer_session_timeout_ms, 1),
            ("consumer_group_size_max", self.consumer_group_size_max, 1),
            ("persist_bytes_max", self.persist_bytes_max, 1),
        ):
            if value < least:
                raise ConfigError(f"groups.{name} is {value}, but must be at least {least}")
        if self.offset_metadata_bytes_max > TEXT_BYTES_MAX:
            raise ConfigError(
                f"groups.offset_metadata_bytes_max is {self.offset_metadata_bytes_max}, "
                f"but the record format allows at most {TEXT_BYTES_MAX}"
            )
