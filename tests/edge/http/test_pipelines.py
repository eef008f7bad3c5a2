"""Pipelines over HTTP, on a cluster: any broker reads the board that they publish on."""

from collections.abc import Iterator
from typing import Any

import pytest

from http_client import ask
from moldau.spark.pipelines.spec import Outcome, PipelineState, Progress
from moldau.spark.pipelines.status import PipelineStatus, StatusTopic, now_ms
from moldau.testing.cluster import Cluster

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster() as started:
        yield started


def listed(cluster: Cluster, broker: int, query: str = "") -> Any:
    reply = ask(cluster.brokers[broker].http_address, "GET", f"/api/v1/pipelines{query}")
    assert reply.status == 200, reply.body
    return reply.body


def test_any_broker_shows_what_pipelines_report(cluster: Cluster) -> None:
    none: dict[str, Any] = {"pipelines": [], "next": None, "is_complete": True, "silent": []}
    assert listed(cluster, 1) == none
    running = PipelineStatus(
        name="orders-archive",
        kind="archive",
        state=PipelineState.RUNNING,
        settings={"kind": "archive", "topics": ["orders"]},
        progress=Progress(batch=4, rows=9, lag=3, batch_seconds=0.25, rows_per_second=36.0),
        host="elsewhere",
        started_at=now_ms(),
        updated_at=now_ms(),
    )
    audited = PipelineStatus(
        name="check",
        kind="audit",
        state=PipelineState.FINISHED,
        outcome=Outcome(ok=False, summary="2 records are missing"),
        updated_at=now_ms(),
    )
    with StatusTopic(cluster.brokers[1].address, seconds_max=30.0) as board:
        for status in (running, audited):
            board.publish(status)
        shown = {name: each.described() for name, each in board.read().items()}
    for broker in (1, 2, 3):
        found = listed(cluster, broker)
        assert (found["is_complete"], found["silent"]) == (True, [])
        audit, archive = found["pipelines"]
        assert audit["audit"] == {"ok": False, "summary": "2 records are missing"}
        assert (audit["state"], audit["topic"], audit["lag"]) == ("finished", None, None)
        assert archive["audit"] is None
        assert (archive["topic"], archive["state"]) == ("orders", "running")
        # As the command line shows it.
        progress = shown["orders-archive"]["progress"]
        for name in ("batch", "rows", "lag", "batch_seconds", "rows_per_second", "dead_letters"):
            assert archive[name] == progress[name]
    page = listed(cluster, 2, "?limit=1")
    assert ([each["name"] for each in page["pipelines"]], page["next"]) == (["check"], "check")
    rest = listed(cluster, 2, "?after=check")
    assert ([each["name"] for each in rest["pipelines"]], rest["next"]) == (
        ["orders-archive"],
        None,
    )
    wrong = ask(cluster.brokers[1].http_address, "GET", "/api/v1/pipelines?topic=x")
    assert wrong.status == 400
