"""Responsible for the questions to brokers that a plan needs: which partitions there are, which
offsets they have, which of them the options for start and end mean, and how far a query came."""

import re
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final, NamedTuple, TypeVar

from moldau.client.errors import ClientError, InvalidArgumentError, NotFoundError, RejectedError
from moldau.client.retry import MOVED, retry
from moldau.client.wire.client import KafkaClient
from moldau.client.wire.connection import KafkaConnection, request_all
from moldau.model.errors import ErrorCode
from moldau.model.ids import PartitionIndex, TopicPartition
from moldau.spark.source.positions import lost, short_id
from moldau.spark.source.read_options import EARLIEST, LATEST, Bound, ReadOptions
from moldau.wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from moldau.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from moldau.wire.messages.metadata import MetadataResponse
from moldau.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)

NO_OFFSET: Final = -1
_RETRY_SECONDS: Final = 0.1
_MISSING_RETRIES: Final = 5
_REQUEST_SECONDS_MAX: Final = 10.0
"""A broker that takes longer hangs; another one may answer within the time that is left."""
_ASKED_BY_NAME_MAX: Final = 8
"""More topics than that are found by asking for all at once."""
_GROUP_TAKEN: Final = (
    *(ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION, ErrorCode.STALE_MEMBER_EPOCH),
    *(ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.FENCED_MEMBER_EPOCH),
)
GROUP_REFUSED: Final = (
    *(ErrorCode.INVALID_GROUP_ID, ErrorCode.GROUP_AUTHORIZATION_FAILED),
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
)
"""For good: the query is told."""
_BY_NAME: Final = 9
"""The last version of OffsetCommit that names topics by their names."""
_SINGLE_KEY: Final = 3
"""The last version of FindCoordinator that asks for one group."""

Offsets = dict[TopicPartition, int]
T = TypeVar("T")


class TopicView(NamedTuple):
    """A topic as it is now."""

    id: int | None
    partitions: tuple[int, ...]


def client_for(options: ReadOptions) -> KafkaClient:
    """A new one, for plans or tasks of a read."""
    return KafkaClient(
        options.bootstrap,
        client_id=options.client_id,
        timeout=min(options.timeout_seconds, _REQUEST_SECONDS_MAX),
        security=options.security,
    )


