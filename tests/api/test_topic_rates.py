"""Rates of topics need two looks; nothing is noted where nobody looks."""

from types import SimpleNamespace
from typing import Any

from moldau.api.topic_rates import TopicRates


class World:
    def __init__(self) -> None:
        self.now = 0.0
        self.written: dict[str, tuple[int, int]] = {}
        self.reads = 0
        clock: Any = SimpleNamespace(monotonic=lambda: self.now)
        replicas: Any = self
        self.rates = TopicRates(clock, replicas)

    def written_by_topic(self) -> dict[str, tuple[int, int]]:
        self.reads += 1
        return dict(self.written)


def test_the_first_look_knows_no_rates_and_a_later_one_does():
    world = World()
    world.written = {"t": (1000, 10)}
    assert world.rates.span() is None
    world.now = 2.0
    assert world.rates.span() is None
    world.now, world.written = 5.0, {"t": (2000, 20), "new": (50, 5)}
    span = world.rates.span()
    assert span is not None
    assert span.of("t") == (200, 2)
    assert span.of("new") == (10, 1)
    assert span.of("never-written") == (0, 0)


def test_a_rate_is_of_the_last_seconds():
    world = World()
    for second in range(0, 40, 2):
        world.now = float(second)
        world.written = {"t": (second * 100, second)}
        world.rates.note()
    # Nothing since.
    world.now = 48.0
    world.rates.note()
    world.now = 52.0
    span = world.rates.span()
    assert span is not None
    assert span.of("t") == (0, 0)


def test_a_long_pause_is_not_averaged():
    world = World()
    world.rates.note()
    world.now, world.written = 500.0, {"t": (1, 1)}
    assert world.rates.span() is None


def test_a_topic_that_was_created_again_counts_from_zero():
    world = World()
    world.written = {"t": (1000, 10)}
    world.rates.note()
    world.now, world.written = 10.0, {"t": (5, 1)}
    span = world.rates.span()
    assert span is not None
    assert span.of("t") == (0, 0)


def test_looks_at_once_read_the_counters_once():
    world = World()
    for _ in range(5):
        world.rates.note()
    assert world.reads == 1
