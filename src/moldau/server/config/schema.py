"""Owns the settings of a broker: their names, types, units, bounds, defaults and meaning.

Everything else about configuration is derived from these classes: the loader's validation, the
file that `moldau config init` writes, and docs/reference/configuration.md. Names are noun, unit,
bound. A value is checked once, when it is loaded; whoever gets one of these objects trusts it.
"""

from enum import StrEnum
from typing import Annotated, NamedTuple

from msgspec import Struct, field

from moldau.model import limits
from moldau.model.flush import FlushPolicy

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB
SECOND_MS = 1000
MINUTE_MS = 60 * SECOND_MS
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS

UNLIMITED = -1

INTERNAL_PARTITIONS = 50
"""As many as Kafka's: one election must not stop all groups, transactions or queues."""


class LogLevel(StrEnum):
    """How much a broker says about itself."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class LogFormat(StrEnum):
    """How it says it: for people, or one JSON object per line."""

    TEXT = "text"
    JSON = "json"


class Address(NamedTuple):
    """Where a listener is bound, or where clients find it. Port 0 takes any free one."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


LOOPBACK = "127.0.0.1"
KAFKA_ADDR = Address(LOOPBACK, 9092)
RAFT_ADDR = Address(LOOPBACK, 19092)
GRPC_ADDR = Address(LOOPBACK, 8000)
HTTP_ADDR = Address(LOOPBACK, 8080)


class Unit(StrEnum):
    """What a number counts; decides which suffixes a value may carry."""

    NONE = ""
    BYTES = "bytes"
    MILLISECONDS = "milliseconds"
    MINUTES = "minutes"


class Setting(Struct, frozen=True):
    """What is known about one setting beside its type and default."""

    doc: str
    unit: Unit = Unit.NONE
    min: int | None = None
    max: int | None = None
    unlimited: bool = False
    """-1 is allowed and means: no limit."""


class KafkaConfig(Struct, frozen=True, kw_only=True):
    """The listener for Kafka clients, and the bounds that protect the broker from them."""

    addr: Annotated[Address, Setting("Where the Kafka listener is bound.")] = KAFKA_ADDR
    advertised: Annotated[
        Address | None,
        Setting("The address that clients are told to connect to; the bound one if unset."),
    ] = None
    connections_max: Annotated[int, Setting("Most open client connections.", min=1)] = 4096
    connections_per_address_max: Annotated[
        int, Setting("Most open connections from one client address.", min=1)
    ] = 2048
    request_bytes_max: Annotated[
        int,
        Setting("Largest request that is read at all.", Unit.BYTES, min=KIB, max=2**31 - 1),
    ] = limits.REQUEST_BYTES_MAX
    inflight_bytes_per_connection_max: Annotated[
        int,
        Setting(
            "Request bytes of one connection that may wait for their reply before it is read "
            "no further.",
            Unit.BYTES,
            min=KIB,
        ),
    ] = 32 * MIB
    inflight_bytes_max: Annotated[
        int,
        Setting(
            "Request bytes of all connections that may wait for their reply before reading pauses.",
            Unit.BYTES,
            min=KIB,
        ),
    ] = 256 * MIB
    inflight_requests_per_connection_max: Annotated[
        int,
        Setting(
            "Requests of one connection that may wait for their reply before it is read no "
            "further.",
            min=1,
        ),
    ] = 256
    idle_ms_max: Annotated[
        int,
        Setting(
            "A connection that is silent for so long is closed.",
            Unit.MILLISECONDS,
            min=SECOND_MS,
            unlimited=True,
        ),
    ] = 10 * MINUTE_MS


class RaftConfig(Struct, frozen=True, kw_only=True):
    """The listener for the other brokers of the cluster."""

    addr: Annotated[Address, Setting("Where the listener for other brokers is bound.")] = RAFT_ADDR
    advertised: Annotated[
        Address | None,
        Setting("The address that other brokers are told to connect to; the bound one if unset."),
    ] = None


class GrpcConfig(Struct, frozen=True, kw_only=True):
    """The listener of the queue API, which is gRPC."""

    addr: Annotated[
        Address | None, Setting("Where the gRPC listener is bound; empty: there is none.")
    ] = GRPC_ADDR
    advertised: Annotated[
        Address | None,
        Setting("The gRPC address that the cluster tells others; the bound one if unset."),
    ] = None


class HttpConfig(Struct, frozen=True, kw_only=True):
    """The listener of the HTTP API: joining, topology, health."""

    addr: Annotated[Address, Setting("Where the HTTP listener is bound.")] = HTTP_ADDR
    advertised: Annotated[
        Address | None,
        Setting("The HTTP address that the cluster tells others; the bound one if unset."),
    ] = None
    cors_origins: Annotated[
        str | None,
        Setting(
            "Web pages of which origins may read the answers (CORS): https://host[:port], several "
            "by commas, or * for all. None, unless set. Whoever is named can do all that HTTP can."
        ),
    ] = None

    @property
    def cors_origin_list(self) -> tuple[str, ...]:
        """One by one."""
        return tuple(one.strip() for one in (self.cors_origins or "").split(",") if one.strip())


