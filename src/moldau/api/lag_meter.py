"""How far a committed offset is behind the end of its partition: in records, and in seconds."""

from collections.abc import Container

from moldau.api.lag_history import LagHistory
from moldau.api.leader_ends import LeaderEnds
from moldau.api.local_replicas import LocalReplica, LocalReplicas
from moldau.model.clock import Clock
from moldau.model.ids import TopicPartition


class LagMeter:
    """One reading of many positions, at one time.

    The leader of a partition says where its end is. A follower here may be far behind: it counts
    only until the leader was asked, and for none of the `silent` ones, which did not respond.
    """

    def __init__(
        self,
        replicas: LocalReplicas,
        clock: Clock,
        history: LagHistory,
        ends: LeaderEnds,
        silent: Container[TopicPartition] = (),
    ) -> None:
        self._replicas = replicas
        self._clock = clock
        self._history = history
        self._ends = ends
        self._silent = silent
        self._now = clock.monotonic()

    def position(
        self, partition: TopicPartition, committed: int
    ) -> tuple[int | None, float | None]:
        """The high watermark, and how long ago `committed` was there; None: not known."""
        replica = self._replicas.get(*partition)
        if replica is not None and replica.is_leader:
            start, mark = replica.start_offset, replica.high_watermark
        elif (extent := self._ends.of(partition, has_follower=replica is not None)) is not None:
            start, mark = extent.start, extent.end
            if replica is not None:
                # The leader may have been asked a while ago.
                mark = max(mark, replica.high_watermark)
        elif replica is not None and partition not in self._silent:
            start, mark = replica.start_offset, replica.high_watermark
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
