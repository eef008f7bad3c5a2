"""What keeps a broker from working is found, by the commands of docs/operate/doctor.md."""

import fcntl
import json
import os
import socket

import pytest
from login_server import login_server

from moldau.cli.check_result import CheckStatus
from moldau.cli.doctor import (
    check_advertised,
    check_all,
    check_brokers,
    check_cluster,
    check_data_dir,
    check_disk,
    check_listeners,
    check_open_files,
    check_port,
)
from moldau.cli.errors import ExitCode
from moldau.client.kafka.admin import BrokerNode
from moldau.model.layout import LOCK_FILE
from moldau.model.topology import Endpoint
from moldau.server.config.load import load_config
from moldau.testing.ports import free_ports
from moldau.testing.waiting import wait_seconds_max

pytestmark = pytest.mark.inprocess


@pytest.fixture
def mock_brokers():
    """One for a test alone: it keeps the connections that were closed without a word."""
    from confluent_kafka.admin import AdminClient

    holder = AdminClient({"test.mock.num.brokers": 1, "log_level": 0})
    node = next(iter(holder.list_topics(timeout=wait_seconds_max()).brokers.values()))
    yield f"{node.host}:{node.port}"
    del holder


def test_a_broker_that_refuses_the_user_does_respond():
    with login_server(password="unused") as server:
        (refused,) = check_cluster(Endpoint("127.0.0.1", server.port))
    assert refused.verdict is CheckStatus.WARNING
    assert "requires a valid user and password" in refused.detail
    assert "another http.addr" not in refused.hint
    assert "sasl.username" in refused.hint
    (silent,) = check_cluster(Endpoint("127.0.0.1", free_ports(1)[0]))
    assert "does not respond" in silent.detail
    assert "another http.addr" in silent.hint


def test_a_healthy_place_has_no_trouble(cli, tmp_path):
    ports = zip(("kafka", "raft", "http", "grpc"), free_ports(4), strict=True)
    flags = [f"{name}.addr=127.0.0.1:{port}" for name, port in ports]
    flags.append(f"data_dir={tmp_path / 'new'}")
    outcome = cli("doctor", *(word for flag in flags for word in ("--set", flag)))
    assert outcome.code == 0, outcome.out
    assert "trouble" not in outcome.out
    for word in ("librdkafka", "Python", "confluent-kafka", "will be created", "free"):
        assert word in outcome.out
    assert not (tmp_path / "new").exists(), "a look must not create anything"


def test_listeners_that_the_broker_would_warn_of_are_warnings():
    (found,) = check_listeners(load_config({"raft.addr": "10.0.0.1:19092"}, {}).config)
    assert found.verdict is CheckStatus.WARNING
    assert "raft.addr sends and receives all data of the cluster without encryption" in found.detail
    assert list(check_listeners(load_config({}, {}).config)) == []


@pytest.mark.parametrize("key", ["kafka.addr", "raft.addr", "http.addr", "grpc.addr"])
def test_a_port_taken_by_another_program_is_trouble(cli, tmp_path, key):
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server:
        taken = Endpoint("127.0.0.1", server.getsockname()[1])
        addresses = {f"{name}.addr": "127.0.0.1:0" for name in ("kafka", "raft", "http", "grpc")}
        settings = addresses | {key: str(taken), "data_dir": str(tmp_path)}
        results = list(check_all(load_config(settings, {}).config))
    (wrong,) = [result for result in results if result.verdict is CheckStatus.TROUBLE]
    assert (wrong.check, key in wrong.detail) == (f"port {taken}", True)


def test_a_client_can_check_the_brokers_it_is_to_use(mock_brokers, nobody):
    first, *others = check_brokers(mock_brokers)
    assert first.verdict is CheckStatus.OK
    assert [other.detail for other in others] == ["responds"]
    (refused,) = check_brokers(nobody)
    assert refused.verdict is CheckStatus.TROUBLE
    assert "connection refused" in refused.detail


