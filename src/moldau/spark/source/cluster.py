"""Owns the questions to brokers that a plan needs: which partitions there are, which offsets."""

import re
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final, NamedTuple, TypeVar

from moldau.client.errors import (
    ClientError,
    NotFoundError,
    RejectedError,
)
from moldau.client.kafka.client import KafkaClient
from moldau.client.kafka.connection import KafkaConnection, ask_all
from moldau.client.kafka.retrying import MOVED, patiently
from moldau.model.errors import ErrorCode
from moldau.model.ids import PartitionIndex, TopicPartition
from moldau.spark.source.positions import short_id
from moldau.spark.source.read_options import ReadOptions, Subscription
from moldau.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from moldau.wire.messages.metadata import MetadataResponse
from moldau.wire.schema import Request

TIMESTAMP_LATEST: Final = -1
TIMESTAMP_EARLIEST: Final = -2
NO_OFFSET: Final = -1

_RETRY_SECONDS: Final = 0.1
_MISSING_RETRIES: Final = 5
_REQUEST_SECONDS_MAX: Final = 10.0
"""A broker that takes longer hangs; another one may answer within the time that is left."""
_ASKED_BY_NAME_MAX: Final = 8
"""More topics than that are found by asking for all at once."""
PASSING: Final = MOVED
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


class Cluster:
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
        found = self._existing(asked)
        if asked.pattern is not None:
            return found
        names = asked.assigned or asked.topics
        for _ in range(_MISSING_RETRIES):
            # A broker that has just started may not have heard of all topics yet.
            if all(topic in found for topic in names):
                break
            time.sleep(_RETRY_SECONDS)
            found = self._existing(asked)
        missing = [topic for topic in names if topic not in found]
        if missing and not missing_is_fine:
            raise NotFoundError(
                f"there is no topic {', '.join(missing)}: see option {asked.option}",
                hint=f"create it first: moldau topic create {missing[0]}",
            )
        if asked.assigned is None:
            return found
        return {
            topic: _chosen(topic, found[topic], partitions)
            for topic, partitions in asked.assigned.items()
            if topic in found
        }

    def _existing(self, asked: Subscription) -> dict[str, TopicView]:
        """Those of the topics asked for that exist."""
        names = tuple(asked.assigned or asked.topics)
        if asked.pattern is None and len(names) <= _ASKED_BY_NAME_MAX:
            answers = [
                self._patiently(partial(self._metadata, name), f"find topic {name}")
                for name in names
            ]
        else:
            answers = [self._patiently(partial(self._metadata, None), "list topics")]
        pattern = None if asked.pattern is None else re.compile(asked.pattern)
        found = {}
        for topic in (topic for answer in answers for topic in answer.topics):
            if topic.name is None or topic.error_code:
                continue
            if pattern is not None and (topic.is_internal or not pattern.fullmatch(topic.name)):
                continue
            if pattern is None and topic.name not in names:
                continue
            partitions = tuple(sorted(p.partition_index for p in topic.partitions))
            self._seen.add(topic.name)
            found[topic.name] = TopicView(short_id(topic.topic_id), partitions)
        return found

    def _metadata(self, name: str | None) -> MetadataResponse:
        answer = self.client.metadata(name)
        for topic in answer.topics:
            if topic.error_code in PASSING:
                raise RejectedError(f"topic {topic.name} is not ready", topic.error_code)
        return answer

    def latest(self, places: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Where each ends, for readers of committed records where an open transaction begins."""
        return self.offsets(dict.fromkeys(places, TIMESTAMP_LATEST))

    def earliest(self, places: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return self.offsets(dict.fromkeys(places, TIMESTAMP_EARLIEST))

    def offsets(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """The first offset at or after each time in ms; NO_OFFSET where there is none."""
        found: dict[TopicPartition, int] = {}

        def ask_the_rest() -> None:
            left = {place: at for place, at in times.items() if place not in found}
            self._ask_offsets(left, found)

        if times:
            self._patiently(ask_the_rest, "list offsets")
        return found

    def _ask_offsets(
        self, times: Mapping[TopicPartition, int], found: dict[TopicPartition, int]
    ) -> None:
        """One request per leader; what was answered stands in `found` even if others fail."""
        by_leader: dict[int, tuple[KafkaConnection, list[TopicPartition]]] = {}
        for place in times:
            leader = self.client.leader(place.topic, place.partition)
            by_leader.setdefault(id(leader), (leader, []))[1].append(place)
        asked: list[tuple[KafkaConnection, Request, int | None]] = []
        for leader, places in by_leader.values():
            topics: dict[str, list[ListOffsetsPartition]] = {}
            for place in places:
                topics.setdefault(place.topic, []).append(
                    ListOffsetsPartition(partition_index=place.partition, timestamp=times[place])
                )
            request = ListOffsetsRequest(
                isolation_level=int(self._options.read_committed),
                topics=[ListOffsetsTopic(name=n, partitions=p) for n, p in topics.items()],
            )
            asked.append((leader, request, None))
        failure: ClientError | None = None
        for response in ask_all(asked):
            if not isinstance(response, ListOffsetsResponse):
                failure = response if isinstance(response, ClientError) else failure
                continue
            for topic in response.topics:
                for answer in topic.partitions:
                    place = TopicPartition(topic.name, PartitionIndex(answer.partition_index))
                    if not answer.error_code:
                        found[place] = answer.offset
                    else:
                        failure = _failure(place, answer.error_code)
        if failure is not None:
            raise failure

    def _patiently(self, attempt: Callable[[], T], doing: str) -> T:
        return patiently(
            attempt,
            forget=self._forget_all,
            seconds_max=self._options.timeout_seconds,
            doing=doing,
        )

    def _forget_all(self) -> None:
        for topic in self._seen:
            self.client.forget(topic)


def _chosen(topic: str, view: TopicView, partitions: tuple[int, ...]) -> TopicView:
    missing = [partition for partition in partitions if partition not in view.partitions]
    if missing:
        raise NotFoundError(
            f"{topic} has partitions 0 to {len(view.partitions) - 1}, not {missing[0]}: "
            "see option assign"
        )
    return TopicView(view.id, partitions)


def _failure(place: TopicPartition, code: int) -> ClientError:
    if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return NotFoundError(f"{place} does not exist any more")
    error = RejectedError("", code)
    return RejectedError(f"cannot list offsets of {place}: {error.name}", code)
