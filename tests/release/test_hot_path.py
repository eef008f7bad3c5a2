"""What mypyc would compile to something else than the source says, and does not refuse."""

import ast
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from moldau.model.compiled import described, is_compiled
from release.dist import compiled_problems
from release.hot_path import MODULES, ROOT, main, modules

SOURCES = modules()
VIEWS = (".keys", ".items")
COMPILED = {
    path.with_suffix("").relative_to("src").as_posix().replace("/", ".") for path in SOURCES
}


def tree_of(path: Path) -> ast.Module:
    return ast.parse((ROOT / path).read_text())


def imported(tree: ast.Module) -> dict[str, str]:
    """Where the names come from."""
    return {
        alias.asname or alias.name: f"{node.module}.{alias.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def classes(tree: ast.Module) -> Iterator[ast.ClassDef]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef))


def rebound_errors(tree: ast.Module) -> list[str]:
    """Names that `except` clauses of one function bind to different types: the first counts."""
    found = []
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            types: dict[str, str] = {}
            for node in ast.walk(function):
                if isinstance(node, ast.ExceptHandler) and node.name and node.type:
                    kind = ast.unparse(node.type)
                    if types.setdefault(node.name, kind) != kind:
                        found.append(f"{function.name}: {node.name}")
    return found


def structs(tree: ast.Module) -> list[str]:
    """Classes of msgspec: their keywords and the items of their containers would be forgotten."""
    return [
        node.name
        for node in classes(tree)
        if any(ast.unparse(base) in ("Struct", "msgspec.Struct") for base in node.bases)
    ]


def bare_views(tree: ast.Module) -> list[str]:
    """Fields of a NamedTuple of the type memoryview, which fail at import unless in quotes."""
    return [
        f"{node.name}.{ast.unparse(field.target)}"
        for node in classes(tree)
        if any(ast.unparse(base) == "NamedTuple" for base in node.bases)
        for field in node.body
        if isinstance(field, ast.AnnAssign) and ast.unparse(field.annotation) == "memoryview"
    ]


def is_view(node: ast.expr) -> bool:
    return ast.unparse(node.func).endswith(VIEWS) if isinstance(node, ast.Call) else False


def sets_of_keys(tree: ast.Module) -> list[str]:
    """A frozenset minus the keys of a dict is a set when it runs, whatever its type says, and
    compiled code takes no set for a frozenset. `frozenset.difference` returns what it says."""
    return [
        ast.unparse(node)
        for node in ast.walk(tree)
        if (isinstance(node, ast.BinOp) and is_view(node.right) and not is_view(node.left))
        or (isinstance(node, ast.AugAssign) and is_view(node.value))
    ]


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.as_posix())
def test_a_source_means_the_same_compiled(path: Path) -> None:
    tree = tree_of(path)
    assert rebound_errors(tree) == []
    assert structs(tree) == []
    assert bare_views(tree) == []
    assert sets_of_keys(tree) == []


def test_the_rules_find_what_they_are_for() -> None:
    tree = ast.parse(
        "class Known(Struct, eq=False): ...\n"
        "class Piece(NamedTuple):\n    data: memoryview\n"
        "async def work():\n"
        "    try: ...\n"
        "    except OSError as error: ...\n"
        "    except ValueError as error: ...\n"
    )
    assert (structs(tree), bare_views(tree)) == (["Known"], ["Piece.data"])
    assert rebound_errors(tree) == ["work: error"]
    tree = ast.parse("left |= gone - kept.keys()\nmore = one.keys() - other.keys()")
    assert sets_of_keys(tree) == ["gone - kept.keys()"]


def test_interpreted_classes_inherit_only_from_compiled_ones_that_allow_it() -> None:
    trees = {path: tree_of(path) for path in (ROOT / "src/moldau").rglob("*.py")}
    allowing = {
        f"{module}.{node.name}"
        for module in COMPILED
        for node in classes(tree_of(Path("src", *module.split(".")).with_suffix(".py")))
        if any("allow_interpreted_subclasses=True" in ast.unparse(d) for d in node.decorator_list)
    }
    refused = []
    for path, tree in trees.items():
        module = ".".join(path.relative_to(ROOT / "src").with_suffix("").parts)
        if module in COMPILED:
            continue
        names = imported(tree)
        for node in classes(tree):
            for base in node.bases:
                origin = names.get(ast.unparse(base), "")
                if origin.rpartition(".")[0] in COMPILED and origin not in allowing:
                    refused.append(f"{module}.{node.name}")
    assert refused == []
    assert allowing


def test_every_module_of_the_list_exists() -> None:
    assert [path for path in SOURCES if not (ROOT / path).exists()] == []
    assert list(MODULES) == sorted(MODULES)


def test_a_source_tree_is_pure_python() -> None:
    assert described() == ("compiled" if is_compiled() else "pure Python")
    beside = [path for path in (ROOT / "src").rglob("*.so") if "spark" not in path.parts]
    assert beside == [], "libraries of the hot path in src would hide changes of their source"


def test_a_wheel_without_libraries_is_not_called_compiled(tmp_path: Path) -> None:
    wheel = tmp_path / "moldau.whl"
    with zipfile.ZipFile(wheel, "w") as packed:
        packed.writestr("moldau/raft/core.py", "")
        packed.writestr("moldau/raft/core.cpython-311-x86_64-linux-gnu.so", "")
    problems = compiled_problems(wheel)
    assert "moldau/raft/leader is not compiled" in problems
    assert not [problem for problem in problems if problem.startswith("moldau/raft/core")]


def test_without_a_compiler_there_is_one_line_and_the_next_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    assert main(["--to", str(tmp_path / "tree")]) == 1
    assert capsys.readouterr().err.splitlines() == [
        "error: there is no C compiler (no-such-compiler); on Debian: apt-get install gcc",
        "Moldau runs without: interpreted",
    ]
    assert not (tmp_path / "tree").exists()
