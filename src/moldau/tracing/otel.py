"""Records spans by OpenTelemetry, and carries their contexts in W3C headers of messages.

The only module that imports OpenTelemetry; names follow its semantic conventions of messaging.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final, Protocol

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, TracerProvider
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from moldau.records.record import Record
from moldau.version import __version__

TRACEPARENT: Final = "traceparent"
TRACESTATE: Final = "tracestate"
KAFKA: Final = "kafka"
QUEUE: Final = "moldau"
_VALUE_BYTES_MAX: Final = 1024
"""Longer ones are no trace context; a message may have any headers."""
_LINKS_MAX: Final = 128

Pairs = Iterable[tuple[str, bytes | str | None]]
GivenHeaders = Mapping[str, bytes | str | None] | Sequence[tuple[str, bytes | str | None]] | None


class ConsumedMessage(Protocol):
    """A message of a Kafka consumer, or of a queue."""

    @property
    def topic(self) -> str: ...

    @property
    def partition(self) -> int: ...

    @property
    def offset(self) -> int: ...

    @property
    def headers(self) -> list[tuple[str, bytes | None]]: ...


class Sending:
    """The span of one message that is being sent; `headers` carry its context."""

    __slots__ = ("_span", "headers")

    def __init__(self, span: Span, headers: list[tuple[str, bytes | str | None]]) -> None:
        self._span = span
        self.headers = headers

    def settled_by(self, settle: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
        """A delivery callback of librdkafka that also ends the span."""

        def settled(error: Any, message: Any) -> None:
            settle(error, message)
            if error is None:
                self.end(message.partition(), message.offset())
            else:
                self.fail(error)

        return settled

    def current(self) -> AbstractContextManager[Span]:
        """Calls in this block belong to the span, which does not end with it."""
        current: AbstractContextManager[Span] = trace.use_span(
            self._span, end_on_exit=False, record_exception=False, set_status_on_exception=False
        )
        return current

    def end(self, partition: int | None = None, offset: int | None = None) -> None:
        self._span.set_attributes(_place(partition, offset))
        self._span.end()

    def fail(self, error: object) -> None:
        self._span.set_status(Status(StatusCode.ERROR, str(error)))
        self._span.end()


class OtelTracer:
    """Of one process. `provider` None: the global one."""

    def __init__(self, provider: TracerProvider | None = None) -> None:
        self._tracer = trace.get_tracer("moldau", __version__, provider)
        self._propagator = TraceContextTextMapPropagator()

    # ---- clients

    def sending(self, topic: str, headers: GivenHeaders, system: str = KAFKA) -> Sending:
        """Headers that have a context already keep it: a forwarded message stays in its trace."""
        pairs = headers.items() if isinstance(headers, Mapping) else headers or ()
        given = list(pairs)
        known = self._context(given)
        is_root = not trace.get_current_span().get_span_context().is_valid
        span = self._tracer.start_span(
            f"send {topic}",
            context=known if is_root else None,
            kind=SpanKind.PRODUCER,
            attributes=_messaging(system, "send", topic),
            links=[] if is_root else _links([known]),
        )
        if not _is_known(known):
            given += self.headers_of(span)
        return Sending(span, given)

    def received(self, messages: Sequence[ConsumedMessage], group: str = "") -> None:
        """A batch came from a broker: one span, with links to what sent the messages."""
        topics = {message.topic for message in messages}
        name = topics.pop() if len(topics) == 1 else ""
        contexts = (self._context(message.headers) for message in messages[:_LINKS_MAX])
        self._tracer.start_span(
            f"poll {name}".rstrip(),
            kind=SpanKind.CLIENT,
            attributes={
                **_messaging(KAFKA, "poll", name, group, kind="receive"),
                "messaging.batch.message_count": len(messages),
            },
            links=_links(contexts),
        ).end()

    @contextmanager
    def process(self, message: ConsumedMessage, group: str = "") -> Iterator[object]:
        """Part of the trace of the message, and linked to what called."""
        context = self._context(message.headers)
        attempt = getattr(message, "attempt", None)
        attributes = _messaging(
            KAFKA if attempt is None else QUEUE, "process", message.topic, group
        )
        attributes |= _place(message.partition, message.offset)
        if attempt:
            attributes["moldau.delivery.attempt"] = attempt
        with self._tracer.start_as_current_span(
            f"process {message.topic}",
            context=context if _is_known(context) else None,
            kind=SpanKind.CONSUMER,
            attributes=attributes,
            links=_links([context]),
        ) as span:
            yield span

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """The context of the current span, for a call; empty without one."""
        carrier: dict[str, str] = {}
        self._propagator.inject(carrier)
        return tuple(carrier.items())

    # ---- brokers

    @contextmanager
    def request(self, name: str, given: Pairs, attributes: Mapping[str, str]) -> Iterator[Span]:
        """Around a request of a client, in its trace if it sent a context."""
        with self._tracer.start_as_current_span(
            name, context=self._context(given), kind=SpanKind.SERVER, attributes=dict(attributes)
        ) as span:
            yield span

    def is_traced(self, given: Pairs) -> bool:
        """Whether headers carry a context."""
        return _is_known(self._context(given))

    def stamped(self, records: list[Record]) -> list[Record]:
        """With the context of the current span, unless they have one of their own."""
        span = trace.get_current_span()
        if not span.get_span_context().is_valid:
            return records
        own = [(name, value.encode()) for name, value in self.headers_of(span)]
        return [
            record
            if any(name == TRACEPARENT for name, _ in record.headers)
            else record._replace(headers=[*record.headers, *own])
            for record in records
        ]

    def delivered(self, record: Record, topic: str, partition: int, group: str, n: int) -> None:
        """A worker gets a message for the nth time: a point in the trace of the message."""
        self._point("deliver", record, topic, partition, group, {"moldau.delivery.attempt": n})

    def dead_lettered(
        self, record: Record, topic: str, partition: int, group: str, to: str, reason: str
    ) -> None:
        """A message was moved to the dead-letter topic `to`, in which it keeps its context."""
        extra = {"moldau.dead_letter.topic": to, "moldau.dead_letter.reason": reason}
        self._point("dead-letter", record, topic, partition, group, extra)

    def _point(
        self,
        what: str,
        record: Record,
        topic: str,
        partition: int,
        group: str,
        extra: Mapping[str, str | int],
    ) -> None:
        """Nothing for messages without a context: each would be a trace of its own."""
        context = self._context(record.headers)
        if _is_known(context):
            attributes = _messaging(QUEUE, what, topic, group, kind="receive")
            attributes |= {**_place(partition, record.offset), **extra}
            self._tracer.start_span(
                f"{what} {topic}", context=context, kind=SpanKind.SERVER, attributes=attributes
            ).end()

    # ---- contexts

    def headers_of(self, span: Span) -> list[tuple[str, str]]:
        carrier: dict[str, str] = {}
        self._propagator.inject(carrier, trace.set_span_in_context(span, Context()))
        return list(carrier.items())

    def _context(self, given: Pairs) -> Context:
        """Only of the headers, without what this process does besides."""
        carrier: dict[str, str] = {}
        for name, value in given:
            if name not in (TRACEPARENT, TRACESTATE) or value is None or name in carrier:
                continue
            if len(value) <= _VALUE_BYTES_MAX:
                carrier[name] = value.decode("latin-1") if isinstance(value, bytes) else value
        return self._propagator.extract(carrier, Context()) if carrier else Context()


def _is_known(context: Context) -> bool:
    return bool(trace.get_current_span(context).get_span_context().is_valid)


def _links(contexts: Iterable[Context]) -> list[Link]:
    spans = (trace.get_current_span(context).get_span_context() for context in contexts)
    return [Link(span) for span in spans if span.is_valid]


def _messaging(
    system: str, name: str, topic: str, group: str = "", *, kind: str = ""
) -> dict[str, str | int]:
    attributes: dict[str, str | int] = {
        "messaging.system": system,
        "messaging.operation.name": name,
        "messaging.operation.type": kind or name,
    }
    if topic:
        attributes["messaging.destination.name"] = topic
    if group:
        attributes["messaging.consumer.group.name"] = group
    return attributes


def _place(partition: int | None, offset: int | None) -> dict[str, str | int]:
    found: dict[str, str | int] = {}
    if partition is not None and partition >= 0:
        found["messaging.destination.partition.id"] = str(partition)
    if offset is not None and offset >= 0:
        found["messaging.kafka.offset"] = offset
    return found
