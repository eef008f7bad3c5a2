"""How much is written to each topic on this broker, per second, while somebody looks.

Each look notes the counters of all topics; a rate is the rise since an earlier note. Nothing is
noted where nobody looks, so the first look finds no rates.
"""

from collections import deque
from collections.abc import Mapping
from typing import Final, NamedTuple

from moldau.api.local_replicas import LocalReplicas
from moldau.model.clock import Clock

_LEAST_SECONDS: Final = 4.0
"""Over a shorter time, rates jump."""
_MOST_SECONDS: Final = 60.0


class TopicRate(NamedTuple):
    bytes_in: float
    records_in: float


class _Note(NamedTuple):
    at: float
    written: Mapping[str, tuple[int, int]]


_NOTHING: Final = (0, 0)


class RateSpan:
    """From an earlier note until now."""

    def __init__(self, old: _Note, new: _Note) -> None:
        self._old = old.written
        self._new = new.written
        self._seconds = new.at - old.at

    def of(self, topic: str) -> TopicRate:
        before_bytes, before_records = self._old.get(topic, _NOTHING)
        count, records = self._new.get(topic, _NOTHING)
        # A topic that was created again counts from 0.
        rise, more = max(0, count - before_bytes), max(0, records - before_records)
        return TopicRate(rise / self._seconds, more / self._seconds)


class TopicRates:
    def __init__(self, clock: Clock, replicas: LocalReplicas) -> None:
        self._clock = clock
        self._replicas = replicas
        self._notes: deque[_Note] = deque()

    def note(self) -> None:
        """The counters of now, unless that was done just before."""
        notes, now = self._notes, self._clock.monotonic()
        while notes and now - notes[0].at > _MOST_SECONDS:
            notes.popleft()
        if not notes or now - notes[-1].at >= _LEAST_SECONDS:
            notes.append(_Note(now, self._replicas.written_by_topic()))
        while len(notes) > 1 and now - notes[1].at >= _LEAST_SECONDS:
            # The oldest is not needed: the second is old enough.
            notes.popleft()

    def span(self) -> RateSpan | None:
        """None: nothing to compare with yet."""
        self.note()
        base, now = self._notes[0], self._clock.monotonic()
        if now - base.at < _LEAST_SECONDS:
            return None
        return RateSpan(base, _Note(now, self._replicas.written_by_topic()))
