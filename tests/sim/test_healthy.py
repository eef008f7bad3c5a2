"""Runs without faults: what they take must not grow."""

from pathlib import Path

import pytest

from sim.healthy import Sample, _look_at_growth
from sim.history import History
from sim.scene import Violation
from sim.scheduler import Scheduler

MIB = 1 << 20


def samples(*memory: int) -> list[Sample]:
    return [Sample(24 * day, used * MIB, MIB, 100) for day, used in enumerate(memory, 1)]


def test_memory_that_grows_is_a_failure() -> None:
    _look_at_growth(samples(70, 75, 80), 0)
    with pytest.raises(Violation, match="memory"):
        _look_at_growth(samples(70, 80, 90), 0)


def test_what_is_taken_before_it_is_warm_does_not_count() -> None:
    _look_at_growth([Sample(6, MIB, MIB, 1), *samples(70, 75)], 0)


def test_disks_may_grow_by_the_last_segments() -> None:
    before, after = Sample(24, MIB, MIB, 1), Sample(48, MIB, 3 * MIB, 1)
    _look_at_growth([before, after], 2 * MIB)
    with pytest.raises(Violation, match="disks"):
        _look_at_growth([before, after], MIB // 2)


@pytest.mark.parametrize("is_in_file", [False, True])
def test_a_history_is_read_as_it_was_written(tmp_path: Path, is_in_file: bool) -> None:
    history = History(Scheduler(), tmp_path / "events" if is_in_file else None)
    history.add("send", p="p1", n=1)
    history.add("ack", p="p1", n=1, o=7)
    assert [(event["op"], event.get("o")) for event in history] == [("send", None), ("ack", 7)]
    assert len(list(history)) == 2
