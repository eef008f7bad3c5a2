"""The packages that an install of the product brings along: names from pyproject.toml, versions and
further requirements from this environment."""

import tomllib
from collections.abc import Iterable
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PROJECT: Final = Path(__file__).parent.parent / "pyproject.toml"


class MissingPackageError(Exception):
    """A package is required and not installed: nothing can be said about it."""


def closure(extras: Iterable[str] = ()) -> dict[str, Distribution]:
    """By normalised name, without the product itself. Raises MissingPackageError."""
    found: dict[str, Distribution] = {}
    seen: set[tuple[str, frozenset[str]]] = set()
    waiting = _needed(_required_by_product(extras), frozenset())
    while waiting:
        name, wanted = waiting.pop()
        if (name, wanted) in seen:
            continue
        seen.add((name, wanted))
        try:
            package = found[name] = distribution(name)
        except PackageNotFoundError:
            raise MissingPackageError(f"{name} is required, but not installed here") from None
        waiting += _needed(package.requires or (), wanted)
    return dict(sorted(found.items()))


def _required_by_product(extras: Iterable[str]) -> list[str]:
    project = tomllib.loads(PROJECT.read_text())["project"]
    required: list[str] = list(project["dependencies"])
    for extra in extras:
        required += project["optional-dependencies"][extra]
    return required


def _needed(requires: Iterable[str], extras: frozenset[str]) -> list[tuple[str, frozenset[str]]]:
    """Those that this Python needs, with the extras that they are asked for with."""
    environments = [{"extra": extra} for extra in extras] or [{"extra": ""}]
    needed = [
        required
        for text in requires
        if (required := Requirement(text)).marker is None
        or any(map(required.marker.evaluate, environments))
    ]
    return [(canonicalize_name(each.name), frozenset(each.extras)) for each in needed]


def pinned(packages: dict[str, Distribution]) -> str:
    """As a requirements file."""
    return "".join(f"{name}=={package.version}\n" for name, package in packages.items())