class StorageConfig(Struct, frozen=True, kw_only=True):
    """The section `log`: how partitions are kept on disk. Topics override most of it."""

    flush: Annotated[
        FlushPolicy,
        Setting(
            "When appended records are forced to the disk: before the reply (always), every "
            "log.flush_interval_ms (interval), or when the system likes to (never). Only always "
            "keeps every acknowledged record through a power cut."
        ),
    ] = FlushPolicy.ALWAYS
    flush_interval_ms: Annotated[
        int,
        Setting(
            "Time between flushes with log.flush = interval.",
            Unit.MILLISECONDS,
            min=1,
            max=HOUR_MS,
        ),
    ] = SECOND_MS
    flush_threads: Annotated[
        int, Setting("Threads that flush different partitions at the same time.", min=1, max=64)
    ] = 4
    segment_bytes: Annotated[
        int,
        Setting(
            "A log file of this size is closed and the next one started.",
            Unit.BYTES,
            min=KIB,
            max=2**31 - 1,
        ),
    ] = GIB
    segment_ms: Annotated[
        int,
        Setting(
            "A log file of this age is closed and the next one started.",
            Unit.MILLISECONDS,
            min=1,
        ),
    ] = 7 * DAY_MS
    retention_ms: Annotated[
        int,
        Setting("Records older than this are deleted.", Unit.MILLISECONDS, min=0, unlimited=True),
    ] = 7 * DAY_MS
    retention_bytes: Annotated[
        int,
        Setting(
            "The oldest records of a partition above this size are deleted.",
            Unit.BYTES,
            min=0,
            unlimited=True,
        ),
    ] = UNLIMITED
    retention_check_ms: Annotated[
        int,
        Setting("Time between looks for records to delete.", Unit.MILLISECONDS, min=100),
    ] = 5 * MINUTE_MS
    compaction_check_ms: Annotated[
        int,
        Setting(
            "Time between looks for logs to compact (cleanup.policy=compact).",
            Unit.MILLISECONDS,
            min=100,
        ),
    ] = 15_000
    compaction_map_bytes: Annotated[
        int,
        Setting(
            "Memory of the compaction process for keys, 32 bytes each; with more keys it takes "
            "several rounds.",
            Unit.BYTES,
            min=1024 * 1024,
            max=16 * 1024 * MIB,
        ),
    ] = 64 * MIB
    scrub_interval_ms: Annotated[
        int,
        Setting(
            "Time between two readings of all stored records, to find damage before others need "
            "them.",
            Unit.MILLISECONDS,
            min=1000,
        ),
    ] = DAY_MS
    scrub_bytes_per_second: Annotated[
        int,
        Setting("How fast that is done.", Unit.BYTES, min=1024, max=16 * 1024 * MIB),
    ] = 8 * MIB
    disk_reserve_bytes: Annotated[
        int,
        Setting(
            "With less free space than this on the disk, produce is refused with a retryable "
            "error; reads go on.",
            Unit.BYTES,
            min=0,
        ),
    ] = 256 * MIB


class TopicConfig(Struct, frozen=True, kw_only=True):
    """Defaults of new topics."""

    auto_create: Annotated[
        bool, Setting("Create a topic when a client asks for one that does not exist.")
    ] = True
    partitions: Annotated[
        int, Setting("Partitions of a new topic.", min=1, max=limits.PARTITIONS_PER_TOPIC_MAX)
    ] = 1
    replication_factor: Annotated[
        int | None,
        Setting(
            "Replicas of each partition of a new topic. Unset: three, or as many as there are "
            "brokers.",
            min=1,
            max=32767,
        ),
    ] = None
    min_insync_replicas: Annotated[
        int, Setting("Replicas that must hold a record before acks=all is answered.", min=1)
    ] = 1
    message_bytes_max: Annotated[
        int, Setting("Largest record batch.", Unit.BYTES, min=0, max=2**31 - 1)
    ] = limits.MESSAGE_BYTES_MAX


