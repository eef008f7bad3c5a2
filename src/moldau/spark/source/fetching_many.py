"""Owns the fetching of many small ranges at once: one request per leader, to all leaders together.

A micro-batch of a topic with hundreds of partitions has a few rows of each, and a request for each
would take longer than all the rest. Whatever does not come in that way, because a leader changed or
rows were deleted, is left to `RangeFetcher`, one range after another.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from moldau.client.errors import NotFoundError, RejectedError, TimedOutError, UnreachableError
from moldau.client.kafka.client import KafkaClient
from moldau.client.kafka.connection import KafkaConnection, ask_all
from moldau.spark.source.bodies import Bodies
from moldau.spark.source.fetching import (
    FetchLimits,
    RangeFetcher,
    Taken,
    fetch_request,
    fetch_version,
    first_bytes_max,
    free_leader,
    layout_of,
)
from moldau.spark.source.planning import OffsetRange
from moldau.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchResponsePartition,
    FetchTopic,
)

_FIRST_BYTES_MIN: Final = 32 * 1024
_Place = tuple[str, int]


@dataclass(slots=True)
class _Part:
    """What is left to read of a range."""

    planned: OffsetRange
    position: int

    @property
    def place(self) -> _Place:
        return self.planned.topic, self.planned.partition


def fetch_many(
    client: KafkaClient, ranges: Iterable[OffsetRange], limits: FetchLimits
) -> Iterator[tuple[OffsetRange, Bodies]]:
    """The records of all ranges, each from the offset on where its last ended."""
    waiting = [_Part(planned, planned.start) for planned in ranges]
    alone: list[_Part] = []
    while waiting:
        asked: dict[_Place, _Part] = {}
        for part in waiting:
            asked.setdefault(part.place, part)
        # A partition can stand in a request once only.
        later = [part for part in waiting if asked[part.place] is not part]
        answers = _answers(client, asked.values(), limits)
        unserved: list[_Part] = []
        unfinished: list[_Part] = []
        has_come = False
        for place, part in asked.items():
            answer = answers.get(place)
            if answer is None or answer.error_code:
                alone.append(part)
                continue
            taken = Taken(part.planned, part.position, answer)
            if taken.is_empty:
                unserved.append(part)
                continue
            for bodies in taken.bodies(read_committed=limits.read_committed):
                yield part.planned, bodies
            has_come = True
            part.position = taken.position
            if part.position < part.planned.end:
                unfinished.append(part)
        if not has_come:
            # So it was not for want of room in the answer.
            alone += unserved
            unserved = []
        # Those that an answer had no room for come first in the next.
        waiting = [*unserved, *later, *unfinished]
    for part in alone:
        rest = replace(part.planned, start=part.position)
        for bodies in RangeFetcher(client, rest, limits):
            yield part.planned, bodies


class _Asked:
    """What goes to one leader."""

    def __init__(self, connection: KafkaConnection) -> None:
        self.connection = connection
        self._topics: dict[str, FetchTopic] = {}
        self._names: dict[bytes, str] = {}

    def add(self, part: _Part, topic_id: bytes, bytes_max: int) -> None:
        name = part.planned.topic
        topic = self._topics.setdefault(
            name, FetchTopic(topic=name, topic_id=topic_id, partitions=[])
        )
        self._names[topic_id] = name
        topic.partitions.append(
            FetchPartition(
                partition=part.planned.partition,
                fetch_offset=part.position,
                partition_max_bytes=first_bytes_max(part.planned, _FIRST_BYTES_MIN, bytes_max),
            )
        )

    def request(self, limits: FetchLimits) -> tuple[KafkaConnection, FetchRequest, int]:
        request = fetch_request(
            list(self._topics.values()), bytes_max=limits.bytes_max, limits=limits
        )
        return self.connection, request, fetch_version(self.connection, request, self._names)

    def answered(self, response: FetchResponse) -> Iterator[tuple[_Place, FetchResponsePartition]]:
        for topic in response.topics:
            name = topic.topic or self._names.get(topic.topic_id, "")
            for partition in topic.partitions:
                yield (name, partition.partition_index), partition


def _answers(
    client: KafkaClient, parts: Iterable[_Part], limits: FetchLimits
) -> dict[_Place, FetchResponsePartition]:
    """What came at once; nothing of those whose leader is not there, or not theirs any more."""
    by_leader: dict[int, _Asked] = {}
    for part in parts:
        try:
            layout = layout_of(client, part.planned)
            connection = client.leader(part.planned.topic, part.planned.partition)
            if id(connection) not in by_leader:
                connection = free_leader(client, part.planned)
                by_leader[id(connection)] = _Asked(connection)
        except (NotFoundError, RejectedError, UnreachableError, TimedOutError):
            continue
        by_leader[id(connection)].add(part, bytes(layout.topic_id), limits.bytes_max)
    leaders = list(by_leader.values())
    found: dict[_Place, FetchResponsePartition] = {}
    for leader, response in zip(
        leaders, ask_all([leader.request(limits) for leader in leaders]), strict=True
    ):
        if isinstance(response, FetchResponse) and not response.error_code:
            found.update(leader.answered(response))
    return found
