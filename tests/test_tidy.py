"""The code base stays tidy: small modules and classes with docstrings, and a correct file map."""

import ast
import fnmatch
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "moldau"
LINES_MAX = 600


def source_files() -> list[Path]:
    """What people write: stubs are made from the .proto file."""
    return sorted(path for path in SOURCE.rglob("*.py") if not is_generated(path))


def is_generated(path: Path) -> bool:
    return path.is_relative_to(SOURCE / "proto") and path.stem.endswith(("_pb2", "_pb2_grpc"))


def python_files() -> list[Path]:
    return sorted([*source_files(), *(ROOT / "tests").rglob("*.py")])


def test_no_module_grows_past_the_point_where_it_should_be_split() -> None:
    long = {
        str(path.relative_to(ROOT)): lines
        for path in python_files()
        if (lines := len(path.read_text().splitlines())) > LINES_MAX
    }
    assert long == {}


def test_no_class_is_spread_over_modules_to_stay_below_that() -> None:
    """A class counts with its bases of the same package."""
    classes: dict[tuple[str, str], tuple[int, list[tuple[str, str]]]] = {}
    for path in source_files():
        module = ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts)
        tree = ast.parse(path.read_text())
        known = {
            alias.asname or alias.name: (node.module, alias.name)
            for node in tree.body
            if isinstance(node, ast.ImportFrom) and node.module
            for alias in node.names
        }
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                size = (node.end_lineno or node.lineno) - node.lineno + 1
                names = [base.id for base in node.bases if isinstance(base, ast.Name)]
                bases = [known.get(name, (module, name)) for name in names]
                classes[module, node.name] = size, bases

    def family(name: tuple[str, str]) -> set[tuple[str, str]]:
        package = name[0].rpartition(".")[0]
        bases = [base for base in classes[name][1] if base in classes]
        same = [base for base in bases if base[0].rpartition(".")[0] == package]
        return {name}.union(*map(family, same))

    sizes = {name: sum(classes[each][0] for each in family(name)) for name in classes}
    assert {".".join(name): size for name, size in sizes.items() if size > LINES_MAX} == {}


def test_every_module_has_a_docstring() -> None:
    silent = [
        str(path.relative_to(ROOT))
        for path in source_files()
        if not path.read_text().lstrip().startswith(('"""', 'r"""'))
    ]
    assert silent == []


def test_the_map_in_the_architecture_names_every_package() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    block = text.split("src/moldau/\n", 1)[1].split("```", 1)[0]
    named = set(re.findall(r"^  (\w+)/ ", block, re.MULTILINE))
    packages = {path.parent.name for path in SOURCE.glob("*/__init__.py")}
    assert named == packages


def test_links_between_documents_lead_somewhere() -> None:
    broken = []
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
            if not (page.parent / target).exists():
                broken.append(f"{page.relative_to(ROOT)}: {target}")
    assert broken == []


def test_modules_and_folders_that_documents_name_exist() -> None:
    """Decisions and the change log are history: what they name may be gone."""
    product = ("src", "sim", "faults", "fuzz", "supply_chain", "release", "docsite")
    names = (*product, "benchmarks", "demo", "deploy", "tests")
    folders = [ROOT / name for name in names]
    roots = {path.name for path in [*SOURCE.iterdir(), *folders]}
    files = [*ROOT.glob("*.py"), *(path for folder in folders for path in folder.rglob("*"))]
    known = {f"/{path.relative_to(ROOT)}" for path in files}
    pages = [ROOT / "ARCHITECTURE.md", ROOT / "CONTRIBUTING.md", ROOT / "README.md"]
    pages += [path for path in (ROOT / "docs").rglob("*.md") if path.parent.name != "decisions"]
    unknown = []
    for page in pages:
        for name in re.findall(r"`([\w*/-]+(?:\.\w+)?)`", page.read_text()):
            is_path = name.endswith(".py") or ("/" in name and name.split("/")[0] in roots)
            if is_path and not fnmatch.filter(known, f"*/{name.rstrip('/')}"):
                unknown.append(f"{page.relative_to(ROOT)}: {name}")
    assert unknown == []


def test_product_code_has_no_unfinished_business() -> None:
    marks = re.compile(r"TODO|FIXME|XXX|NotImplementedError|except Exception: *pass")
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in source_files()
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if marks.search(line)
    ]
    assert found == []


def test_every_decision_is_in_the_index_with_its_status() -> None:
    folder = ROOT / "docs" / "decisions"
    expected = []
    for path in sorted(folder.glob("[0-9]*.md")):
        title, _, status = path.read_text().splitlines()[:3]
        ((number, name),) = re.findall(r"\A# (\d+)\. (.*)\Z", title)
        ((kind, date),) = re.findall(r"\A(.*), (\d{4}-\d\d-\d\d)\.\Z", status)
        kind = kind[0].lower() + kind[1:]
        expected.append(f"| [{number}]({path.name}) | {name} | {kind} | {date} |")
    index = (folder / "README.md").read_text().splitlines()
    assert [line for line in index if line.startswith("| [")] == expected
