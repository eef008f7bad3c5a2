"""A small HTTP server with Prometheus metrics of pipelines and queries.

`moldau pipeline run --metrics-port` feeds it with the status of its pipeline,
`moldau.spark.MetricsListener` with that of a session's queries. It serves the last status it got.
"""

import socket
import threading
import time
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from operator import attrgetter
from typing import Any, Final

from moldau.client.errors import ClientError
from moldau.model.prometheus_text import MEDIA_TYPE, MetricFamily, counter, gauge, render
from moldau.spark.pipelines.spec import PipelineState
from moldau.spark.pipelines.status import ALIVE, PipelineStatus

HOST_DEFAULT: Final = "127.0.0.1"
_KEPT_MAX: Final = 100
"""Pipelines with metrics; beyond that, the one updated least recently is dropped."""
_TEXT: Final = "text/plain; charset=utf-8"
_position: Final = attrgetter("progress.batch", "progress.rows")


class MetricsServer:
    """Serves /metrics and /healthz until it is closed. `update` is a pipeline's `Watcher`."""

    def __init__(self, port: int, host: str = HOST_DEFAULT) -> None:
        self._lock = threading.Lock()
        self._statuses: dict[str, tuple[PipelineStatus, float]] = {}
        kind = _Server6 if ":" in host else ThreadingHTTPServer
        try:
            self._server = kind((host, port), partial(_Handler, self))
        except (OSError, OverflowError) as error:
            raise ClientError(
                f"cannot listen on {host}:{port} for metrics: {error}",
                hint="choose another --metrics-port or --metrics-host; port 0 is any free one",
            ) from error
        bound = f"[{host}]" if ":" in host else host
        self.url = f"http://{bound}:{self._server.server_address[1]}/metrics"
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.1,), name="metrics", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def update(self, status: PipelineStatus) -> None:
        """Takes over the current status of a pipeline."""
        with self._lock:
            before, since = self._statuses.pop(status.name, (None, 0.0))
            if before is None or _position(before) != _position(status):
                since = time.time()
            self._statuses[status.name] = status, since
            if len(self._statuses) > _KEPT_MAX:
                del self._statuses[next(iter(self._statuses))]

    def respond(self, path: str) -> tuple[HTTPStatus, str, str]:
        """Status code, media type and body. Healthy means: all pipelines start or run."""
        with self._lock:
            found = list(self._statuses.values())
        if path == "/metrics":
            return HTTPStatus.OK, MEDIA_TYPE, render(_families(found))
        if path == "/healthz":
            is_healthy = all(status.state in ALIVE for status, _ in found)
            text = "".join(f"{status.name} {status.state}\n" for status, _ in found)
            code = HTTPStatus.OK if is_healthy else HTTPStatus.SERVICE_UNAVAILABLE
            return code, _TEXT, text or "starting\n"
        return HTTPStatus.NOT_FOUND, _TEXT, "not found; this server has /metrics and /healthz\n"


def _families(found: list[tuple[PipelineStatus, float]]) -> list[MetricFamily]:
    of_progress = {
        "rows": counter("moldau_pipeline_rows_total", "Rows since the pipeline was started."),
        "dead_letters": counter(
            "moldau_pipeline_dead_letters_total", "Rows sent to the dead-letter topic."
        ),
        "rows_per_second": gauge("moldau_pipeline_rows_per_second", "Speed of the last batch."),
        "lag": gauge("moldau_pipeline_lag_records", "Records in the topics, not yet processed."),
        "batch": gauge("moldau_pipeline_batch_number", "Number of the last batch."),
        "batch_seconds": gauge("moldau_pipeline_batch_seconds", "How long the last batch took."),
    }
    since = gauge(
        "moldau_pipeline_last_progress_timestamp_seconds", "When rows or batch last changed."
    )
    states = gauge("moldau_pipeline_state", "1 for the state that the pipeline is in.")
    for status, changed_at in found:
        labels = {"pipeline": status.name, "kind": status.kind}
        for name, family in of_progress.items():
            if (value := getattr(status.progress, name)) is not None:
                family.add(value, labels)
        since.add(changed_at, labels)
        for state in PipelineState:
            states.add(float(state is status.state), {**labels, "state": str(state)})
    return [*of_progress.values(), since, states]


class _Server6(ThreadingHTTPServer):
    address_family = socket.AF_INET6


class _Handler(BaseHTTPRequestHandler):
    timeout = 10.0

    def __init__(self, metrics: MetricsServer, *request: Any) -> None:
        self._metrics = metrics
        super().__init__(*request)

    def do_GET(self) -> None:
        status, kind, text = self._metrics.respond(self.path.partition("?")[0])
        data = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        """No access log: Prometheus sends a request every few seconds."""
