"""Batches the acks of one worker: those that arrive during a call are sent together in the next.

A call costs about a millisecond of CPU time, whatever it carries; concurrent handlers that ack
messages one by one share it.
"""

import asyncio
from collections.abc import Sequence

from moldau.client.queue.settler import Ack, Settler, SettleResult

_Waiting = tuple[str, Sequence[bytes], "asyncio.Future[list[SettleResult]]"]


class AckBatcher:
    """Acks messages under the name of the consumer that they were delivered to."""

    def __init__(self, settler: Settler, group: str) -> None:
        self._settler = settler
        self._group = group
        self._waiting: list[_Waiting] = []
        self._task: asyncio.Task[None] | None = None

    async def ack(self, consumer: str, tokens: Sequence[bytes]) -> list[SettleResult]:
        """A result for each token, in order."""
        future: asyncio.Future[list[SettleResult]] = asyncio.get_running_loop().create_future()
        self._waiting.append((consumer, tokens, future))
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name="queue-acks")
        return await future

    async def _run(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting, []
            try:
                await self._settle(batch)
            finally:
                # Also if the loop ends: no caller waits forever.
                for _, _, future in batch:
                    if not future.done():
                        future.cancel()

    async def _settle(self, batch: list[_Waiting]) -> None:
        for consumer in dict.fromkeys(name for name, _, _ in batch):
            own = [(tokens, future) for name, tokens, future in batch if name == consumer]
            together = [token for tokens, _ in own for token in tokens]
            results = await self._settler.settle(self._group, consumer, together, Ack())
            at = 0
            for tokens, future in own:
                if not future.done():
                    future.set_result(results[at : at + len(tokens)])
                at += len(tokens)
