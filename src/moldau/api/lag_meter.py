"""How far a committed offset is behind the end of its partition: in records, and in seconds."""

from moldau.api.lag_history import LagHistory
from moldau.api.leader_ends import LeaderEnds
from moldau.api.local_replicas import LocalReplica, LocalReplicas
from moldau.model.clock import Clock
from moldau.model.ids import TopicPartition


class LagMeter:
    """One reading of many positions, at one time."""

    def __init__(
        self, replicas: LocalReplicas, clock: Clock, history: LagHistory, ends: LeaderEnds
    ) -> None:
        self._replicas = replicas
        self._clock = clock
        self._history = history
        self._ends = ends
        self._now = clock.monotonic()

    def position(
        self, partition: TopicPartition, committed: int
    ) -> tuple[int | None, float | None]:
        """The high watermark, and how long ago `committed` was there; None: not known."""
        replica = self._replicas.get(*partition)
        if replica is not None:
            start, mark = replica.start_offset, replica.high_watermark
        elif (extent := self._ends.of(partition)) is not None:
            start, mark = extent.start, extent.end
        else:
            return None, None
        return mark, self._history.known_seconds_behind(
            partition,
            now=self._now,
            mark=mark,
            committed=max(committed, start),
            record_age=lambda offset: self._record_age(replica, offset),
        )

    def _record_age(self, replica: LocalReplica | None, offset: int) -> float | None:
        # None: the log is on another broker.
        if replica is None:
            return None
        timestamp = replica.timestamp_at(offset)
        if timestamp is None or timestamp < 0:
            return None
        return (self._clock.wall_ms() - timestamp) / 1000
