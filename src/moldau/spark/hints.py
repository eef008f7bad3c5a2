"""Adds hints to tracebacks: users of Spark see errors as tracebacks of a Python process."""

from collections.abc import Iterator
from contextlib import contextmanager

from moldau.model.errors import MoldauError


@contextmanager
def shows_hints() -> Iterator[None]:
    """Adds the hint of an error as a note to it. Also a decorator, but not of generators."""
    try:
        yield
    except MoldauError as error:
        if error.hint and error.hint not in str(error):
            error.add_note(f"hint: {error.hint}")
        raise
