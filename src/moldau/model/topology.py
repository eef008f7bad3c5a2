"""JSON types of the HTTP API about the cluster: topology, joining, broker state, errors.

They are exchanged between brokers of different versions, and with the command line. A field may be
added with a default; none is renamed or removed. Readers ignore unknown fields.
"""

from typing import Final, Literal, NamedTuple

import msgspec

FEATURE_LEVEL_MAX: Final = 3
"""The newest feature level that this version supports: 0 a single broker, 1 a cluster, 2 queue
groups, 3 users and ACLs."""

HTTP_ADDRESS_SETTING: Final = "moldau.http.address"
"""The read-only setting by which clients of Kafka's protocol find the HTTP API of a broker."""

STATE_SETTING: Final = "moldau.broker.state"
"""The read-only setting with the state of a broker: active or draining."""

MACHINE_SETTING: Final = "moldau.broker.machine"
"""The read-only setting with the machine of a broker, if it is known."""

NO_BROKER: Final = -1
"""The id of leader or controller while there is none."""


class Endpoint(NamedTuple):
    """The address of one listener of a broker; in JSON `["host", port]`."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


Listeners = tuple[tuple[str, Endpoint], ...]
"""Addresses for Kafka clients by the name of the listener; empty if there is only one."""


class JoinRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A broker requests to join the cluster, or reports that it has restarted."""

    incarnation: str
    """The id of its data directory; generated once per directory."""
    process: str
    """Generated once per start: distinguishes a new start from a repeated request."""
    kafka: Endpoint
    raft: Endpoint
    http: Endpoint
    rack: str | None = None
    broker_id: int | None = None
    """None: the cluster chooses."""
    cluster_id: str | None = None
    """None: not known yet. If it differs from the cluster's, the request is rejected."""
    feature_level_max: int = FEATURE_LEVEL_MAX
    grpc: Endpoint | None = None
    listeners: Listeners = ()
    machine: str | None = None
    is_query: bool = False
    """Change nothing: a member wants to know what the cluster knows of it."""


class JoinChallenge(msgspec.Struct, frozen=True, kw_only=True):
    """The first step of joining: what a broker must prove its key with."""

    challenge: bytes
    secret_file: str = ""
    """The file with the secret of the cluster, where only brokers on the same machine can ask.
    A broker that may read it may join without a token."""
    initial_members: tuple[str, ...] | None = None
    """Of a broker that has no cluster yet, and can let nobody join: its `initial_members`."""
    newcomer: str = ""
    """The HTTP address that it advertises: a name may lead to another broker than expected."""


class ProvenJoinRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The second step of joining: the request, and a proof that it may be made."""

    request: bytes
    """A JoinRequest as JSON."""
    challenge: bytes
    nonce: bytes
    """32 random bytes."""
    proof: bytes
    """Over all the others, made with the secret of the cluster or of the token."""
    token_id: str = ""
    """Empty: the broker knows the secret of the cluster."""


class SealedJoinReply(msgspec.Struct, frozen=True, kw_only=True):
    """A JoinGrant or JoinRefusal, encrypted under the key that the broker proved."""

    sealed: bytes


class JoinReply(msgspec.Struct, frozen=True, kw_only=True):
    """The result of joining."""

    cluster_id: str
    broker_id: int
    epoch: int
    """Of its registration; its peers reject an older one."""
    image: bytes
    """The cluster's metadata as in a snapshot; base64 in JSON."""
    voters: tuple[int, ...]
    """Of the metadata group, as are the learners."""
    learners: tuple[int, ...]


class JoinGrant(msgspec.Struct, frozen=True, kw_only=True, tag="granted"):
    """What a broker gets that proved its key."""

    reply: JoinReply
    secret: bytes
    """Of the cluster; to a broker that proved the old one, while it is changed, only that."""
    earlier_secret: bytes | None = None
    """That some brokers still have, while it is changed."""

    def __repr__(self) -> str:
        return f"JoinGrant(broker_id={self.reply.broker_id})"


class JoinRefusal(msgspec.Struct, frozen=True, kw_only=True, tag="refused"):
    """Why a broker that proved its key is rejected. It may act on this, for nobody else can have
    written it."""

    code: int
    """A Kafka error code."""
    message: str


class JoinTokenWanted(msgspec.Struct, frozen=True, kw_only=True):
    """The body of a request for a token."""

    lifetime_ms: int = 60 * 60 * 1000


class JoinTokenCreated(msgspec.Struct, frozen=True, kw_only=True):
    """A token that one broker can join with. It is shown once, and stored nowhere."""

    id: str
    token: str
    expires_ms: int
    """Milliseconds since 1970."""

    def __repr__(self) -> str:
        return f"JoinTokenCreated(id={self.id!r})"


class JoinTokenShown(msgspec.Struct, frozen=True, kw_only=True):
    """What the cluster knows of a token."""

    id: str
    expires_ms: int
    used: bool
    """A broker has joined with it."""


class JoinTokenList(msgspec.Struct, frozen=True, kw_only=True):
    """All tokens, the first to expire first."""

    tokens: tuple[JoinTokenShown, ...]


class TokenDeleted(msgspec.Struct, frozen=True, kw_only=True):
    """The response to the deletion of a token."""

    id: str


