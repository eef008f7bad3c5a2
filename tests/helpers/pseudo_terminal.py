"""A pseudo-terminal for commands: what a person types, and what they see."""

import fcntl
import os
import pty
import select
import struct
import subprocess
import termios
from collections.abc import Callable
from typing import IO

from moldau.testing.waiting import wait_seconds_max, wait_until

Spawn = Callable[..., "subprocess.Popen[str]"]
"""The fixture `spawn` of tests/cli."""


class Terminal:
    """A pseudo-terminal on stdin and stderr of a command, and on stdout if it is `whole`."""

    def __init__(
        self,
        spawn: Spawn,
        *arguments: object,
        stdin: "int | IO[str] | None" = None,
        whole: bool = False,
        size: tuple[int, int] = (80, 24),
        **environment: str,
    ) -> None:
        self._is_whole = whole
        self._controller, end = pty.openpty()
        columns, lines = size
        fcntl.ioctl(end, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self.process = spawn(
            *arguments,
            stdin=end if stdin is None else stdin,
            stderr=end,
            env={"TERM": "xterm", **environment},
            **({"stdout": end} if whole else {}),
        )
        os.close(end)
        self.seen = ""

    def read(self) -> bool:
        """Take what is shown by now; False once the command is gone and all of it is taken."""
        while select.select([self._controller], [], [], 0)[0]:
            try:
                data = os.read(self._controller, 65536)
            except OSError:
                return False
            self.seen += data.decode(errors="replace")
        return True

    def read_until(self, text: str, *, meanwhile: Callable[[], None] = lambda: None) -> None:
        """Raises if it is not shown, also at the end of the command."""

        def is_shown() -> bool:
            meanwhile()
            is_open = self.read()
            assert is_open or text in self.seen, self.seen
            return text in self.seen

        wait_until(is_shown, f"{text!r} is shown", describe=lambda: self.seen)

    def forget(self) -> None:
        """What was seen so far; only what is shown from now on counts."""
        self.read()
        self.seen = ""

    def send_line(self) -> None:
        """Into the pipe that is its stdin."""
        assert self.process.stdin is not None
        self.process.stdin.write("line\n")
        self.process.stdin.flush()

    def type(self, text: str) -> None:
        os.write(self._controller, text.encode())

    def end(self) -> tuple[int, str]:
        """The exit code and stdout; what else was shown is added to `seen`."""
        if self._is_whole:
            # It cannot end while the terminal is full.
            wait_until(lambda: not self.read(), "the command ends")
        out, _ = self.process.communicate(timeout=wait_seconds_max())
        wait_until(lambda: not self.read(), "the terminal is left")
        return self.process.returncode, out

    def close(self) -> None:
        os.close(self._controller)
