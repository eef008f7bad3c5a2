"""Owns what Prometheus reads of pipelines and queries: a small HTTP server of their process.

`moldau pipeline run --metrics-port` tells it how its pipeline is, `moldau.spark.MetricsListener`
how the queries of a session are. It answers with what it was told last, and asks nobody.
"""

import socket
import threading
import time
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from moldau.client.errors import ClientError
from moldau.model.exposition import MEDIA_TYPE, Family, counter, gauge, render
from moldau.spark.pipelines.spec import State
from moldau.spark.pipelines.state import ALIVE, Record

HOST_DEFAULT: Final = "127.0.0.1"
_KEPT_MAX: Final = 100
"""Of so many pipelines something is said; those that were silent for longest are forgotten."""


class MetricsServer:
    """Serves /metrics and /healthz until it is closed. `tell` is a pipeline's `Watcher`."""

    def __init__(self, port: int, host: str = HOST_DEFAULT) -> None:
        self._lock = threading.Lock()
        self._records: dict[str, tuple[Record, float]] = {}
        try:
            self._server = _Server((host, port), self)
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

    def __enter__(self) -> "MetricsServer":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

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

    def text(self) -> str:
        """What /metrics says."""
        with self._lock:
            found = list(self._records.values())
        return render(_families(found))

    def health(self) -> tuple[HTTPStatus, str]:
        """What /healthz says: whether all that it knows of is running, or about to."""
        with self._lock:
            states = {name: record.state for name, (record, _) in self._records.items()}
        is_well = all(state in ALIVE for state in states.values())
        text = "".join(f"{name} {state}\n" for name, state in states.items())
        return HTTPStatus.OK if is_well else HTTPStatus.SERVICE_UNAVAILABLE, text or "starting\n"


def _position(record: Record) -> tuple[int | None, int]:
    return record.progress.batch, record.progress.rows


def _families(found: list[tuple[Record, float]]) -> list[Family]:
    rows = counter("moldau_pipeline_rows_total", "Rows since the pipeline was started.")
    dead = counter("moldau_pipeline_dead_letters_total", "Rows sent to the dead-letter topic.")
    since = gauge(
        "moldau_pipeline_last_progress_timestamp_seconds", "When rows or batch last changed."
    )
    states = gauge("moldau_pipeline_state", "1 for the state that the pipeline is in.")
    known = {
        "rows_per_second": gauge("moldau_pipeline_rows_per_second", "Speed of the last batch."),
        "lag": gauge("moldau_pipeline_lag_records", "Records in the topics, not yet through."),
        "batch": gauge("moldau_pipeline_batch_number", "Number of the last batch."),
        "batch_seconds": gauge("moldau_pipeline_batch_seconds", "How long the last batch took."),
    }
    for record, moment in found:
        labels = {"pipeline": record.name, "kind": record.kind}
        rows.add(record.progress.rows, labels)
        dead.add(record.progress.dead_letters, labels)
        since.add(moment, labels)
        for state in State:
            states.add(float(state is record.state), {**labels, "state": str(state)})
        for name, family in known.items():
            if (value := getattr(record.progress, name)) is not None:
                family.add(value, labels)
    return [rows, dead, *known.values(), since, states]


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, address: tuple[str, int], metrics: MetricsServer) -> None:
        self.metrics = metrics
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        super().__init__(address, _Handler)


class _Handler(BaseHTTPRequestHandler):
    timeout = 10.0

    def do_GET(self) -> None:
        server: Any = self.server
        metrics: MetricsServer = server.metrics
        match self.path.partition("?")[0]:
            case "/metrics":
                status, kind, text = HTTPStatus.OK, MEDIA_TYPE, metrics.text()
            case "/healthz":
                (status, text), kind = metrics.health(), "text/plain; charset=utf-8"
            case _:
                status, kind = HTTPStatus.NOT_FOUND, "text/plain; charset=utf-8"
                text = "here are /metrics and /healthz\n"
        data = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        """Whoever asks every few seconds is no news."""