class TopologyBroker(msgspec.Struct, frozen=True, kw_only=True):
    """One broker, as seen by the broker that responds."""

    id: int
    kafka: Endpoint
    raft: Endpoint | None = None
    http: Endpoint | None = None
    rack: str | None = None
    state: Literal["active", "draining"] = "active"
    alive: bool
    epoch: int
    leaders: int
    """Partitions that it leads."""
    replicas: int
    is_controller: bool = False
    is_me: bool = False
    """It is the broker that responds."""
    grpc: Endpoint | None = None
    machine: str | None = None
    """None: unknown, as of a broker of an earlier version."""


class TopologyPartition(msgspec.Struct, frozen=True, kw_only=True):
    """One partition: its leader and replicas."""

    partition: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()

    @property
    def missing(self) -> list[int]:
        """Replicas that are not in sync; those that a reassignment adds do not count."""
        return sorted({*self.replicas} - {*self.in_sync, *self.adding})

    @property
    def is_under_replicated(self) -> bool:
        return bool(self.missing)


class TopologyTopic(msgspec.Struct, frozen=True, kw_only=True):
    """One topic with its partitions in order."""

    name: str
    id: str
    """32 hexadecimal digits."""
    internal: bool = False
    partitions: tuple[TopologyPartition, ...]


class Topology(msgspec.Struct, frozen=True, kw_only=True):
    """The whole cluster, as seen by one broker."""

    cluster_id: str
    version: int
    """Of the metadata; the larger of two is the newer."""
    controller: int
    """Leader of the metadata group, or -1."""
    answered_by: int
    brokers: tuple[TopologyBroker, ...]
    topics: tuple[TopologyTopic, ...]
    voters: tuple[int, ...] = ()
    """Of the metadata group; empty from brokers before this field."""

    @property
    def under_replicated(self) -> int:
        """Partitions with a replica that is not in sync."""
        return sum(
            partition.is_under_replicated for topic in self.topics for partition in topic.partitions
        )

    @property
    def leaderless(self) -> int:
        """Partitions without a leader, which cannot be written or read now."""
        return sum(
            partition.leader == NO_BROKER for topic in self.topics for partition in topic.partitions
        )


class Readiness(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a broker serves clients, and if not, the reasons."""

    ready: bool
    reasons: tuple[str, ...] = ()


class BrokerActionRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The body of a request about one broker."""

    broker: int


class BrokerActionResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The response to a request that changed a broker."""

    broker: int
    state: Literal["active", "draining"]


class PartitionNamed(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One partition of a topic."""

    topic: str
    partition: int


class RecoveryRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Let partitions go on that lost a majority of their replicas with these brokers.

    The brokers are removed for good. Without `partitions`: all that lost a majority.
    """

    lost: tuple[int, ...]
    partitions: tuple[PartitionNamed, ...] | None = None
    dry_run: bool = False


class ReplicaSurvey(msgspec.Struct, frozen=True, kw_only=True):
    """What one broker has of a partition."""

    broker: int
    problem: str = ""
    """Why it cannot be the survivor; empty if it can."""
    may_pass: bool = False
    """The problem may pass, and the replica may be better than the others."""
    is_voter: bool = False
    """Whether its group counts on it. One that was still being filled is not a voter."""
    voters: tuple[int, ...] = ()
    """The voters of the partition, by this replica's log."""
    known_epoch: int = -1
    last_epoch: int = -1
    """The epoch of its last entry."""
    end_index: int = 0
    """Records and control entries in its log."""
    start_offset: int = 0
    end_offset: int = 0
    high_watermark: int = 0
    """Below it, records were committed for all that this broker knows."""
    has_leader: bool = False


class PartitionRecovered(msgspec.Struct, frozen=True, kw_only=True):
    """One partition that lost a majority of its replicas."""

    topic: str
    partition: int
    survivor: int = -1
    """The broker whose replica becomes the only voter; -1: none can. If it is possible then, no
    replica is left of a partition of an internal topic, and it begins again, empty."""
    state: Literal["possible", "impossible", "recovered", "failed"]
    reason: str = ""
    """Why it cannot be, or what is lost."""
    known_epoch: int = -1
    """The highest epoch that any broker that is left has heard of."""
    replicas: tuple[ReplicaSurvey, ...] = ()


class RecoveryReply(msgspec.Struct, frozen=True, kw_only=True):
    """The partitions that lost a majority, and what was done."""

    partitions: tuple[PartitionRecovered, ...]
    is_removed: bool
    """Whether the lost brokers are removed from the cluster."""


class LogLevelsWanted(msgspec.Struct, frozen=True, kw_only=True):
    """Levels by component; null: as configured."""

    levels: dict[str, str | None]


class LogLevelShown(msgspec.Struct, frozen=True, kw_only=True):
    """The level of one component of a broker's log."""

    component: str
    level: str
    configured: str
    """After a restart."""
    about: str


class LogLevelList(msgspec.Struct, frozen=True, kw_only=True):
    """The levels of a broker's log."""

    broker: int
    levels: tuple[LogLevelShown, ...]


class ErrorReply(msgspec.Struct, frozen=True, kw_only=True):
    """The body of every HTTP error response: problem details as in RFC 9457."""

    type: str = "about:blank"
    title: str = ""
    """The reason phrase of the status."""
    status: int = 0
    detail: str
    error: str
    """The name of a Kafka error code."""
    hint: str = ""
