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


class TopicRates:
    def __init__(self, clock: Clock, replicas: LocalReplicas) -> None:
        self._clock = clock
        self._replicas = replicas
        self._notes: deque[_Note] = deque()

    def note(self) -> _Note:
        """The counters of now."""
        now = self._clock.monotonic()
        notes = self._notes
        while notes and now - notes[0].at > _MOST_SECONDS:
            notes.popleft()
        while len(notes) > 1 and now - notes[1].at >= _LEAST_SECONDS:
            # The oldest is not needed: the second is old enough.
            notes.popleft()
        current = _Note(now, self._replicas.written_by_topic())
        if not notes or now - notes[-1].at >= _LEAST_SECONDS:
            notes.append(current)
        return current

    def rates(self) -> Mapping[str, TopicRate] | None:
        """Of all topics that this broker served since its start; None: not known yet."""
        current = self.note()
        base = self._notes[0]
        seconds = current.at - base.at
        if seconds < _LEAST_SECONDS:
            return None
        found = {}
        for topic, (count, records) in current.written.items():
            before_bytes, before_records = base.written.get(topic, (0, 0))
            found[topic] = TopicRate(
                max(0, count - before_bytes) / seconds, max(0, records - before_records) / seconds
            )
        return found
