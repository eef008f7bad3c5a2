"""Owns the acks of one worker: those that come while others are under way go together.

A call costs about a millisecond of processor time, whatever it carries; messages that are acked one
by one, by handlers that run side by side, share it.
"""

import asyncio
from collections.abc import Sequence

from moldau.client.queue.settling import Ack, Settler, Verdict

_Waiting = tuple[Sequence[tuple[str, bytes]], "asyncio.Future[list[Verdict]]"]


class AckGatherer:
    """Acks, each with the name of the consumer that it was delivered to."""

    def __init__(self, settler: Settler, group: str) -> None:
        self._settler = settler
        self._group = group
        self._waiting: list[_Waiting] = []
        self._task: asyncio.Task[None] | None = None

    async def ack(self, tokens: Sequence[tuple[str, bytes]]) -> list[Verdict]:
        """A verdict for each, in order."""
        if not tokens:
            return []
        future: asyncio.Future[list[Verdict]] = asyncio.get_running_loop().create_future()
        self._waiting.append((tokens, future))
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name="queue-acks")
        return await future

    async def _run(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting, []
            try:
                await self._settle(batch)
            finally:
                # Also if the loop ends: nobody is left waiting.
                for _, future in batch:
                    if not future.done():
                        future.cancel()

    async def _settle(self, batch: list[_Waiting]) -> None:
        tokens = [token for asked, _ in batch for token in asked]
        verdicts: dict[int, Verdict] = {}
        for consumer in dict.fromkeys(consumer for consumer, _ in tokens):
            places = [at for at, (name, _) in enumerate(tokens) if name == consumer]
            own = [tokens[place][1] for place in places]
            found = await self._settler.settle(self._group, consumer, own, Ack())
            verdicts.update(zip(places, found, strict=True))
        at = 0
        for asked, future in batch:
            own_verdicts = [verdicts[place] for place in range(at, at + len(asked))]
            at += len(asked)
            if not future.done():
                future.set_result(own_verdicts)
