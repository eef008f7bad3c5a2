"""The settings of a broker: their names, types, units, bounds, defaults and meaning.

Everything else about configuration is derived from these classes: the loader's validation, the
file that `moldau config init` writes, and docs/reference/configuration.md. Names are noun, unit,
bound. Values are checked once, by the loader.
"""

from enum import StrEnum
from typing import Annotated

from msgspec import Struct, field

from moldau.model import limits
from moldau.model.flush import FlushPolicy
from moldau.model.log_levels import ComponentLevels, LogLevel
from moldau.model.topology import Endpoint
from moldau.server.config.coordination_schema import (
    GroupConfig,
    ProducerConfig,
    QueueConfig,
    TransactionConfig,
)
from moldau.server.config.security_schema import (
    Authentication,
    Listeners,
    ListenerSecurity,
    SecurityConfig,
)
from moldau.server.config.setting import Setting, Unit
from moldau.server.config.units import (
    DAY_MS,
    GIB,
    HOUR_MS,
    KIB,
    MIB,
    MINUTE_MS,
    SECOND_MS,
    UNLIMITED,
)


class LogFormat(StrEnum):
    """The format of log lines: text, or one JSON object per line."""

    TEXT = "text"
    JSON = "json"


class Processes(int):
    """How many processes a node has; 0: as many as it may use cores."""

    def __str__(self) -> str:
        return str(int(self)) if self else "auto"


PROCESSES_MAX = 256
LOOPBACK = "127.0.0.1"
# Port 0 of a listener selects any free port.
KAFKA_ADDR = Endpoint(LOOPBACK, 9092)
RAFT_ADDR = Endpoint(LOOPBACK, 19092)
GRPC_ADDR = Endpoint(LOOPBACK, 8000)
HTTP_ADDR = Endpoint(LOOPBACK, 8080)


_SECURITY = Setting("Encryption: none, TLS, or TLS with client certificates (mtls).")
_READ_ONLY = Setting("Refuse all requests that change something.")
_AUTHENTICATION = Setting(
    "Who is served: everyone (none), or users with a password or token (users)."
)


class KafkaConfig(Struct, frozen=True, kw_only=True):
    """The listener for Kafka clients, and its limits."""

    addr: Annotated[Endpoint, Setting("Where the Kafka listener is bound.")] = KAFKA_ADDR
    advertised: Annotated[
        Endpoint | None,
        Setting("The address that clients connect to; the bound one if unset."),
    ] = None
    security: Annotated[ListenerSecurity, _SECURITY] = ListenerSecurity.PLAINTEXT
    sasl_mechanisms: Annotated[
        str | None,
        Setting(
            "SASL mechanisms that clients may authenticate with, separated by commas: PLAIN, "
            "SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER. Unset: clients do not authenticate by SASL."
        ),
    ] = None
    read_only: Annotated[bool, _READ_ONLY] = False
    handshake_ms_max: Annotated[
        int,
        Setting(
            "A connection whose TLS handshake takes longer is closed.",
            Unit.MILLISECONDS,
            min=100,
            max=HOUR_MS,
        ),
    ] = 10 * SECOND_MS
    connections_per_second_per_address_max: Annotated[
        int | None,
        Setting(
            "New connections per second from one client address; more are closed. Unset: 100 for "
            "listeners with TLS, no limit for others.",
            min=1,
            unlimited=True,
        ),
    ] = None
    connections_max: Annotated[
        int, Setting("Maximum number of client connections.", min=1, runtime="max.connections")
    ] = 4096
    connections_per_address_max: Annotated[
        int,
        Setting(
            "Maximum number of connections from one client address.",
            min=1,
            runtime="max.connections.per.ip",
        ),
    ] = 2048
    request_bytes_max: Annotated[
        int,
        Setting("Largest request that is accepted.", Unit.BYTES, min=KIB, max=2**31 - 1),
    ] = limits.REQUEST_BYTES_MAX
    inflight_bytes_per_connection_max: Annotated[
        int,
        Setting(
            "Request bytes of one connection that may be in flight before reading from it pauses.",
            Unit.BYTES,
            min=KIB,
        ),
    ] = 32 * MIB
    inflight_bytes_max: Annotated[
        int,
        Setting(
            "Request bytes of all connections that may be in flight before reading pauses. When "
            "half of them are, one address or user may have a quarter.",
            Unit.BYTES,
            min=KIB,
        ),
    ] = 256 * MIB
    inflight_requests_per_connection_max: Annotated[
        int,
        Setting(
            "Requests of one connection that may be in flight before reading from it pauses.",
            min=1,
        ),
    ] = 256
    idle_ms_max: Annotated[
        int,
        Setting(
            "Connections that are idle for this long are closed.",
            Unit.MILLISECONDS,
            min=SECOND_MS,
            unlimited=True,
        ),
    ] = 10 * MINUTE_MS


