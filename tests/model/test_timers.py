import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from moldau.model import timers as model_timers
from moldau.model.timers import Timers

KEYS = [(1, name) for name in "abc"]


@pytest.fixture(autouse=True, params=[0, 64])
def dead_max(request, monkeypatch):
    monkeypatch.setattr(model_timers, "_DEAD_MAX", request.param)


steps = st.lists(
    st.tuples(st.sampled_from(["set", "cancel", "pop"]), st.sampled_from(KEYS), st.integers(0, 20)),
    max_size=60,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps)
def test_timers_behave_like_a_table_of_deadlines(sequence):
    timers: Timers[tuple[int, str]] = Timers()
    table: dict[tuple[int, str], float] = {}
    for action, key, number in sequence:
        match action:
            case "set":
                timers.set(key, float(number))
                table[key] = float(number)
            case "cancel":
                timers.cancel(key)
                table.pop(key, None)
            case "pop":
                due = timers.pop_due(float(number))
                if due is None:
                    assert all(deadline > number for deadline in table.values())
                else:
                    assert table.pop(due) <= number
        assert timers.next_deadline() == min(table.values(), default=None)
        assert {key: timers.deadline(key) for key in KEYS} == {key: table.get(key) for key in KEYS}


def test_timers_that_move_do_not_pile_up():
    timers: Timers[tuple[int, str]] = Timers()
    for n in range(1000):
        timers.set(KEYS[0], float(n))
        timers.next_deadline()
    assert len(timers._heap) == 1


def test_timers_that_are_cancelled_do_not_pile_up():
    """Members that join and leave, again and again, with long sessions."""
    timers: Timers[tuple[int, str]] = Timers()
    timers.set(KEYS[0], 1e6)
    for n in range(1000):
        timers.set((2, str(n)), 1000.0 + n)
        timers.cancel((2, str(n)))
    assert len(timers._heap) <= 67
    assert timers.pop_due(1e6) == KEYS[0]
    assert timers.next_deadline() is None


def test_timers_that_come_nearer_do_not_pile_up():
    timers: Timers[tuple[int, str]] = Timers()
    for n in range(1000):
        timers.set(KEYS[0], 1000.0 - n)
    assert len(timers._heap) <= 67
    assert timers.pop_due(1.0) == KEYS[0]
