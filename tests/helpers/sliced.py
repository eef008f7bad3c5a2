"""Files whose slices are sent, as the log opens them."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from moldau.log.os_filesystem import OsFile, OsFiles


@contextmanager
def opened(path: Path) -> Iterator[OsFile]:
    file = OsFiles(path.parent).open(path.name, writable=False)
    try:
        yield file
    finally:
        file.close()
