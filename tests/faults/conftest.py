"""Keeps the worlds of the fault scenarios apart."""

import fcntl
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

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
