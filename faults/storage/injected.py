"""An entry point for brokers whose fsync can be made to fail or crawl; never in the product.

    FAULTS_FSYNC_FLAG=F FAULTS_FSYNC_TRACE=T python -m faults.storage.injected broker start …

runs the command line as `moldau` does. Once the file F exists, every fsync and fdatasync of the
process fails with EIO, as on a disk that broke; each of those calls is a line of T: the file. If F
holds a number, each of them takes so many seconds longer instead.
"""

import errno
import os
import time
from collections.abc import Callable
from pathlib import Path

from moldau.cli.main import main
from moldau.log import kernel_sync

FLAG_VARIABLE = "FAULTS_FSYNC_FLAG"
TRACE_VARIABLE = "FAULTS_FSYNC_TRACE"


def _failing(call: Callable[[int], None], flag: str, trace: str) -> Callable[[int], None]:
    def flush(descriptor: int) -> None:
        try:
            with open(flag) as setting:
                seconds = setting.read()
        except FileNotFoundError:
            call(descriptor)
            return
        with open(trace, "a") as file:
            file.write(os.readlink(f"/proc/self/fd/{descriptor}") + "\n")
        if seconds:
            time.sleep(float(seconds))
            call(descriptor)
            return
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    return flush


def inject(flag: str, trace: str) -> None:
    """From now on the two calls look at the flag first, and nothing is flushed in another way."""
    kernel_sync.is_offered = False
    os.fsync = _failing(os.fsync, flag, trace)  # type: ignore[assignment]
    os.fdatasync = _failing(os.fdatasync, flag, trace)  # type: ignore[assignment]


def refused(trace: Path) -> list[str]:
    """The files whose flush was refused, in order."""
    return trace.read_text().splitlines() if trace.exists() else []


if __name__ == "__main__":
    inject(os.environ[FLAG_VARIABLE], os.environ[TRACE_VARIABLE])
    main()
