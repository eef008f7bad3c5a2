"""Topics as tables and streams of Spark: the source and sink `moldau`, and what stands on them.

`session()` makes a Spark session that fits, `MetricsListener` shows its queries to Prometheus;
nothing heavy is imported before it is asked for.
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
    """Load what is asked for, when it is (PEP 562): tasks of Spark import this package, too."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(import_module(_MODULES[name]), name)
    globals()[name] = found
    return found
