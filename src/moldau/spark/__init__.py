"""Moldau for Spark: the source and sink `moldau`, decoders, lake tables and pipelines.

`session()` creates a Spark session with suitable settings. `MetricsListener` exports metrics of
its queries to Prometheus. Both are imported on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from moldau.spark.metrics_listener import MetricsListener
    from moldau.spark.sessions import session

__all__ = ["MetricsListener", "session"]

_MODULES = {
    "MetricsListener": "moldau.spark.metrics_listener",
    "session": "moldau.spark.sessions",
}


def __getattr__(name: str) -> object:
    """Lazy import (PEP 562): Spark tasks import this package, too, and must start quickly."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(import_module(_MODULES[name]), name)
    globals()[name] = found
    return found
