"""Owns the assignors that this broker offers: the built-in ones, and those that are installed.

An installed one is found by the entry point group `moldau.assignors`: the name of the entry point
must be the name of what it loads, a class without arguments or an object with `name` and `assign`.
Its code is foreign: whatever it raises, and whatever it returns that breaks the contract, is told
in the log once, and the group keeps the assignment that it has.
"""

import logging
from collections.abc import Mapping, Sequence
from importlib.metadata import EntryPoint, entry_points

from moldau.groups.assignors.interface import (
    Assignment,
    Assignor,
    AssignorError,
    GroupSpec,
    checked,
)
from moldau.groups.coordinator import BUILT_IN_ASSIGNORS
from moldau.model.errors import ConfigError

log = logging.getLogger(__name__)

ENTRY_POINTS = "moldau.assignors"


class GuardedAssignor:
    """An assignor from outside."""

    def __init__(self, assignor: Assignor) -> None:
        self._assignor = assignor
        self._told: str | None = None

    @property
    def name(self) -> str:
        return self._assignor.name

    def assign(self, spec: GroupSpec) -> Mapping[str, Assignment]:
        try:
            return checked(self, spec, self._assignor.assign(spec))
        except AssignorError as error:
            self._tell(str(error))
            raise
        except Exception as error:
            self._tell(f"assignor {self.name} failed: {error!r}")
            raise AssignorError(f"assignor {self.name} failed") from error

    def _tell(self, what: str) -> None:
        if what != self._told:
            self._told = what
            log.exception("%s", what)


def load_assignors(
    names: Sequence[str], found: Sequence[EntryPoint] | None = None
) -> list[Assignor]:
    """The assignors of these names, in their order. Raises ConfigError for one that is not there.

    Nothing is imported that is not asked for, and nobody looks for installed ones that no name
    asks for.
    """
    built_in = {assignor.name: assignor for assignor in BUILT_IN_ASSIGNORS}
    wanted = list(dict.fromkeys(name.strip() for name in names))
    if found is None:
        found = [] if built_in.keys() >= set(wanted) else list(entry_points(group=ENTRY_POINTS))
    installed = {one.name: one for one in found}
    assignors: list[Assignor] = []
    for name in wanted:
        if name in built_in:
            assignors.append(built_in[name])
        elif name in installed:
            assignors.append(GuardedAssignor(_made(installed[name])))
        else:
            known = ", ".join([*built_in, *installed])
            raise ConfigError(f"group.consumer_assignors names {name!r}; there are: {known}")
    return assignors


def _made(entry: EntryPoint) -> Assignor:
    try:
        loaded = entry.load()
        made = loaded() if isinstance(loaded, type) else loaded
        name, assign = made.name, made.assign
    except Exception as error:
        what = f"assignor {entry.name} ({entry.value})"
        raise ConfigError(f"{what} cannot be used: {error!r}") from error
    if name != entry.name or not callable(assign):
        raise ConfigError(f"assignor {entry.name} ({entry.value}) calls itself {name!r}")
    assignor: Assignor = made
    return assignor