class RaftConfig(Struct, frozen=True, kw_only=True):
    """The listener for the other brokers of the cluster."""

    addr: Annotated[Endpoint, Setting("Where the listener for other brokers is bound.")] = RAFT_ADDR
    advertised: Annotated[
        Endpoint | None,
        Setting("The address that other brokers connect to; the bound one if unset."),
    ] = None
    security: Annotated[
        ListenerSecurity,
        Setting("Encryption between brokers: none, TLS, or TLS with certificates of both (mtls)."),
    ] = ListenerSecurity.PLAINTEXT


class GrpcConfig(Struct, frozen=True, kw_only=True):
    """The listener of the queue API, which is gRPC."""

    addr: Annotated[
        Endpoint | None, Setting("Where the gRPC listener is bound; empty disables it.")
    ] = GRPC_ADDR
    advertised: Annotated[
        Endpoint | None,
        Setting("The gRPC address that clients connect to; the bound one if unset."),
    ] = None
    security: Annotated[ListenerSecurity, _SECURITY] = ListenerSecurity.PLAINTEXT
    authentication: Annotated[Authentication, _AUTHENTICATION] = Authentication.NONE
    read_only: Annotated[bool, _READ_ONLY] = False


class HttpConfig(Struct, frozen=True, kw_only=True):
    """The listener of the HTTP API: joining, topology, health."""

    addr: Annotated[Endpoint, Setting("Where the HTTP listener is bound.")] = HTTP_ADDR
    advertised: Annotated[
        Endpoint | None,
        Setting("The HTTP address that clients connect to; the bound one if unset."),
    ] = None
    security: Annotated[ListenerSecurity, _SECURITY] = ListenerSecurity.PLAINTEXT
    authentication: Annotated[Authentication, _AUTHENTICATION] = Authentication.NONE
    read_only: Annotated[bool, _READ_ONLY] = False
    hosts: Annotated[
        str | None,
        Setting(
            "Further names under which clients reach the HTTP API, without port, separated by "
            "commas; *.example.com for all names below it, * for any. Requests to other names are "
            "refused. Loopback, bound and advertised addresses are always known."
        ),
    ] = None
    public_metrics: Annotated[
        bool, Setting("Serve /metrics to everyone, on a listener that authenticates its clients.")
    ] = False
    cors_origins: Annotated[
        str | None,
        Setting(
            "Origins whose web pages may use the HTTP API (CORS): https://host[:port], separated "
            "by commas, or * for all. None if unset. Allowed pages can call the whole API."
        ),
    ] = None

    @property
    def host_list(self) -> tuple[str, ...]:
        return _split(self.hosts)

    @property
    def cors_origin_list(self) -> tuple[str, ...]:
        return _split(self.cors_origins)


def _split(text: str | None) -> tuple[str, ...]:
    return tuple(one.strip() for one in (text or "").split(",") if one.strip())


