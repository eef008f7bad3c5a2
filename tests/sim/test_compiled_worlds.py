"""Worlds are the same with a compiled hot path: what it does is what its source says."""

from pathlib import Path

import pytest

import moldau
from moldau.model.compiled import is_compiled
from sim.twins import SOURCE, TwinError, compare

pytestmark = pytest.mark.system


def test_a_tree_without_libraries_is_not_called_compiled() -> None:
    with pytest.raises(TwinError, match="no libraries for this Python: make compile"):
        compare(SOURCE, range(1, 2), 2.0, lambda _: None)


@pytest.mark.skipif(not is_compiled(), reason="needs a compiled tree: make test-compiled")
def test_worlds_are_the_same_compiled() -> None:
    told: list[str] = []
    tree = Path(moldau.__file__).parent.parent
    assert compare(tree, range(1, 4), 5.0, told.append), "\n".join(told)