class SourceClient:
    """Asks the brokers of a read. Waits out elections for as long as the options allow."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._seen: set[str] = set()
        self.client = client_for(options)

    def close(self) -> None:
        self.client.close()

    def topics(self, *, missing_is_fine: bool = False) -> dict[str, TopicView]:
        """What the options name. NotFoundError if a topic or a partition of it is not there.

        With `missing_is_fine` topics that are not there are left out.
        """
        asked = self._options.subscription
        names = tuple(asked.assigned or asked.topics)
        for seconds in (0.0, *[_RETRY_SECONDS] * _MISSING_RETRIES):
            # A broker that has just started may not have heard of all topics yet.
            time.sleep(seconds)
            found, missing = self._existing(names)
            if not missing:
                break
        if missing and not missing_is_fine:
            raise NotFoundError(
                f"there is no topic {', '.join(missing)}: see option {asked.option}",
                hint=f"create it first: moldau topic create {missing[0]}",
            )
        for topic in found if asked.assigned else ():
            view, partitions = found[topic], (asked.assigned or {})[topic]
            if unknown := sorted(set(partitions) - set(view.partitions)):
                there = f"{topic} has partitions 0 to {len(view.partitions) - 1}"
                raise NotFoundError(f"{there}, not {unknown[0]}: see option assign")
            found[topic] = TopicView(view.id, partitions)
        return found

    def _existing(self, names: tuple[str, ...]) -> tuple[dict[str, TopicView], list[str]]:
        """Those of the topics asked for that exist, and the names of the others."""
        pattern = self._options.subscription.pattern
        found = {}
        for name in names if 0 < len(names) <= _ASKED_BY_NAME_MAX else (None,):
            doing = "list topics" if name is None else f"find topic {name}"
            for topic in self._patiently(partial(self._metadata, name), doing).topics:
                is_asked = topic.name in names
                if pattern is not None and topic.name is not None and not topic.is_internal:
                    is_asked = re.fullmatch(pattern, topic.name) is not None
                if topic.name is not None and is_asked and not topic.error_code:
                    partitions = tuple(sorted(each.partition_index for each in topic.partitions))
                    found[topic.name] = TopicView(short_id(topic.topic_id), partitions)
        self._seen.update(found)
        return found, [name for name in names if name not in found]

    def _metadata(self, name: str | None) -> MetadataResponse:
        answer = self.client.metadata(name)
        for topic in answer.topics:
            if topic.error_code in MOVED:
                raise RejectedError(f"topic {topic.name} is not ready", topic.error_code)
        return answer

    def latest(self, places: Iterable[TopicPartition]) -> Offsets:
        """Where each ends, for readers of committed records where an open transaction begins."""
        return self.offsets(dict.fromkeys(places, LATEST))

    def earliest(self, places: Iterable[TopicPartition]) -> Offsets:
        return self.offsets(dict.fromkeys(places, EARLIEST))

    def offsets(self, times: Mapping[TopicPartition, int]) -> Offsets:
        """The first offset at or after each time in ms; NO_OFFSET where there is none."""
        found: Offsets = {}
        if times:
            self._patiently(partial(self._ask_offsets, times, found), "list offsets")
        return found

    def _ask_offsets(self, times: Mapping[TopicPartition, int], found: Offsets) -> None:
        """One request per leader for what is missing; what is answered stands in `found`, even if
        others fail."""
        by_leader: dict[KafkaConnection, dict[str, list[ListOffsetsPartition]]] = {}
        for place, at in times.items():
            if place not in found:
                leader = self.client.leader(place.topic, place.partition)
                asked = ListOffsetsPartition(partition_index=place.partition, timestamp=at)
                by_leader.setdefault(leader, {}).setdefault(place.topic, []).append(asked)
        requests = []
        for leader, by_topic in by_leader.items():
            request = ListOffsetsRequest(
                isolation_level=int(self._options.read_committed),
                topics=[ListOffsetsTopic(name=n, partitions=p) for n, p in by_topic.items()],
            )
            requests.append((leader, request, None))
        failure: ClientError | None = None
        for response in request_all(requests):
            if isinstance(response, ClientError):
                failure = response
            for topic in response.topics if isinstance(response, ListOffsetsResponse) else ():
                for answer in topic.partitions:
                    place = TopicPartition(topic.name, PartitionIndex(answer.partition_index))
                    if not answer.error_code:
                        found[place] = answer.offset
                    elif answer.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                        failure = NotFoundError(f"{place} does not exist any more")
                    else:
                        failure = _rejected(f"cannot list offsets of {place}", answer.error_code)
        if failure is not None:
            raise failure

    def commit(self, group: str, offsets: Offsets) -> None:
        """The progress of a query as offsets of a group: `moldau group lag` shows its lag.

        The group has no members: nothing is assigned by it, and Spark's checkpoint alone says where
        a query goes on. Raises InvalidArgumentError if others are members.
        """
        known, asked = self.client.any_broker(), FindCoordinatorRequest(key=group)
        version = min(known.version_for(asked), _SINGLE_KEY)
        found = known.ask(asked, FindCoordinatorResponse, version)
        _check_commit(found.error_code, group, "its coordinator")
        topics: dict[str, OffsetCommitRequestTopic] = {}
        for place, offset in offsets.items():
            topic = OffsetCommitRequestTopic(name=place.topic, partitions=[])
            topics.setdefault(place.topic, topic).partitions.append(
                OffsetCommitRequestPartition(
                    partition_index=place.partition, committed_offset=offset, committed_metadata=""
                )
            )
        request = OffsetCommitRequest(group_id=group, member_id="", topics=list(topics.values()))
        coordinator = self.client.connection(found.host, found.port)
        version = min(coordinator.version_for(request), _BY_NAME)
        response = coordinator.ask(request, OffsetCommitResponse, version)
        for each in response.topics:
            for answer in each.partitions:
                _check_commit(answer.error_code, group, f"{each.name}-{answer.partition_index}")

    def _patiently(self, attempt: Callable[[], T], doing: str) -> T:
        return retry(
            attempt, forget=self._forget_all, seconds_max=self._options.timeout_seconds, doing=doing
        )

    def _forget_all(self) -> None:
        for topic in self._seen:
            self.client.forget(topic)


def _check_commit(code: int, group: str, what: str) -> None:
    if not code or code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        # A partition that was deleted meanwhile has no lag.
        return
    if code in _GROUP_TAKEN:
        said = f"the group {group} has members, so a query cannot commit for it"
        raise InvalidArgumentError(f"{said}: choose another groupId")
    raise _rejected(f"option groupId: cannot commit {what} for group {group}", code)


def _rejected(what: str, code: int) -> RejectedError:
    return RejectedError(f"{what}: {RejectedError('', code).name}", code)


# -- what options mean


def places_of(topics: Mapping[str, TopicView]) -> list[TopicPartition]:
    return [
        TopicPartition(topic, PartitionIndex(partition))
        for topic, view in topics.items()
        for partition in view.partitions
    ]


def ids_of(topics: Mapping[str, TopicView]) -> dict[str, int]:
    return {topic: view.id for topic, view in topics.items() if view.id is not None}


def starting_offsets(
    options: ReadOptions, cluster: SourceClient, places: list[TopicPartition]
) -> Offsets:
    """Where to begin. Raises InvalidArgumentError, and DataLossError for deleted offsets."""
    bound = options.start
    found, without = _resolved(bound, cluster, places)
    if without and not options.latest_without_match:
        raise InvalidArgumentError(
            f"no record of {without[0]} is as young as option {bound.option} asks for",
            hint="to begin with what comes next there, set option "
            "startingOffsetsByTimestampStrategy to latest",
        )
    if bound.named is None or bound.is_time:
        return found
    # Offsets that were given as numbers may be gone, or never have been there.
    first, end = cluster.earliest(found), cluster.latest(found)
    for place, offset in found.items():
        if not first[place] <= offset <= end[place]:
            lost(
                f"option {bound.option} asks for offset {offset} of {place}, which has "
                f"{first[place]} to {end[place] - 1}",
                fail=options.fail_on_data_loss,
            )
    return {place: min(max(at, first[place]), end[place]) for place, at in found.items()}


def ending_offsets(
    options: ReadOptions, cluster: SourceClient, places: list[TopicPartition]
) -> Offsets:
    """Where a batch ends: before the first record that is not read."""
    found, _ = _resolved(options.end, cluster, places)
    if options.end.named is not None and not options.end.is_time:
        for place, end in cluster.latest(places).items():
            if found[place] > end:
                raise InvalidArgumentError(
                    f"option endingOffsets asks for {place} up to {found[place]}, "
                    f"which ends at {end}"
                )
    return found


def _resolved(
    bound: Bound, cluster: SourceClient, places: list[TopicPartition]
) -> tuple[Offsets, list[TopicPartition]]:
    """Offsets, and the places where no record is as young as asked for: these have the latest."""
    wanted = _for_each(bound, places)
    asked = {place: at for place, at in wanted.items() if bound.is_time or at < 0}
    found = wanted | cluster.offsets(asked)
    without = [place for place in places if found[place] == NO_OFFSET]
    return found | cluster.latest(without), without


def _for_each(bound: Bound, places: list[TopicPartition]) -> Offsets:
    """The number of each partition; options that name some must name all."""
    if bound.named is None:
        return dict.fromkeys(places, bound.everywhere)
    missing = [place for place in places if place not in bound.named]
    unknown = sorted(bound.named.keys() - set(places))
    if missing:
        raise InvalidArgumentError(
            f"option {bound.option} names partitions, so it must name all that are read; "
            f"{missing[0]} is missing",
            hint="-1 is the latest offset, -2 the earliest",
        )
    if unknown:
        raise InvalidArgumentError(
            f"option {bound.option} names {unknown[0]}, which is not among what is read"
        )
    return dict(bound.named)
