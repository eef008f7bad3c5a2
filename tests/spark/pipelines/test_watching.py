"""How far a query is, from what Spark says."""

import json

from moldau.spark.pipelines.watching import QueryProgress


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


def shown(counted, **more):
    told = {"dead_letters": 0, "is_idle": False, "is_continuous": False, **more}
    return counted.progress(**told)


def test_batches_are_added_up_each_once():
    counted = QueryProgress()
    assert counted.take([batch(0, 0, 10, 50), batch(1, 10, 30, 50)])
    assert not counted.take([batch(0, 0, 10, 50), batch(1, 10, 30, 50)])
    progress = shown(counted, dead_letters=3)
    assert (progress.batch, progress.rows, progress.lag) == (1, 60, 40)
    assert (progress.rows_total, progress.dead_letters) == (100, 3)
    assert (progress.batch_seconds, progress.rows_per_second) == (0.5, 80.0)


def test_a_batch_that_was_used_twice_is_counted_once():
    counted = QueryProgress()
    counted.take([batch(0, 0, 10, 10, rows=40)])
    assert counted.rows == 20


def test_marks_of_transactions_are_no_rows():
    counted = QueryProgress()
    counted.take([batch(0, 0, 10, 10, rows=18)])
    assert counted.rows == 18


def test_rows_that_are_observed_go_before_what_spark_counts():
    counted = QueryProgress()
    counted.take([batch(0, 0, 10, 10, rows=2, observedMetrics={"moldau": {"rows": 19}})])
    counted.take([batch(1, 10, 20, 20, rows=2, observedMetrics={"moldau": {"rows": None}})])
    assert counted.rows == 19


def test_a_continuous_query_has_no_total_and_no_speed_while_idle():
    counted = QueryProgress()
    counted.take([batch(0, 0, 10, 15)])
    progress = shown(counted, is_continuous=True, is_idle=True)
    assert (progress.rows_total, progress.rows_per_second, progress.lag) == (None, 0.0, 10)


def test_a_later_word_on_the_same_batch_changes_only_the_lag():
    counted = QueryProgress()
    counted.take([batch(4, 0, 10, 15)])
    assert not counted.take([batch(4, 10, 10, 40, rows=0)])
    assert (counted.rows, shown(counted).lag) == (20, 60)


def test_a_batch_that_was_told_of_before_it_had_rows_counts_when_it_has():
    counted = QueryProgress()
    told = [batch(1, 10, 10, 10, rows=0, millis=1), batch(1, 10, 30, 30)]
    counted.take(told[:1])
    assert counted.take(told)
    assert not counted.take(told)
    assert (counted.rows, shown(counted).batch_seconds) == (40, 0.5)


def test_positions_may_be_text_and_begin_anywhere():
    counted = QueryProgress()
    told = batch(0, None, 10, 10)
    told["sources"][0]["endOffset"] = json.dumps(told["sources"][0]["endOffset"])
    counted.take([told])
    assert (counted.rows, shown(counted).lag) == (20, 0)


def test_other_sources_are_counted_as_spark_does():
    counted = QueryProgress()
    counted.take(
        [
            {
                "batchId": 0,
                "numInputRows": 5,
                "batchDuration": 100,
                "sources": [{"startOffset": 3, "endOffset": "x", "latestOffset": None}],
            }
        ]
    )
    progress = shown(counted)
    assert (progress.rows, progress.lag, progress.rows_total) == (5, None, None)


def test_before_the_first_batch_there_is_nothing_to_say():
    assert shown(QueryProgress(), dead_letters=1).dead_letters == 1
    assert shown(QueryProgress()).batch is None
