"""`moldau cluster` with brokers that require a login: who can read their directories needs none."""

import json

import pytest
from tls_world import TlsWorld

pytestmark = pytest.mark.system


@pytest.fixture
def start(cli, tmp_path):
    """Starts a cluster with these settings; returns its directory."""
    ports = [f"--{name}-port=0" for name in ("kafka", "http", "raft", "grpc")]
    directory = tmp_path / "cluster"

    def run(*settings, brokers=1):
        given = [word for setting in settings for word in ("--set", setting)]
        started = cli(
            "cluster", "start", "-n", brokers, "-d", "--data-dir", directory, *ports, *given
        )
        assert started.code == 0, started.err
        return directory

    yield run
    assert cli("cluster", "stop", "--data-dir", directory).code == 0


def test_its_status_is_known(cli, start):
    directory = start("kafka.sasl_mechanisms=SCRAM-SHA-512")
    found = cli("cluster", "status", "--data-dir", directory, "-o", "json")
    assert found.code == 0, found.err + found.out
    assert json.loads(found.out)["problems"] == []
    token = directory / "broker-1" / "admin.token"
    assert token.read_text().strip() not in found.out + found.err
    # The listener does require it.
    token.unlink()
    refused = cli("cluster", "status", "--data-dir", directory, "-o", "json")
    assert refused.code == 1
    assert "does not respond at" in json.loads(refused.out)["problems"][0]["problem"]


def test_the_directory_of_one_broker_administers_all(cli, start, tmp_path):
    directory = start("kafka.sasl_mechanisms=SCRAM-SHA-512", brokers=2)
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


def test_without_the_authority_of_its_certificates_the_reason_is_shown(cli, start, tmp_path):
    world = TlsWorld(tmp_path)
    files = (f"security.cert_file={world.cert_file}", f"security.key_file={world.key_file}")
    directory = start("kafka.security=tls", "http.security=tls", *files)
    status = ("cluster", "status", "--data-dir", directory)
    assert cli(*status, "--cafile", world.ca_file).code == 0
    refused = cli(*status)
    assert refused.code == 1
    assert "This listener uses TLS, and the request came without" in refused.err
    assert "pass --cafile FILE" in refused.err
