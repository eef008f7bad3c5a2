"""The table of topic settings. Those at its end are accepted, validated and listed for Kafka's
tools, but have no effect."""

from collections.abc import Mapping
from typing import Final

from msgspec.structs import replace

from moldau.metadata.config_types import INT_MAX, LONG_MAX, ConfigDefinition, ConfigType, Synonym
from moldau.model.limits import MESSAGE_BYTES_MAX

_HOUR_MS: Final = 3_600_000
_WEEK_MS: Final = 7 * 24 * _HOUR_MS
_LONG_MAX_TEXT: Final = str(LONG_MAX)


def _time(name: str, *, hours: str, minutes: str | None = None) -> tuple[Synonym, ...]:
    """A time in ms, or in coarser units of lower precedence."""
    between = (Synonym(name=minutes, scale=60_000),) if minutes else ()
    return (Synonym(name=name), *between, Synonym(name=hours, scale=_HOUR_MS))


def _same(*names: str) -> tuple[Synonym, ...]:
    return tuple(Synonym(name=name) for name in names)


_DEFINITIONS: Final = (
    ConfigDefinition(
        name="cleanup.policy",
        type=ConfigType.LIST,
        default="delete",
        choices=("compact", "delete"),
        synonyms=_same("log.cleanup.policy"),
        documentation="What happens to old segments: delete them, compact them by key, or both.",
    ),
    ConfigDefinition(
        name="compression.type",
        type=ConfigType.STRING,
        default="producer",
        choices=("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
        synonyms=_same("compression.type"),
        documentation="Compression of stored batches; 'producer' keeps what the producer chose.",
    ),
    ConfigDefinition(
        name="delete.retention.ms",
        type=ConfigType.LONG,
        default=str(24 * _HOUR_MS),
        least=0,
        synonyms=_same("log.cleaner.delete.retention.ms"),
        documentation="How long tombstones of a compacted topic are kept.",
    ),
    ConfigDefinition(
        name="index.interval.bytes",
        type=ConfigType.INT,
        default="4096",
        least=0,
        synonyms=_same("log.index.interval.bytes"),
        documentation="Bytes of log between two entries of the offset index.",
    ),
    ConfigDefinition(
        name="max.compaction.lag.ms",
        type=ConfigType.LONG,
        default=_LONG_MAX_TEXT,
        least=1,
        synonyms=_same("log.cleaner.max.compaction.lag.ms"),
        documentation="Longest time that a record of a compacted topic waits for compaction.",
    ),
    ConfigDefinition(
        name="max.message.bytes",
        type=ConfigType.INT,
        default=str(MESSAGE_BYTES_MAX),
        least=0,
        synonyms=_same("message.max.bytes"),
        documentation="Largest record batch, after compression.",
    ),
    ConfigDefinition(
        name="message.timestamp.after.max.ms",
        type=ConfigType.LONG,
        default=_LONG_MAX_TEXT,
        least=0,
        synonyms=_same("log.message.timestamp.after.max.ms"),
        documentation="How far a record's timestamp may be ahead of the broker's clock.",
    ),
    ConfigDefinition(
        name="message.timestamp.before.max.ms",
        type=ConfigType.LONG,
        default=_LONG_MAX_TEXT,
        least=0,
        synonyms=_same("log.message.timestamp.before.max.ms"),
        documentation="How far a record's timestamp may be behind the broker's clock.",
    ),
    ConfigDefinition(
        name="message.timestamp.difference.max.ms",
        type=ConfigType.LONG,
        default=_LONG_MAX_TEXT,
        least=0,
        synonyms=_same("log.message.timestamp.difference.max.ms"),
        documentation="Older name for both bounds on a record's timestamp.",
    ),
    ConfigDefinition(
        name="message.timestamp.type",
        type=ConfigType.STRING,
        default="CreateTime",
        choices=("CreateTime", "LogAppendTime"),
        synonyms=_same("log.message.timestamp.type"),
        documentation="Whether a record carries its producer's time or the time of the append.",
    ),
    ConfigDefinition(
        name="min.cleanable.dirty.ratio",
        type=ConfigType.DOUBLE,
        default="0.5",
        least=0,
        most=1,
        synonyms=_same("log.cleaner.min.cleanable.ratio"),
        documentation="Ratio of uncompacted log that triggers compaction.",
    ),
    ConfigDefinition(
        name="min.compaction.lag.ms",
        type=ConfigType.LONG,
        default="0",
        least=0,
        synonyms=_same("log.cleaner.min.compaction.lag.ms"),
        documentation="Shortest time that a record of a compacted topic is kept as written.",
    ),
    ConfigDefinition(
        name="min.insync.replicas",
        type=ConfigType.INT,
        default="1",
        least=1,
        synonyms=_same("min.insync.replicas"),
        documentation="Replicas that must have a write before acks=all is acknowledged.",
    ),
    ConfigDefinition(
        name="moldau.flush",
        type=ConfigType.STRING,
        default="always",
        choices=("always", "interval", "never"),
        synonyms=_same("log.flush"),
        documentation="When writes are flushed to disk: before the acknowledgement, at intervals, "
        "or by the operating system. Durability is guaranteed only with 'always'.",
    ),
    ConfigDefinition(
        name="moldau.restoring",
        type=ConfigType.STRING,
        default="",
        is_for_tools=True,
        documentation="The backup that the topic is being restored from. Until it is deleted, "
        "producers are refused, and nothing is deleted or compacted. Set by moldau backup restore; "
        "this needs ALTER on the cluster.",
    ),
    ConfigDefinition(
        name="retention.bytes",
        type=ConfigType.LONG,
        default="-1",
        least=-1,
        synonyms=_same("log.retention.bytes"),
        documentation="Size of a partition above which old segments are deleted; -1 is unlimited.",
    ),
    ConfigDefinition(
        name="retention.ms",
        type=ConfigType.LONG,
        default=str(_WEEK_MS),
        least=-1,
        synonyms=_time(
            "log.retention.ms", minutes="log.retention.minutes", hours="log.retention.hours"
        ),
        documentation="Age at which old segments are deleted; -1 is unlimited.",
    ),
    ConfigDefinition(
        name="segment.bytes",
        type=ConfigType.INT,
        default=str(1 << 30),
        least=14,
        synonyms=_same("log.segment.bytes"),
        documentation="Size at which a segment is closed and the next one begun.",
    ),
    ConfigDefinition(
        name="segment.ms",
        type=ConfigType.LONG,
        default=str(_WEEK_MS),
        least=1,
        synonyms=_time("log.roll.ms", hours="log.roll.hours"),
        documentation="Age at which a segment is closed even if it is not full.",
    ),
)

_WITHOUT_EFFECT: Final = (
    ConfigDefinition(
        name="compression.gzip.level",
        type=ConfigType.INT,
        default="-1",
        least=-1,
        most=9,
        synonyms=_same("compression.gzip.level"),
        documentation="Level of gzip if the broker compresses.",
    ),
    ConfigDefinition(
        name="compression.lz4.level",
        type=ConfigType.INT,
        default="9",
        least=1,
        most=17,
        synonyms=_same("compression.lz4.level"),
        documentation="Level of lz4 if the broker compresses.",
    ),
    ConfigDefinition(
        name="compression.zstd.level",
        type=ConfigType.INT,
        default="3",
        least=-131072,
        most=22,
        synonyms=_same("compression.zstd.level"),
        documentation="Level of zstd if the broker compresses.",
    ),
    ConfigDefinition(
        name="file.delete.delay.ms",
        type=ConfigType.LONG,
        default="60000",
        least=0,
        synonyms=_same("log.segment.delete.delay.ms"),
        documentation="Delay between removing a segment and deleting its file.",
    ),
    ConfigDefinition(
        name="flush.messages",
        type=ConfigType.LONG,
        default=_LONG_MAX_TEXT,
        least=1,
        synonyms=_same("log.flush.interval.messages"),
        documentation="Messages between two flushes; moldau.flush decides instead.",
    ),
    ConfigDefinition(
        name="flush.ms",
        type=ConfigType.LONG,
        default=_LONG_MAX_TEXT,
        least=0,
        synonyms=_same("log.flush.interval.ms"),
        documentation="Time between two flushes; moldau.flush decides instead.",
    ),
    ConfigDefinition(
        name="follower.replication.throttled.replicas",
        type=ConfigType.LIST,
        default="",
        documentation="Replicas whose replication is throttled on the follower side.",
    ),
    ConfigDefinition(
        name="leader.replication.throttled.replicas",
        type=ConfigType.LIST,
        default="",
        documentation="Replicas whose replication is throttled on the leader side.",
    ),
    ConfigDefinition(
        name="local.retention.bytes",
        type=ConfigType.LONG,
        default="-2",
        least=-2,
        synonyms=_same("log.local.retention.bytes"),
        documentation="Local part of a tiered partition.",
    ),
    ConfigDefinition(
        name="local.retention.ms",
        type=ConfigType.LONG,
        default="-2",
        least=-2,
        synonyms=_same("log.local.retention.ms"),
        documentation="Local time of a tiered partition.",
    ),
    ConfigDefinition(
        name="message.downconversion.enable",
        type=ConfigType.BOOLEAN,
        default="true",
        synonyms=_same("log.message.downconversion.enable"),
        documentation="Conversion for clients older than record batches v2.",
    ),
    ConfigDefinition(
        name="message.format.version",
        type=ConfigType.STRING,
        default="3.0-IV1",
        synonyms=_same("log.message.format.version"),
        documentation="Record format of old brokers; batches are always v2.",
    ),
    ConfigDefinition(
        name="preallocate",
        type=ConfigType.BOOLEAN,
        default="false",
        synonyms=_same("log.preallocate"),
        documentation="Whether segments are preallocated; they always are.",
    ),
    ConfigDefinition(
        name="remote.storage.enable",
        type=ConfigType.BOOLEAN,
        default="false",
        documentation="Tiered storage; only 'false' is accepted.",
    ),
    ConfigDefinition(
        name="segment.index.bytes",
        type=ConfigType.INT,
        default=str(10 * 1024 * 1024),
        least=4,
        most=INT_MAX,
        synonyms=_same("log.index.size.max.bytes"),
        documentation="Largest size of a segment's index.",
    ),
    ConfigDefinition(
        name="segment.jitter.ms",
        type=ConfigType.LONG,
        default="0",
        least=0,
        synonyms=_time("log.roll.jitter.ms", hours="log.roll.jitter.hours"),
        documentation="Random spread of the age at which segments are closed.",
    ),
    ConfigDefinition(
        name="unclean.leader.election.enable",
        type=ConfigType.BOOLEAN,
        default="false",
        synonyms=_same("unclean.leader.election.enable"),
        documentation="Election of replicas that miss committed records; this never happens.",
    ),
)

TOPIC_CONFIGS: Final[Mapping[str, ConfigDefinition]] = {
    definition.name: definition
    for definition in (
        *_DEFINITIONS,
        *(
            replace(
                ignored,
                documentation=f"{ignored.documentation} Stored for compatibility, without effect.",
                has_effect=False,
            )
            for ignored in _WITHOUT_EFFECT
        ),
    )
}
