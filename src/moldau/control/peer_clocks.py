"""Compares this broker's wall clock with those of its peers, when metrics are requested.

Without such a request nothing is measured, and a request gets what the one before it began: it
waits for no other broker.
"""

import asyncio
import logging
import struct
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

from moldau.model.clock import Clock
from moldau.model.errors import RefusedError
from moldau.model.ids import BrokerId
from moldau.net.peers.caller import PeerCaller
from moldau.net.peers.methods import PeerMethod

log = logging.getLogger(__name__)

_WALL_MS: Final = struct.Struct(">q")
_EVERY_SECONDS: Final = 4.0
_TIMEOUT_SECONDS: Final = 3.0
_FORGOTTEN_SECONDS: Final = 600.0
"""A peer that has not answered for so long has no known clock."""


class ClockReading(NamedTuple):
    ahead_seconds: float
    """How far the peer's clock is ahead of this broker's; exact to half of the round trip."""
    round_trip_seconds: float
    read_at: float


class PeerClocks:
    """The last reading of each peer's clock."""

    def __init__(
        self, *, clock: Clock, caller: PeerCaller, peers: Callable[[], Iterable[BrokerId]]
    ) -> None:
        """`peers`: those that are connected."""
        self._clock = clock
        self._caller = caller
        self._peers = peers
        self._readings: dict[BrokerId, ClockReading] = {}
        self._reading: asyncio.Task[None] | None = None
        self._began_at = -_EVERY_SECONDS

    def readings(self) -> Mapping[BrokerId, ClockReading]:
        """What is known; begins to read the clocks again if that is old."""
        now = self._clock.monotonic()
        for peer, reading in list(self._readings.items()):
            if now - reading.read_at > _FORGOTTEN_SECONDS:
                del self._readings[peer]
        is_reading = self._reading is not None and not self._reading.done()
        if not is_reading and now - self._began_at >= _EVERY_SECONDS:
            self._began_at = now
            self._reading = asyncio.get_running_loop().create_task(self.read_all())
        return self._readings

    async def read_all(self) -> None:
        await asyncio.gather(*(self._read(peer) for peer in self._peers()))

    async def _read(self, peer: BrokerId) -> None:
        sent_at = self._clock.monotonic()
        try:
            reply = await self._caller.call(peer, PeerMethod.READ_CLOCK, b"", _TIMEOUT_SECONDS)
            (wall_ms,) = _WALL_MS.unpack(reply)
        except (RefusedError, struct.error) as error:
            # Perhaps an older version, which has no such method.
            log.debug("cannot read the clock of broker %d: %s", peer, error)
            return
        now = self._clock.monotonic()
        round_trip = now - sent_at
        ahead = (wall_ms - self._clock.wall_ms()) / 1000 + round_trip / 2
        self._readings[peer] = ClockReading(ahead, round_trip, now)

    async def on_request(self, sender: BrokerId, payload: bytes) -> bytes:
        """A peer reads the clock of this broker."""
        return _WALL_MS.pack(self._clock.wall_ms())
