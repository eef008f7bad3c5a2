"""Owns which kinds of pipelines there are: the ready-made ones, and those of installed packages.

A package adds a kind by an entry point of the group `moldau.pipelines`: its name is the kind, its
value a module as `moldau.spark.pipelines.spec` says. One of the group `moldau.pipeline_commands`
with the same name is the module with the kind's command line (`OPTIONS`, `EXAMPLES`, `SUMMARY` and
`settings`, see `moldau.cli.pipeline_common`); without it, the kind is run from files alone.

Nothing of a kind is imported before it is asked for.
"""

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import Final

from moldau.client.errors import InvalidArgumentError
from moldau.spark.pipelines.spec import Context, Outcome, Plan, Settings

GROUP: Final = "moldau.pipelines"
COMMANDS_GROUP: Final = "moldau.pipeline_commands"

EXTRA: Final = frozenset(
    {
        *("pyspark", "py4j", "pyarrow", "numpy", "pandas", "fastavro", "deltalake", "pyiceberg"),
        # What the client of schema registries needs.
        *("authlib", "cachetools", "certifi", "httpx", "httpx2"),
    }
)
"""What `pip install "moldau[spark]"` brings, by the names of its modules."""

READY_MADE: Final = ("archive", "compact", "replay", "aggregate", "audit")


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind that is known by name; where it lives."""

    name: str
    module: str
    command: str | None
    """The module with its command line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """A kind that was imported."""

    name: str
    settings: type[Settings]
    plan: Callable[[Settings], Plan]
    run: Callable[[Settings, Context], Outcome]


@cache
def kinds() -> dict[str, Kind]:
    """All that are known, the ready-made ones first. No other one can take their names."""
    found = {
        name: Kind(
            name=name,
            module=f"moldau.spark.pipelines.{name}",
            command=f"moldau.cli.pipeline_{name}",
        )
        for name in READY_MADE
    }
    commands = {point.name: point.value for point in entry_points(group=COMMANDS_GROUP)}
    for point in entry_points(group=GROUP):
        found.setdefault(
            point.name,
            Kind(name=point.name, module=point.value, command=commands.get(point.name)),
        )
    return found


def find(name: str) -> Kind:
    """Raises InvalidArgumentError for a kind that nobody knows."""
    known = kinds()
    if name not in known:
        close = difflib.get_close_matches(name, known, n=1)
        meant = f"did you mean {close[0]}? " if close else ""
        raise InvalidArgumentError(
            f"there is no kind of pipeline {name!r}", hint=f"{meant}known are {', '.join(known)}"
        )
    return known[name]


def load(name: str) -> Loaded:
    """Import a kind. Raises InvalidArgumentError if it is unknown, or no pipeline."""
    kind = find(name)
    try:
        module = import_module(kind.module)
    except ModuleNotFoundError as error:
        if error.name is None or not _is_part_of(error.name, kind.module):
            raise missing_extra(error.name or str(error)) from error
        raise InvalidArgumentError(
            f"pipelines of kind {name} are said to be in {kind.module}, which is not there",
            hint="install the package that brings them again",
        ) from error
    parts = [getattr(module, part, None) for part in ("SETTINGS", "plan", "run")]
    settings, plan, run = parts
    if not isinstance(settings, type) or not callable(plan) or not callable(run):
        raise InvalidArgumentError(
            f"{kind.module} is no pipeline: it must have SETTINGS, plan and run"
        )
    return Loaded(name=name, settings=settings, plan=plan, run=run)


def missing_extra(module: str) -> InvalidArgumentError:
    """What to say where a package of the extra `spark` is not installed."""
    return InvalidArgumentError(
        f"the Python package {module.partition('.')[0]} is not installed",
        hint='pipelines need the extra: pip install "moldau[spark]"',
    )


def extra_missing(error: ImportError) -> InvalidArgumentError | None:
    """The same for an import that failed; None if what is missing is nothing of the extra."""
    name = (error.name or "").partition(".")[0]
    return missing_extra(name) if name in EXTRA else None


def _is_part_of(name: str, module: str) -> bool:
    return module == name or module.startswith(f"{name}.")
