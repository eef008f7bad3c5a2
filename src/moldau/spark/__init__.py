"""Topics as tables and streams of Spark: the source and sink `moldau`, and what stands on them.

`session()` makes a Spark session that fits; nothing heavy is imported before it is asked for.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from moldau.spark.sessions import session

__all__ = ["session"]


def __getattr__(name: str) -> object:
    """Load what is asked for, when it is (PEP 562): tasks of Spark import this package, too."""
    if name != "session":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from moldau.spark.sessions import session

    globals()[name] = session
    return session
