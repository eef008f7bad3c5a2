"""The libraries of lakes, ready before the first test looks at what is open."""

import pytest
from lake_world import use_on_disk_once

from harness.kinds import PURE, kind_of


@pytest.fixture(scope="module", autouse=True)
def _libraries_are_used(request: pytest.FixtureRequest) -> None:
    if kind_of(request.path) != PURE:
        use_on_disk_once()
