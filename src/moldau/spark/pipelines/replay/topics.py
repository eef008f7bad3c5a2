"""Owns what a replay asks the brokers: which offsets topics hold, whether the target fits."""

from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Final

from moldau.client.errors import InvalidArgumentError, NotFoundError, RejectedError
from moldau.client.kafka.client import KafkaClient
from moldau.model.errors import ErrorCode
from moldau.model.ids import TopicPartition
from moldau.spark.option_table import Side, names_of
from moldau.spark.options import BOOTSTRAP, Options
from moldau.spark.pipelines.replay.selection import Selection
from moldau.spark.pipelines.replay.settings import ReplaySettings
from moldau.spark.source.cluster import NO_OFFSET, Cluster, TopicView, places_of
from moldau.spark.source.planning import OffsetRange
from moldau.spark.source.read_options import parse_read_options

_OURS: Final = frozenset(
    name.lower()
    for name in (
        "subscribe",
        "subscribePattern",
        "assign",
        "startingOffsets",
        "endingOffsets",
        "startingTimestamp",
        "endingTimestamp",
        "startingOffsetsByTimestamp",
        "endingOffsetsByTimestamp",
        "minPartitions",
        "maxRecordsPerPartition",
        "topic",
        "exactlyOnce",
        "writeTimestamp",
        "groupId",
        "kafka.group.id",
        "txnAppId",
        "txnVersion",
    )
)
"""What the replay says itself: a user's would send other records, or in another order."""


def read_options(settings: ReplaySettings) -> dict[str, str]:
    """For the source, without what is read: the user's, and what a replay needs."""
    _check_options(settings.options)
    return {
        "isolation": "read_committed",
        **_of(settings.options, names_of(Side.READ)),
        BOOTSTRAP: settings.bootstrap,
        "includeHeaders": "true",
    }


def write_options(settings: ReplaySettings) -> dict[str, str]:
    """For the sink."""
    _check_options(settings.options)
    return {
        **_of(settings.options, names_of(Side.WRITE)),
        BOOTSTRAP: settings.bootstrap,
        "topic": settings.target,
        "exactlyOnce": "true",
        "writeTimestamp": "true",
    }


def _check_options(given: Mapping[str, str]) -> None:
    for name in given:
        if name.lower() in _OURS:
            raise InvalidArgumentError(
                f"option {name} is the replay's own",
                hint="records are selected by --from-time, --to-time, --offsets and --key",
            )
    Options(given).check_names(Side.BOTH)


def _of(given: Mapping[str, str], names: Sequence[str]) -> dict[str, str]:
    known = {name.lower() for name in names}
    return {name: value for name, value in given.items() if name.lower() in known}


