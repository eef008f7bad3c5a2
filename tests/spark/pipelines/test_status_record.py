"""What is said of a pipeline, and how far a query is, from what Spark says."""

import dataclasses
import os
import socket

from moldau.client.processes import started_at
from moldau.spark.pipelines.spec import PipelineState
from moldau.spark.pipelines.status import HEARTBEAT_SECONDS_MAX, LOST, PipelineStatus, QueryProgress

NOW = 1_800_000_000_000
FAR = PipelineStatus(
    name="n", kind="count", state=PipelineState.RUNNING, host="far.example", pid=1, updated_at=NOW
)


def test_a_pipeline_of_another_machine_is_lost_when_it_does_not_report_for_long():
    later = NOW + int(HEARTBEAT_SECONDS_MAX * 1000)
    assert FAR.shown_state(later) == "running"
    assert FAR.shown_state(later + 1) == LOST
    ended = dataclasses.replace(FAR, state=PipelineState.FINISHED)
    assert ended.shown_state(later + 1) == "finished"


def test_a_pipeline_of_this_machine_is_lost_when_its_process_is_gone():
    process = started_at(os.getpid())
    assert process is not None
    mine = dataclasses.replace(FAR, host=socket.gethostname(), pid=os.getpid(), process=process)
    assert mine.shown_state(NOW + 10**9) == "running", "silent, but there"
    assert dataclasses.replace(mine, process="another").shown_state(NOW) == LOST


# -- queries


def batch(number, start, end, latest, *, rows=None, millis=500, **more):
    def positions(offset):
        return None if offset is None else {"t": {"0": offset, "1": offset}, "@ids": {"t": 9}}

    return {
        "batchId": number,
        "numInputRows": 2 * (end - (start or 0)) if rows is None else rows,
        "batchDuration": millis,
        "sources": [
            {
                "startOffset": positions(start),
                "endOffset": positions(end),
                "latestOffset": positions(latest),
            }
        ],
        **more,
    }


def test_batches_are_added_up_each_once():
    counted = QueryProgress()
    assert counted.add([batch(0, 0, 10, 50), batch(1, 10, 30, 50)])
    assert not counted.add([batch(0, 0, 10, 50), batch(1, 10, 30, 50)])
    progress = counted.progress
    assert (progress.batch, progress.rows, progress.lag) == (1, 60, 40)
    assert (progress.batch_seconds, progress.rows_per_second) == (0.5, 80.0)


def test_a_batch_that_was_used_twice_is_counted_once():
    counted = QueryProgress()
    counted.add([batch(0, 0, 10, 10, rows=40)])
    assert counted.progress.rows == 20


def test_marks_of_transactions_are_no_rows():
    counted = QueryProgress()
    counted.add([batch(0, 0, 10, 10, rows=18)])
    assert counted.progress.rows == 18


def test_rows_that_are_observed_go_before_what_spark_counts():
    counted = QueryProgress()
    counted.add([batch(0, 0, 10, 10, rows=2, observedMetrics={"moldau": {"rows": 19}})])
    counted.add([batch(1, 10, 20, 20, rows=2, observedMetrics={"moldau": {"rows": None}})])
    assert counted.progress.rows == 19


def test_a_later_word_on_the_same_batch_says_that_nothing_came_and_the_lag():
    counted = QueryProgress()
    for _ in range(2):
        counted.add([batch(4, 0, 10, 15)])
    assert (counted.progress.lag, counted.progress.rows_per_second) == (10, 40)
    assert not counted.add([batch(4, 10, 10, 40, rows=0)])
    progress = counted.progress
    assert (progress.rows, progress.lag, progress.rows_per_second) == (20, 60, 0)


def test_a_batch_that_was_reported_before_it_had_rows_counts_when_it_has():
    counted = QueryProgress()
    told = [batch(1, 10, 10, 10, rows=0, millis=1), batch(1, 10, 30, 30)]
    counted.add(told[:1])
    assert counted.add(told)
    assert not counted.add(told)
    assert (counted.progress.rows, counted.progress.batch_seconds) == (40, 0.5)


def test_positions_may_begin_anywhere():
    counted = QueryProgress()
    counted.add([batch(0, None, 10, 10)])
    assert (counted.progress.rows, counted.progress.lag) == (20, 0)


def test_other_sources_are_counted_as_spark_does():
    counted = QueryProgress()
    counted.add(
        [
            {
                "batchId": 0,
                "numInputRows": 5,
                "batchDuration": 100,
                "sources": [{"startOffset": 3, "endOffset": "x", "latestOffset": None}],
            }
        ]
    )
    assert (counted.progress.rows, counted.progress.lag) == (5, None)
