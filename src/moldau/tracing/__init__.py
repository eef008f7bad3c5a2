"""Traces of messages, from a producer through brokers to its consumers, by OpenTelemetry.

Off until `instrument` is called; until then `active` is None, which is all that the code that is
traced looks at, and OpenTelemetry is not imported. It comes with the extra: moldau[otel].
"""

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

    from moldau.tracing.otel import ConsumedMessage, OtelTracer

MISSING: Final = "tracing needs OpenTelemetry: pip install 'moldau[otel]'"

active: "OtelTracer | None" = None
"""Of this process."""


def instrument(tracer_provider: "TracerProvider | None" = None) -> None:
    """Record spans of all producers, consumers and queue clients of this process.

    By default of the global tracer provider, which the application sets up. Raises ImportError.
    """
    global active
    try:
        from moldau.tracing.otel import OtelTracer
    except ImportError as error:
        raise ImportError(MISSING) from error
    active = OtelTracer(tracer_provider)


def uninstrument() -> None:
    """Record no spans any more."""
    global active
    active = None


def process(message: "ConsumedMessage", *, group: str = "") -> AbstractContextManager[object]:
    """`with process(message):` a span around the handling of a consumed message, in its trace.

    Does nothing unless instrumented. The workers of queues do it by themselves.
    """
    return nullcontext() if active is None else active.process(message, group)
