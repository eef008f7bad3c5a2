"""Every test that looks for lost, doubled or reordered messages says so.

Only tests with real processes are ever repeated, so only they have to: pure ones and those in one
process never are.
"""

import ast
import re
from pathlib import Path

from harness.kinds import SPARK, SYSTEM, kind_of

TESTS = Path(__file__).parents[1]

NAMES = re.compile(
    r"lost|_los(e|es|s|ing)(_|$)|doubl|duplicat|twice|reorder|out_of_order|exactly|surviv|outliv"
    r"|acked|acknowledged|settled|kill|worked_through|goes_on_w|written_once"
    r"|(message|input|record|row|batch|result|letter)(s|es)?_(\w+_)?once(_|$)"
)
"""What the name of a test says when it looks for such a thing."""
WORDS = re.compile(
    r"\b(acked|acknowledged|unacked|lost|doubled|duplicates?|reordered|exactly once|History)\b"
)
"""What stands in the test itself, then."""
CHECKERS = re.compile(r"^from faults\.(checker|history|__main__|drive)|^from faults import", re.M)
"""What its file imports, then: histories of clients, held against what is stored."""


def marks(node: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    found = (ast.unparse(decorator) for decorator in node.decorator_list)
    return {text.partition("(")[0].removeprefix("pytest.mark.") for text in found}


def unmarked(text: str) -> list[str]:
    """The tests in the text of a file that ought to carry the marker, and do not."""
    head = re.search(r"^pytestmark = (\[[^\]]*\]|.*)$", text, re.MULTILINE)
    if head and "pytest.mark.safety" in head[1]:
        return []
    has_checker = bool(CHECKERS.search(text))
    return [
        node.name
        for node in ast.walk(ast.parse(text))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        and node.name.startswith("test_")
        and (has_checker or NAMES.search(node.name) or WORDS.search(ast.unparse(node)))
        and "safety" not in marks(node)
    ]


def test_every_test_that_looks_for_lost_messages_is_marked() -> None:
    files = [path for path in TESTS.rglob("test_*.py") if kind_of(path) in (SYSTEM, SPARK)]
    assert len(files) > 50
    found = {str(path.relative_to(TESTS)): unmarked(path.read_text()) for path in files}
    assert {path: tests for path, tests in found.items() if tests} == {}


def test_a_test_without_its_mark_is_found() -> None:
    lost = "def test_no_message_is_lost(): pass"
    assert unmarked(f"{lost}\ndef test_the_table_is_drawn(): pass") == ["test_no_message_is_lost"]
    assert unmarked("from faults.checker import judge\ndef test_x(): pass") == ["test_x"]
    assert unmarked(f"@pytest.mark.safety\n{lost}") == []
    assert unmarked(f"pytestmark = [pytest.mark.system, pytest.mark.safety]\n{lost}") == []
