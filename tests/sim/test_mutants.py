"""Planted mistakes fit the product: one that does not would be found for a wrong reason."""

import inspect
import re
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from sim.knobs import KNOBS, turned
from sim.mutants import Mutant, planted
from sim.mutants.hunt import ALL, SCENARIOS

VARIABLE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def fits(replacement: Callable[..., Any], original: Callable[..., Any]) -> bool:
    """Whether it can be called as the original, by position and by name."""
    wanted = list(inspect.signature(original).parameters)
    taken = inspect.signature(replacement).parameters.values()
    named = [parameter.name for parameter in taken if parameter.kind not in VARIABLE]
    takes_more = any(parameter.kind in VARIABLE for parameter in taken)
    return wanted[: len(named)] == named and (takes_more or len(named) == len(wanted))


@pytest.mark.parametrize("mutant", ALL, ids=lambda mutant: mutant.name)
def test_a_mutant_replaces_what_the_product_uses(mutant: Mutant) -> None:
    for owner, name, replacement in mutant.patches:
        original = getattr(owner, name)
        if isinstance(owner, ModuleType):
            assert len(re.findall(rf"\b{name}\b", inspect.getsource(owner))) > 1, name
        if inspect.isclass(replacement):
            assert issubclass(replacement, original)
            own = {one for one in vars(replacement) if not one.startswith("__")}
            assert {one for one in own if not hasattr(original, one)} == set()
        elif inspect.isfunction(original):
            assert fits(replacement, original), name
        else:
            assert type(replacement) is type(original)
    with planted(mutant):
        pass


@pytest.mark.parametrize("mutant", ALL, ids=lambda mutant: mutant.name)
def test_a_mutant_is_hunted_by_faults_or_by_scripts_that_exist(mutant: Mutant) -> None:
    assert mutant.faults is not None or mutant.scenarios
    for name in mutant.scenarios:
        assert (SCENARIOS / f"{name}.txt").is_file()


def test_every_knob_can_be_turned() -> None:
    with turned(frozenset(KNOBS)):
        pass
