"""Responsible for hints to users of Spark, who see an error as the trace of a Python process."""

from collections.abc import Iterator
from contextlib import contextmanager

from moldau.model.errors import MoldauError


@contextmanager
def hints_told() -> Iterator[None]:
    """Errors that have a hint say it below their message, too."""
    try:
        yield
    except MoldauError as error:
        if error.hint and error.hint not in str(error):
            error.add_note(f"hint: {error.hint}")
        raise


tells_hints = hints_told()
"""The same for all that a function raises; not for what a generator raises later on."""
