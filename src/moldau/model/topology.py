"""Owns what brokers tell about their cluster: who is in it, who leads what, how one joins it.

These travel as JSON between brokers of different versions, and to the command line. A field may be
added with a default; none is renamed or removed. Who reads ignores what it does not know.
"""

from typing import Final, Literal, NamedTuple

import msgspec

FEATURE_LEVEL_MAX: Final = 2
"""The newest feature level that this version knows: 0 is a broker on its own, 1 a cluster, 2 has
queue groups."""

NO_BROKER: Final = -1
"""In place of a leader's or the controller's id while there is none."""


class Endpoint(NamedTuple):
    """Where one listener of a broker is reached; in JSON `["host", port]`."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class JoinRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A broker asks a member of the cluster to be taken in, or says that it has started again."""

    incarnation: str
    """Names its data directory; made once per directory."""
    process: str
    """Made once per start: tells a new start from the repetition of a request."""
    kafka: Endpoint
    raft: Endpoint
    http: Endpoint
    rack: str | None = None
    broker_id: int | None = None
    """None: the cluster chooses."""
    cluster_id: str | None = None
    """None: it does not know yet. Another one than the cluster's is refused."""
    feature_level_max: int = FEATURE_LEVEL_MAX
    grpc: Endpoint | None = None


class JoinReply(msgspec.Struct, frozen=True, kw_only=True):
    """The joiner's place in the cluster."""

    cluster_id: str
    broker_id: int
    epoch: int
    """Of its registration; its peers refuse an older one."""
    image: bytes
    """The cluster's metadata as in a snapshot; base64 in JSON."""
    voters: tuple[int, ...]
    """Of the metadata group, as are the learners."""
    learners: tuple[int, ...]


class TopologyBroker(msgspec.Struct, frozen=True, kw_only=True):
    """One broker, as the one that answers sees it."""

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
    """It is the one that answers."""
    grpc: Endpoint | None = None


class TopologyPartition(msgspec.Struct, frozen=True, kw_only=True):
    """One partition: where it lies, and who leads it."""

    partition: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()

    @property
    def is_under_replicated(self) -> bool:
        """A replica lags or is gone; those that a move only adds are expected to."""
        return not set(self.replicas) <= {*self.in_sync, *self.adding}


class TopologyTopic(msgspec.Struct, frozen=True, kw_only=True):
    """One topic with its partitions in order."""

    name: str
    id: str
    """32 hexadecimal digits."""
    internal: bool = False
    partitions: tuple[TopologyPartition, ...]


class Topology(msgspec.Struct, frozen=True, kw_only=True):
    """The whole cluster as one broker sees it."""

    cluster_id: str
    version: int
    """Of the metadata that this was made from: the larger of two is the newer."""
    controller: int
    """Leader of the metadata group, or -1."""
    answered_by: int
    brokers: tuple[TopologyBroker, ...]
    topics: tuple[TopologyTopic, ...]

    @property
    def under_replicated(self) -> int:
        """Partitions with a replica that is not in sync."""
        return sum(
            partition.is_under_replicated for topic in self.topics for partition in topic.partitions
        )

    @property
    def leaderless(self) -> int:
        """Partitions that nobody can write to or read from just now."""
        return sum(
            partition.leader == NO_BROKER for topic in self.topics for partition in topic.partitions
        )


class Readiness(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a broker serves clients, and if not, why."""

    ready: bool
    reasons: tuple[str, ...] = ()


class BrokerActionRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The body of a request about one broker."""

    broker: int


class BrokerActionResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to one that changed it."""

    broker: int
    state: Literal["active", "draining"]


class ErrorReply(msgspec.Struct, frozen=True, kw_only=True):
    """The body of every answer over HTTP that is an error: problem details as in RFC 9457."""

    type: str = "about:blank"
    title: str = ""
    """The words of the status."""
    status: int = 0
    detail: str
    error: str
    """The name of a Kafka error code."""
    hint: str = ""