class StorageConfig(Struct, frozen=True, kw_only=True):
    """The section `log`: how partitions are stored on disk. Topics can override most of it."""

    flush: Annotated[
        FlushPolicy,
        Setting(
            "When appended records are flushed to disk: before the acknowledgement (always), every "
            "log.flush_interval_ms (interval), or when the operating system decides (never). Only "
            "always keeps every acknowledged record through a power failure.",
            runtime="log.flush",
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
        int,
        Setting(
            "Threads that flush partitions in parallel, where the kernel cannot do it by itself.",
            min=1,
            max=64,
        ),
    ] = 4
    segment_bytes: Annotated[
        int,
        Setting(
            "A log segment is rolled when it reaches this size.",
            Unit.BYTES,
            min=KIB,
            max=2**31 - 1,
            runtime="log.segment.bytes",
        ),
    ] = GIB
    segment_ms: Annotated[
        int,
        Setting(
            "A log segment is rolled when it reaches this age.",
            Unit.MILLISECONDS,
            min=1,
            runtime="log.roll.ms",
        ),
    ] = 7 * DAY_MS
    retention_ms: Annotated[
        int,
        Setting(
            "Records older than this are deleted.",
            Unit.MILLISECONDS,
            min=0,
            unlimited=True,
            runtime="log.retention.ms",
        ),
    ] = 7 * DAY_MS
    retention_bytes: Annotated[
        int,
        Setting(
            "The oldest records of a partition above this size are deleted.",
            Unit.BYTES,
            min=0,
            unlimited=True,
            runtime="log.retention.bytes",
        ),
    ] = UNLIMITED
    retention_check_ms: Annotated[
        int,
        Setting("Time between two retention checks.", Unit.MILLISECONDS, min=100),
    ] = 5 * MINUTE_MS
    compaction_check_ms: Annotated[
        int,
        Setting(
            "Time between two checks for logs to compact (cleanup.policy=compact).",
            Unit.MILLISECONDS,
            min=100,
        ),
    ] = 15_000
    compaction_map_bytes: Annotated[
        int,
        Setting(
            "Memory of the compaction process for keys, 32 bytes each; with more keys it needs "
            "several passes.",
            Unit.BYTES,
            min=1024 * 1024,
            max=16 * 1024 * MIB,
        ),
    ] = 64 * MIB
    scrub_interval_ms: Annotated[
        int,
        Setting(
            "Time between two scrubs. A scrub reads all stored records to find corruption early.",
            Unit.MILLISECONDS,
            min=1000,
        ),
    ] = DAY_MS
    scrub_bytes_per_second: Annotated[
        int,
        Setting("Rate limit of a scrub.", Unit.BYTES, min=1024, max=16 * 1024 * MIB),
    ] = 8 * MIB
    disk_reserve_bytes: Annotated[
        int,
        Setting(
            "With less free disk space than this, produce requests get a retriable error; reads "
            "are still served.",
            Unit.BYTES,
            min=0,
        ),
    ] = 256 * MIB


class TopicConfig(Struct, frozen=True, kw_only=True):
    """Defaults of new topics."""

    auto_create: Annotated[
        bool, Setting("Create a topic when a client uses one that does not exist.")
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
        int,
        Setting(
            "Replicas that must store a record before acks=all is acknowledged.",
            min=1,
            runtime="min.insync.replicas",
        ),
    ] = 1
    message_bytes_max: Annotated[
        int,
        Setting(
            "Largest record batch.",
            Unit.BYTES,
            min=0,
            max=2**31 - 1,
            runtime="message.max.bytes",
        ),
    ] = limits.MESSAGE_BYTES_MAX


class LoggingConfig(Struct, frozen=True, kw_only=True):
    """The broker's log on stderr."""

    level: Annotated[LogLevel, Setting("The least severe level that is logged.")] = LogLevel.INFO
    levels: Annotated[
        ComponentLevels | None,
        Setting(
            "Levels of single components, as COMPONENT=LEVEL, separated by commas: "
            "raft=debug,queues=warning. `moldau broker log-level` lists the components, and "
            "changes levels at run time."
        ),
    ] = None
    format: Annotated[LogFormat, Setting("text, or json for one object per line.")] = LogFormat.TEXT


class TracingConfig(Struct, frozen=True, kw_only=True):
    """Traces by OpenTelemetry."""

    enabled: Annotated[
        bool,
        Setting(
            "Record spans and send them to a collector, as OTEL_EXPORTER_OTLP_ENDPOINT and the "
            "other variables of OpenTelemetry say. Needs the extra moldau[otel]."
        ),
    ] = False


class ServerConfig(Struct, frozen=True, kw_only=True):
    """The whole configuration of one broker."""

    broker_id: Annotated[
        int | None,
        Setting(
            "The id of this broker in its cluster; never reused. Unset: the id in the data "
            "directory, else chosen by the cluster, and 1 for the first broker.",
            min=0,
            max=2**31 - 1,
        ),
    ] = None
    rack: Annotated[
        str | None, Setting("The zone or rack of this broker; replicas are spread over racks.")
    ] = None
    rack_file: Annotated[
        str | None,
        Setting(
            "A file whose first line is the rack, if rack is unset; for containers, which learn "
            "the zone of their machine at the start."
        ),
    ] = None
    machine: Annotated[
        str | None,
        Setting(
            "The machine of this broker, by a name that all brokers on it have. Replicas of a "
            "partition are on different machines, if there are enough. Unset: the host name at the "
            "first start with this data directory."
        ),
    ] = None
    data_dir: Annotated[str, Setting("The directory of all stored data.")] = "./.moldau"
    processes: Annotated[
        Processes,
        Setting(
            "Brokers of this machine, each a process, as one node; auto: one for each core that "
            "may be used, and no fewer than the data directory has. With several, each takes the "
            "ports after those of the listeners, too: see docs/operate/more-cores.md."
        ),
    ] = Processes(1)
    cluster_id: Annotated[
        str | None,
        Setting(
            "Name of the cluster; a random number is appended at bootstrap. A broker that belongs "
            "to a cluster of another name does not start."
        ),
    ] = None
    bootstrap: Annotated[
        bool,
        Setting(
            "Bootstrap a new cluster if the data directory is empty. Only for the first start of "
            "the first broker: a broker that lost its disk has to join."
        ),
    ] = False
    join_addr: Annotated[
        Endpoint | None,
        Setting(
            "The HTTP address of any member of the cluster to join; not needed after the first "
            "start."
        ),
    ] = None
    initial_members: Annotated[
        str | None,
        Setting(
            "The HTTP addresses of the brokers that form a new cluster, separated by commas; the "
            "same list for all brokers, and for each start. The first one bootstraps when all "
            "others are new as well; a broker without a cluster joins any of them that has one."
        ),
    ] = None
    cluster_secret_file: Annotated[
        str | None,
        Setting(
            "A file with the secret to bootstrap or to join with: a copy of cluster.secret, or a "
            "text of 32 characters or more. Not needed after the first start: the data directory "
            "keeps the secret."
        ),
    ] = None
    listeners: Annotated[
        Listeners,
        Setting(
            "Listeners by name, in place of the addresses of the sections kafka, raft, grpc and "
            "http; see [named listeners](#named-listeners)."
        ),
    ] = Listeners()
    security: SecurityConfig = field(default_factory=SecurityConfig)
    join_token_file: Annotated[
        str | None,
        Setting(
            "A file with the token to join with, of moldau cluster token create; not needed after "
            "the first start."
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
    tracing: TracingConfig = field(default_factory=TracingConfig)
