"""Metrics of anybody's queries, through Spark's own listeners."""

import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families

import moldau.spark
from moldau.testing.waiting import wait_seconds_max, wait_until

pytestmark = pytest.mark.spark

PAGE = Path(__file__).parent.parent.parent / "docs/spark/pipelines.md"


def samples(listener: Any, name: str) -> dict[str, float]:
    """Of one query, by the name of the metric and the state."""
    with urlopen(listener.url, timeout=wait_seconds_max()) as answer:
        text = answer.read().decode()
    return {
        sample.name + sample.labels.get("state", ""): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.labels == {**sample.labels, "pipeline": name, "kind": "query"}
    }


def test_queries_of_a_session_are_reported_by_name(
    spark: Any, stream: Callable[..., Any], topic: str, fill: Callable[..., None], tmp_path: Path
) -> None:
    fill(topic, 0, count=30)
    (code,) = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), flags=re.M | re.S)
    names = {"spark": spark}
    exec(code.replace("port=9090", "port=0"), names)
    listener = names["listener"]

    def told() -> dict[str, float]:
        return samples(listener, topic)

    try:
        query = (
            stream(subscribe=topic, maxOffsetsPerTrigger="10")
            .writeStream.format("noop")
            .queryName(topic)
            .option("checkpointLocation", str(tmp_path))
            .trigger(availableNow=True)
            .start()
        )
        assert "moldau_pipeline_rows_total" in told(), "it is known as soon as it is started"
        query.awaitTermination()
        wait_until(lambda: told()["moldau_pipeline_statefinished"] == 1, "its end is told")
        found = told()
        assert found["moldau_pipeline_rows_total"] == 30
        assert found["moldau_pipeline_batch_number"] == 2
        assert found["moldau_pipeline_lag_records"] == 0
    finally:
        spark.streams.removeListener(listener)
        listener.close()


def test_a_query_that_failed_is_reported_as_such_and_one_that_came_before_is_not() -> None:
    listener = moldau.spark.MetricsListener(port=0)
    try:
        listener.onQueryIdle(SimpleNamespace(runId="earlier"))
        listener.onQueryStarted(SimpleNamespace(name=None, id="q", runId="r"))
        assert samples(listener, "q")["moldau_pipeline_staterunning"] == 1
        listener.onQueryTerminated(SimpleNamespace(runId="r", exception="no"))
        assert samples(listener, "q")["moldau_pipeline_statefailed"] == 1
        assert samples(listener, "earlier") == {}
    finally:
        listener.close()
