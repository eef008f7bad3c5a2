"""Owns how a long-running command is told to stop: by signal, or because nobody reads any more."""

import select
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Stop:
    """Set by the first Ctrl-C or SIGTERM; a second one interrupts whatever is going on."""

    def __init__(self) -> None:
        self.asked = False

    def __bool__(self) -> bool:
        return self.asked

    def handle(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True


@contextmanager
def stop_signals(*more: signal.Signals) -> Iterator[Stop]:
    """Within, SIGINT and SIGTERM (and `more`) only set the returned flag."""
    stop = Stop()
    numbers = (signal.SIGINT, signal.SIGTERM, *more)
    before = [signal.signal(number, stop.handle) for number in numbers]
    try:
        yield stop
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


class Interrupts:
    """Ctrl-C as an exception, except within `with interrupts:`, at whose end it is raised.

    For calls of librdkafka: they run Python callbacks inside a C call, which loses an exception
    that a signal raises there.
    """

    def __init__(self) -> None:
        self._held = False
        self._asked = False

    def handle(self, number: int, frame: FrameType | None) -> None:
        if not self._held:
            raise KeyboardInterrupt
        self._asked = True

    def __enter__(self) -> None:
        self._held = True

    def __exit__(self, *exception: object) -> None:
        self._held = False
        if self._asked:
            self._asked = False
            raise KeyboardInterrupt


@contextmanager
def hold_interrupts() -> Iterator[Interrupts]:
    """SIGINT goes through the returned object until the end of the block."""
    interrupts = Interrupts()
    before = signal.signal(signal.SIGINT, interrupts.handle)
    try:
        yield interrupts
    finally:
        signal.signal(signal.SIGINT, before)


def reader_gone() -> bool:
    """True once the other end of our standard output is closed, as by `| head`."""
    try:
        poller = select.poll()
        poller.register(sys.stdout.fileno(), 0)
        return any(event & select.POLLERR for _, event in poller.poll(0))
    except (OSError, ValueError):
        return False
