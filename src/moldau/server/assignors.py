"""Loads the assignors that this broker offers: built-in ones, and installed plugins.

A plugin is an entry point of the group `moldau.assignors`. It loads a class without arguments, or
an object, with `name` (equal to the entry point's name) and `assign`. If its code raises or returns
an invalid assignment, that is logged once, and the group keeps its current assignment.
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
from moldau.model import log_events as events
from moldau.model.errors import ConfigError

log = logging.getLogger(__name__)

ENTRY_POINTS = "moldau.assignors"


class GuardedAssignor:
    """Wraps a plugin, and turns its failures into AssignorError."""

    def __init__(self, assignor: Assignor) -> None:
        self._assignor = assignor
        self._logged: str | None = None

    @property
    def name(self) -> str:
        return self._assignor.name

    def assign(self, spec: GroupSpec) -> Mapping[str, Assignment]:
        try:
            return checked(self, spec, self._assignor.assign(spec))
        except AssignorError as error:
            self._log_once(str(error))
            raise
        except Exception as error:
            self._log_once(f"assignor {self.name} failed: {error!r}")
            raise AssignorError(f"assignor {self.name} failed") from error

    def _log_once(self, what: str) -> None:
        if what != self._logged:
            self._logged = what
            log.exception("%s", what, extra=events.ASSIGNOR_FAILED(assignor=self.name))


def load_assignors(
    names: Sequence[str], found: Sequence[EntryPoint] | None = None
) -> list[Assignor]:
    """The assignors of these names, in their order. Raises ConfigError for an unknown one.

    Plugins are looked up and imported only if a name needs them.
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
            assignors.append(GuardedAssignor(_load_plugin(installed[name])))
        else:
            known = ", ".join([*built_in, *installed])
            raise ConfigError(
                f"group.consumer_assignors: unknown assignor {name!r}; available: {known}"
            )
    return assignors


def _load_plugin(entry: EntryPoint) -> Assignor:
    try:
        loaded = entry.load()
        made = loaded() if isinstance(loaded, type) else loaded
        name, assign = made.name, made.assign
    except Exception as error:
        what = f"assignor {entry.name} ({entry.value})"
        raise ConfigError(f"cannot load {what}: {error!r}") from error
    if name != entry.name or not callable(assign):
        raise ConfigError(
            f"assignor {entry.name} ({entry.value}) must have the name of its entry point, "
            f"not {name!r}"
        )
    assignor: Assignor = made
    return assignor
