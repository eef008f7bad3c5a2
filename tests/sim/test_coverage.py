"""The count of statements: what is one, and which of them ran."""

from moldau.metadata.image import collision_key
from sim.coverage import ROOT, Statements, statements_of

SOURCE = '''
LIMIT = 1

def pick(value):
    """Not a statement."""
    if value:
        return (
            LIMIT
        )
    raise AssertionError("never")
'''


def test_statements_stand_in_functions_and_are_not_what_shows_a_bug() -> None:
    assert statements_of(SOURCE) == {6: range(6, 7), 7: range(7, 10)}


def test_what_ran_is_counted_and_what_did_not_is_named() -> None:
    path = ROOT / "metadata" / "image.py"
    all_of_it = set(statements_of(path.read_text()))
    with Statements() as statements:
        collision_key("a.b")
    missing = set(statements.missing()["metadata/image.py"])
    assert len(all_of_it - missing) == 1
    executed, total = statements.by_package()["metadata"]
    assert executed == 1
    assert total > len(all_of_it)


def test_what_other_processes_ran_is_added() -> None:
    path = ROOT / "metadata" / "image.py"
    first = min(statements_of(path.read_text()))
    statements = Statements()
    assert first in statements.missing()["metadata/image.py"]
    statements.add({str(path): {first}})
    assert first not in statements.missing()["metadata/image.py"]
