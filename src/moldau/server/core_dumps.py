"""Keeps the memory of this process, with the secrets in it, out of core files."""

import contextlib
import resource
from typing import Final

_NO_DUMP: Final = 1
"""One byte. Too few for a file, and Linux then starts no program to receive the dump either, which
it does if the limit is 0."""


def forbid_core_dumps() -> None:
    """For this process, and for those that it starts."""
    # A lower limit that cannot be raised was set by the operator, and has the same aim.
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_CORE, (_NO_DUMP, _NO_DUMP))
