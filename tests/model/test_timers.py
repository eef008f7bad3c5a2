from hypothesis import given
from hypothesis import strategies as st

from moldau.model.timers import Timers

KEYS = [(1, name) for name in "abc"]
steps = st.lists(
    st.tuples(st.sampled_from(["set", "cancel", "pop"]), st.sampled_from(KEYS), st.integers(0, 20)),
    max_size=60,
)


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
