"""A pipeline's surroundings in tests: a session that is there, and a note of what was reported."""

from typing import Any

from moldau.spark.pipelines.spec import Progress


class PlainContext:
    """Stops after `batches_max` reports, if that is given."""

    def __init__(self, spark: Any, *, batches_max: int | None = None) -> None:
        self.spark = spark
        self.reports: list[Progress] = []
        self.dead = 0
        self._batches_max = batches_max

    @property
    def stopping(self) -> bool:
        return self._batches_max is not None and len(self.reports) >= self._batches_max

    def report(self, progress: Progress) -> None:
        self.reports.append(progress)

    def dead_letters(self, count: int) -> None:
        self.dead += count

    def watch(self, query: Any) -> None:
        query.awaitTermination()
