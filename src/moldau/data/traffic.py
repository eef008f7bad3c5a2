"""Owns how much clients wrote to and read from each topic at this broker, since it started.

Counted per topic and not per partition: one that moves to another broker must not make a sum
smaller, which would look like a restart to whoever computes rates.
"""

from collections.abc import Container
from typing import Final


class Traffic:
    """Counters that only rise. Whoever moves records adds to them by itself: it is the hot path."""

    __slots__ = ("read_bytes", "read_records", "written_bytes", "written_records")

    def __init__(self) -> None:
        self.written_bytes = 0
        self.written_records = 0
        self.read_bytes = 0
        self.read_records = 0
        """By offsets: what compaction removed in between is counted too."""

    def include(self, other: "Traffic") -> None:
        self.written_bytes += other.written_bytes
        self.written_records += other.written_records
        self.read_bytes += other.read_bytes
        self.read_records += other.read_records


class TopicTraffic:
    """The counters of all topics that were ever served here, and exist."""

    def __init__(self) -> None:
        self._by_topic: dict[str, Traffic] = {}
        self._gone: Final = Traffic()

    def of(self, topic: str) -> Traffic:
        return self._by_topic.setdefault(topic, Traffic())

    def total(self) -> Traffic:
        """Over all topics, also those that are gone."""
        total = Traffic()
        total.include(self._gone)
        for traffic in self._by_topic.values():
            total.include(traffic)
        return total

    def forget_all_but(self, topics: Container[str]) -> None:
        """Deleted ones stay in the total."""
        for topic in [topic for topic in self._by_topic if topic not in topics]:
            self._gone.include(self._by_topic.pop(topic))