class GroupConfig(Struct, frozen=True, kw_only=True):
    """Consumer groups and their offsets."""

    initial_rebalance_delay_ms: Annotated[
        int,
        Setting(
            "How long an empty group waits for more members before its first assignment; "
            "0 in moldau dev.",
            Unit.MILLISECONDS,
            min=0,
            max=HOUR_MS,
        ),
    ] = 3 * SECOND_MS
    session_timeout_ms_min: Annotated[
        int,
        Setting("Shortest session timeout that a member may ask for.", Unit.MILLISECONDS, min=1),
    ] = 6 * SECOND_MS
    session_timeout_ms_max: Annotated[
        int, Setting("Longest session timeout that a member may ask for.", Unit.MILLISECONDS, min=1)
    ] = 30 * MINUTE_MS
    size_max: Annotated[int, Setting("Most members of a group.", min=1, max=2**31 - 1)] = 2**31 - 1
    consumer_heartbeat_interval_ms: Annotated[
        int,
        Setting(
            "How often members of the next-generation protocol are heard of; group.protocol="
            "consumer. What a new member is to get, the others let go of within that time. "
            "500ms in moldau dev.",
            Unit.MILLISECONDS,
            min=10,
            max=HOUR_MS,
        ),
    ] = 5 * SECOND_MS
    consumer_session_timeout_ms: Annotated[
        int,
        Setting(
            "A member of the next-generation protocol that is not heard of for so long is gone.",
            Unit.MILLISECONDS,
            min=100,
            max=DAY_MS,
        ),
    ] = 45 * SECOND_MS
    consumer_assignors: Annotated[
        str,
        Setting(
            "Assignors that groups of the next-generation protocol may ask for, separated by "
            "commas, the default first: uniform, range, and those that are installed under the "
            "entry point moldau.assignors."
        ),
    ] = "uniform,range"
    offsets_partitions: Annotated[
        int,
        Setting(
            "Partitions of the internal topic of committed offsets; fixed once it exists.",
            min=1,
            max=limits.PARTITIONS_PER_TOPIC_MAX,
        ),
    ] = INTERNAL_PARTITIONS
    offsets_retention_minutes: Annotated[
        int,
        Setting(
            "Committed offsets of a group without members are kept for so long.",
            Unit.MINUTES,
            min=1,
        ),
    ] = 7 * 24 * 60


class ProducerConfig(Struct, frozen=True, kw_only=True):
    """Idempotent producers."""

    id_expiry_ms: Annotated[
        int,
        Setting(
            "The sequence of a producer that is silent for so long is forgotten.",
            Unit.MILLISECONDS,
            min=SECOND_MS,
        ),
    ] = DAY_MS


class TransactionConfig(Struct, frozen=True, kw_only=True):
    """Transactions and their coordinators."""

    timeout_ms_max: Annotated[
        int,
        Setting(
            "Longest transaction timeout that a producer may ask for; until then an abandoned "
            "transaction keeps back those who read committed.",
            Unit.MILLISECONDS,
            min=SECOND_MS,
            max=DAY_MS,
        ),
    ] = 15 * MINUTE_MS
    id_expiry_ms: Annotated[
        int,
        Setting(
            "A transactional id that nobody used for so long is forgotten.",
            Unit.MILLISECONDS,
            min=MINUTE_MS,
        ),
    ] = 7 * DAY_MS
    state_partitions: Annotated[
        int,
        Setting(
            "Partitions of the internal topic of transactions; fixed once it exists.",
            min=1,
            max=limits.PARTITIONS_PER_TOPIC_MAX,
        ),
    ] = INTERNAL_PARTITIONS


class QueueConfig(Struct, frozen=True, kw_only=True):
    """Queue groups and what is stored of them."""

    state_partitions: Annotated[
        int,
        Setting(
            "Partitions of the internal topic of queues; fixed once it exists.",
            min=1,
            max=limits.PARTITIONS_PER_TOPIC_MAX,
        ),
    ] = INTERNAL_PARTITIONS


class LoggingConfig(Struct, frozen=True, kw_only=True):
    """What the broker writes to stderr about itself."""

    level: Annotated[LogLevel, Setting("The least severe message that is written.")] = LogLevel.INFO
    format: Annotated[LogFormat, Setting("text for people, json for one object per line.")] = (
        LogFormat.TEXT
    )


class ServerConfig(Struct, frozen=True, kw_only=True):
    """Everything that one broker is told when it starts."""

    broker_id: Annotated[
        int | None,
        Setting(
            "The number of this broker in its cluster; never reused. Unset: as the data directory "
            "has it, else chosen by the cluster, and 1 for the first.",
            min=0,
            max=2**31 - 1,
        ),
    ] = None
    rack: Annotated[
        str | None, Setting("The machine or zone of this broker; replicas spread over racks.")
    ] = None
    data_dir: Annotated[str, Setting("Where everything is kept.")] = "./.moldau"
    cluster_id: Annotated[
        str | None,
        Setting(
            "Name of the cluster, to which a random number is added when it is founded. A broker "
            "that has a place in a cluster of another name does not start."
        ),
    ] = None
    bootstrap: Annotated[
        bool,
        Setting(
            "Found a cluster if the data directory is empty. For the first start of the first "
            "broker, and then no more: a broker whose disk was lost has to join."
        ),
    ] = False
    join_addr: Annotated[
        Address | None,
        Setting(
            "The HTTP address of any member of the cluster to join; not needed again once the "
            "data directory belongs to it."
        ),
    ] = None
    kafka: KafkaConfig = field(default_factory=KafkaConfig)
    raft: RaftConfig = field(default_factory=RaftConfig)
    grpc: GrpcConfig = field(default_factory=GrpcConfig)
    http: HttpConfig = field(default_factory=HttpConfig)
    log: StorageConfig = field(default_factory=StorageConfig)
    topic: TopicConfig = field(default_factory=TopicConfig)
    group: GroupConfig = field(default_factory=GroupConfig)
    producer: ProducerConfig = field(default_factory=ProducerConfig)
    transaction: TransactionConfig = field(default_factory=TransactionConfig)
    queue: QueueConfig = field(default_factory=QueueConfig)
    logging: LoggingConfig = field(default_factory=LoggingConfig)
