"""Orders the tests of a run: the longest files first, or all by chance with `--order-seed`.

With several processes at work, a long file that is handed out last runs alone while the others have
nothing to do. By chance shows tests that rest on what others did before them.
"""

import itertools
import random
from typing import Any, Final

import pytest
from effort import EXAMPLES
from hypothesis import settings

_LONGEST_FIRST: Final = (
    "tests/test_doc_blocks.py",
    "tests/deploy/test_lifecycle.py",
    "tests/deploy/test_image.py",
    "tests/faults/test_short.py",
    "tests/spark/test_declarative.py",
    "tests/testing/test_harness.py",
    "tests/release/test_bare_install.py",
    "tests/deploy/test_watched_cluster.py",
    "tests/edge/http/test_login.py",
    "tests/system/",
    "tests/faults/",
    "tests/compat/",
    "tests/sim/",
    "tests/cli/",
    "tests/test_docs.py",
    "tests/client/",
    "tests/edge/",
)

_WORLDS: Final = (
    "tests/faults/test_short.py",
    "tests/faults/test_network.py",
    "tests/faults/test_world.py",
)
"""One at a time: another process would only wait for it, see tests/faults/conftest.py."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--order-seed", type=int, help="run the tests in a random order")


def pytest_configure(config: pytest.Config) -> None:
    # Else files with many tests come first: those of pure logic, the shortest.
    config.option.loadscopereorder = False
    # Chance is no reason why a change lands or not: property tests take the same examples each
    # time, but where a seed is given. Nor is time: a busy machine makes any example slow.
    by_chance = config.getoption("order_seed") is not None
    settings.register_profile(
        "moldau",
        deadline=None,
        database=None,
        derandomize=not by_chance,
        max_examples=EXAMPLES,
    )
    settings.load_profile("moldau")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    seed = config.getoption("order_seed")
    if seed is None:
        items.sort(key=_turn)
        return
    # Files as a whole, so that what a file's tests share is made once; then the tests in each.
    chance = random.Random(seed)
    files = [list(tests) for _, tests in itertools.groupby(items, key=lambda item: item.path)]
    chance.shuffle(files)
    for tests in files:
        chance.shuffle(tests)
    items[:] = [item for tests in files for item in tests]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """By files, but some of them as one."""
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            path = super()._split_scope(nodeid)
            return "worlds" if path in _WORLDS else path

    return Scheduling(config, log)


def _turn(item: pytest.Item) -> int:
    matches = (at for at, name in enumerate(_LONGEST_FIRST) if item.nodeid.startswith(name))
    return next(matches, len(_LONGEST_FIRST))
