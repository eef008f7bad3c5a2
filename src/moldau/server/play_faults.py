"""Makes the faults that somebody who plays wants of this broker: cut links, a slow disk."""

import asyncio
import logging
from typing import Final

from moldau.log.slow_filesystem import DiskDelay
from moldau.model import log_events as events
from moldau.model.ids import BrokerId
from moldau.model.play import Playground
from moldau.net.peers.cuts import LinkCuts

log = logging.getLogger(__name__)

_LOOK_SECONDS: Final = 0.25


class PlayFaultsMaker:
    """Exists only in a broker that may be played with. Before `run` there are no faults."""

    def __init__(self, ground: Playground) -> None:
        self.ground = ground
        self.cuts = LinkCuts()
        self.delay = DiskDelay()

    async def run(self, me: BrokerId) -> None:
        while True:
            self.look(me)
            await asyncio.sleep(_LOOK_SECONDS)

    def look(self, me: BrokerId) -> None:
        faults = self.ground.faults()
        cut = frozenset(map(BrokerId, faults.cut_from(me)))
        if cut != self.cuts.peers:
            brokers = ", ".join(map(str, sorted(cut))) or "none"
            log.warning("play: links are cut to brokers: %s", brokers, extra=events.PLAY_FAULT())
            self.cuts.set(cut)
        seconds = faults.delay_ms(me) / 1000
        if seconds != self.delay.seconds:
            log.warning(
                "play: each flush is delayed by %g ms", seconds * 1000, extra=events.PLAY_FAULT()
            )
            self.delay.seconds = seconds
