"""What the shared HTTP address of a node says: of all its processes, in one reply.

A process that is not there or does not reply makes the node unready; the reply never waits for it
longer than `ASK_SECONDS_MAX`.
"""

import asyncio
from typing import Final

import msgspec
from starlette.types import Scope

from moldau.edge.http.node.link import NodeLinks, ask
from moldau.edge.http.relay.messages import Part
from moldau.model.prometheus_merge import merged
from moldau.model.prometheus_text import MetricFamily, render
from moldau.model.topology import Readiness

OK: Final = "ok"
DOWN: Final = "down"
HUNG: Final = "hung"
_READABLE: Final = frozenset({200, 503})


class Node:
    """One process of a node, when it speaks for all."""

    def __init__(self, links: NodeLinks) -> None:
        self._links = links

    def is_meant(self, scope: Scope) -> bool:
        """Whether the request came to the address that all share."""
        local = scope.get("server")
        return local is not None and local[1] == self._links.port

    async def health(self) -> dict[int, str]:
        """How each process is: a process that is being restarted is down."""
        found = {number: _state(part) for number, part in await self._ask("/healthz")}
        return dict(sorted({**found, self._links.number: OK}.items()))

    async def reasons(self, own: tuple[str, ...]) -> tuple[str, ...]:
        """Why the node is not ready."""
        found = {self._links.number: own}
        for number, part in await self._ask("/readyz"):
            found[number] = _reasons(part)
        return tuple(
            f"process {number}: {reason}" for number in sorted(found) for reason in found[number]
        )

    async def metrics(self, own: str, query: bytes, up: MetricFamily) -> str:
        """One exposition, in which each series names its process; `up` gets a sample for each."""
        texts = {str(self._links.number): own}
        states = {str(self._links.number): 1}
        for number, part in await self._ask("/metrics", query):
            is_up = not isinstance(part, str) and part.status == 200
            states[str(number)] = int(is_up)
            if not isinstance(part, str) and is_up:
                texts[str(number)] = part.body.decode()
        for number_text in sorted(states, key=int):
            up.add(states[number_text], {"process": number_text})
        ordered = {number: texts[number] for number in sorted(texts, key=int)}
        return await merged(ordered, "process") + render([up])

    async def _ask(self, path: str, query: bytes = b"") -> list[tuple[int, Part | str]]:
        """The reply of each other process, or its state."""
        others = self._links.others()

        async def one(number: int) -> Part | str:
            try:
                return await ask(dict(others)[number], path, query)
            except TimeoutError:
                return HUNG
            except OSError:
                return DOWN

        parts = await asyncio.gather(*(one(number) for number, _ in others))
        return [(number, part) for (number, _), part in zip(others, parts, strict=True)]


def _state(part: Part | str) -> str:
    return part if isinstance(part, str) else OK


def _reasons(part: Part | str) -> tuple[str, ...]:
    if part == HUNG:
        return ("it does not respond",)
    if isinstance(part, str) or part.status not in _READABLE:
        return ("it is not running, or still starting",)
    return msgspec.json.decode(part.body, type=Readiness).reasons