class Brokers:
    """The cluster of a replay."""

    def __init__(self, settings: ReplaySettings) -> None:
        self._settings = settings

    def check_reachable(self) -> None:
        """Who waits for brokers to come back should know that one was there: else say so at once.

        Raises UnreachableError.
        """
        with KafkaClient(self._settings.bootstrap) as client:
            client.any_broker()

    def source_ranges(self, selection: Selection) -> tuple[list[OffsetRange], int]:
        """The offsets of the source's topics that may hold what is selected, as of now.

        And how many partitions the widest of them has.
        """
        settings = self._settings
        with closing(self._cluster(settings.topics)) as cluster:
            topics = self._existing(cluster, settings.topics)
            places = places_of(topics)
            firsts, ends = cluster.earliest(places), cluster.latest(places)
            _check_spans(selection, firsts, ends)
            starts = dict(firsts)
            if selection.from_ms is not None:
                found = cluster.offsets(dict.fromkeys(places, selection.from_ms))
                for place in places:
                    # None is as young as that, and what comes from now on is not part of it.
                    at = ends[place] if found[place] == NO_OFFSET else found[place]
                    starts[place] = max(starts[place], at)
            if selection.to_ms is not None and settings.times_rise:
                found = cluster.offsets(dict.fromkeys(places, selection.to_ms))
                for place in places:
                    if found[place] != NO_OFFSET:
                        ends[place] = min(ends[place], found[place])
        ranges = [
            planned
            for place in places
            if (planned := _range(place, topics, selection, starts[place], ends[place])) is not None
        ]
        return ranges, max(len(view.partitions) for view in topics.values())

    def source_ids(self, topics: Sequence[str]) -> dict[str, int | None]:
        """Raises NotFoundError if one is not there."""
        with closing(self._cluster(topics)) as cluster:
            return {topic: view.id for topic, view in self._existing(cluster, topics).items()}

    def target(self) -> TopicView | None:
        """The target as it is; None if it is not there."""
        name = self._settings.target
        with closing(self._cluster((name,))) as cluster:
            return cluster.topics(missing_is_fine=True).get(name)

    def target_retention_ms(self) -> int | None:
        """After which the target removes records, by their timestamps; None is never."""
        from moldau.client.admin import Admin

        found = Admin(self._settings.bootstrap).topic_config(self._settings.target)
        config = {each.name: each.value for each in found}
        if "delete" not in (config.get("cleanup.policy") or ""):
            return None
        kept = int(config.get("retention.ms") or -1)
        return None if kept < 0 else kept

    def create_target(self, partitions: int) -> TopicView:
        name = self._settings.target
        with closing(self._cluster((name,))) as cluster:
            try:
                # Records keep their timestamps: by the usual retention, old ones would be removed
                # as soon as they are there.
                cluster.client.create_topic(
                    name, partitions=partitions, configs={"retention.ms": "-1"}
                )
            except RejectedError as error:
                # By another run, or by one whose answer was lost.
                if error.code != ErrorCode.TOPIC_ALREADY_EXISTS:
                    raise
            return cluster.topics()[name]

    def _cluster(self, topics: Sequence[str]) -> Cluster:
        options = {**read_options(self._settings), "subscribe": ",".join(topics)}
        return Cluster(parse_read_options(options, streaming=False))

    @staticmethod
    def _existing(cluster: Cluster, names: Sequence[str]) -> dict[str, TopicView]:
        found = cluster.topics(missing_is_fine=True)
        missing = [name for name in names if name not in found]
        if missing:
            raise NotFoundError(
                f"there is no topic {', '.join(missing)} to replay",
                hint="see which there are: moldau topic list · another one: --topic NAME",
            )
        return found


def _check_spans(
    selection: Selection,
    firsts: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
) -> None:
    """Offsets that somebody names have to be there: to send fewer of them would go unnoticed."""
    named = set(selection.spans)
    for place, first in firsts.items():
        for key in ((place.topic, int(place.partition)), (None, int(place.partition))):
            if key not in selection.spans:
                continue
            named.discard(key)
            span, end = selection.spans[key], ends[place]
            low, high = span.first, span.end
            if (low is not None and not first <= low < end) or (
                high is not None and not first < high <= end
            ):
                holds = f"holds {first} to {end - 1}" if end > first else "is empty"
                raise InvalidArgumentError(
                    f"--offsets asks for offsets of {place} that are not there: it {holds}"
                )
    for topic, partition in named:
        of = f"{topic} has" if topic else "the topics have"
        raise InvalidArgumentError(f"--offsets names partition {partition}, but {of} none such")


def _range(
    place: TopicPartition,
    topics: Mapping[str, TopicView],
    selection: Selection,
    start: int,
    end: int,
) -> OffsetRange | None:
    span = selection.span(place.topic, place.partition)
    if span is None:
        return None
    if span.first is not None:
        start = max(start, span.first)
    if span.end is not None:
        end = min(end, span.end)
    if start >= end:
        return None
    return OffsetRange(
        topic=place.topic,
        partition=place.partition,
        start=start,
        end=end,
        topic_id=topics[place.topic].id,
    )


def check_fits(settings: ReplaySettings, needed: int, has: int) -> bool:
    """Whether partitions keep their numbers in a target that has so many.

    Raises InvalidArgumentError if they have to and cannot.
    """
    if settings.keep_partitions is None:
        return has >= needed
    if settings.keep_partitions and has < needed:
        raise InvalidArgumentError(
            f"{settings.target} has {has} partitions, too few to keep those of the source: it "
            f"takes {needed}",
            hint=f"add some: moldau topic alter {settings.target} --partitions {needed} · or let "
            "keys say the partition: --no-keep-partitions",
        )
    return settings.keep_partitions
