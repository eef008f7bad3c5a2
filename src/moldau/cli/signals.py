"""How a long-running command ends: by a signal, or because its output is closed."""

import select
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Stop:
    """Set by the first Ctrl-C or SIGTERM; a second one raises KeyboardInterrupt."""

    def __init__(self) -> None:
        self.requested = False

    def __bool__(self) -> bool:
        return self.requested

    def handle(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True


@contextmanager
def stop_signals(*more: signal.Signals) -> Iterator[Stop]:
    """Within the block, SIGINT, SIGTERM and `more` only set the returned flag."""
    stop = Stop()
    numbers = (signal.SIGINT, signal.SIGTERM, *more)
    before = [signal.signal(number, stop.handle) for number in numbers]
    try:
        yield stop
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


class Interrupts:
    """Raises KeyboardInterrupt for Ctrl-C, but within `with interrupts:` only at its end.

    For calls of librdkafka, which run Python callbacks inside a C call: an exception that a signal
    raises there is lost.
    """

    def __init__(self) -> None:
        self._deferring = False
        self._pending = False

    def handle(self, number: int, frame: FrameType | None) -> None:
        if not self._deferring:
            raise KeyboardInterrupt
        self._pending = True

    def __enter__(self) -> None:
        self._deferring = True

    def __exit__(self, *exception: object) -> None:
        self._deferring = False
        if self._pending:
            self._pending = False
            raise KeyboardInterrupt


@contextmanager
def deferrable_interrupts() -> Iterator[Interrupts]:
    """Within the block, the returned object handles SIGINT."""
    interrupts = Interrupts()
    before = signal.signal(signal.SIGINT, interrupts.handle)
    try:
        yield interrupts
    finally:
        signal.signal(signal.SIGINT, before)


def output_closed() -> bool:
    """True once the reader of our standard output has closed it, as `| head` does."""
    try:
        poller = select.poll()
        poller.register(sys.stdout.fileno(), 0)
        return any(event & select.POLLERR for _, event in poller.poll(0))
    except (OSError, ValueError):
        return False
