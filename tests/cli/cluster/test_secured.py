"""`moldau cluster` with brokers that require a login: who can read their directories needs none."""

import json

import pytest

pytestmark = pytest.mark.system


@pytest.fixture
def brokers():
    return 1


@pytest.fixture
def directory(cli, tmp_path, brokers):
    ports = [f"--{name}-port=0" for name in ("kafka", "http", "raft", "grpc")]
    settings = ("--set", "kafka.sasl_mechanisms=SCRAM-SHA-512", *ports)
    directory = tmp_path / "cluster"
    started = cli("cluster", "start", "-n", brokers, "-d", "--data-dir", directory, *settings)
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


@pytest.mark.parametrize("brokers", [2])
def test_the_directory_of_one_broker_administers_all(cli, directory, brokers, tmp_path):
    found = json.loads(cli("cluster", "status", "--data-dir", directory, "-o", "json").out)
    first = next(broker for broker in found["brokers"] if broker["id"] == 1)
    local = ("-b", first["kafka"], "--data-dir", directory / "broker-1")
    made = cli("topic", "create", "orders", "--partitions", 4, "--replication-factor", 1, *local)
    assert made.code == 0, made.err
    # The partitions are spread over both brokers, and librdkafka logs in on each of them.
    lines = tmp_path / "lines"
    lines.write_text("".join(f"{number}\n" for number in range(200)))
    written = cli("produce", "orders", "--file", lines, *local)
    assert written.code == 0, written.err
    read = cli("consume", "orders", "--from-beginning", "--exit-at-end", *local)
    assert read.code == 0, read.err
    assert sorted(map(int, read.out.split())) == list(range(200))
