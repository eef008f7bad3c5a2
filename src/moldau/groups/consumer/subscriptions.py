"""Owns what members want in terms of topics that exist: names and patterns, and a hash over both.

The topics are the metadata's; the coordinator sees them through `TopicSource`. A pattern is matched
once against each name: when topics come, only the new names are looked at.
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
        """Another one whenever a topic was created, deleted or has grown."""
        ...

    def topic(self, name: str) -> TopicSize | None: ...

    def names(self) -> Collection[str]:
        """Those that a pattern may match: internal ones are not among them."""
        ...


class NoTopics:
    """Where there are none."""

    version: Final = 0

    def topic(self, name: str) -> TopicSize | None:
        return None

    def names(self) -> Collection[str]:
        return ()


class _Matched:
    __slots__ = ("found", "looked_at", "pattern", "version")

    def __init__(self, pattern: Pattern) -> None:
        self.pattern = pattern
        self.version: int | None = None
        self.looked_at: frozenset[str] = frozenset()
        self.found: frozenset[str] = frozenset()


class Subscriptions:
    """Resolves what members want. Holds no state that cannot be made again."""

    def __init__(self, source: TopicSource) -> None:
        self.source = source
        self._patterns: dict[str, _Matched] = {}

    def check(self, pattern: str) -> None:
        """Raises PatternError if the pattern cannot be used."""
        self._matching(pattern)

    def names(self, member: ConsumerMember) -> frozenset[str]:
        """All topics that the member wants, be it that they do not exist."""
        wanted = frozenset(member.topics)
        if not member.pattern:
            return wanted
        try:
            return wanted | self._matching(member.pattern)
        except PatternError:
            # It was good when the member joined. With the topics of today it takes too much work,
            # and the member keeps what was found before.
            known = self._patterns.get(member.pattern)
            return wanted | (known.found if known is not None else frozenset())

    def sizes(self, names: Iterable[str]) -> dict[TopicId, int]:
        """Those that exist, with the number of their partitions."""
        found = (self.source.topic(name) for name in names)
        return {topic.topic_id: topic.partitions for topic in found if topic is not None}

    def ids(self, names: Iterable[str]) -> frozenset[TopicId]:
        return frozenset(self.sizes(names))

    def by_id(self, partitions: Partitions) -> dict[TopicId, frozenset[int]]:
        """Those that exist."""
        found: dict[TopicId, frozenset[int]] = {}
        for name, indexes in partitions.items():
            topic = self.source.topic(name)
            if topic is not None:
                existing = frozenset(index for index in indexes if 0 <= index < topic.partitions)
                if existing:
                    found[topic.topic_id] = existing
        return found

    def by_name(self, member: ConsumerMember, assigned: Assignment) -> dict[str, frozenset[int]]:
        """What a member is assigned, of topics that it wants and that exist."""
        found = {}
        for name in self.names(member):
            topic = self.source.topic(name)
            if topic is not None and topic.topic_id in assigned:
                found[name] = assigned[topic.topic_id]
        return found

    def wanted(self, members: Mapping[str, ConsumerMember]) -> frozenset[str]:
        distinct = {self.names(member) for member in members.values()}
        return frozenset().union(*distinct)

    def hash(self, names: Iterable[str]) -> int:
        """Another one when a wanted topic comes, goes, is made anew or grows."""
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
            new = names - known.looked_at
            found = known.pattern.matching(sorted(new), Budget(len(new)))
            known.found = (known.found & names) | found
            known.looked_at = names
            known.version = self.source.version
        self._patterns[text] = known
        return known.found
