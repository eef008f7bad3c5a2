"""Owns what the queues of a broker need of others: somewhere to be stored."""

from collections.abc import Sequence
from typing import Protocol

from moldau.groups.queue.state import QueueId, QueueRecord


class LedgerStore(Protocol):
    """The way to the ledger of a queue, wherever it is; `ledgers.py` has it."""

    async def stored(self, queue: QueueId) -> Sequence[tuple[bytes, bytes]]:
        """What is committed of the queue. Raises RefusedError."""
        ...

    async def write(self, queue: QueueId, records: Sequence[QueueRecord]) -> None:
        """Returns when they are committed.

        Raises LedgerRefusedError: nothing was written, another leads the queue or knows more of
        it. Raises RefusedError: nobody can be asked, or what became of it is unknown.
        """
        ...

    async def forget(self, queue: QueueId) -> None:
        """Raises RefusedError."""
        ...
