"""JSON types of what a broker reports of itself, its machine and its groups: for moldau doctor.

They are exchanged between versions. A field may be added with a default; none is renamed or
removed. Readers ignore unknown fields.
"""

from typing import Final

import msgspec

UNKNOWN: Final = -1
"""A number that the system does not give."""

IDLE_MS: Final = 10 * 60 * 1000
"""Messages that wait for longer, without a commit, are those of a stuck group, by default."""

FILES_BESIDE_CONNECTIONS: Final = 512
"""File descriptors that a broker needs in addition to those of its connections."""


class CertificateExpiry(msgspec.Struct, frozen=True, kw_only=True):
    """A certificate of a listener."""

    file: str
    expires_s: int
    """Seconds since 1970."""


class IdlePosition(msgspec.Struct, frozen=True, kw_only=True):
    """A partition with unprocessed records whose last commit is old."""

    topic: str
    partition: int
    committed: int
    commit_ms: int
    """When it was committed, in milliseconds since 1970."""
    lag: int


class IdleGroup(msgspec.Struct, frozen=True, kw_only=True):
    """A group with members and no commits, or with old commits and unprocessed records."""

    group: str
    has_members: bool
    commits: int
    """Partitions with a committed offset."""
    positions: tuple[IdlePosition, ...] = ()
    """The oldest commits."""


class BrokerReport(msgspec.Struct, frozen=True, kw_only=True):
    """What only this broker knows."""

    broker: int
    cluster_id: str
    version: str
    feature_level_max: int
    now_ms: int
    """Its clock, in milliseconds since 1970."""
    disk_free_bytes: int
    disk_total_bytes: int
    disk_reserve_bytes: int
    """With less free space it rejects writes."""
    largest_topic: str = ""
    """With the most data on this broker, which is `largest_topic_bytes`."""
    largest_topic_bytes: int = 0
    open_files: int = UNKNOWN
    open_files_max: int = UNKNOWN
    connections_max: int = UNKNOWN
    """Of Kafka clients."""
    certificates: tuple[CertificateExpiry, ...] = ()
    idle_groups: tuple[IdleGroup, ...] = ()
    """Of the groups that it coordinates."""
    groups_unchecked: int = 0
    """Groups that were left out, because there are too many."""
