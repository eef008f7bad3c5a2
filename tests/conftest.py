"""Loads the harness of all tests, and gives those on a shared broker names and connections."""

import itertools
import signal
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from moldau.testing.broker import Broker
    from raw_client import RawClient

pytest_plugins = [
    "harness.kinds",
    # Before anything of ours is imported.
    "harness.purity",
    "harness.leaks",
    "harness.coroutines",
    "harness.order",
    "harness.results",
]

_numbers = itertools.count(1)

# A shell that runs the tests in its background has them ignore Ctrl-C, and every command that they
# start would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def new_name() -> Callable[[str], str]:
    """Names for topics and groups that no other test uses."""
    return lambda prefix: f"{prefix}-{next(_numbers)}"


@pytest.fixture
def raw(broker: "Broker") -> Iterator["RawClient"]:
    """A raw connection to the broker of the folder."""
    from raw_client import RawClient

    with RawClient(broker.host, broker.port, client_id="test") as opened:
        yield opened
