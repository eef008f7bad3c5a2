"""JSON types of the HTTP API for backups: what the brokers know beside records and offsets.

They are kept in backups, and read by later versions. A field may be added with a default; none is
renamed or removed. Readers ignore unknown fields.
"""

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

RUN_BYTES_MAX: Final = 12 * 1024 * 1024
"""Of the batches that one request restores."""


class TopicCopy(Struct, frozen=True, kw_only=True):
    name: str
    id: str
    """32 hexadecimal digits. A restored topic gets another one: ids are never reused."""
    partitions: int
    replication_factor: int
    configs: Mapping[str, str]
    """Those that are set on the topic."""
    compacted: bool = True
    """A replica of the broker that responds is compacted, by the settings that apply to it there,
    or was. In a backup: one of any broker. An older version does not say: then it may be."""


class CredentialCopy(Struct, frozen=True, kw_only=True):
    """What the cluster stores of a password: enough to check it, too little to log in with."""

    mechanism: int
    salt: bytes
    iterations: int
    stored_key: bytes
    server_key: bytes

    def __repr__(self) -> str:
        return f"CredentialCopy(mechanism={self.mechanism})"


class UserCopy(Struct, frozen=True, kw_only=True):
    name: str
    credentials: tuple[CredentialCopy, ...]


class AclCopy(Struct, frozen=True, kw_only=True):
    """One rule; numbers as in the Kafka protocol."""

    resource_type: int
    resource_name: str
    pattern_type: int
    principal: str
    host: str
    operation: int
    permission: int


class QuotaCopy(Struct, frozen=True, kw_only=True):
    user: str | None
    client_id: str | None
    limits: Mapping[str, float]


class SecurityCopy(Struct, frozen=True, kw_only=True):
    """Users, ACLs and quotas."""

    users: tuple[UserCopy, ...] = ()
    acls: tuple[AclCopy, ...] = ()
    quotas: tuple[QuotaCopy, ...] = ()


class QueueGroupCopy(Struct, frozen=True, kw_only=True):
    name: str
    topics: tuple[str, ...]
    visibility_ms: int
    attempts_max: int
    backoff_ms: int
    backoff_ms_max: int
    dead_letter_topic: str
    starts_at_end: bool


class ClusterCopy(Struct, frozen=True, kw_only=True):
    """The response of GET /api/v1/backup/cluster."""

    cluster_id: str
    version: str
    """Of the broker that responds."""
    feature_level: int
    next_producer_id: int
    topics: tuple[TopicCopy, ...]
    queue_groups: tuple[QueueGroupCopy, ...] = ()
    security: SecurityCopy = SecurityCopy()


class QueueStateCopy(Struct, frozen=True, kw_only=True):
    """The stored records of a queue on one partition."""

    partition: int
    records: tuple[tuple[bytes, bytes], ...]


class QueueStates(Struct, frozen=True, kw_only=True):
    """The response of GET /api/v1/backup/queues/{group}/{topic}."""

    partitions: tuple[QueueStateCopy, ...]


class ClusterToRestore(Struct, frozen=True, kw_only=True):
    """The body of POST /api/v1/restore/cluster."""

    producer_id_min: int
    """No new producer gets an id below it: those are in the restored batches."""
    security: SecurityCopy = SecurityCopy()


class StartToRestore(Struct, frozen=True, kw_only=True):
    """The body of POST /api/v1/restore/starts: where a partition began."""

    topic: str
    partition: int
    start: int


class QueueToRestore(Struct, frozen=True, kw_only=True):
    """The body of POST /api/v1/restore/queues: the state of one partition."""

    group: str
    topic: str
    state: QueueStateCopy
    end: int
    """Of the restored partition."""


class RestoredTo(Struct, frozen=True, kw_only=True):
    """The offset that a partition has reached: its end, or its start."""

    offset: int


class Restored(Struct, frozen=True, kw_only=True):
    """A request of a restore succeeded."""

    restored: str
