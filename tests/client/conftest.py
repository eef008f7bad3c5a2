"""What all tests of clients stand on."""

import pytest
from queue_brokers import keep_what_a_process_shares

from harness.kinds import PURE, kind_of


@pytest.fixture(scope="module", autouse=True)
def _shared_by_the_process(request: pytest.FixtureRequest) -> None:
    if kind_of(request.path) != PURE:
        keep_what_a_process_shares()
