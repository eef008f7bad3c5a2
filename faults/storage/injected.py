"""An entry point for brokers whose fsync can be made to fail or crawl; never in the product.

    FAULTS_FSYNC_FLAG=F FAULTS_FSYNC_TRACE=T python -m faults.storage.injected broker start …

runs the command line as `moldau` does. Once the file F exists, every fsync and fdatasync of the
process fails with EIO, as on a disk that broke; each of those calls is a line of T: the file. So do
syncs that the kernel runs by itself. If F holds a number, each of them takes so many seconds longer
instead, and none is left to the kernel.
"""

import errno
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from moldau.cli.main import main
from moldau.log.kernel_sync import KernelSyncs

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


def _fail_kernel_syncs(flag: str, trace: str) -> None:
    """What the kernel says of each is replaced, once it has said it."""
    add, submit, ended = KernelSyncs.add, KernelSyncs.submit, KernelSyncs.ended
    paths: dict[int, str] = {}

    def add_named(self: KernelSyncs[Any], descriptor: int, tag: Any) -> bool:
        if _setting(flag) or not add(self, descriptor, tag):
            return False
        paths[id(tag)] = os.readlink(f"/proc/self/fd/{descriptor}")
        return True

    def submit_some(self: KernelSyncs[Any]) -> list[Any]:
        left = submit(self)
        for tag in left:
            del paths[id(tag)]
        return left

    def end_badly(self: KernelSyncs[Any]) -> list[tuple[Any, int]]:
        found = [(tag, error, paths.pop(id(tag))) for tag, error in ended(self)]
        if _setting(flag) != "":
            return [(tag, error) for tag, error, _ in found]
        with open(trace, "a") as file:
            file.writelines(f"{path}\n" for _, _, path in found)
        return [(tag, errno.EIO) for tag, _, _ in found]

    KernelSyncs.add = add_named  # type: ignore[method-assign]
    KernelSyncs.submit = submit_some  # type: ignore[method-assign]
    KernelSyncs.ended = end_badly  # type: ignore[method-assign]


def _setting(flag: str) -> str | None:
    try:
        return Path(flag).read_text()
    except FileNotFoundError:
        return None


def inject(flag: str, trace: str) -> None:
    """From now on all flushes look at the flag."""
    _fail_kernel_syncs(flag, trace)
    os.fsync = _failing(os.fsync, flag, trace)  # type: ignore[assignment]
    os.fdatasync = _failing(os.fdatasync, flag, trace)  # type: ignore[assignment]


def refused(trace: Path) -> list[str]:
    """The files whose flush was refused, in order."""
    return trace.read_text().splitlines() if trace.exists() else []


if __name__ == "__main__":
    inject(os.environ[FLAG_VARIABLE], os.environ[TRACE_VARIABLE])
    main()
