"""Responsible for what Prometheus reads of pipelines and queries: a small HTTP server.

`moldau pipeline run --metrics-port` tells it how its pipeline is, `moldau.spark.MetricsListener`
how the queries of a session are. It answers with what it was told last, and asks nobody.
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
from moldau.spark.pipelines.status import ALIVE, Record

HOST_DEFAULT: Final = "127.0.0.1"
_KEPT_MAX: Final = 100
"""Of so many pipelines something is said; those that were silent for longest are forgotten."""
_TEXT: Final = "text/plain; charset=utf-8"
_position: Final = attrgetter("progress.batch", "progress.rows")


class MetricsServer:
    """Serves /metrics and /healthz until it is closed. `tell` is a pipeline's `Watcher`."""

    def __init__(self, port: int, host: str = HOST_DEFAULT) -> None:
        self._lock = threading.Lock()
        self._records: dict[str, tuple[Record, float]] = {}
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

    def tell(self, record: Record) -> None:
        """How a pipeline is now."""
        with self._lock:
            before, since = self._records.pop(record.name, (None, 0.0))
            if before is None or _position(before) != _position(record):
                since = time.time()
            self._records[record.name] = record, since
            if len(self._records) > _KEPT_MAX:
                del self._records[next(iter(self._records))]

    def answer(self, path: str) -> tuple[HTTPStatus, str, str]:
        """Status, media type and text. It is well if all are running, or about to."""
        with self._lock:
            found = list(self._records.values())
        if path == "/metrics":
            return HTTPStatus.OK, MEDIA_TYPE, render(_families(found))
        if path == "/healthz":
            is_well = all(record.state in ALIVE for record, _ in found)
            text = "".join(f"{record.name} {record.state}\n" for record, _ in found)
            status = HTTPStatus.OK if is_well else HTTPStatus.SERVICE_UNAVAILABLE
            return status, _TEXT, text or "starting\n"
        return HTTPStatus.NOT_FOUND, _TEXT, "here are /metrics and /healthz\n"


def _families(found: list[tuple[Record, float]]) -> list[MetricFamily]:
    of_progress = {
        "rows": counter("moldau_pipeline_rows_total", "Rows since the pipeline was started."),
        "dead_letters": counter(
            "moldau_pipeline_dead_letters_total", "Rows sent to the dead-letter topic."
        ),
        "rows_per_second": gauge("moldau_pipeline_rows_per_second", "Speed of the last batch."),
        "lag": gauge("moldau_pipeline_lag_records", "Records in the topics, not yet through."),
        "batch": gauge("moldau_pipeline_batch_number", "Number of the last batch."),
        "batch_seconds": gauge("moldau_pipeline_batch_seconds", "How long the last batch took."),
    }
    since = gauge(
        "moldau_pipeline_last_progress_timestamp_seconds", "When rows or batch last changed."
    )
    states = gauge("moldau_pipeline_state", "1 for the state that the pipeline is in.")
    for record, moment in found:
        labels = {"pipeline": record.name, "kind": record.kind}
        for name, family in of_progress.items():
            if (value := getattr(record.progress, name)) is not None:
                family.add(value, labels)
        since.add(moment, labels)
        for state in PipelineState:
            states.add(float(state is record.state), {**labels, "state": str(state)})
    return [*of_progress.values(), since, states]


class _Server6(ThreadingHTTPServer):
    address_family = socket.AF_INET6


class _Handler(BaseHTTPRequestHandler):
    timeout = 10.0

    def __init__(self, metrics: MetricsServer, *request: Any) -> None:
        self._metrics = metrics
        super().__init__(*request)

    def do_GET(self) -> None:
        status, kind, text = self._metrics.answer(self.path.partition("?")[0])
        data = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        """Whoever asks every few seconds is no news."""
