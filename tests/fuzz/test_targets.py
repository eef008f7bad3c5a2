"""Every target reads its corpus, past findings included, without a new finding."""

import pytest

from fuzz.corpus import REGRESSION, seeds_of
from fuzz.guard import Guard
from fuzz.target import Target
from fuzz.targets import load, load_all

pytestmark = pytest.mark.inprocess

TARGETS = list(load_all())
CORPUS_BYTES_MAX = 64 * 1024


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_a_target_survives_its_corpus(target: Target) -> None:
    guard = Guard(target)
    try:
        found = [guard.run(path.read_bytes()) for path in seeds_of(target)]
    finally:
        if target.reset is not None:
            target.reset()
    assert [finding.trace for finding in found if finding is not None] == []


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_the_corpus_of_a_target_is_small_and_made_of_its_seeds(target: Target) -> None:
    paths = seeds_of(target)
    assert sum(path.stat().st_size for path in paths) <= CORPUS_BYTES_MAX
    names = {path.name for path in paths if not path.name.startswith(REGRESSION)}
    # More seeds than files: python -m fuzz --write-seeds.
    assert names
    assert names <= set(dict(target.seeds()))


def test_names_of_targets_are_unique_and_found() -> None:
    names = [target.name for target in TARGETS]
    assert len(set(names)) == len(names)
    assert all(load(name).name == name for name in names)
    with pytest.raises(ValueError, match="is not a target"):
        load("wire-nothing")


def test_no_target_allows_an_error_that_hides_mistakes() -> None:
    hiding = (Exception, BaseException, AssertionError, TypeError, KeyError, AttributeError)
    assert [target.name for target in TARGETS if set(target.allowed) & set(hiding)] == []
