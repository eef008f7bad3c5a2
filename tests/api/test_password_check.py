"""Hashes run in threads of their own, which leave the processor to others."""

import asyncio
import os
import sys
import threading

import pytest

from moldau.api.password_check import BUSY, OsHashThreads, PasswordCheck
from moldau.security.scram import ScramMechanism, make_credential

pytestmark = pytest.mark.inprocess

SHA_256 = ScramMechanism.SHA_256
LOWEST_PRIORITY = 19


async def test_a_password_is_checked_in_another_thread():
    threads = OsHashThreads()
    here = threading.get_ident()
    try:
        assert await threads.run(lambda: threading.get_ident() != here)
        checked = PasswordCheck(threads)
        credential = make_credential(b"secret", b"salt", 4096, SHA_256)
        assert await checked.fits("alice", b"secret", credential, SHA_256)
        assert not await checked.fits("alice", b"other", credential, SHA_256)
        assert checked.is_remembered("alice", b"secret", credential)
        assert not checked.is_remembered("alice", b"other", credential)
        assert not checked.is_remembered("bob", b"secret", credential)
    finally:
        threads.stop()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="priorities per thread")
async def test_the_threads_have_a_lower_priority_and_the_process_keeps_its_own():
    threads = OsHashThreads()
    before = os.getpriority(os.PRIO_PROCESS, 0)

    def is_lower() -> bool:
        mine = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
        return mine > before or mine == LOWEST_PRIORITY

    try:
        assert await threads.run(is_lower)
        assert os.getpriority(os.PRIO_PROCESS, 0) == before
    finally:
        threads.stop()


async def test_too_many_checks_at_once_are_refused_and_not_queued():
    class Stuck:
        async def run(self, check):
            await asyncio.sleep(3600)

        def stop(self):
            pass

    checked = PasswordCheck(Stuck())
    credential = make_credential(b"secret", b"salt", 4096, SHA_256)
    running = [
        asyncio.create_task(checked.fits("alice", b"%d" % number, credential, SHA_256))
        for number in range(1024)
    ]
    await asyncio.sleep(0)
    assert str(checked.busy()) == BUSY
    for future in (*checked._running.values(), *running):
        future.cancel()
    await asyncio.gather(*running, return_exceptions=True)
