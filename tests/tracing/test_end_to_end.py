"""One trace from a producer to a consumer, through redelivery and into a dead letter.

Clients record in this process; the broker sends its spans to a collector of OTLP.
"""

import http.client
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from moldau import Consumer, Producer, QueueClient, tracing
from moldau.testing.broker import Broker
from moldau.testing.waiting import wait_seconds_max, wait_until

pytestmark = pytest.mark.system

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE}-b7ad6b7169203331-01"


class Collector:
    """Receives OTLP over HTTP."""

    def __init__(self) -> None:
        self.found: list[tuple[str, str]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                sent = self.rfile.read(int(self.headers["content-length"]))
                outer.take(ExportTraceServiceRequest.FromString(sent))
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *arguments: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.server.server_port}"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.02,))
        self.thread.start()

    def take(self, request: ExportTraceServiceRequest) -> None:
        for resource in request.resource_spans:
            for scope in resource.scope_spans:
                self.found += [(span.trace_id.hex(), span.name) for span in scope.spans]

    def wait_for(self, trace: str, *names: str) -> None:
        """Spans of a trace, each as often as it is named."""

        def arrived() -> bool:
            got = [name for found, name in self.found if found == trace]
            return all(got.count(name) >= names.count(name) for name in names)

        wait_until(arrived, f"the spans {names} at the collector; there are {self.found}")

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    made = Collector()
    yield made
    made.close()


@pytest.fixture(scope="module")
def broker(collector: Collector) -> Iterator[Broker]:
    settings = {"TRACING__ENABLED": "true", "TOPIC__PARTITIONS": "1"}
    with ExitStack() as started:
        with pytest.MonkeyPatch.context() as environment:
            environment.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.address)
            environment.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
            broker = started.enter_context(Broker(settings=settings))
        yield broker


@pytest.fixture
def spans() -> Iterator[InMemorySpanExporter]:
    """Those of the clients in this process."""
    memory = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(memory))
    tracing.instrument(provider)
    yield memory
    tracing.uninstrument()
    provider.shutdown()


def traces(memory: InMemorySpanExporter, name: str) -> list[str]:
    """The trace of each span of this name."""
    return [
        format(span.get_span_context().trace_id, "032x")
        for span in memory.get_finished_spans()
        if span.name == name
    ]


def consumed(broker: Broker, topic: str):
    with Consumer(broker.bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.subscribe(topic)
        (message,) = consumer.poll(wait_seconds_max())
        with tracing.process(message):
            pass
    return message


def test_kafka(broker, spans):
    with Producer(broker.bootstrap) as producer:
        sent = producer.send("by-kafka", b"v").result(wait_seconds_max())
    message = consumed(broker, "by-kafka")
    (trace,) = traces(spans, "send by-kafka")
    assert traces(spans, "process by-kafka") == [trace]
    assert dict(message.headers)["traceparent"].split(b"-")[1].decode() == trace
    by_name = {span.name: span for span in spans.get_finished_spans()}
    send, poll = by_name["send by-kafka"], by_name["poll by-kafka"]
    assert send.attributes["messaging.kafka.offset"] == sent.offset
    assert [link.context.trace_id for link in poll.links] == [send.get_span_context().trace_id]


def test_http(broker, collector, spans):
    connection = http.client.HTTPConnection(broker.http_address, timeout=wait_seconds_max())
    headers = {"content-type": "application/json", "traceparent": PARENT}
    for path, body in (
        ("/api/v1/topics", {"name": "by-http"}),
        ("/api/v1/topics/by-http/records", {"records": [{"value": "v"}]}),
    ):
        connection.request("POST", path, json.dumps(body), headers)
        reply = connection.getresponse()
        assert reply.status in (200, 201), reply.read()
        reply.read()
    connection.close()
    consumed(broker, "by-http")
    assert traces(spans, "process by-http") == [TRACE]
    collector.wait_for(TRACE, "POST /api/v1/topics/{topic}/records")


def test_grpc_through_redelivery_into_the_dead_letter(broker, collector, spans):
    seen = []

    def fail(message) -> None:
        seen.append((message.attempt, len(traces(spans, "process jobs"))))
        raise ValueError("never")

    with QueueClient(broker.grpc_address) as client:
        client.create_topic("jobs", partitions=1)
        client.send("jobs", b"v")
        client.work(
            *("workers", "jobs", fail),
            limit=2,
            attempts=2,
            backoff=0.001,
            dead_letter="jobs-dead",
        )
        client.work("undertakers", "jobs-dead", lambda message: None, limit=1)
    (trace,) = traces(spans, "send jobs")
    assert [attempt for attempt, _ in seen] == [1, 2]
    assert traces(spans, "process jobs") == [trace, trace]
    assert traces(spans, "process jobs-dead") == [trace]
    collector.wait_for(
        trace,
        *("moldau.v1.Queue/Send", "deliver jobs", "deliver jobs", "dead-letter jobs"),
        "deliver jobs-dead",
    )


def test_send_many(broker, spans):
    with QueueClient(broker.grpc_address) as client:
        client.create_topic("many", partitions=1)
        client.send_many("many", [b"1", b"2"])
        found = [
            dict(message.headers)["traceparent"] or b"" for message in client.read_from("many")
        ]
    sent = traces(spans, "send many")
    assert [value.split(b"-")[1].decode() for value in found] == sent
    assert len(set(sent)) == 2


def test_without_tracing_nothing_is_imported_or_added(broker):
    with Producer(broker.bootstrap) as producer:
        producer.send("untraced", b"v")
    assert consumed(broker, "untraced").headers == []
    code = (
        "import sys, moldau; moldau.Producer; moldau.Consumer; moldau.QueueClient;"
        "import moldau.server.run, moldau.edge.http.app, moldau.edge.grpc.listener;"
        "print([name for name in sys.modules if name.startswith('opentelemetry')])"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "[]\n"
