"""Broker requests for planning a read: topics, offsets, start and end, and group commits."""

import re
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final, NamedTuple, TypeVar

from moldau.client.errors import ClientError, InvalidArgumentError, NotFoundError, RejectedError
from moldau.client.retry import RETRIABLE_CODES, retry
from moldau.client.wire.connection import KafkaConnection, request_all
from moldau.model.errors import ErrorCode
from moldau.model.ids import PartitionIndex, TopicPartition
from moldau.spark.source.positions import report_data_loss, short_id
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
REQUEST_SECONDS_MAX: Final = 10.0
"""After this, a broker counts as hanging, and another one may respond within the deadline."""
_LOOKUPS_BY_NAME_MAX: Final = 8
"""For more topics, one request lists all."""
_GROUP_TAKEN: Final = (
    *(ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION, ErrorCode.STALE_MEMBER_EPOCH),
    *(ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.FENCED_MEMBER_EPOCH),
)
GROUP_REFUSED: Final = (
    *(ErrorCode.INVALID_GROUP_ID, ErrorCode.GROUP_AUTHORIZATION_FAILED),
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
)
"""Permanent errors: the query fails."""
_BY_NAME: Final = 9
"""The last version of OffsetCommit with topic names."""
_SINGLE_KEY: Final = 3
"""The last version of FindCoordinator for a single group."""

Offsets = dict[TopicPartition, int]
T = TypeVar("T")


class TopicView(NamedTuple):
    """The id and the partitions of a topic."""

    id: int | None
    partitions: tuple[int, ...]


