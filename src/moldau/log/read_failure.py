"""What a failed read of a log means to those who asked for it."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from moldau.model.errors import CorruptionError, ErrorCode, RefusedError

NO_DESCRIPTOR: Final = (errno.EMFILE, errno.ENFILE)


def read_failure(error: OSError) -> CorruptionError | RefusedError:
    """Too many open files pass; what a disk cannot read any more is lost as if it were corrupt."""
    if error.errno in NO_DESCRIPTOR:
        return RefusedError(ErrorCode.KAFKA_STORAGE_ERROR, f"cannot read now: {error.strerror}")
    return CorruptionError(f"cannot be read ({error})")


@contextmanager
def disk_reads() -> Iterator[None]:
    """Raises CorruptionError or RefusedError instead of OSError."""
    try:
        yield
    except OSError as error:
        raise read_failure(error) from error
