"""Owns what becomes of clients in a forked process, where they are only a picture of themselves.

The threads and connections of librdkafka stay with the parent. A child that used its copy would
wait for ever, and so would the end of the child, which joins threads that are not there. So copies
refuse in words, their messages remain the parent's to send, and their handles are never freed.
"""

import ctypes
import os
import weakref
from typing import Protocol

from moldau.client.errors import ClientError


class Forkable(Protocol):
    """A client that must know that it is a copy."""

    def left_behind(self) -> None:
        """For a child process: from now on refuse; and let go of nothing that has threads."""


_clients: "weakref.WeakSet[Forkable]" = weakref.WeakSet()


def watch(client: Forkable) -> None:
    """Tell this client in a child process."""
    _clients.add(client)


def keep_forever(handle: object) -> None:
    """Never free it: for librdkafka's handles in a child, whose end would wait for lost threads."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(handle))


def copied_error(what: str) -> ClientError:
    return ClientError(
        f"the {what} was made before this process forked, and works in its parent only",
        hint="make one in each process, after the fork",
    )


def _tell() -> None:
    for client in list(_clients):
        client.left_behind()


os.register_at_fork(after_in_child=_tell)
