"""What a world makes small has to be small in compiled code, too, which builds constants in."""

import ast
from pathlib import Path

import pytest

from release.hot_path import ROOT, modules
from sim.knobs import _MADE, KNOBS

COMPILED = {".".join(path.with_suffix("").parts[1:]): ROOT / path for path in modules()}
TREES = {name: ast.parse(path.read_text()) for name, path in COMPILED.items()}
NAMES = sorted({name for values in KNOBS.values() for name in values})
MADE = sorted({name for made in _MADE.values() for name, _ in made})


def tree_of(module: str) -> ast.Module:
    path = ROOT / "src" / Path(*module.split("."))
    return ast.parse(path.with_suffix(".py").read_text())


def is_final(tree: ast.Module, name: str) -> bool:
    return any(
        ast.unparse(node.target) == name and ast.unparse(node.annotation).startswith("Final")
        for node in tree.body
        if isinstance(node, ast.AnnAssign)
    )


def importers(module: str, name: str) -> list[str]:
    """The compiled modules that have the constant of another one."""
    return [
        importer
        for importer, tree in TREES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        and node.module == module
        and any(alias.name == name for alias in node.names)
    ]


@pytest.mark.parametrize("knob", NAMES)
def test_a_knob_of_compiled_code_is_no_final(knob: str) -> None:
    module, _, name = knob.partition(":")
    used_in = [*([module] if module in COMPILED else []), *importers(module, name)]
    assert not used_in or not is_final(tree_of(module), name), (
        f"{name} is built into {', '.join(used_in)}: leave its `Final` out"
    )


def test_some_knobs_are_of_compiled_code() -> None:
    assert sum(knob.partition(":")[0] in COMPILED for knob in NAMES) > 15
    assert importers("moldau.net.peers.frames", "PIECE_BYTES_MAX")
    assert is_final(ast.parse("SIZE: Final = 1"), "SIZE")


@pytest.mark.parametrize("made", MADE)
def test_what_makes_settings_is_looked_up_by_name(made: str) -> None:
    """A compiled module calls its own classes, and those of other compiled ones, directly."""
    module, _, name = made.partition(":")
    if module not in COMPILED:
        return
    (origin,) = (
        node.module
        for node in ast.walk(TREES[module])
        if isinstance(node, ast.ImportFrom) and any(alias.name == name for alias in node.names)
    )
    assert origin not in COMPILED
