"""The guard notices errors that are not allowed, hangs and memory, and nothing else."""

from collections.abc import Callable

import pytest

from fuzz.findings import read_finding, write_finding
from fuzz.guard import Guard
from fuzz.target import MEBIBYTE, BrokenRuleError, Target, check

pytestmark = pytest.mark.inprocess


def target(run: Callable[[bytes], None], reset: Callable[[], None] | None = None) -> Target:
    return Target(
        name="made-up",
        about="for this test",
        run=run,
        allowed=(ValueError,),
        seeds=dict,
        seconds_max=0.2,
        memory_bytes_max=32 * MEBIBYTE,
        reset=reset,
    )


def read_number(data: bytes) -> None:
    int(data)


def look_up(data: bytes) -> None:
    known: dict[bytes, int] = {}
    known[data] += 1


def fill_memory(data: bytes) -> None:
    bytes(bytearray(b"x") * len(data) * MEBIBYTE)


def test_an_input_that_is_read_or_refused_is_no_finding() -> None:
    guard = Guard(target(read_number))
    assert guard.run(b"1") is None
    assert guard.run(b"no number") is None


def test_another_error_is_a_finding_with_its_input() -> None:
    found = Guard(target(look_up)).run(b"\x00\xff")
    assert found is not None
    assert (found.kind, found.inputs) == ("KeyError", (b"\x00\xff",))
    assert "test_guard.py" in found.trace


def test_a_hang_is_a_finding_even_where_errors_are_caught() -> None:
    def loop(data: bytes) -> None:
        while True:
            try:
                sum(range(1000))
            except Exception:
                continue

    found = Guard(target(loop)).run(b"")
    assert found is not None
    assert found.kind == "hang"


def test_much_memory_is_a_finding_each_time() -> None:
    guard = Guard(target(fill_memory))
    for _ in range(2):
        found = guard.run(b"x" * 100)
        assert found is not None
        assert found.kind == "memory"
        assert guard.run(b"x") is None


def test_a_rule_that_is_broken_is_a_finding() -> None:
    def run(data: bytes) -> None:
        check(data == b"good", "it must be good")

    assert Guard(target(run)).run(b"good") is None
    found = Guard(target(run)).run(b"bad")
    assert found is not None
    assert found.kind == BrokenRuleError.__name__


def test_a_finding_of_a_target_with_state_has_all_inputs_since_the_reset() -> None:
    seen: list[bytes] = []

    def run(data: bytes) -> None:
        seen.append(data)
        check(len(seen) < 3, "three are too many")

    guard = Guard(target(run, reset=seen.clear))
    assert guard.run(b"a") is None
    assert guard.run(b"b") is None
    found = guard.run(b"c")
    assert found is not None
    assert found.inputs == (b"a", b"b", b"c")
    assert guard.run(b"d") is None


def test_a_finding_is_read_as_it_was_written(tmp_path) -> None:
    found = Guard(target(look_up)).run(bytes(range(256)))
    assert found is not None
    again = read_finding(write_finding(found, tmp_path))
    assert (again.identity, again.inputs) == (found.identity, found.inputs)
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(ValueError, match="is not a finding"):
        read_finding(tmp_path / "other.json")
