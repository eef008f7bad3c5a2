"""Owns the simulated network: every message has its own fate."""

import random
from collections.abc import Callable
from typing import NamedTuple

from moldau.log.interface import LogStart
from moldau.model.ids import BrokerId, Epoch, RaftIndex
from moldau.raft.messages import Message
from moldau.testing.simulation.adapter import Item
from moldau.testing.simulation.rates import Rates


class Heartbeat(NamedTuple):
    """Between brokers, for all groups that the sender leads and the receiver has confirmed."""

    epoch: Epoch
    commit: RaftIndex


class HeartbeatAnswered(NamedTuple):
    epoch: Epoch
    is_confirmed: bool
    """The sender follows the receiver in that epoch."""


class Parcel(NamedTuple):
    """A message with what the driver sends along."""

    source: BrokerId
    target: BrokerId
    incarnation: int
    """How often the source was started: a new one means a new connection."""
    message: Message | Heartbeat | HeartbeatAnswered
    items: tuple[Item, ...] = ()
    start: LogStart | None = None


class Network:
    """Links between brokers 1…n."""

    def __init__(
        self,
        *,
        rng: random.Random,
        rates: Rates,
        post: Callable[[int, Parcel], None],
    ) -> None:
        self._rng = rng
        self._rates = rates
        self._post = post
        self._cut: dict[tuple[BrokerId, BrokerId], None] = {}
        self.sent = 0
        self.lost = 0
        self.kept: list[Parcel] | None = None
        """Every message with entries, for scenarios that send one again; None: nobody will."""

    def send(self, parcel: Parcel) -> None:
        self.sent += 1
        if self.kept is not None and parcel.items:
            self.kept.append(parcel)
        if self._cut and (parcel.source, parcel.target) in self._cut:
            self.lost += 1
            return
        rates, rng = self._rates, self._rng
        if rates.drop and rng.random() < rates.drop:
            self.lost += 1
            return
        self._post(self._delay(), parcel)
        if rates.duplicate and rng.random() < rates.duplicate:
            self._post(self._delay(), parcel)

    def _delay(self) -> int:
        rates = self._rates
        delay = 1 + int(self._rng.random() * rates.delay_ms)
        if rates.slow and self._rng.random() < rates.slow:
            delay += int(self._rng.random() * rates.slow_ms)
        return delay

    def cut(self, source: BrokerId, target: BrokerId) -> None:
        self._cut[source, target] = None

    def join(self, source: BrokerId, target: BrokerId) -> None:
        self._cut.pop((source, target), None)

    def is_cut(self, source: BrokerId, target: BrokerId) -> bool:
        return (source, target) in self._cut

    def set_rates(self, rates: Rates) -> None:
        self._rates = rates

    def heal(self) -> None:
        self._cut.clear()
