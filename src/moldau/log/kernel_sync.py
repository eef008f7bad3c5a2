"""Syncs of files that the kernel runs by itself: Linux's asynchronous I/O, fdatasync only.

One system call begins the syncs of many files, the kernel's own threads run them in parallel, and
one eventfd says that some have ended. No thread of this process takes part: each would need the
interpreter lock twice for every sync, and take it from the event loop.

Linux has it since 4.18. Where it is missing or refused (other systems, a filter of system calls,
too many contexts), `open_kernel_syncs` returns None, or `submit` gives everything back.
"""

import ctypes
import errno
import os
import platform
import select
import sys
from collections.abc import Callable
from typing import Final, Generic, TypeVar

T = TypeVar("T")

IN_FLIGHT_MAX: Final = 256

# Of the three calls that are used: io_setup, io_submit, io_getevents.
_NUMBERS: Final = {
    "x86_64": (206, 209, 208),
    "aarch64": (0, 2, 4),
    "riscv64": (0, 2, 4),
}
_IO_DESTROY: Final = {"x86_64": 207, "aarch64": 1, "riscv64": 1}
_FDSYNC: Final = 3
_FLAG_RESFD: Final = 1
_NOTHING: Final = ctypes.c_long(0)

is_offered = True
"""False in tests that stand between the process and its disk, where the kernel would pass by."""


class _Request(ctypes.Structure):
    """struct iocb of linux/aio_abi.h, little-endian."""

    _fields_ = (
        ("data", ctypes.c_uint64),
        ("key", ctypes.c_uint32),
        ("rw_flags", ctypes.c_int32),
        ("opcode", ctypes.c_uint16),
        ("priority", ctypes.c_int16),
        ("descriptor", ctypes.c_uint32),
        ("buffer", ctypes.c_uint64),
        ("size", ctypes.c_uint64),
        ("offset", ctypes.c_int64),
        ("reserved", ctypes.c_uint64),
        ("flags", ctypes.c_uint32),
        ("result_descriptor", ctypes.c_uint32),
    )


class _Event(ctypes.Structure):
    """struct io_event."""

    _fields_ = (
        ("data", ctypes.c_uint64),
        ("request", ctypes.c_uint64),
        ("result", ctypes.c_int64),
        ("result2", ctypes.c_int64),
    )


def _load_syscall() -> Callable[..., int]:
    # PyDLL: the calls return at once, so the interpreter lock is kept.
    call = ctypes.PyDLL(None, use_errno=True).syscall
    call.restype = ctypes.c_long
    return call


class KernelSyncs(Generic[T]):
    """One context of the kernel. Each sync has a tag, which is returned with its result."""

    def __init__(self) -> None:
        """Raises OSError if the kernel has none, or gives none to this process."""
        if sys.platform != "linux" or platform.machine() not in _NUMBERS:
            raise OSError(errno.ENOSYS, "no asynchronous I/O here")
        self._setup, self._submit, self._get_events = _NUMBERS[platform.machine()]
        self._syscall = _load_syscall()
        self._context = ctypes.c_ulong(0)
        self._checked(self._syscall(self._setup, IN_FLIGHT_MAX, ctypes.byref(self._context)))
        self.descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        """Readable when some syncs have ended."""
        self._requests = (_Request * IN_FLIGHT_MAX)()
        self._pointers = (ctypes.c_void_p * IN_FLIGHT_MAX)()
        self._events = (_Event * IN_FLIGHT_MAX)()
        self._first = ctypes.addressof(self._requests)
        for slot, request in enumerate(self._requests):
            request.data = slot
            request.opcode = _FDSYNC
            request.flags = _FLAG_RESFD
            request.result_descriptor = self.descriptor
        self._free = list(range(IN_FLIGHT_MAX))
        self._added: list[int] = []
        self._tags: dict[int, T] = {}
        self.is_refused = False
        """The kernel does not know these requests: it is not asked again."""

    def _checked(self, result: int) -> int:
        if result < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        return result

    @property
    def in_flight(self) -> int:
        return len(self._tags)

    def add(self, descriptor: int, tag: T) -> bool:
        """To be begun by the next `submit`; False if there is no room for it."""
        if self.is_refused or not self._free:
            return False
        slot = self._free.pop()
        self._requests[slot].descriptor = descriptor
        self._pointers[len(self._added)] = self._first + slot * ctypes.sizeof(_Request)
        self._added.append(slot)
        self._tags[slot] = tag
        return True

    def submit(self) -> list[T]:
        """Begin what was added; returns those that the kernel did not take, and has not begun.

        A file may be closed afterwards: the kernel holds it.
        """
        added = self._added
        if not added:
            return []
        self._added = []
        count = ctypes.c_long(len(added))
        taken = self._syscall(self._submit, self._context, count, self._pointers)
        if taken < 0:
            taken = 0
            self.is_refused = ctypes.get_errno() not in (errno.EAGAIN, errno.EBADF, errno.EINTR)
        self._free += added[taken:]
        return [self._tags.pop(slot) for slot in added[taken:]]

    def ended(self) -> list[tuple[T, int]]:
        """What has ended, each with 0 or its errno."""
        try:
            os.eventfd_read(self.descriptor)
        except BlockingIOError:
            return []
        most = ctypes.c_long(IN_FLIGHT_MAX)
        count = self._checked(
            self._syscall(self._get_events, self._context, _NOTHING, most, self._events, None)
        )
        results = []
        for place in range(count):
            event = self._events[place]
            slot = event.data
            self._free.append(slot)
            results.append((self._tags.pop(slot), -min(event.result, 0)))
        return results

    def wait(self) -> None:
        """Returns when something has ended."""
        poll = select.poll()
        poll.register(self.descriptor, select.POLLIN)
        poll.poll()

    def close(self) -> None:
        """Waits for what is in flight."""
        self._syscall(_IO_DESTROY[platform.machine()], self._context)
        os.close(self.descriptor)


def open_kernel_syncs() -> KernelSyncs[T] | None:
    """None where the kernel cannot, or must not, do it."""
    if not is_offered:
        return None
    try:
        return KernelSyncs()
    except OSError:
        return None
