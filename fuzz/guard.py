"""Runs one input of a target, and notices what must not happen.

Three things are findings: an error that the target does not allow, more processor time than its
bound, and more memory than its bound. Processor time, not time of the clock: the machine may be
busy. Memory is the growth of the peak that the system counts for this process, which costs nothing
to read; an allocation that is never touched is caught by the limit of the address space.
"""

import resource
import signal
import traceback
from pathlib import Path
from types import FrameType
from typing import Final

from fuzz.findings import Finding
from fuzz.target import MEBIBYTE, Target

_HISTORY_MAX: Final = 200
"""Inputs after which a target with state begins from scratch."""
_ADDRESS_SPACE_SPARE: Final = 2048 * MEBIBYTE
_PEAK_RESET: Final = Path("/proc/self/clear_refs")
_PRODUCT: Final = "/moldau/"


class HangError(BaseException):
    """Raised inside of a target whose time is over. Not an Exception: nothing may catch it."""


class Guard:
    """One target in this process."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self._history: list[bytes] = []
        self._is_hung = False
        # What this process needed before must not hide what a target needs.
        _forget_peak()

    def run(self, data: bytes) -> Finding | None:
        """None if the target did nothing wrong."""
        target = self.target
        self._remember(data)
        self._is_hung = False
        peak = _peak_bytes()
        handled_before = signal.signal(signal.SIGVTALRM, self._on_time_over)
        signal.setitimer(signal.ITIMER_VIRTUAL, target.seconds_max)
        try:
            target.run(data)
        except target.allowed:
            pass
        except HangError as error:
            return self._finding(data, "hang", error)
        except Exception as error:
            return self._finding(data, type(error).__name__, error)
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            signal.signal(signal.SIGVTALRM, handled_before)
        if self._is_hung:
            return self._finding(data, "hang", HangError("it was caught by an event loop"))
        grown = _peak_bytes() - peak
        if grown > target.memory_bytes_max:
            _forget_peak()
            text = f"{grown >> 20} MB for an input of {len(data)} bytes"
            return self._finding(data, "memory", MemoryError(text))
        return None

    def _remember(self, data: bytes) -> None:
        reset = self.target.reset
        if reset is None:
            self._history = [data]
            return
        if len(self._history) >= _HISTORY_MAX:
            reset()
            self._history = []
        self._history.append(data)

    def _on_time_over(self, number: int, frame: FrameType | None) -> None:
        self._is_hung = True
        raise HangError(f"more than {self.target.seconds_max:g} s of processor time")

    def _finding(self, data: bytes, kind: str, error: BaseException) -> Finding:
        found = Finding(
            target=self.target.name,
            kind=kind,
            place=_place(error),
            text=f"{type(error).__name__}: {error}"[:500],
            trace="".join(traceback.format_exception(error))[-6000:],
            inputs=tuple(self._history),
        )
        if self.target.reset is not None:
            # What comes next must not suffer from what this one has broken.
            self.target.reset()
            self._history = []
        return found


def limit_address_space() -> None:
    """So that a huge allocation fails instead of taking the machine with it."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + _ADDRESS_SPACE_SPARE, resource.RLIM_INFINITY))


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _forget_peak() -> None:
    """The next input is compared with the memory in use, not with this peak."""
    try:
        _PEAK_RESET.write_text("5")
    except OSError:
        # Not allowed here: smaller growth stays unseen from now on.
        return


def _place(error: BaseException) -> str:
    """The innermost line of the product: findings with the same one are the same."""
    frames = traceback.extract_tb(error.__traceback__)
    for frame in reversed(frames):
        if _PRODUCT in frame.filename or frame.filename.startswith("<"):
            return f"{frame.filename.rpartition(_PRODUCT)[2]}:{frame.lineno}"
    return f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
