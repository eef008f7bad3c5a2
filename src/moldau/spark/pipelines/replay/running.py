"""Owns the course of a replay: batch after batch, each written once, however often it is begun."""

import logging
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from moldau.spark.pipelines.replay.frames import selected, to_send, topic_rows
from moldau.spark.pipelines.replay.pinned import Pinned, save
from moldau.spark.pipelines.replay.planning import check_still_there, lake_of, pin
from moldau.spark.pipelines.replay.selection import Selection
from moldau.spark.pipelines.replay.settings import ReplaySettings
from moldau.spark.pipelines.replay.topics import read_options, write_options
from moldau.spark.pipelines.spec import Context, Outcome, Progress
from moldau.spark.source.planning import OffsetRange

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from moldau.spark.pipelines.replay.lake import LakeSource

log = logging.getLogger(__name__)


def run_replay(settings: ReplaySettings, context: Context) -> Outcome:
    """Until all is sent, or until told to stop. What was sent before is not sent again."""
    lake = lake_of(settings)
    pinned, selection, is_begun = pin(settings, lake)
    batches = list(pinned.batches())
    before = pinned.done
    if before >= len(batches):
        return _outcome(pinned, batches, before, stopped=False)
    replay = _Replay(settings, context, lake, selection)
    started = time.monotonic()
    passed = sum(planned.size for batch in batches[:before] for planned in batch)
    passed_before = passed
    for number in range(before, len(batches)):
        if context.stopping:
            return _outcome(pinned, batches, before, stopped=True)
        check_still_there(settings, pinned)
        began = time.monotonic()
        # The run before may have died with the batch written and this not noted.
        is_uncertain = is_begun and number == before
        rows = replay.send(pinned, batches[number], number, is_uncertain=is_uncertain)
        pinned = replace(pinned, done=number + 1, rows=pinned.rows + rows)
        save(settings.checkpoint, pinned)
        passed += sum(planned.size for planned in batches[number])
        seconds = max(time.monotonic() - started, 1e-9)
        context.report(
            Progress(
                batch=number,
                rows=passed,
                rows_total=pinned.offset_count,
                rows_per_second=(passed - passed_before) / seconds,
                lag=pinned.offset_count - passed,
                batch_seconds=time.monotonic() - began,
                note=f"{pinned.rows} sent",
            )
        )
    return _outcome(pinned, batches, before, stopped=False)


class _Replay:
    """One run of a replay."""

    def __init__(
        self,
        settings: ReplaySettings,
        context: Context,
        lake: "LakeSource | None",
        selection: Selection,
    ) -> None:
        self._settings = settings
        self._context = context
        self._lake = lake
        self._selection = selection

    def send(
        self,
        pinned: Pinned,
        ranges: tuple[OffsetRange, ...],
        number: int,
        *,
        is_uncertain: bool,
    ) -> int:
        """Write a batch, unless it was written before; how many rows it has."""
        from pyspark.sql import Observation
        from pyspark.sql import functions as F  # noqa: N812

        spark = self._context.spark
        if self._lake is None:
            rows = topic_rows(spark, read_options(self._settings), ranges)
            rows = selected(spark, rows, self._selection)
        else:
            rows = self._lake.rows(spark, ranges, self._selection)
        rows = to_send(rows, pinned, origin_headers=self._settings.origin_headers)
        counted = Observation()
        self._write(rows.observe(counted, F.count(F.lit(1)).alias("rows")), pinned, number)
        if is_uncertain:
            # A batch that was there before is not read to its end: nobody counted it.
            return int(rows.count())
        return int(counted.get["rows"])

    def _write(self, rows: "DataFrame", pinned: Pinned, number: int) -> None:
        (
            rows.write.format("moldau")
            .mode("append")
            .options(**write_options(self._settings))
            .option("txnAppId", pinned.id)
            .option("txnVersion", str(number))
            .save()
        )


def _outcome(pinned: Pinned, batches: list[Any], before: int, *, stopped: bool) -> Outcome:
    target = pinned.asked["target"]
    if not batches:
        summary = f"nothing was there to be sent to {target}"
    elif before >= len(batches):
        summary = f"all {pinned.rows} rows were sent to {target} before"
    elif stopped:
        summary = (
            f"stopped after {pinned.done} of {len(batches)} batches, {pinned.rows} rows sent to "
            f"{target}; run it again to go on"
        )
    else:
        summary = f"{pinned.rows} rows sent to {target}"
    return Outcome(
        summary=summary,
        rows=pinned.rows,
        details={
            "target": target,
            "rows": pinned.rows,
            "batches": len(batches),
            "batches_done": pinned.done,
            "batches_done_before": before,
            "offsets": pinned.offset_count,
            "keep_partitions": pinned.keep_partitions,
        },
    )
