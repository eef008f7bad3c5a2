"""Adds hints to tracebacks: users of Spark see errors as tracebacks of a Python process."""

from collections.abc import Iterator
from contextlib import contextmanager

from moldau.model.errors import MoldauError


@contextmanager
def shows_hints() -> Iterator[None]:
    """Adds the hint of an error as a note below its message. Also a decorator, but not for
    generators, which raise later."""
    try:
        yield
    except MoldauError as error:
        if error.hint and error.hint not in str(error):
            error.add_note(f"hint: {error.hint}")
        raise
