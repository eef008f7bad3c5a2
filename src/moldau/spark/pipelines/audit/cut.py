"""Responsible for the cut of an audit: which offsets of which partitions have to be on both sides.

The cut is taken before anything is compared, so that producers and pipelines may go on: what comes
later is behind it. Its ends are taken before the table's snapshot. Whoever committed a position has
put what lies before it into the table by then, so the snapshot holds at least that.
"""

import json
from collections.abc import Iterable, Mapping
from contextlib import closing
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from moldau.client.errors import RejectedError
from moldau.client.kafka.admin import Admin
from moldau.model.errors import ErrorCode
from moldau.model.ids import PartitionIndex, TopicPartition
from moldau.spark.options import BOOTSTRAP
from moldau.spark.pipelines.audit.settings import AuditSettings
from moldau.spark.source.positions import Positions
from moldau.spark.source.read_options import ReadOptions, parse_read_options
from moldau.spark.source.source_client import SourceClient, places_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_NOT_OURS: Final = frozenset(
    {"subscribe", "subscribepattern", "assign", "groupid", "kafka.group.id", "includeheaders"}
)


class Bounds(NamedTuple):
    """Of one partition. Offsets from `start` to before `end` are compared."""

    start: int
    """The first that the log still has."""
    end: int
    latest: int
    """Where readers of committed records were at an end when the cut was taken."""


Places = Mapping[TopicPartition, Bounds]


class Cut(NamedTuple):
    places: Places
    groups: list[dict[str, Any]]
    """How far each group is in each partition, as the report says it."""
    compacted: frozenset[str]
    """Topics of which the broker removes records that have a younger one of their key."""


def take_cut(settings: AuditSettings) -> Cut:
    """Ask the brokers. Raises NotFoundError for a topic or group that is not there."""
    admin = Admin(settings.bootstrap)
    committed = {name: _committed(admin, name) for name in settings.groups}
    places = whole_topics(settings, settings.topics)
    groups = []
    for name, found in committed.items():
        for place, bounds in sorted(places.items()):
            at = found.get(place)
            lag = None if at is None else max(0, bounds.latest - at)
            told = {"group": name, **place._asdict(), "committed": at, "end": bounds.latest}
            groups.append({**told, "lag": lag})
    if settings.through == "group":
        leading = committed[settings.groups[0]]
        # Never committed: nothing of it has to be there yet.
        places = {
            place: each._replace(end=min(each.end, max(each.start, leading.get(place, 0))))
            for place, each in places.items()
        }
    compacted = frozenset(topic for topic in settings.topics if _is_compacted(admin, topic))
    return Cut(places, groups, compacted)


def whole_topics(settings: AuditSettings, topics: Iterable[str]) -> dict[TopicPartition, Bounds]:
    """All that there is of some topics now."""
    with closing(SourceClient(parsed_options(settings, topics))) as cluster:
        places = places_of(cluster.topics())
        ends, starts = cluster.latest(places), cluster.earliest(places)
    return {place: Bounds(starts[place], ends[place], ends[place]) for place in places}


def offset_count(places: Places) -> int:
    return sum(max(0, bounds.end - bounds.start) for bounds in places.values())


def parsed_options(settings: AuditSettings, topics: Iterable[str]) -> ReadOptions:
    return parse_read_options(_read_options(settings, topics), streaming=False)


def topic_rows(spark: "SparkSession", settings: AuditSettings, places: Places) -> "DataFrame":
    """What readers of committed records get of some partitions."""
    starts = Positions(offsets={place: each.start for place, each in places.items()})
    ends = Positions(offsets={place: each.end for place, each in places.items()})
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
    places: Places,
    ends: Mapping[TopicPartition, int],
) -> "DataFrame":
    """The same, on to `ends`; `is_later` says which rows are behind the cut."""
    from pyspark.sql import functions as F  # noqa: N812

    wide = {place: each._replace(end=ends.get(place, each.end)) for place, each in places.items()}
    cuts = [(*place, each.end) for place, each in places.items()]
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
        # What retention takes away meanwhile is told apart afterwards, by where the log starts.
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
        # Who may read a topic may not be allowed to see how it is set up.
        if error.code != ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            raise
        return False
    return any(c.name == "cleanup.policy" and "compact" in (c.value or "") for c in configs)
