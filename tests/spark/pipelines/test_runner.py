"""Pipelines while they run, on Spark: what is told of them, and how they end."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import streaming_kind
from streaming_kind import StreamSettings

from moldau.client.errors import ClientError
from moldau.spark.pipelines import runner
from moldau.spark.pipelines.home import Home, batches_in
from moldau.spark.pipelines.runner import POLL_SECONDS, execute
from moldau.spark.pipelines.spec import PipelineState
from moldau.spark.pipelines.status import PipelineStatus
from moldau.testing.broker import Broker

pytestmark = pytest.mark.spark


@pytest.fixture(autouse=True)
def _kind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "load", lambda kind: streaming_kind)


@pytest.fixture
def settings(broker: Broker, topic: str, tmp_path: Path) -> StreamSettings:
    return StreamSettings(
        name=topic, bootstrap=broker.bootstrap, home=str(tmp_path / topic), topics=(topic,)
    )


def changed(settings: StreamSettings, **changes: Any) -> StreamSettings:
    import dataclasses

    return dataclasses.replace(settings, **changes)


def test_what_is_there_is_read_and_reported_batch_by_batch(
    spark: Any, settings: StreamSettings, fill: Callable[..., None]
) -> None:
    fill(settings.name, 0, count=30)
    fill(settings.name, 1, count=10)
    told: list[PipelineStatus] = []
    limited = changed(settings, options={"maxOffsetsPerTrigger": "20"})
    outcome = execute(limited, watcher=told.append)
    assert outcome.summary == "streamed"
    last = told[-1]
    assert last.state is PipelineState.FINISHED
    assert (last.progress.rows, last.progress.lag, last.progress.rows_total) == (40, 0, 40)
    assert last.progress.batch == 1
    assert last.progress.batch_seconds is not None
    assert {record.state for record in told} >= {PipelineState.STARTING, PipelineState.RUNNING}
    assert spark.range(1).count() == 1, "a session that was there before stays"

    # It goes on where it was, and after a reset where that says.
    fill(settings.name, 0, count=5)
    execute(settings, watcher=told.append)
    assert told[-1].progress.rows == 5
    Home(Path(settings.home)).reset({settings.name: {"0": 33, "1": 9}})
    execute(settings, watcher=told.append)
    assert told[-1].progress.rows == 3


def test_settings_of_spark_reach_the_session(
    spark: Any, settings: StreamSettings, fill: Callable[..., None]
) -> None:
    told = changed(settings, conf={"spark.sql.shuffle.partitions": "7", "spark.my.secret": "pw"})
    with pytest.warns(UserWarning, match="other values of spark.sql.shuffle.partitions") as told_of:
        execute(told)
    assert "spark.my.secret" in str(told_of[0].message)
    assert "pw" not in str(told_of[0].message)


def test_a_continuous_one_that_is_asked_to_stop_ends_after_the_batch_at_hand(
    spark: Any,
    settings: StreamSettings,
    fill: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fill(settings.name, 0, count=30)
    told: list[PipelineStatus] = []
    rows: list[int] = []

    def in_batch(batch: Any, number: int) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        # For as long as it looks a few times whether the batch is over.
        time.sleep(5 * POLL_SECONDS)
        rows.append(batch.count())

    monkeypatch.setattr(streaming_kind, "in_batch", in_batch)
    before = signal.getsignal(signal.SIGTERM)
    execute(changed(settings, continuous=True, trigger_seconds=0.2), watcher=told.append)
    assert told[-1].state is PipelineState.STOPPED
    assert "stopping after this batch" in {record.progress.note for record in told}
    assert (rows, told[-1].progress.rows) == ([30], 30)
    assert batches_in(Home(settings.home).checkpoint, "commits") == [0]
    assert signal.getsignal(signal.SIGTERM) is before


def test_an_error_of_the_source_comes_out_as_ours_and_before_it_is_running(
    spark: Any, settings: StreamSettings
) -> None:
    told: list[PipelineStatus] = []
    wrong = changed(settings, topics=("not-there",), continuous=True)
    with pytest.raises(ClientError, match="not-there") as caught:
        execute(wrong, watcher=told.append)
    assert "Traceback" not in str(caught.value)
    assert PipelineState.RUNNING not in {record.state for record in told}
    assert told[-1].state is PipelineState.FAILED
    assert "not-there" in told[-1].error
