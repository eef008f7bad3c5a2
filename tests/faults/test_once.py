"""The verdict on a transformation finds what is missing, twice there, or out of order."""

from typing import Any

from faults.checker import Anomaly
from faults.once import judge_output, output_name

Event = dict[str, Any]
INPUTS: list[Event] = [
    {"op": "end", "tp": "in/0", "start": 0, "end": 4},
    {"op": "end", "tp": "in/1", "start": 0, "end": 2},
    {"op": "poll", "c": "r1", "tp": "in/0", "r": [[0, "p1:0"]]},
]


def outputs(*first: int, second: tuple[int, ...] = (0, 1), topic: str = "out") -> list[Event]:
    """What a reader of both partitions got; ends of transactions lie between."""
    events: list[Event] = []
    for partition, inputs in enumerate((first, second)):
        records = [[3 * at, output_name(partition, offset)] for at, offset in enumerate(inputs)]
        place = f"{topic}/{partition}"
        events.append({"op": "poll", "c": "o", "tp": place, "r": records})
        events.append({"op": "end", "tp": place, "start": 0, "end": 99})
    return events


def test_each_input_once_and_in_order_is_right() -> None:
    verdict = judge_output(INPUTS, outputs(0, 1, 2, 3), "out")
    assert verdict.clean, verdict.examples
    assert (verdict.acked, verdict.records_distinct) == (6, 6)


def test_an_input_that_was_not_transformed_is_lost() -> None:
    assert judge_output(INPUTS, outputs(0, 1, 3), "out").count(Anomaly.LOST) == 1
    assert judge_output(INPUTS, outputs(0, 1, 2, 3, second=()), "out").count(Anomaly.LOST) == 2


def test_an_input_that_was_transformed_twice_is_a_duplicate() -> None:
    assert judge_output(INPUTS, outputs(0, 1, 2, 2, 3), "out").count(Anomaly.DUPLICATE) == 1


def test_outputs_in_another_order_are_out_of_order() -> None:
    assert judge_output(INPUTS, outputs(0, 2, 1, 3), "out").count(Anomaly.REORDERED) == 1


def test_an_output_without_an_input_is_a_phantom() -> None:
    assert judge_output(INPUTS, outputs(0, 1, 2, 3, 4), "out").count(Anomaly.PHANTOM) == 1
