"""Prefetches entries that are not in the page cache, in a thread, before an Append is sent.

A follower that is far behind must not make all groups of this broker wait for the disk. Only a few
reads per peer run at once: pages read long before they can be sent would be evicted again.
"""

import logging
from asyncio import AbstractEventLoop, Future
from collections.abc import Callable
from functools import partial

from moldau.log.interface import CheckTask
from moldau.model import log_events as events
from moldau.model.errors import CorruptionError
from moldau.raft.events import SendAppend, SendSnapshot
from moldau.replica.cold_reads import read_cold
from moldau.replica.core_stepper import CoreStepper
from moldau.replica.peer_send_queue import Peer
from moldau.replica.raft_group import RaftGroup

log = logging.getLogger(__name__)

_READS_MAX = 4


class ColdSends:
    """Defers Appends with uncached entries, and returns them to `Peer.waiting` after the read."""

    def __init__(
        self, *, loop: AbstractEventLoop, stepper: CoreStepper, on_read: Callable[[], None]
    ) -> None:
        """`on_read`: a deferred Append is ready to be sent."""
        self._loop = loop
        self._stepper = stepper
        self._on_read = on_read

    def defer_if_cold(self, peer: Peer, group: RaftGroup, bulk: SendAppend | SendSnapshot) -> bool:
        """True if it was deferred until its entries are read. Raises CorruptionError, OSError."""
        if not isinstance(bulk, SendAppend) or not bulk.bytes_max or not group.is_leader:
            return False
        if peer.warm and peer.warm.pop(group, None) is bulk:
            # Just read: send it, even if memory pressure already evicted it again.
            return False
        task = group.view.begin_prefetch(bulk.start, bulk.bytes_max)
        if task is None:
            return False
        peer.cold[group] = bulk
        if len(peer.reading) < _READS_MAX:
            self._read(peer, group, bulk, task)
        return True

    def _read(self, peer: Peer, group: RaftGroup, bulk: SendAppend, task: CheckTask) -> None:
        peer.reading.add(group)
        reading = read_cold(self._loop, (task,), for_follower=True)
        reading.add_done_callback(partial(self._end_read, peer, group, bulk, task))

    def _end_read(
        self,
        peer: Peer,
        group: RaftGroup,
        bulk: SendAppend,
        task: CheckTask,
        reading: "Future[None]",
    ) -> None:
        peer.reading.discard(group)
        if reading.cancelled():
            # The loop is closing.
            return
        try:
            if (error := reading.exception()) is not None:
                log.error(
                    "group %s: prefetch of entries for a follower failed: %r",
                    group.name,
                    error,
                    extra=events.PREFETCH_FAILED(group=group.name),
                )
            elif group.is_running:
                self._end_check(group, task)
        finally:
            # Also if a callback raised: other groups wait for their turn.
            if peer.cold.get(group) is bulk:
                self._give_back(peer, group, bulk)
            self._read_next(peer)
            self._on_read()

    def _end_check(self, group: RaftGroup, task: CheckTask) -> None:
        try:
            group.log.end_check(task)
        except CorruptionError as error:
            self._stepper.fail(group, error)
            self._stepper.notify(group)

    def _give_back(self, peer: Peer, group: RaftGroup, bulk: SendAppend) -> None:
        del peer.cold[group]
        peer.waiting[group] = peer.warm[group] = bulk

    def _read_next(self, peer: Peer) -> None:
        for group, bulk in list(peer.cold.items()):
            if len(peer.reading) >= _READS_MAX:
                return
            if group in peer.reading:
                continue
            try:
                task = group.view.begin_prefetch(bulk.start, bulk.bytes_max)
            except (CorruptionError, OSError):
                # The send fails in the same way, and handles it.
                task = None
            if task is None:
                self._give_back(peer, group, bulk)
            else:
                self._read(peer, group, bulk, task)
