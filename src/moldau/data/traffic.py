"""Counts what clients wrote to and read from each topic on this broker since its start.

Counted per topic and not per partition: a sum must not fall when a partition moves to another
broker, which would look like a restart in rates.
"""

from collections.abc import Container
from typing import Final


class Traffic:
    """Counters that only rise. The hot paths add to them directly."""

    __slots__ = ("read_bytes", "read_records", "written_bytes", "written_records")

    def __init__(self) -> None:
        self.written_bytes = 0
        self.written_records = 0
        self.read_bytes = 0
        self.read_records = 0
        """By offsets, so records removed by compaction are included."""

    def counts(self) -> tuple[int, int, int, int]:
        return self.written_bytes, self.written_records, self.read_bytes, self.read_records

    def include(self, other: "Traffic") -> None:
        self.written_bytes += other.written_bytes
        self.written_records += other.written_records
        self.read_bytes += other.read_bytes
        self.read_records += other.read_records


class TopicTraffic:
    """The counters of all existing topics that were served here."""

    def __init__(self) -> None:
        self._by_topic: dict[str, Traffic] = {}
        self._deleted: Final = Traffic()

    def of(self, topic: str) -> Traffic:
        return self._by_topic.setdefault(topic, Traffic())

    def written(self) -> dict[str, tuple[int, int]]:
        """Bytes and records that were written, by topic."""
        return {
            topic: (traffic.written_bytes, traffic.written_records)
            for topic, traffic in self._by_topic.items()
        }

    def total(self) -> Traffic:
        """Over all topics, deleted ones included."""
        total = Traffic()
        total.include(self._deleted)
        for traffic in self._by_topic.values():
            total.include(traffic)
        return total

    def retain_only(self, topics: Container[str]) -> None:
        """Merges the counters of all other topics, which were deleted, into the total."""
        for topic in [topic for topic in self._by_topic if topic not in topics]:
            self._deleted.include(self._by_topic.pop(topic))
