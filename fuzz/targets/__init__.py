"""The table of targets: each module has a list of them, `TARGETS`.

Modules are imported by name and late: a worker imports only the one that it fuzzes, after it has
switched on the instrumentation.
"""

from collections.abc import Iterator
from importlib import import_module
from typing import Final

from fuzz.target import Target

MODULES: Final = (
    "wire",
    "records",
    "stored",
    "disk",
    "broker",
    "security",
    "peers",
    "text",
    "search",
)


def load_all() -> Iterator[Target]:
    for name in MODULES:
        yield from import_module(f"fuzz.targets.{name}").TARGETS


def load(name: str) -> Target:
    """Raises ValueError for an unknown name. A target is named after its module: wire-requests."""
    module = name.partition("-")[0]
    if module in MODULES:
        for target in import_module(f"fuzz.targets.{module}").TARGETS:
            if target.name == name:
                found: Target = target
                return found
    known = ", ".join(target.name for target in load_all())
    raise ValueError(f"{name!r} is not a target; the targets are {known}")
