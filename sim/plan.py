"""Owns what a simulated world is like: how many of what, and which faults how often, by the seed.

Each seed draws which kinds of faults there are at all: a world with all of them at once hides what
two of them alone bring about.
"""

import random
from typing import ClassVar, Final

from msgspec import Struct

KINDS: Final = (
    "kill",
    "power",
    "power-in-write",
    "stop",
    "pause",
    "isolate",
    "cut",
    "break",
    "slow-network",
    "stall",
    "flush-error",
    "full-disk",
    "blackout",
    "transfer",
)


class Plan(Struct, frozen=True, kw_only=True):
    """All that is decided before a world begins."""

    seed: int
    seconds: float = 60.0
    """Of virtual time, with faults."""
    brokers: int = 3
    partitions: int = 2
    replication: int = 3
    producers: int = 2
    pause_seconds: float = 0.2
    """Between two writes of a producer."""
    faults: dict[str, float] = {}
    """Mean seconds between two faults, by kind."""
    left_out: frozenset[int] = frozenset()
    """Faults that do not happen, by number: the shrinker leaves out what does not matter."""
    down_seconds: float = 3.0
    segment_bytes: int = 64 * 1024
    transactional: int = 0
    """Producers of transactions."""
    transformers: int = 0
    """Of one topic into another, in transactions."""
    list_append: int = 0
    """Who append to lists and read them, in transactions."""

    COUNTS: ClassVar = ("producers", "partitions", "transactional", "transformers", "list_append")
    """What there may be fewer of."""
    LEAST: ClassVar = {"producers": 1, "partitions": 1}

    @classmethod
    def draw(cls, seed: int, seconds: float = 60.0) -> "Plan":
        rng = random.Random(f"{seed}/plan")
        brokers = rng.choice((1, 3, 3, 3, 3, 4, 5))
        chosen = [kind for kind in KINDS if rng.random() < 0.35]
        return cls(
            seed=seed,
            seconds=seconds,
            brokers=brokers,
            partitions=rng.randint(1, 3),
            replication=min(3, brokers),
            producers=rng.randint(1, 3),
            pause_seconds=rng.choice((0.02, 0.1, 0.5)),
            faults={kind: rng.uniform(3.0, 20.0) for kind in chosen},
            down_seconds=rng.choice((0.3, 3.0, 8.0)),
            segment_bytes=rng.choice((4 * 1024, 64 * 1024)),
            transactional=rng.choice((0, 0, 1, 2)),
            transformers=rng.choice((0, 0, 1, 2)),
            list_append=rng.choice((0, 0, 1, 2)),
        )
