"""Tells whether text was run as code: the interpreter reports what it runs, loads and starts."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

_CODE = (
    *("exec", "compile", "import", "code.__new__", "marshal.", "pickle.", "ctypes."),
    *("os.system", "os.exec", "os.fork", "os.posix_spawn", "os.spawn", "subprocess."),
    *("socket.connect", "socket.getaddrinfo", "shutil.", "os.remove", "os.putenv"),
)
_watched: list[list[str]] = []
_is_installed = False


def _on_event(name: str, arguments: tuple[object, ...]) -> None:
    if _watched and name.startswith(_CODE):
        _watched[-1].append(f"{name} {arguments!r:.200}")


@contextmanager
def code_watch() -> Iterator[list[str]]:
    """What was run, loaded, started or connected to within. Imports count: do the same with
    harmless text before, so that what is needed is there."""
    global _is_installed
    if not _is_installed:
        # It cannot be removed, but does nothing while nobody watches.
        sys.addaudithook(_on_event)
        _is_installed = True
    seen: list[str] = []
    _watched.append(seen)
    try:
        yield seen
    finally:
        _watched.remove(seen)