def test_a_broker_that_hangs_is_not_ok(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as hung:
        port = hung.getsockname()[1]

        class Admin:
            def nodes(self):
                return "c", [BrokerNode(1, "127.0.0.1", port)]

        monkeypatch.setattr("moldau.cli.doctor._CONNECT_SECONDS_MAX", 0.1)
        monkeypatch.setattr("moldau.cli.doctor.open_admin", lambda *_: Admin())
        _, found = check_brokers(f"127.0.0.1:{port}")
    assert found.verdict is CheckStatus.TROUBLE
    assert "does not respond" in found.detail
    assert "restart it" in found.hint


@pytest.mark.parametrize("option", ["--brokers", "--http"])
def test_a_cluster_that_does_not_respond_is_unreachable(cli, nobody, option):
    outcome = cli("doctor", option, nobody, "-o", "json")
    assert outcome.code == ExitCode.UNREACHABLE
    (lost,) = [row for row in json.loads(outcome.out) if row["verdict"] != "ok"]
    assert lost.keys() == {"check", "verdict", "detail", "hint", "why"}
    assert (lost["check"], lost["verdict"]) == (f"address {nobody}", "trouble")
    assert "no broker responds" in lost["detail"]


def test_what_responds_is_not_unreachable(cli, nobody, mock_brokers):
    # Not Moldau: it has no HTTP API.
    outcome = cli("doctor", "-b", mock_brokers, "-o", "json")
    assert outcome.code == 0, outcome.out
    assert "only the Kafka addresses were checked" in outcome.out
    with login_server(password="unused") as server:
        http = f"127.0.0.1:{server.port}"
        outcome = cli("doctor", "-b", nobody, "--http", http, "-o", "json")
    assert outcome.code == ExitCode.FAILED
    assert "requires a valid user and password" in outcome.out
    assert "no broker responds" not in outcome.out


def test_the_hint_for_a_taken_port_names_another_one(cli, tmp_path):
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server:
        result = check_port("kafka.addr", Endpoint("127.0.0.1", server.getsockname()[1]), None)
    assert result.verdict is CheckStatus.TROUBLE
    assert "in use" in result.detail
    assert "--port" in result.hint


def test_trouble_is_an_exit_code(cli, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    outcome = cli("doctor", "--set", f"data_dir={blocked}", "-o", "json")
    assert outcome.code == 1
    verdicts = {row["check"]: row["verdict"] for row in json.loads(outcome.out)}
    assert verdicts[f"data directory {blocked}"] == "trouble"


def test_a_running_broker_is_named_and_no_trouble(mock_brokers, tmp_path):
    config = load_config({"kafka.addr": mock_brokers, "data_dir": str(tmp_path)}, {}).config
    results = {result.check.partition(" ")[0]: result for result in check_all(config)}
    assert results["port"].verdict is CheckStatus.WARNING
    assert "a broker is already running" in results["port"].detail
    assert results["advertised"].verdict is CheckStatus.OK
    assert "reachable" in results["advertised"].detail


def test_an_unreachable_advertised_address_is_trouble(nobody):
    result = check_advertised(Endpoint("no-such-host.invalid", 9092), running=False)
    assert result.verdict is CheckStatus.TROUBLE
    assert "unknown host" in result.detail
    host, _, port = nobody.rpartition(":")
    result = check_advertised(Endpoint(host, int(port)), running=True)
    assert result.verdict is CheckStatus.TROUBLE
    assert "connection refused" in result.detail


def test_a_listener_on_an_address_of_another_machine_is_trouble():
    assert (
        check_port("kafka.addr", Endpoint("192.0.2.1", 9092), None).verdict is CheckStatus.TROUBLE
    )
    unknown = check_port("kafka.addr", Endpoint("no-such-host.invalid", 9092), None)
    assert unknown.verdict is CheckStatus.TROUBLE


def test_a_full_disk_is_trouble(tmp_path):
    assert check_disk(str(tmp_path), 2**62).verdict is CheckStatus.TROUBLE
    assert check_disk(str(tmp_path / "not" / "yet"), 0).verdict is CheckStatus.OK


def test_a_data_dir_in_use_is_trouble_unless_its_broker_is_the_one_that_runs(tmp_path):
    lock = tmp_path / LOCK_FILE
    lock.write_text("4711\n")
    (free,) = check_data_dir(str(tmp_path), running=False)
    assert free.verdict is CheckStatus.OK
    with open(lock) as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        (result,) = check_data_dir(str(tmp_path), running=False)
        assert result.verdict is CheckStatus.TROUBLE
        assert "4711" in result.detail
        (result,) = check_data_dir(str(tmp_path), running=True)
        assert result.verdict is CheckStatus.WARNING
    assert os.listdir(tmp_path) == [LOCK_FILE]


def test_a_data_dir_without_rights_is_trouble(tmp_path, monkeypatch):
    def refuse(**_):
        raise PermissionError(13, "Permission denied")

    # Not by chmod: root, who runs tests in containers, may write everywhere.
    monkeypatch.setattr("tempfile.TemporaryFile", refuse)
    monkeypatch.setattr("os.access", lambda path, mode: False)
    (result,) = check_data_dir(str(tmp_path), running=False)
    assert result.verdict is CheckStatus.TROUBLE
    assert "permission denied" in result.detail
    (result,) = check_data_dir(str(tmp_path / "sub"), running=False)
    assert result.verdict is CheckStatus.TROUBLE


def test_too_few_open_files_are_a_warning():
    assert check_open_files(1 << 40).verdict is CheckStatus.WARNING
    assert check_open_files(1).verdict in (CheckStatus.OK, CheckStatus.WARNING)


def test_a_broken_configuration_is_an_error_before_any_check(cli):
    outcome = cli("doctor", "--set", "nonsense=1")
    assert outcome.code == 78
    assert outcome.out == ""
