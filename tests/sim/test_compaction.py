"""Brokers that compact their logs each for itself, under all faults; and broken ones, caught.

A failure prints `seed=…`; `World(seed=…, kind=…, compacts=True)` runs the same again.
"""

from collections import Counter
from collections.abc import Callable

import pytest
from effort import EFFORT
from msgspec.structs import replace

from moldau.log import clean_write
from moldau.log.clean import CleanRequest
from moldau.model.errors import MoldauError
from moldau.model.ids import Offset, TimestampMs
from moldau.testing.simulation import adapter, compaction, faults, world
from moldau.testing.simulation.broker import SimBroker
from moldau.testing.simulation.checks import Violation
from moldau.testing.simulation.world import World

MEMORY_SEEDS = 20 * EFFORT
DISK_SEEDS = 20 * EFFORT
STEPS = 700
MUTANT_SEEDS = 60


def run(kind: str, seeds: int) -> Counter[str]:
    counts: Counter[str] = Counter()
    for seed in range(seeds):
        brokers = World(seed=seed, kind=kind, compacts=True)
        try:
            brokers.run(STEPS)
            brokers.settle()
        except Violation as violation:
            raise Violation(f"seed={seed} kind={kind} steps={STEPS}: {violation}") from violation
        counts.update(brokers.counts)
    return counts


@pytest.mark.parametrize(("kind", "seeds"), [("memory", MEMORY_SEEDS), ("disk", DISK_SEEDS)])
def test_no_promise_breaks_while_logs_are_compacted(kind: str, seeds: int) -> None:
    counts = run(kind, seeds)
    assert counts["cleanings"] > seeds
    assert counts["truncations"] > 0
    assert counts["power cuts"] > seeds // 2


def send_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """A leader sends a filler from its beginning to one that has half of it."""
    monkeypatch.setattr(adapter, "trim_front", lambda read, offset: ([read.data], read.size))


def clean_what_may_be_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is flushed here counts as committed."""

    def clean(broker: SimBroker, leader: SimBroker | None, now: int) -> bool:
        log = broker.storage.log
        request = CleanRequest(
            now=TimestampMs(now),
            end_offset=log.flushed_offset,
            held_offset=compaction.held_offset(leader),
            producers=(),
        )
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


@pytest.mark.parametrize("is_broken", [False, True])
def test_what_was_deleted_stays_deleted_also_for_one_who_was_away(
    is_broken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tombstones whose time is over at once, of many keys; broken: dropped before all have them."""
    monkeypatch.setattr(world, "KEYS", 40)
    monkeypatch.setattr(world, "COMPACTED", replace(compaction.CONFIG, delete_retention_ms=0))
    if not is_broken:
        run("memory", MEMORY_SEEDS)
        return
    monkeypatch.setattr(compaction, "held_offset", lambda leader: Offset(1 << 40))
    with pytest.raises(Violation, match="which was deleted"):
        run("memory", 10 * MEMORY_SEEDS)


def test_a_filler_over_a_control_entry_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    joins = clean_write.CleanWriter._joins

    def hasty(self: clean_write.CleanWriter, *asked: object) -> bool:
        self._barriers = frozenset()
        return joins(self, *asked)  # type: ignore[arg-type]

    monkeypatch.setattr(clean_write.CleanWriter, "_joins", hasty)
    with pytest.raises((Violation, MoldauError, ValueError)):
        run("disk", MUTANT_SEEDS)
