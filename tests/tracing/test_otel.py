"""Spans and the headers that carry them."""

from collections.abc import Iterator

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from moldau import tracing
from moldau.client.kafka.message import Message
from moldau.model.ids import Offset, TimestampMs
from moldau.records.record import Record
from moldau.tracing.otel import OtelTracer

pytestmark = pytest.mark.inprocess

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
TRACE = int(PARENT.split("-")[1], 16)


@pytest.fixture
def memory() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def tracer(memory: InMemorySpanExporter) -> Iterator[OtelTracer]:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(memory))
    yield OtelTracer(provider)
    provider.shutdown()


def named(memory: InMemorySpanExporter) -> dict[str, ReadableSpan]:
    return {span.name: span for span in memory.get_finished_spans()}


def trace_of(span: ReadableSpan) -> int:
    number: int = span.get_span_context().trace_id
    return number


def record(*headers: tuple[str, bytes | None]) -> Record:
    return Record(Offset(7), TimestampMs(0), None, b"v", list(headers))


def test_a_message_is_processed_in_the_trace_in_which_it_was_sent(tracer, memory):
    sending = tracer.sending("orders", {"kind": "new"})
    sending.end(2, 7)
    assert [name for name, _ in sending.headers] == ["kind", "traceparent"]
    message = Message.of("orders", b"v", headers=sending.headers, partition=2, offset=7)
    tracer.received([message], "billing")
    with tracer.process(message, "billing"):
        pass
    spans = named(memory)
    send, poll, process = (spans[f"{what} orders"] for what in ("send", "poll", "process"))
    assert trace_of(process) == trace_of(send) != trace_of(poll)
    assert process.parent.span_id == send.get_span_context().span_id
    assert poll.links[0].context.span_id == send.get_span_context().span_id
    assert send.attributes["messaging.kafka.offset"] == 7
    assert process.attributes["messaging.consumer.group.name"] == "billing"


def test_a_message_that_is_sent_on_stays_in_its_trace(tracer, memory):
    sending = tracer.sending("orders", [("traceparent", PARENT.encode()), ("tracestate", b"a=b")])
    sending.end()
    assert sending.headers == [("traceparent", PARENT.encode()), ("tracestate", b"a=b")]
    assert trace_of(named(memory)["send orders"]) == TRACE


@pytest.mark.parametrize(
    "value", [b"", b"\xff\xfe", b"00-0-0-01", b"x" * 5000, None, PARENT.upper().encode() * 3]
)
def test_headers_that_are_no_context_are_ignored(tracer, memory, value):
    headers = [("traceparent", value), ("tracestate", value)]
    with tracer.process(Message.of("orders", b"v", headers=headers)):
        pass
    assert named(memory)["process orders"].parent is None
    assert not tracer.is_traced(headers)


def test_a_handler_that_fails_is_an_error(tracer, memory):
    with pytest.raises(ValueError), tracer.process(Message.of("orders", b"v")):
        raise ValueError("it failed")
    tracer.sending("orders", None).fail("timed out")
    spans = named(memory)
    assert spans["process orders"].status.status_code is StatusCode.ERROR
    assert spans["send orders"].status.description == "timed out"


def test_a_broker_stamps_what_has_no_context(tracer, memory):
    own = record(("traceparent", PARENT.encode()))
    assert tracer.stamped([own, record()]) == [own, record()]
    with tracer.request("POST", [("traceparent", PARENT)], {}):
        kept, stamped = tracer.stamped([own, record()])
    assert kept == own
    assert stamped.headers[0][1].split(b"-")[1] == PARENT.split("-")[1].encode()
    assert named(memory)["POST"].kind.name == "SERVER"


def test_points_of_a_message_are_recorded_only_in_its_trace(tracer, memory):
    tracer.delivered(record(), "orders", 0, "billing", 1)
    assert memory.get_finished_spans() == ()
    traced = record(("traceparent", PARENT.encode()))
    tracer.delivered(traced, "orders", 0, "billing", 2)
    tracer.dead_lettered(traced, "orders", 0, "billing", "orders.dead", "too often")
    spans = named(memory)
    assert {trace_of(span) for span in spans.values()} == {TRACE}
    assert spans["deliver orders"].attributes["moldau.delivery.attempt"] == 2
    assert spans["dead-letter orders"].attributes["moldau.dead_letter.reason"] == "too often"


def test_without_tracing_nothing_happens():
    with tracing.process(Message.of("orders", b"v")) as span:
        assert span is None
