"""The first process of a container (PID 1), which the kernel treats like no other.

A signal that it has no handler for does nothing to it, so SIGTERM would not end most commands; and
it inherits orphans, which stay as zombies until it waits for them. So the command runs in a child,
and the first process passes on signals, waits for whatever has ended, and ends like the command.
"""

import os
import signal
from typing import Final

_SI_KERNEL: Final = 0x80
_OF_KEYS: Final = (signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP, signal.SIGWINCH)
"""A terminal sends them to all its processes: the command has them already."""


def leave_to_child() -> None:
    """Return at once, or in a child if this is the first process."""
    if os.getpid() != 1:
        return
    signals = signal.valid_signals()
    # A blocked signal is kept, and not ignored.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    command = os.fork()
    if command == 0:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return
    while True:
        received = signal.sigwaitinfo(signals)
        if received.si_signo == signal.SIGCHLD:
            _wait_for_ended(command)
        elif received.si_code != _SI_KERNEL or received.si_signo not in _OF_KEYS:
            os.kill(command, received.si_signo)


def _wait_for_ended(command: int) -> None:
    """End if the command is among them."""
    while True:
        # There is a child as long as the command was not waited for.
        process, status = os.waitpid(-1, os.WNOHANG)
        if process == 0:
            return
        if process == command:
            code = os.waitstatus_to_exitcode(status)
            os._exit(code if code >= 0 else 128 - code)
