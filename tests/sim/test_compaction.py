"""Brokers that compact their logs each for itself, under all faults; and broken ones, caught.

A failure prints `seed=…`; `World(seed=…, kind=…, compacts=True)` runs the same again.
"""

from collections import Counter
from collections.abc import Callable

import pytest

from moldau.log import clean_write
from moldau.log.clean import CleanRequest
from moldau.model.errors import MoldauError
from moldau.model.ids import TimestampMs
from moldau.testing.simulation import adapter, faults
from moldau.testing.simulation.broker import SimBroker
from moldau.testing.simulation.checks import Violation
from moldau.testing.simulation.world import World

MEMORY_SEEDS = 40
DISK_SEEDS = 25
STEPS = 600
MUTANT_SEEDS = 60


def run(kind: str, seeds: int) -> Counter[str]:
    counts: Counter[str] = Counter()
    for seed in range(seeds):
        world = World(seed=seed, kind=kind, compacts=True)
        try:
            world.run(STEPS)
            world.settle()
        except Violation as violation:
            raise Violation(f"seed={seed} kind={kind} steps={STEPS}: {violation}") from violation
        counts.update(world.counts)
    return counts


@pytest.mark.parametrize(("kind", "seeds"), [("memory", MEMORY_SEEDS), ("disk", DISK_SEEDS)])
def test_no_promise_breaks_while_logs_are_compacted(kind: str, seeds: int) -> None:
    counts = run(kind, seeds)
    assert counts["cleanings"] > seeds
    assert counts["truncations"] > 0
    assert counts["power cuts"] > seeds


def send_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """A leader sends a filler from its beginning to one that has half of it."""
    monkeypatch.setattr(adapter, "trim_front", lambda read, offset: ([read.data], read.size))


def clean_what_may_be_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is flushed here counts as committed."""

    def clean(broker: SimBroker, now: int) -> bool:
        log = broker.storage.log
        request = CleanRequest(now=TimestampMs(now), end_offset=log.flushed_offset, producers=())
        task = log.begin_clean(request)
        return task is not None and log.end_clean(task, task.run())

    monkeypatch.setattr(faults, "clean", clean)


@pytest.mark.parametrize("mutate", [send_as_it_is, clean_what_may_be_cut])
def test_a_broken_rule_is_caught(
    mutate: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutate(monkeypatch)
    with pytest.raises((Violation, MoldauError, ValueError)):
        run("memory", MUTANT_SEEDS)


def test_a_filler_over_a_control_entry_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    joins = clean_write.CleanWriter._joins

    def hasty(self: clean_write.CleanWriter, *asked: object) -> bool:
        self._barriers = frozenset()
        return joins(self, *asked)  # type: ignore[arg-type]

    monkeypatch.setattr(clean_write.CleanWriter, "_joins", hasty)
    with pytest.raises((Violation, MoldauError, ValueError)):
        run("disk", MUTANT_SEEDS)
