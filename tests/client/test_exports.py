"""The package offers the client, and costs nobody who does not use it."""

import subprocess
import sys

import pytest

import moldau
from moldau.testing.waiting import wait_seconds_max

pytestmark = pytest.mark.system


def test_importing_the_package_loads_no_client() -> None:
    code = (
        "import sys, moldau; "
        "print([m for m in sys.modules if m.startswith(('moldau.', 'confluent_kafka'))])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=wait_seconds_max()
    )
    assert done.stdout == "['moldau.version']\n", done.stderr


def test_every_name_that_is_offered_is_there() -> None:
    for name in moldau.__all__:
        assert getattr(moldau, name) is not None
        assert name in dir(moldau)
    assert sorted({*moldau._HOMES, "__version__"}) == sorted(moldau.__all__)


def test_a_name_that_is_not_there_is_said() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Produce'"):
        _ = moldau.Produce
