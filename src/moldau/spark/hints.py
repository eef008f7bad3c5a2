"""Owns the way of hints to users of Spark, who see an error as the trace of a Python process."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import ParamSpec, TypeVar

from moldau.model.errors import MoldauError

P = ParamSpec("P")
R = TypeVar("R")


@contextmanager
def hints_told() -> Iterator[None]:
    """Errors that have a hint say it below their message, too."""
    try:
        yield
    except MoldauError as error:
        if error.hint and error.hint not in str(error):
            error.add_note(f"hint: {error.hint}")
        raise


def tells_hints(function: Callable[P, R]) -> Callable[P, R]:
    """The same for all that a function raises; not for what a generator raises later on."""

    @wraps(function)
    def told(*args: P.args, **kwargs: P.kwargs) -> R:
        with hints_told():
            return function(*args, **kwargs)

    return told
