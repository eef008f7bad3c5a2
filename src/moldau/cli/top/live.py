"""The live view: draws frames on the terminal, and reads keys meanwhile.

A thread polls the brokers; the terminal is left as it was however the view ends.
"""

import os
import queue
import select
import sys
import termios
import threading
import time
import tty
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from moldau.cli.signals import stop_signals
from moldau.cli.top.compute import compute
from moldau.cli.top.figures import ClusterFigures
from moldau.cli.top.poller import Poller, Snapshot
from moldau.cli.top.screen import Choices, Frame, History
from moldau.cli.top.tables import VIEWS

if TYPE_CHECKING:
    from rich.console import Console

FIRST_SECONDS: Final = 0.5
"""The second scrape follows soon, so that there are rates."""
_KEY_SECONDS_MAX: Final = 0.1
_PAGE: Final = 10
_ESCAPES: Final = {
    "\x1b[A": "up",
    "\x1bOA": "up",
    "\x1b[B": "down",
    "\x1bOB": "down",
    "\x1b[C": "next",
    "\x1b[D": "previous",
    "\x1b[5~": "page up",
    "\x1b[6~": "page down",
    "\x1b[Z": "previous",
}
_NAMES: Final = {
    "k": "up",
    "j": "down",
    "\t": "next",
    "\x03": "q",
    "\x04": "q",
    "Q": "q",
    " ": "pause",
}


def show_live(
    poller: Poller, first: Snapshot, choices: Choices, interval: float, console: "Console"
) -> None:
    """Until `q`, Ctrl-C or SIGTERM."""
    from rich.live import Live
    from rich.text import Text

    shown = _Shown(compute(first), choices, interval)
    polls = _Polls(poller, interval)
    with (
        stop_signals() as stop,
        _keys() as key,
        Live(console=console, screen=True, auto_refresh=False) as live,
    ):
        polls.start()
        size = None
        while not stop and not shown.is_over:
            is_new = shown.take(polls)
            pressed = key()
            if pressed:
                shown.press(pressed)
            if is_new or pressed or size != console.size:
                size = console.size
                lines = shown.frame(size.width, size.height).lines()
                live.update(Text("\n").join(lines[: size.height]), refresh=True)
    polls.stop()


class _Shown:
    """What is on the terminal."""

    def __init__(self, figures: ClusterFigures, choices: Choices, interval: float) -> None:
        self.figures = figures
        self.choices = choices
        self.is_over = False
        self._history = History()
        self._interval = interval
        self._is_drawn = False

    def frame(self, width: int, height: int) -> Frame:
        return Frame(
            self.figures, self.choices, self._history, width, height, interval=self._interval
        )

    def take(self, polls: "_Polls") -> bool:
        """Whether there is something new to be drawn."""
        is_new, self._is_drawn = not self._is_drawn, True
        for figures in polls.taken():
            if not self.choices.is_paused:
                self.figures = figures
                self._history.add(figures)
                is_new = True
        return is_new

    def press(self, key: str) -> None:
        choices, view = self.choices, self.choices.current
        if key == "q":
            self.is_over = True
        elif key.isdigit() and 1 <= int(key) <= len(VIEWS):
            self._turn_to(int(key) - 1)
        elif key in ("next", "previous"):
            self._turn_to((choices.view + (1 if key == "next" else -1)) % len(VIEWS))
        elif key == "s":
            titles = [column.title for column in view.columns]
            at = titles.index(choices.sort.get(view.name, view.sort))
            choices.sort[view.name] = titles[(at + 1) % len(titles)]
        elif key == "r":
            choices.is_reversed = not choices.is_reversed
        elif key == "a":
            choices.shows_internal = not choices.shows_internal
        elif key == "pause":
            choices.is_paused = not choices.is_paused
        else:
            steps = {"up": -1, "down": 1, "page up": -_PAGE, "page down": _PAGE}
            most = max(0, len(view.rows(self.figures)) - 1)
            choices.first_row = min(most, max(0, choices.first_row + steps.get(key, 0)))

    def _turn_to(self, view: int) -> None:
        self.choices.view = view
        self.choices.first_row = 0
        self.choices.is_reversed = False


class _Polls:
    """A thread that polls at an interval. It is not waited for: a broker may keep it waiting."""

    def __init__(self, poller: Poller, interval: float) -> None:
        self._poller = poller
        self._interval = interval
        self._found: queue.SimpleQueue[ClusterFigures | BaseException] = queue.SimpleQueue()
        self._stopped = threading.Event()

    def start(self) -> None:
        threading.Thread(target=self._run, name="poll", daemon=True).start()

    def stop(self) -> None:
        self._stopped.set()

    def taken(self) -> Iterator[ClusterFigures]:
        """What was polled since the last call. Raises what a poll has raised."""
        while not self._found.empty():
            figures = self._found.get()
            if isinstance(figures, BaseException):
                raise figures
            yield figures

    def _run(self) -> None:
        due = time.monotonic() + min(FIRST_SECONDS, self._interval)
        try:
            while not self._stopped.wait(max(0.0, due - time.monotonic())):
                due = time.monotonic() + self._interval
                self._found.put(compute(self._poller.poll()))
        except BaseException as error:
            self._found.put(error)


class _Keys:
    """Waits a moment for a key."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._typed = ""

    def __call__(self) -> str:
        """Its name; empty if none was pressed."""
        if not self._typed and not self._read(_KEY_SECONDS_MAX):
            return ""
        for sequence, name in _ESCAPES.items():
            if self._typed.startswith(sequence):
                self._typed = self._typed[len(sequence) :]
                return name
        if self._typed[0] == "\x1b":
            # Escape alone, or a key that means nothing here.
            self._typed = ""
            return ""
        key, self._typed = self._typed[0], self._typed[1:]
        return _NAMES.get(key, key)

    def _read(self, seconds: float) -> bool:
        if not select.select([self._number], [], [], seconds)[0]:
            return False
        try:
            data = os.read(self._number, 1024)
        except OSError:
            data = b""
        if not data:
            raise EOFError("the terminal was closed")
        self._typed = data.decode(errors="replace")
        return True


@contextmanager
def _keys() -> Iterator[_Keys]:
    """Keys are read one by one, and not echoed."""
    number = sys.stdin.fileno()
    before = termios.tcgetattr(number)
    try:
        tty.setcbreak(number)
        yield _Keys(number)
    finally:
        termios.tcsetattr(number, termios.TCSADRAIN, before)
