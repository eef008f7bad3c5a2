"""Owns Appends whose entries lie on the disk: a thread reads them before they are sent.

A follower that is far behind must not make all groups of this broker wait for the disk. Of a peer
only a few are read at a time: what is read long before it can be sent is forgotten by then.
"""

import logging
from asyncio import AbstractEventLoop, Future
from collections.abc import Callable
from functools import partial
from typing import Final

from moldau.log.interface import CheckTask
from moldau.model.errors import CorruptionError
from moldau.raft.events import SendAppend, SendSnapshot
from moldau.replica.core_stepper import CoreStepper
from moldau.replica.peer import Peer
from moldau.replica.raft_group import RaftGroup

log = logging.getLogger(__name__)

_READS_MAX: Final = 4


class ColdSends:
    """Holds back what is cold, and gives it back to `Peer.waiting` once it was read."""

    def __init__(
        self, *, loop: AbstractEventLoop, steps: CoreStepper, on_read: Callable[[], None]
    ) -> None:
        """`on_read`: there is something to send again."""
        self._loop = loop
        self._steps = steps
        self._on_read = on_read

    def holds_back(self, peer: Peer, group: RaftGroup, bulk: SendAppend | SendSnapshot) -> bool:
        """Whether it is read first; it waits no more then. Raises CorruptionError, OSError."""
        if not isinstance(bulk, SendAppend) or not bulk.bytes_max or not group.is_leader:
            return False
        if peer.warm and peer.warm.pop(group, None) is bulk:
            # Read a moment ago: it goes, also where memory is so short that it is cold again.
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
        reading = self._loop.run_in_executor(None, task.run)
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
            # The loop ends.
            return
        try:
            if (defect := reading.exception()) is not None:
                log.error("%s: what was to be sent could not be read ahead: %r", group.name, defect)
            elif group.is_running:
                self._end_check(group, task)
        finally:
            # Also after a defect in an owner: others wait for their turn.
            if peer.cold.get(group) is bulk:
                self._give_back(peer, group, bulk)
            self._read_next(peer)
            self._on_read()

    def _end_check(self, group: RaftGroup, task: CheckTask) -> None:
        try:
            group.log.end_check(task)
        except CorruptionError as error:
            self._steps.fail(group, error)
            self._steps.tell(group)

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
                # Whoever sends it meets that as well, and knows what to do.
                task = None
            if task is None:
                self._give_back(peer, group, bulk)
            else:
                self._read(peer, group, bulk, task)
