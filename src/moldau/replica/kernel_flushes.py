"""Flush workers that leave plain syncs to the kernel, and all other flushes to threads."""

from asyncio import AbstractEventLoop
from collections import deque
from collections.abc import Sequence

from moldau.log.kernel_sync import KernelSyncs
from moldau.replica.flush_threads import FlushWork, FlushWorkers


class KernelFlushes:
    """One system call for all that one turn of the loop has to flush, one wake-up for all that has
    ended. What the kernel does not take was not begun, and runs in the threads."""

    def __init__(
        self, loop: AbstractEventLoop, syncs: KernelSyncs[FlushWork], threads: FlushWorkers
    ) -> None:
        self._loop = loop
        self._syncs = syncs
        self._threads = threads
        self._ended: deque[tuple[FlushWork, int]] = deque()
        loop.add_reader(syncs.descriptor, self._on_ready)

    def run(self, works: Sequence[FlushWork], running: int) -> None:
        if running == 1:
            # On a busy machine a thread of this process is sooner on a processor than the kernel's,
            # and no other thread wants the interpreter lock.
            self._threads.run(works, running)
            return
        syncs = self._syncs
        others = []
        for work in works:
            descriptor = work.descriptor
            if descriptor is None or not syncs.add(descriptor, work):
                others.append(work)
        others += syncs.submit()
        if others:
            self._threads.run(others, running)

    def _on_ready(self) -> None:
        self._ended += self._syncs.ended()
        self._report()

    def _report(self) -> None:
        ended = self._ended
        try:
            while ended:
                work, error = ended.popleft()
                work.synced(error)
        finally:
            # One that raises must not cost the others their result.
            if ended:
                self._loop.call_soon(self._report)

    def stop(self) -> None:
        self._threads.stop()
        self._loop.remove_reader(self._syncs.descriptor)
        while self._syncs.in_flight:
            self._syncs.wait()
            self._ended += self._syncs.ended()
        self._syncs.close()
        self._loop.call_soon(self._report)
