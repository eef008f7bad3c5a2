"""The consistent cut of an audit: the offsets of each partition that both sides must have.

The cut is taken before anything is compared, so producers and pipelines may keep running: later
records are not compared. Its ends are read before the table's snapshot. A pipeline commits offsets
after the table, so the snapshot holds at least all records before them.
"""

import json
from collections.abc import Iterable, Mapping
from contextlib import closing
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from moldau.client.errors import RejectedError
from moldau.client.kafka.admin import Admin
from moldau.client.librdkafka_security import librdkafka_names
from moldau.model.errors import ErrorCode
from moldau.model.ids import PartitionIndex, TopicPartition
from moldau.spark.option_table import BOOTSTRAP
from moldau.spark.pipelines.settings.audit import AuditSettings
from moldau.spark.source.positions import Positions
from moldau.spark.source.read_options import ReadOptions, parse_read_options
from moldau.spark.source.source_client import SourceClient, partitions_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_NOT_OURS: Final = frozenset(
    {"subscribe", "subscribepattern", "assign", "groupid", "kafka.group.id", "includeheaders"}
)


class Bounds(NamedTuple):
    """The compared offsets of one partition: from `start` to before `end`."""

    start: int
    """The start of the log."""
    end: int
    latest: int
    """The last stable offset when the cut was taken."""


Partitions = Mapping[TopicPartition, Bounds]


class Cut(NamedTuple):
    partitions: Partitions
    groups: list[dict[str, Any]]
    """The committed offset and lag of each group and partition, for the report."""
    compacted: frozenset[str]
    """Topics with cleanup.policy=compact."""


def take_cut(settings: AuditSettings) -> Cut:
    """Reads the offsets from the brokers. Raises NotFoundError for an unknown topic or group."""
    admin = Admin(settings.bootstrap, librdkafka_names(settings.security))
    committed = {name: _committed(admin, name) for name in settings.groups}
    partitions = whole_topics(settings, settings.topics)
    groups = []
    for name, found in committed.items():
        for tp, bounds in sorted(partitions.items()):
            at = found.get(tp)
            lag = None if at is None else max(0, bounds.latest - at)
            row = {"group": name, **tp._asdict(), "committed": at, "end": bounds.latest}
            groups.append({**row, "lag": lag})
    if settings.through == "group":
        leading = committed[settings.groups[0]]
        # Without a commit, no record of the partition is required yet.
        partitions = {
            tp: each._replace(end=min(each.end, max(each.start, leading.get(tp, 0))))
            for tp, each in partitions.items()
        }
    compacted = frozenset(topic for topic in settings.topics if _is_compacted(admin, topic))
    return Cut(partitions, groups, compacted)


def whole_topics(settings: AuditSettings, topics: Iterable[str]) -> dict[TopicPartition, Bounds]:
    """All current offsets of the topics."""
    with closing(SourceClient(parsed_options(settings, topics))) as client:
        partitions = partitions_of(client.topics())
        ends, starts = client.latest(partitions), client.earliest(partitions)
    return {tp: Bounds(starts[tp], ends[tp], ends[tp]) for tp in partitions}


def offset_count(partitions: Partitions) -> int:
    return sum(max(0, bounds.end - bounds.start) for bounds in partitions.values())


def parsed_options(settings: AuditSettings, topics: Iterable[str]) -> ReadOptions:
    return parse_read_options(_read_options(settings, topics), streaming=False)


def topic_rows(
    spark: "SparkSession", settings: AuditSettings, partitions: Partitions
) -> "DataFrame":
    """The committed records of the partitions."""
    starts = Positions(offsets={tp: each.start for tp, each in partitions.items()})
    ends = Positions(offsets={tp: each.end for tp, each in partitions.items()})
    return (
        spark.read.format("moldau")
        .options(**_read_options(settings, starts.topics()))
        .option("startingOffsets", json.dumps(starts.to_json()))
        .option("endingOffsets", json.dumps(ends.to_json()))
        .load()
    )


def rows_and_later(
    spark: "SparkSession",
    settings: AuditSettings,
    partitions: Partitions,
    ends: Mapping[TopicPartition, int],
) -> "DataFrame":
    """The same up to `ends`; the column `is_later` marks rows after the cut."""
    from pyspark.sql import functions as F  # noqa: N812

    wide = {tp: each._replace(end=ends.get(tp, each.end)) for tp, each in partitions.items()}
    cuts = [(*tp, each.end) for tp, each in partitions.items()]
    limits = spark.createDataFrame(cuts, "topic string, partition int, cut bigint")
    rows = topic_rows(spark, settings, wide).join(F.broadcast(limits), ["topic", "partition"])
    return rows.withColumn("is_later", F.col("offset") >= F.col("cut")).drop("cut")


def _read_options(settings: AuditSettings, topics: Iterable[str]) -> dict[str, str]:
    given = {k: v for k, v in settings.options.items() if k.lower() not in _NOT_OURS}
    return {
        **given,
        BOOTSTRAP: settings.bootstrap,
        "subscribe": ",".join(topics),
        "includeHeaders": "true",
        "isolation": "read_committed",
        # Records that retention deletes meanwhile are detected later, by the start of the log.
        "failOnDataLoss": "false",
    }


def _committed(admin: Admin, group: str) -> dict[TopicPartition, int]:
    return {
        TopicPartition(lag.topic, PartitionIndex(lag.partition)): lag.committed_offset
        for lag in admin.group(group).lags
        if lag.committed_offset >= 0
    }


def _is_compacted(admin: Admin, topic: str) -> bool:
    try:
        configs = admin.topic_config(topic)
    except RejectedError as error:
        # A client that may read a topic may lack permission to describe its configs.
        if error.code != ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            raise
        return False
    return any(c.name == "cleanup.policy" and "compact" in (c.value or "") for c in configs)
