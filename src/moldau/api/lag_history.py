"""How long ago an offset of a partition was appended, by when its high watermark was seen there.

Each scrape notes the high watermarks of partitions that groups consume; between two of them the
time is interpolated. So nothing is read from logs, and nothing is noted where nobody scrapes. What
was appended before the first scrape has the time of its record, which is read once.
"""

from bisect import bisect_right
from collections.abc import Callable
from typing import Final

from moldau.model.ids import TopicPartition

POINTS_MAX: Final = 64
"""Per partition. When they are full, every second one of the older half goes."""


class WatermarkHistory:
    """When the high watermark of one partition had which value; both ascend."""

    __slots__ = ("_marks", "_times", "scrape")

    def __init__(self) -> None:
        self._times: list[float] = []
        self._marks: list[int] = []
        self.scrape = 0
        """The last one in which it was used."""

    def note(self, now: float, mark: int) -> None:
        times, marks = self._times, self._marks
        if marks and mark < marks[-1]:
            # Another log: the topic was created again, or a leader without flushes lost records.
            times.clear()
            marks.clear()
        if len(marks) > 1 and marks[-2] == mark:
            # A third time: only when it was first and last seen matters.
            times[-1] = now
            return
        times.append(now)
        marks.append(mark)
        if len(marks) > POINTS_MAX:
            del times[1 : POINTS_MAX // 2 : 2], marks[1 : POINTS_MAX // 2 : 2]

    @property
    def last_mark(self) -> int:
        """After the first note."""
        return self._marks[-1]

    def appended_at(self, offset: int) -> float | None:
        """When the record at `offset` was appended; None if that was before the first note.
        The offset is below the last mark."""
        times, marks = self._times, self._marks
        after = bisect_right(marks, offset)
        if after == 0:
            return None
        low, high = marks[after - 1], marks[after]
        share = (offset - low) / (high - low)
        return times[after - 1] + share * (times[after] - times[after - 1])

    def learn(self, offset: int, appended_at: float) -> None:
        """The time of a record from before the first note."""
        self._times.insert(0, min(appended_at, self._times[0]))
        self._marks.insert(0, offset)


class LagHistory:
    """The histories of all partitions that groups of this broker consume."""

    def __init__(self) -> None:
        self._histories: dict[TopicPartition, WatermarkHistory] = {}
        self._noted: set[TopicPartition] = set()
        self._lookups_left = 0

    def begin(self, lookups_max: int) -> None:
        """A scrape begins, which reads the log at most so often."""
        self._lookups_left = lookups_max
        self._noted.clear()

    def __len__(self) -> int:
        return len(self._histories)

    def end(self) -> None:
        """Forget partitions that no group consumes any more, or that have no replica here."""
        for partition in self._histories.keys() - self._noted:
            del self._histories[partition]

    def known_seconds_behind(
        self,
        partition: TopicPartition,
        *,
        now: float,
        mark: int,
        committed: int,
        record_age: Callable[[int], float | None],
    ) -> float | None:
        """The age of the record at `committed`; 0 if that is the high watermark `mark`, or was
        not there when this scrape began; None if it is not known yet.

        `record_age` reads the age of a record by its timestamp; None: unknown.
        """
        history = self._histories.get(partition)
        if history is None:
            history = self._histories[partition] = WatermarkHistory()
        if partition not in self._noted:
            self._noted.add(partition)
            history.note(now, mark)
        if committed >= min(mark, history.last_mark):
            # Or it came after the note of this scrape: for another group, some turns of the event
            # loop ago.
            return 0.0
        appended_at = history.appended_at(committed)
        if appended_at is None:
            appended_at = self._look_up(history, committed, now, record_age)
        if appended_at is None:
            return None
        return max(0.0, now - appended_at)

    def _look_up(
        self,
        history: WatermarkHistory,
        committed: int,
        now: float,
        record_age: Callable[[int], float | None],
    ) -> float | None:
        if self._lookups_left <= 0:
            # The next scrape gets to it.
            return None
        self._lookups_left -= 1
        age = record_age(committed)
        if age is None:
            return None
        history.learn(committed, now - max(0.0, age))
        return now - max(0.0, age)
