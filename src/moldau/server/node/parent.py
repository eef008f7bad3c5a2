"""Ends a process of a node when its supervisor has ended, even by SIGKILL.

Without it a process would hold the ports and the directory of its node, which the next start needs.
A broker survives to be killed: what it acknowledged is on the disk.
"""

import contextlib
import os
import signal
import sys
import threading
import time
from typing import Final

_PR_SET_PDEATHSIG: Final = 1
_POLL_SECONDS: Final = 0.5


def end_with(parent: int) -> None:
    """Call it in the main thread, before anything is opened."""
    if not _signalled_by_system():
        threading.Thread(target=_watch, args=(parent,), name="parent", daemon=True).start()
    if os.getppid() != parent:
        # It ended before this was set up.
        os.kill(os.getpid(), signal.SIGKILL)


def _signalled_by_system() -> bool:
    """Whether the system kills this process with its parent; Linux can."""
    if not sys.platform.startswith("linux"):
        return False
    with contextlib.suppress(ImportError, OSError, AttributeError, MemoryError):
        import ctypes

        library = ctypes.CDLL(None, use_errno=True)
        return bool(library.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) == 0)
    return False


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_POLL_SECONDS)
    os.kill(os.getpid(), signal.SIGKILL)
