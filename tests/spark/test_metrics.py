"""What Prometheus is told of pipelines, read back by its own parser."""

from collections.abc import Iterator
from contextlib import closing
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families

from moldau.client.errors import ClientError
from moldau.spark.metrics import MetricsServer
from moldau.spark.pipelines.spec import PipelineState, Progress
from moldau.spark.pipelines.status import PipelineStatus
from moldau.testing.waiting import wait_seconds_max

pytestmark = pytest.mark.inprocess

PROGRESS = Progress(
    batch=4, rows=100, rows_per_second=12.5, lag=7, batch_seconds=0.25, dead_letters=2
)


def record(
    name: str = "lake", state: PipelineState = PipelineState.RUNNING, **more: object
) -> PipelineStatus:
    return PipelineStatus(name=name, kind="archive", state=state, **{"progress": PROGRESS, **more})  # type: ignore[arg-type]


@pytest.fixture
def server() -> Iterator[MetricsServer]:
    with closing(MetricsServer(0)) as opened:
        yield opened


def ask(server: MetricsServer, path: str = "/metrics") -> tuple[int, str]:
    try:
        with urlopen(
            server.url.removesuffix("/metrics") + path, timeout=wait_seconds_max()
        ) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        with error:
            return error.code, error.read().decode()


def samples(text: str) -> dict[str, float]:
    """By name and the labels beside the kind."""
    return {
        " ".join((sample.name, *(v for k, v in sample.labels.items() if k != "kind"))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_all_that_is_known_of_a_pipeline_is_reported(server: MetricsServer) -> None:
    server.update(record())
    found = samples(ask(server)[1])
    assert found.pop("moldau_pipeline_last_progress_timestamp_seconds lake") > 1e9
    assert found == {
        "moldau_pipeline_rows_total lake": 100,
        "moldau_pipeline_dead_letters_total lake": 2,
        "moldau_pipeline_rows_per_second lake": 12.5,
        "moldau_pipeline_lag_records lake": 7,
        "moldau_pipeline_batch_number lake": 4,
        "moldau_pipeline_batch_seconds lake": 0.25,
        "moldau_pipeline_state lake starting": 0,
        "moldau_pipeline_state lake running": 1,
        "moldau_pipeline_state lake finished": 0,
        "moldau_pipeline_state lake stopped": 0,
        "moldau_pipeline_state lake failed": 0,
    }


def test_what_is_unknown_is_left_out(server: MetricsServer) -> None:
    assert ask(server) == (200, "")
    server.update(record(progress=Progress()))
    found = samples(ask(server)[1])
    assert found["moldau_pipeline_rows_total lake"] == 0
    assert not [name for name in found if "lag" in name or "batch" in name]


def test_the_last_progress_is_when_something_changed(
    server: MetricsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def told_at(moment: float, progress: Progress) -> float:
        monkeypatch.setattr("moldau.spark.metrics.time.time", lambda: moment)
        server.update(record(progress=progress))
        return samples(server.respond("/metrics")[2])[
            "moldau_pipeline_last_progress_timestamp_seconds lake"
        ]

    assert told_at(10.0, Progress(batch=1, rows=5)) == 10.0
    assert told_at(20.0, Progress(batch=1, rows=5, lag=9)) == 10.0
    assert told_at(30.0, Progress(batch=2, rows=5)) == 30.0


def test_health_is_that_of_all(server: MetricsServer) -> None:
    assert ask(server, "/healthz") == (200, "starting\n")
    server.update(record("a"))
    assert ask(server, "/healthz") == (200, "a running\n")
    server.update(record("b", PipelineState.FAILED))
    assert ask(server, "/healthz") == (503, "a running\nb failed\n")
    assert ask(server, "/")[0] == 404


def test_those_that_have_not_reported_for_longest_are_forgotten(server: MetricsServer) -> None:
    for number in range(150):
        server.update(record(f"q{number}"))
        server.update(record("always"))
    found = samples(server.respond("/metrics")[2])
    assert "moldau_pipeline_rows_total always" in found
    assert "moldau_pipeline_rows_total q149" in found
    assert "moldau_pipeline_rows_total q0" not in found
    assert sum("rows_total" in name for name in found) == 100


def test_an_address_that_is_none_or_taken_is_an_error_with_the_option(
    server: MetricsServer,
) -> None:
    port = int(server.url.rpartition(":")[2].partition("/")[0])
    for wrong in ((port, "127.0.0.1"), (0, "no.such.host.invalid"), (0, "192.0.2.77")):
        with pytest.raises(ClientError, match="cannot listen on") as refused:
            MetricsServer(*wrong)
        assert "--metrics-port" in refused.value.hint
