"""Owns the cut of an audit: which offsets of which partitions have to be on both sides.

The cut is taken before anything is compared, so that producers and pipelines may go on: what comes
later is behind it. Its ends are taken before the table's snapshot. Whoever committed a position has
put what lies before it into the table by then, so the snapshot holds at least that.
"""

from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Final

from moldau.client.admin import Admin
from moldau.client.errors import RejectedError
from moldau.model.errors import ErrorCode
from moldau.model.ids import PartitionIndex, TopicPartition
from moldau.spark.options import BOOTSTRAP
from moldau.spark.pipelines.audit.settings import AuditSettings, Through
from moldau.spark.source.cluster import Cluster, places_of
from moldau.spark.source.planning import OffsetRange
from moldau.spark.source.read_options import ReadOptions, parse_read_options

_NOT_OURS: Final = frozenset(
    {"subscribe", "subscribepattern", "assign", "groupid", "kafka.group.id", "includeheaders"}
)
_COMPACT: Final = "compact"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Of one partition. Offsets from `start` to before `end` are compared."""

    start: int
    """The first that the log still has."""
    end: int
    latest: int
    """Where readers of committed records were at an end when the cut was taken."""
    topic_id: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPosition:
    """How far a group is in a partition; None where it never committed."""

    group: str
    topic: str
    partition: int
    committed: int | None
    end: int

    @property
    def lag(self) -> int | None:
        return None if self.committed is None else max(0, self.end - self.committed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    places: Mapping[TopicPartition, Bounds]
    positions: tuple[GroupPosition, ...]
    compacted: frozenset[str]
    """Topics of which the broker removes records that have a younger one of their key."""

    def ranges(self, topics: Iterable[str] | None = None) -> list[OffsetRange]:
        """What is read of the topics."""
        return [
            OffsetRange(
                topic=place.topic,
                partition=place.partition,
                start=bounds.start,
                end=bounds.end,
                topic_id=bounds.topic_id,
            )
            for place, bounds in sorted(self.places.items())
            if topics is None or place.topic in topics
        ]


def read_options(settings: AuditSettings, topics: Iterable[str]) -> dict[str, str]:
    """For the source: what a reader of committed records gets, with headers."""
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


def parsed_options(settings: AuditSettings, topics: Iterable[str]) -> ReadOptions:
    return parse_read_options(read_options(settings, topics), streaming=False)


def take_cut(settings: AuditSettings) -> Cut:
    """Ask the brokers. Raises NotFoundError for a topic or group that is not there."""
    admin = Admin(settings.bootstrap)
    committed = {name: _committed(admin, name) for name in settings.groups}
    with closing(Cluster(parsed_options(settings, settings.topics))) as cluster:
        topics = cluster.topics()
        places = places_of(topics)
        latest = cluster.latest(places)
        starts = cluster.earliest(places)
    leading = committed[settings.groups[0]] if settings.groups else {}
    by_group = settings.through != Through.NOW and bool(settings.groups)
    bounds = {}
    for place in places:
        end = latest[place]
        if by_group:
            # Never committed: nothing of it has to be there yet.
            end = min(end, max(starts[place], leading.get(place, 0)))
        bounds[place] = Bounds(
            start=starts[place], end=end, latest=latest[place], topic_id=topics[place.topic].id
        )
    positions = [
        GroupPosition(
            group=name,
            topic=place.topic,
            partition=place.partition,
            committed=found.get(place),
            end=latest[place],
        )
        for name, found in committed.items()
        for place in sorted(places)
    ]
    return Cut(
        places=bounds, positions=tuple(positions), compacted=_compacted(admin, settings.topics)
    )


def whole_topics(settings: AuditSettings, topics: Iterable[str]) -> dict[TopicPartition, Bounds]:
    """All that there is of some topics now."""
    with closing(Cluster(parsed_options(settings, topics))) as cluster:
        places = places_of(cluster.topics())
        ends, starts = cluster.latest(places), cluster.earliest(places)
    return {
        place: Bounds(start=starts[place], end=ends[place], latest=ends[place]) for place in places
    }


def starts_now(
    settings: AuditSettings, places: Iterable[TopicPartition]
) -> dict[TopicPartition, int]:
    """Where the logs start by now: retention goes on while an audit runs."""
    with closing(Cluster(parsed_options(settings, settings.topics))) as cluster:
        return cluster.earliest(places)


def ends_now(
    settings: AuditSettings, places: Iterable[TopicPartition]
) -> dict[TopicPartition, int]:
    """Where readers of committed records are at an end by now."""
    with closing(Cluster(parsed_options(settings, settings.topics))) as cluster:
        return cluster.latest(places)


def _committed(admin: Admin, group: str) -> dict[TopicPartition, int]:
    return {
        TopicPartition(lag.topic, PartitionIndex(lag.partition)): lag.committed_offset
        for lag in admin.group(group).lags
        if lag.committed_offset >= 0
    }


def _compacted(admin: Admin, topics: Iterable[str]) -> frozenset[str]:
    found = set()
    for topic in topics:
        try:
            configs = admin.topic_config(topic)
        except RejectedError as error:
            # Who may read a topic may not be allowed to see how it is set up.
            if error.code != ErrorCode.TOPIC_AUTHORIZATION_FAILED:
                raise
            continue
        policy = next((c.value for c in configs if c.name == "cleanup.policy"), None)
        if policy is not None and _COMPACT in policy:
            found.add(topic)
    return frozenset(found)