class SourceClient:
    """Sends requests for one read. Retries until the deadline of the options."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._seen: set[str] = set()
        self.client = options.new_client(request_seconds_max=REQUEST_SECONDS_MAX)

    def close(self) -> None:
        self.client.close()

    def topics(self, *, missing_is_fine: bool = False) -> dict[str, TopicView]:
        """The subscribed topics. Raises NotFoundError if a topic or partition does not exist.

        With `missing_is_fine`, missing topics are left out.
        """
        subscription = self._options.subscription
        names = tuple(subscription.assigned or subscription.topics)
        for seconds in (0.0, *[_RETRY_SECONDS] * _MISSING_RETRIES):
            # A broker that has just started may not know all topics yet.
            time.sleep(seconds)
            found, missing = self._existing(names)
            if not missing:
                break
        if missing and not missing_is_fine:
            raise NotFoundError(
                f"unknown topic {', '.join(missing)}: see option {subscription.option}",
                hint=f"create it first: moldau topic create {missing[0]}",
            )
        for topic in found if subscription.assigned else ():
            view, partitions = found[topic], (subscription.assigned or {})[topic]
            if unknown := sorted(set(partitions) - set(view.partitions)):
                raise NotFoundError(
                    f"unknown partition {unknown[0]} of {topic}, which has partitions 0 to "
                    f"{len(view.partitions) - 1}: see option assign"
                )
            found[topic] = TopicView(view.id, partitions)
        return found

    def _existing(self, names: tuple[str, ...]) -> tuple[dict[str, TopicView], list[str]]:
        """The requested topics that exist, and the names of those that do not."""
        pattern = self._options.subscription.pattern
        found = {}
        for name in names if 0 < len(names) <= _LOOKUPS_BY_NAME_MAX else (None,):
            doing = "list topics" if name is None else f"find topic {name}"
            for topic in self._retry(partial(self._metadata, name), doing).topics:
                is_wanted = topic.name in names
                if pattern is not None and topic.name is not None and not topic.is_internal:
                    is_wanted = re.fullmatch(pattern, topic.name) is not None
                if topic.name is not None and is_wanted and not topic.error_code:
                    partitions = tuple(sorted(each.partition_index for each in topic.partitions))
                    found[topic.name] = TopicView(short_id(topic.topic_id), partitions)
        self._seen.update(found)
        return found, [name for name in names if name not in found]

    def _metadata(self, name: str | None) -> MetadataResponse:
        response = self.client.metadata(name)
        for topic in response.topics:
            if topic.error_code in RETRIABLE_CODES:
                raise RejectedError(f"topic {topic.name} is not ready", topic.error_code)
            if topic.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
                raise _rejected(f"cannot read topic {topic.name}", topic.error_code)
        return response

    def latest(self, partitions: Iterable[TopicPartition]) -> Offsets:
        """The high watermarks; with read_committed the last stable offsets."""
        return self.offsets(dict.fromkeys(partitions, LATEST))

    def earliest(self, partitions: Iterable[TopicPartition]) -> Offsets:
        return self.offsets(dict.fromkeys(partitions, EARLIEST))

    def offsets(self, times: Mapping[TopicPartition, int]) -> Offsets:
        """The first offset at or after each timestamp in ms; NO_OFFSET where there is none."""
        found: Offsets = {}
        if times:
            self._retry(partial(self._list_offsets, times, found), "list offsets")
        return found

    def _list_offsets(self, times: Mapping[TopicPartition, int], found: Offsets) -> None:
        """Adds what is missing in `found`, by one request per leader, even if others fail."""
        by_leader: dict[KafkaConnection, dict[str, list[ListOffsetsPartition]]] = {}
        for tp, timestamp in times.items():
            if tp not in found:
                leader = self.client.leader(tp.topic, tp.partition)
                wanted = ListOffsetsPartition(partition_index=tp.partition, timestamp=timestamp)
                by_leader.setdefault(leader, {}).setdefault(tp.topic, []).append(wanted)
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
                for result in topic.partitions:
                    tp = TopicPartition(topic.name, PartitionIndex(result.partition_index))
                    if not result.error_code:
                        found[tp] = result.offset
                    elif result.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                        failure = NotFoundError(f"{tp} was deleted")
                    else:
                        failure = _rejected(f"cannot list offsets of {tp}", result.error_code)
        if failure is not None:
            raise failure

    def commit(self, group: str, offsets: Offsets) -> None:
        """Commits the progress of a query as offsets of a group, so `moldau group lag` shows it.

        The group has no members: Spark's checkpoint alone says where a query continues. Raises
        InvalidArgumentError if the group has members.
        """
        broker, lookup = self.client.any_broker(), FindCoordinatorRequest(key=group)
        version = min(broker.version_for(lookup), _SINGLE_KEY)
        found = broker.request(lookup, FindCoordinatorResponse, version)
        _check_commit(found.error_code, group, "offsets")
        topics: dict[str, OffsetCommitRequestTopic] = {}
        for tp, offset in offsets.items():
            topic = OffsetCommitRequestTopic(name=tp.topic, partitions=[])
            topics.setdefault(tp.topic, topic).partitions.append(
                OffsetCommitRequestPartition(
                    partition_index=tp.partition, committed_offset=offset, committed_metadata=""
                )
            )
        request = OffsetCommitRequest(group_id=group, member_id="", topics=list(topics.values()))
        coordinator = self.client.connection(found.host, found.port)
        version = min(coordinator.version_for(request), _BY_NAME)
        response = coordinator.request(request, OffsetCommitResponse, version)
        for each in response.topics:
            for result in each.partitions:
                _check_commit(result.error_code, group, f"{each.name}-{result.partition_index}")

    def _retry(self, attempt: Callable[[], T], doing: str) -> T:
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
        raise InvalidArgumentError(
            f"cannot commit offsets for group {group}, which has members: use another groupId"
        )
    raise _rejected(f"option groupId: cannot commit {what} for group {group}", code)


def _rejected(what: str, code: int) -> RejectedError:
    return RejectedError(f"{what}: {RejectedError('', code).name}", code)


# -- start and end


def partitions_of(topics: Mapping[str, TopicView]) -> list[TopicPartition]:
    return [
        TopicPartition(topic, PartitionIndex(partition))
        for topic, view in topics.items()
        for partition in view.partitions
    ]


def ids_of(topics: Mapping[str, TopicView]) -> dict[str, int]:
    return {topic: view.id for topic, view in topics.items() if view.id is not None}


def starting_offsets(
    options: ReadOptions, client: SourceClient, partitions: list[TopicPartition]
) -> Offsets:
    """Where to start. Raises InvalidArgumentError, and DataLossError for deleted offsets."""
    bound = options.start
    found, without = _resolved(bound, client, partitions)
    if without and not options.latest_without_match:
        raise InvalidArgumentError(
            f"{without[0]} has no record at or after the time of option {bound.option}",
            hint="to start with the next record there, set option "
            "startingOffsetsByTimestampStrategy to latest",
        )
    if bound.named is None or bound.is_time:
        return found
    # Offsets given as numbers may have been deleted, or may never have existed.
    first, end = client.earliest(found), client.latest(found)
    for tp, offset in found.items():
        if not first[tp] <= offset <= end[tp]:
            report_data_loss(
                f"option {bound.option} names offset {offset} of {tp}, which has offsets "
                f"{first[tp]} to {end[tp] - 1}",
                fail=options.fail_on_data_loss,
            )
    return {tp: min(max(at, first[tp]), end[tp]) for tp, at in found.items()}


def ending_offsets(
    options: ReadOptions, client: SourceClient, partitions: list[TopicPartition]
) -> Offsets:
    """Where a batch read ends, exclusive."""
    found, _ = _resolved(options.end, client, partitions)
    if options.end.named is not None and not options.end.is_time:
        for tp, end in client.latest(partitions).items():
            if found[tp] > end:
                raise InvalidArgumentError(
                    f"option endingOffsets names offset {found[tp]} of {tp}, which ends at {end}"
                )
    return found


def _resolved(
    bound: Bound, client: SourceClient, partitions: list[TopicPartition]
) -> tuple[Offsets, list[TopicPartition]]:
    """Offsets, and the partitions without a record as recent as wanted: they get the latest."""
    wanted = _for_each(bound, partitions)
    lookups = {tp: at for tp, at in wanted.items() if bound.is_time or at < 0}
    found = wanted | client.offsets(lookups)
    without = [tp for tp in partitions if found[tp] == NO_OFFSET]
    return found | client.latest(without), without


def _for_each(bound: Bound, partitions: list[TopicPartition]) -> Offsets:
    """The number for each partition; an option that names some must name all."""
    if bound.named is None:
        return dict.fromkeys(partitions, bound.everywhere)
    missing = [tp for tp in partitions if tp not in bound.named]
    unknown = sorted(bound.named.keys() - set(partitions))
    if missing:
        raise InvalidArgumentError(
            f"option {bound.option} must name every partition that is read; {missing[0]} is "
            "missing",
            hint="-1 is the latest offset, -2 the earliest",
        )
    if unknown:
        raise InvalidArgumentError(f"option {bound.option} names {unknown[0]}, which is not read")
    return dict(bound.named)
