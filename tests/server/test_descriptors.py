"""Open files: clients cannot take the descriptors that the logs need."""

import resource
from pathlib import Path

import pytest

from moldau.server.descriptors import connections_allowed
from moldau.testing.broker import Broker

pytestmark = pytest.mark.system


def test_clients_get_at_most_half_of_the_descriptors(caplog: pytest.LogCaptureFixture) -> None:
    assert connections_allowed(4096, None) == 4096
    assert connections_allowed(4096, 8192) == 4096
    assert not caplog.records
    assert connections_allowed(4096, 1024) == 512
    assert "ulimit" in caplog.text


def test_a_broker_raises_its_limit_of_open_files_as_far_as_it_may(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    broker = Broker(data_dir=tmp_path / "data")
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 500), hard))
    try:
        broker.start()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    try:
        assert resource.prlimit(broker.pid, resource.RLIMIT_NOFILE) == (hard, hard)
    finally:
        assert broker.stop() == 0
