"""The table of known classes names tests that exist, and every class has one here."""

import ast
import re
from pathlib import Path

TESTS = Path(__file__).parent.parent
PAGE = TESTS.parent / "docs" / "internals" / "security.md"
CLASSES = [
    "authentication bypass between servers",
    "deny overridden",
    "rights on one name used on another",
    "unchecked nonce",
    "SSRF by a configured URL",
    "configuration that leads to code",
    "filter that leads to code",
    "buffers reused across topics",
]


def rows() -> list[tuple[str, str]]:
    table = PAGE.read_text().split("## Known classes", 1)[1].split("\n## ", 1)[0]
    return re.findall(r"^\| ([^|]*?)\s*\| `([^`]+)` \|$", table, re.MULTILINE)


def names_in(path: Path) -> set[str]:
    return {
        node.name
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.startswith("test_")
    }


def test_each_class_has_a_file_here_and_each_file_a_class() -> None:
    named = [(kind, test) for kind, test in rows() if kind]
    assert [kind for kind, _ in named] == CLASSES
    assert all(test.startswith("known_classes/") for _, test in named)
    here = {f"known_classes/{path.name}" for path in Path(__file__).parent.glob("test_*.py")}
    assert here - {test for _, test in rows()} == {"known_classes/test_table.py"}


def test_what_the_table_names_exists() -> None:
    missing = []
    for _, test in rows():
        name, _, function = test.partition("::")
        path = TESTS / name
        if not path.exists() or (function and function not in names_in(path)):
            missing.append(test)
        elif not function:
            assert names_in(path), test
    assert missing == []
