"""Makes `faults` importable: it stands beside the package, not in it. Keeps its worlds apart."""

import fcntl
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = str(Path(__file__).resolve().parents[2])
if ROOT not in sys.path:
    sys.path.insert(0, ROOT)

_WORLDS = ("test_short", "test_network", "test_world")
"""Tests that mount disks or make network namespaces."""


@pytest.fixture(autouse=True)
def one_world_at_a_time(request: pytest.FixtureRequest) -> Iterator[None]:
    """`ip netns exec` copies the mounts of its moment and holds on to them, also those of a test
    that runs beside it in another process and cuts the power of its disk."""
    if request.path.stem not in _WORLDS:
        yield
        return
    with (Path(tempfile.gettempdir()) / "moldau-faults.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
