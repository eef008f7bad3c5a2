"""Writes the votes of all groups to disk: batched, in order, in one thread.

A flush of the vote journal may take milliseconds, and a thousand groups elect at once after a
start. Votes given while a write runs go into the next one.
"""

import asyncio
from asyncio import AbstractEventLoop
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final, Protocol

from moldau.model.errors import DiskFullError, StorageError
from moldau.model.ids import BrokerId, Epoch

_DISK_FULL_RETRY_SECONDS: Final = 0.5

Vote = tuple[Epoch, BrokerId]


class Votes(Protocol):
    """The broker's durable votes, by group name."""

    def get(self, group: str) -> Vote: ...

    def record(self, votes: Mapping[str, Vote]) -> None: ...

    def forget(self, groups: frozenset[str]) -> None: ...


class VoteWriter:
    """Writes votes and reports when they are durable."""

    def __init__(
        self,
        *,
        loop: AbstractEventLoop,
        votes: Votes,
        on_persisted: Callable[[Mapping[str, Vote]], None],
        on_failure: Callable[[StorageError], None],
    ) -> None:
        self._loop = loop
        self._votes = votes
        self._on_persisted = on_persisted
        self._on_failure = on_failure
        self._requested: dict[str, Vote] = {}
        self._forgotten: set[str] = set()
        self._running: asyncio.Future[None] | None = None
        self._is_waiting = False
        self._is_stopped = False
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="moldau-votes")
        self.writes_total = 0

    def get(self, group: str) -> Vote:
        return self._votes.get(group)

    def request(self, group: str, vote: Vote) -> None:
        """Queue a vote. It replaces the group's queued one, which was never sent to a peer."""
        self._forgotten.discard(group)
        self._requested[group] = vote

    def forget(self, group: str) -> None:
        """The group was deleted permanently."""
        self._requested.pop(group, None)
        self._forgotten.add(group)
        self.write()

    def write(self) -> None:
        """Start to write the queued votes; a running write continues with them by itself."""
        if self._is_stopped or self._running is not None or self._is_waiting:
            return
        if not self._requested and not self._forgotten:
            return
        votes, self._requested = self._requested, {}
        forgotten, self._forgotten = frozenset(self._forgotten), set()
        self._running = self._loop.run_in_executor(self._writer, self._store, votes, forgotten)
        self._running.add_done_callback(lambda future: self._on_done(future, votes, forgotten))

    def _store(self, votes: Mapping[str, Vote], forgotten: frozenset[str]) -> None:
        if forgotten:
            self._votes.forget(forgotten)
        self._votes.record(votes)

    def _on_done(
        self, future: asyncio.Future[None], votes: Mapping[str, Vote], forgotten: frozenset[str]
    ) -> None:
        self._running = None
        if self._is_stopped or future.cancelled():
            return
        error = future.exception()
        if error is None:
            self.writes_total += 1
            self._on_persisted(votes)
            self.write()
        elif isinstance(error, DiskFullError):
            # Nothing was stored. Elections wait until there is space.
            left = {group: vote for group, vote in votes.items() if group not in self._forgotten}
            self._requested = {**left, **self._requested}
            self._forgotten.update(forgotten.difference(self._requested))
            self._is_waiting = True
            self._loop.call_later(_DISK_FULL_RETRY_SECONDS, self._write_again)
        elif isinstance(error, StorageError):
            self._on_failure(error)
        else:
            self._on_failure(StorageError(f"cannot write the vote journal: {error!r}"))

    def _write_again(self) -> None:
        self._is_waiting = False
        self.write()

    def stop(self) -> None:
        """Finish the running write, and start no other."""
        self._is_stopped = True
        self._writer.shutdown(wait=True)
