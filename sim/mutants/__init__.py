"""Planted mistakes: each breaks one rule of the product, and must be found by the simulator.

A simulation is worth what it finds. Most of these are mistakes that real systems made; some take
back a repair that was made here.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from msgspec import Struct

Patch = tuple[Any, str, Any]
"""Whose attribute of which name becomes what."""


class Mutant(Struct, frozen=True, kw_only=True):
    """One mistake."""

    name: str
    layer: str
    about: str
    patches: tuple[Patch, ...]
    faults: dict[str, float] | None
    """What the world is like in which it is looked for: mean seconds between faults, by kind.
    None: chance hardly ever brings it about, and a script has to."""
    plan: dict[str, Any] = {}
    """Other fields of the plan."""
    scenarios: tuple[str, ...] = ()
    """The scripts in tests/scenarios that show it."""


def mutant(
    name: str,
    layer: str,
    about: str,
    faults: dict[str, float] | None,
    *patches: Patch,
    scenarios: tuple[str, ...] = (),
    **plan: Any,
) -> Mutant:
    return Mutant(
        name=name,
        layer=layer,
        about=about,
        patches=patches,
        faults=faults,
        plan=plan,
        scenarios=scenarios,
    )


@contextmanager
def planted(mutant: Mutant) -> Iterator[None]:
    """While it lasts, the product makes this mistake."""
    with ExitStack() as stack:
        for owner, name, replacement in mutant.patches:
            stack.enter_context(patch.object(owner, name, replacement))
        yield
