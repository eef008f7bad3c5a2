"""Disables clients in forked child processes: librdkafka handles do not survive a fork.

librdkafka's threads and connections stay in the parent. A child that used its copy would hang, and
so would its exit, which joins threads that do not exist there. So the copies raise an error, their
messages are sent by the parent, and their handles are never freed.
"""

import ctypes
import os
import weakref
from typing import Protocol

from moldau.client.errors import ClientError


class Forkable(Protocol):
    """A client that must be disabled in a forked child."""

    def disable_after_fork(self) -> None:
        """In the child: reject all calls, and free no handle that has threads."""


_clients: "weakref.WeakSet[Forkable]" = weakref.WeakSet()


def watch(client: Forkable) -> None:
    """Disable this client in child processes."""
    _clients.add(client)


def keep_forever(handle: object) -> None:
    """Never free a handle: freeing it in a child would wait for threads of the parent."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(handle))


def copied_error(what: str) -> ClientError:
    return ClientError(
        f"the {what} was created before the fork, and works only in the parent process",
        hint="create one in each process, after the fork",
    )


def _disable_all() -> None:
    for client in list(_clients):
        client.disable_after_fork()


os.register_at_fork(after_in_child=_disable_all)
