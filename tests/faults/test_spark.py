"""How the rounds of Spark's faults share the steps out, and what is said of all of them."""

import random

import pytest

from faults.spark import STEPS, TABLE_STEPS, Found, judge, shared_out


def found(*steps: str, wrong: str = "", audit: str | None = "") -> Found:
    return Found(
        round="round",
        steps=dict.fromkeys(steps, True),
        is_task_retried=True,
        has_twins=False,
        failures=0,
        inputs=1,
        wrong=wrong,
        seconds=1.0,
        audit=audit,
    )


@pytest.mark.parametrize("seed", range(20))
def test_ten_rounds_have_every_step_and_none_twice_in_one(seed: int) -> None:
    for steps in (STEPS, TABLE_STEPS):
        dealt = shared_out(steps, 10, random.Random(seed))
        assert {step for hand in dealt for step in hand} == set(steps)
        assert all(len(set(hand)) == len(hand) == 2 for hand in dealt)


def test_all_is_well_only_if_both_judges_say_so_and_every_step_had_its_turn() -> None:
    assert judge([found(*STEPS)], is_whole=True)
    assert not judge([found(*STEPS, wrong="1 missing")], is_whole=True)
    assert not judge([found(*STEPS, audit="1 missing")], is_whole=True)
    assert not judge([found(*STEPS[1:])], is_whole=True)
    assert judge([found(*STEPS[1:])], is_whole=False)


def test_the_audit_is_not_said_to_agree_on_what_it_did_not_judge(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert judge([found(*STEPS), found(audit=None)], is_whole=True)
    assert "2 of 2 rounds: each input exactly once" in (said := capsys.readouterr().out)
    assert "1 of 1 rounds of queries: the audit finds the same" in said
