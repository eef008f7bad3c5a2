"""`moldau cluster` with brokers that require a login: who can read their directories needs none."""

import json

import pytest

pytestmark = pytest.mark.system


@pytest.fixture
def directory(cli, tmp_path):
    ports = [f"--{name}-port=0" for name in ("kafka", "http", "raft", "grpc")]
    settings = ("--set", "kafka.sasl_mechanisms=SCRAM-SHA-512")
    directory = tmp_path / "cluster"
    started = cli("cluster", "start", "-n", "1", "-d", "--data-dir", directory, *ports, *settings)
    assert started.code == 0, started.err
    yield directory
    assert cli("cluster", "stop", "--data-dir", directory).code == 0


def test_its_status_is_known(cli, directory):
    found = cli("cluster", "status", "--data-dir", directory, "-o", "json")
    assert found.code == 0, found.err + found.out
    assert json.loads(found.out)["problems"] == []
    token = directory / "broker-1" / "admin.token"
    assert token.read_text().strip() not in found.out + found.err
    # The listener does require it.
    token.unlink()
    refused = cli("cluster", "status", "--data-dir", directory, "-o", "json")
    assert refused.code == 1
    assert "does not respond at" in json.loads(refused.out)["problems"][0]
