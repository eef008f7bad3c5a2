"""Owns the way to the numbers that parts of the process count about themselves.

They are counted where things happen and read when somebody asks: no registry is told of anything,
so that a broker whom nobody asks spends nothing on it.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from msgspec import Struct

from moldau.data.cleaner import CleanerMetrics
from moldau.data.scrub import ScrubMetrics
from moldau.model.histogram import Histogram
from moldau.net.listener import Listener
from moldau.replica.flusher import Flusher


class SlowLoopTurns(NamedTuple):
    """Turns of the event loop in which everybody had to wait for long."""

    turns: int
    seconds: float
    starved_seconds: float
    """Of those in which the process got no CPU."""


class MetricSources(Struct, frozen=True, kw_only=True):
    """What the services of a broker cannot tell, since it happens above or below them."""

    requests_by_api: Callable[[], Mapping[str, int]]
    """Kafka requests since the start, by the name of the API."""
    seconds_by_api: Callable[[], Mapping[str, Histogram]]
    """How long they took, by the name of the API."""
    listener: Listener
    """Of Kafka clients."""
    flusher: Flusher
    cleaner: Callable[[], CleanerMetrics | None]
    """None: the start has not come so far."""
    leaderships: Callable[[], int]
    """How often a partition got its leader on this broker, since the start."""
    slow_turns: Callable[[], SlowLoopTurns]
    scrub: Callable[[], ScrubMetrics | None]
    """None: the start has not come so far."""
