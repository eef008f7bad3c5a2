"""Checks passwords against stored credentials, off the event loop.

The hash is slow on purpose: a few milliseconds, which no other client may wait for. A password that
fitted is remembered by a keyed hash of it, until the credential changes.
"""

import asyncio
import contextlib
import hmac
import os
import secrets
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, Protocol

from moldau.security.sasl import AuthenticationError
from moldau.security.scram import ScramCredential, ScramMechanism, is_password

_THREADS: Final = 2
"""More would take the processors from the event loop; the hash releases the interpreter's lock."""
_WAITING_MAX: Final = 1024
_NICE: Final = 10
"""The priority of these threads. Linux has it per thread."""
_REMEMBERED_MAX: Final = 4096
BUSY: Final = "Authentication failed: the broker is busy, try again"


class UnavailableError(AuthenticationError):
    """The broker cannot check who a client is at the moment; it may be right."""


class HashThreads(Protocol):
    """Runs slow functions, a few at a time."""

    async def run(self, check: Callable[[], bool]) -> bool: ...

    def stop(self) -> None: ...


class OsHashThreads:
    """Threads that start with the first password."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None

    async def run(self, check: Callable[[], bool]) -> bool:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(
                _THREADS, thread_name_prefix="password", initializer=_yield_to_others
            )
        return await asyncio.get_running_loop().run_in_executor(self._pool, check)

    def stop(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)


def _yield_to_others() -> None:
    """Only what the event loop and the flushes leave: a flood of logins must not slow them down."""
    if not sys.platform.startswith("linux"):
        return
    me = threading.get_native_id()
    with contextlib.suppress(OSError):
        # Relative: a broker may run at a low priority itself, and only root may raise one.
        os.setpriority(os.PRIO_PROCESS, me, os.getpriority(os.PRIO_PROCESS, me) + _NICE)


class PasswordCheck:
    def __init__(self, threads: HashThreads) -> None:
        self._threads = threads
        self._key = secrets.token_bytes(32)
        """Random in each process: the hashes in memory are of no use outside of it."""
        self._remembered: OrderedDict[str, tuple[bytes, ScramCredential]] = OrderedDict()
        self._running: dict[tuple[bytes, ScramCredential], asyncio.Future[bool]] = {}

    def is_remembered(self, user: str, password: bytes, credential: ScramCredential) -> bool:
        """Whether exactly this password fitted exactly this credential before."""
        found = self._remembered.get(user)
        if found is None:
            return False
        digest, of = found
        if of != credential:
            del self._remembered[user]
            return False
        return hmac.compare_digest(digest, self._digest(user, password))

    def is_running(self, user: str, password: bytes, credential: ScramCredential) -> bool:
        return (self._digest(user, password), credential) in self._running

    def busy(self) -> UnavailableError | None:
        """Why no other check can begin now; None: it can."""
        if len(self._running) < _WAITING_MAX:
            return None
        return UnavailableError(BUSY, reason="too many logins wait for their turn")

    async def fits(
        self, user: str, password: bytes, credential: ScramCredential, mechanism: ScramMechanism
    ) -> bool:
        """What several connections check at the same time is worked out once. See `busy`."""
        digest = self._digest(user, password)
        check_key = (digest, credential)
        running = self._running.get(check_key)
        if running is None:
            running = asyncio.ensure_future(
                self._threads.run(lambda: is_password(password, credential, mechanism))
            )
            self._running[check_key] = running
            running.add_done_callback(lambda _: self._running.pop(check_key, None))
        # Shielded: one client that leaves must not end the check of the others.
        fitted = await asyncio.shield(running)
        if fitted:
            self._remembered[user] = (digest, credential)
            self._remembered.move_to_end(user)
            if len(self._remembered) > _REMEMBERED_MAX:
                self._remembered.popitem(last=False)
        return fitted

    def stop(self) -> None:
        self._threads.stop()

    def _digest(self, user: str, password: bytes) -> bytes:
        name = user.encode()
        return hmac.digest(self._key, len(name).to_bytes(4, "big") + name + password, "sha256")
