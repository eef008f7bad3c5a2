"""Resolves subscriptions, by name and by pattern, to existing topics.

The coordinator sees the cluster's topics through `TopicSource`. A pattern is matched once against
each name: when topics are created, only the new names are matched.
"""

from collections.abc import Collection, Iterable, Mapping
from hashlib import blake2b
from typing import Final, NamedTuple, Protocol

from moldau.groups.assignors.interface import Assignment
from moldau.groups.consumer.patterns import Budget, Pattern, PatternError
from moldau.groups.consumer.records import ConsumerMember
from moldau.groups.consumer_protocol import Partitions
from moldau.model.ids import TopicId

_PATTERNS_KEPT_MAX: Final = 1_000


class TopicSize(NamedTuple):
    topic_id: TopicId
    partitions: int


class TopicSource(Protocol):
    """The topics of the cluster, as this broker knows them."""

    @property
    def version(self) -> int:
        """Changes whenever a topic is created, deleted or gets partitions."""
        ...

    def topic(self, name: str) -> TopicSize | None: ...

    def names(self) -> Collection[str]:
        """Topics that a pattern may match: all but internal ones."""
        ...


class _Matched:
    __slots__ = ("found", "matched_names", "pattern", "version")

    def __init__(self, pattern: Pattern) -> None:
        self.pattern = pattern
        self.version: int | None = None
        self.matched_names: frozenset[str] = frozenset()
        self.found: frozenset[str] = frozenset()


class Subscriptions:
    """Resolves the subscriptions of members; its state is only a cache."""

    def __init__(self, source: TopicSource) -> None:
        self.source = source
        self._patterns: dict[str, _Matched] = {}

    def check(self, pattern: str) -> None:
        """Raises PatternError if the pattern cannot be used."""
        self._matching(pattern)

    def names(self, member: ConsumerMember) -> frozenset[str]:
        """All topics that the member subscribes to, existing or not."""
        wanted = frozenset(member.topics)
        if not member.pattern:
            return wanted
        try:
            return wanted | self._matching(member.pattern)
        except PatternError:
            # It was valid when the member joined. Matching it against the topics of today exceeds
            # the limit, so the member keeps the previous matches.
            known = self._patterns.get(member.pattern)
            return wanted | (known.found if known is not None else frozenset())

    def sizes(self, names: Iterable[str]) -> dict[TopicId, int]:
        """Existing topics, with the number of their partitions."""
        found = (self.source.topic(name) for name in names)
        return {topic.topic_id: topic.partitions for topic in found if topic is not None}

    def ids(self, names: Iterable[str]) -> frozenset[TopicId]:
        return frozenset(self.sizes(names))

    def by_id(self, partitions: Partitions) -> dict[TopicId, frozenset[int]]:
        """Existing partitions only."""
        found: dict[TopicId, frozenset[int]] = {}
        for name, indexes in partitions.items():
            topic = self.source.topic(name)
            if topic is not None:
                existing = frozenset(index for index in indexes if 0 <= index < topic.partitions)
                if existing:
                    found[topic.topic_id] = existing
        return found

    def by_name(self, member: ConsumerMember, assigned: Assignment) -> dict[str, frozenset[int]]:
        """The assignment, limited to existing topics that the member subscribes to."""
        found = {}
        for name in self.names(member):
            topic = self.source.topic(name)
            if topic is not None and topic.topic_id in assigned:
                found[name] = assigned[topic.topic_id]
        return found

    def all_names(self, members: Mapping[str, ConsumerMember]) -> frozenset[str]:
        distinct = {self.names(member) for member in members.values()}
        return frozenset().union(*distinct)

    def hash(self, names: Iterable[str]) -> int:
        """Changes when one of the topics is created, deleted, recreated or gets partitions."""
        digest = blake2b(digest_size=8)
        for name in sorted(names):
            topic = self.source.topic(name)
            if topic is not None:
                digest.update(topic.topic_id + topic.partitions.to_bytes(4, "big"))
        return int.from_bytes(digest.digest(), "big", signed=True)

    def _matching(self, text: str) -> frozenset[str]:
        known = self._patterns.get(text)
        if known is None:
            known = _Matched(Pattern(text))
            if len(self._patterns) >= _PATTERNS_KEPT_MAX:
                self._patterns.clear()
        if known.version != self.source.version:
            names = frozenset(self.source.names())
            new = names - known.matched_names
            found = known.pattern.matching(sorted(new), Budget(len(new)))
            known.found = (known.found & names) | found
            known.matched_names = names
            known.version = self.source.version
        self._patterns[text] = known
        return known.found
