"""Sets up tracing of a broker: spans go to an OpenTelemetry collector, over OTLP.

Where to, and how many of them, is configured by OpenTelemetry's own environment variables:
OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_TRACES_SAMPLER and others.
"""

import os
import threading
from collections.abc import Callable
from typing import Final

from moldau import tracing
from moldau.model.errors import ConfigError
from moldau.server.config.schema import ServerConfig

_SERVICE_VARIABLES: Final = ("OTEL_SERVICE_NAME", "OTEL_RESOURCE_ATTRIBUTES")
_END_SECONDS_MAX: Final = 3.0
"""A collector that is down must not hold up the end of the process."""


def start_tracing(config: ServerConfig) -> Callable[[], None]:
    """Returns what sends the last spans and ends it. Raises ConfigError without OpenTelemetry."""
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        error = ConfigError(f"tracing.enabled = true: {tracing.MISSING}")
        error.hint = "install it, or set tracing.enabled to false"
        raise error from None
    named = any(os.environ.get(name) for name in _SERVICE_VARIABLES)
    attributes = {"service.instance.id": str(config.kafka.advertised or config.kafka.addr)}
    if not named:
        attributes["service.name"] = "moldau"
    provider = TracerProvider(resource=Resource.create(attributes), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    tracing.instrument(provider)

    def end() -> None:
        tracing.uninstrument()
        ending = threading.Thread(target=provider.shutdown, name="moldau-traces", daemon=True)
        ending.start()
        ending.join(_END_SECONDS_MAX)

    return end
