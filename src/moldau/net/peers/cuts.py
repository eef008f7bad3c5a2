"""Links that are cut on purpose: nothing passes in either direction, as if packets were lost.

What is sent vanishes, so that a peer notices by its timeouts only. A connection that carries
nothing for as long as the system would wait for acknowledgements ends; a dial waits, and fails by
its deadline. When a link is mended its connection begins from scratch, as frames of it are missing.
"""

import asyncio
from collections.abc import Callable, Set

from moldau.model.ids import BrokerId


class LinkCuts:
    """The cut links of one broker."""

    def __init__(self) -> None:
        self.peers: frozenset[BrokerId] = frozenset()
        """Asked for each frame."""
        self._mended: dict[BrokerId, asyncio.Event] = {}
        self.on_cut: Callable[[BrokerId], None] = _nothing
        self.on_mended: Callable[[BrokerId], None] = _nothing

    def set(self, peers: Set[BrokerId]) -> None:
        """These and no others are cut."""
        before, self.peers = self.peers, frozenset(peers)
        for peer in before - self.peers:
            self._mended.pop(peer).set()
            self.on_mended(peer)
        for peer in self.peers - before:
            self._mended[peer] = asyncio.Event()
            self.on_cut(peer)

    async def stays_cut(self, peer: BrokerId, seconds: float) -> bool:
        """Waits so long, or until the link is mended; whether it was cut all the time."""
        mended = self._mended.get(peer)
        if mended is None:
            return False
        try:
            async with asyncio.timeout(seconds):
                await mended.wait()
        except TimeoutError:
            return True
        return False

    async def pass_to(self, peer: BrokerId) -> None:
        """Returns when the link is not cut."""
        while (mended := self._mended.get(peer)) is not None:
            await mended.wait()


def _nothing(peer: BrokerId) -> None:
    pass
