"""The addresses and configurations of the processes of a node."""

import json
import logging

import pytest
from msgspec.structs import replace

from moldau.model.errors import ConfigError
from moldau.model.topology import Endpoint
from moldau.server.config.listeners import listeners_of
from moldau.server.config.load import load_config
from moldau.server.config.schema import Processes, ServerConfig
from moldau.server.node.plan import log_lack_of_room, make_plan, process_count


def config(**flags: str) -> ServerConfig:
    return load_config({name.replace("__", "."): value for name, value in flags.items()}, {}).config


def addresses(config: ServerConfig) -> dict[str, str]:
    return {one.setting: str(one.address) for one in listeners_of(config)}


def test_each_process_has_the_ports_after_those_of_the_node():
    plan = make_plan(config(), 2)
    assert [one.setting for one in plan.shared()] == ["kafka.addr", "grpc.addr", "http.addr"]
    assert addresses(plan.of_process(1, None)) == {
        "kafka.addr": "127.0.0.1:9093",
        "raft.addr": "127.0.0.1:19092",
        "grpc.addr": "127.0.0.1:8001",
        "http.addr": "127.0.0.1:8081",
    }
    assert addresses(plan.of_process(2, None)) == {
        "kafka.addr": "127.0.0.1:9094",
        "raft.addr": "127.0.0.1:19093",
        "grpc.addr": "127.0.0.1:8002",
        "http.addr": "127.0.0.1:8082",
    }


def test_advertised_addresses_are_shifted_alike():
    given = config(
        kafka__addr="127.0.0.1:9092",
        kafka__advertised="queue.example:31000",
        raft__advertised="queue.example:32000",
    )
    second = make_plan(given, 2).of_process(2, None)
    assert second.kafka.advertised == Endpoint("queue.example", 31002)
    assert second.raft.advertised == Endpoint("queue.example", 32001)
    assert second.http.advertised is None


def test_named_listeners_are_shifted_each():
    listeners = [
        {"name": "inside", "protocol": "kafka", "address": "127.0.0.1:7000"},
        {"name": "outside", "protocol": "kafka", "address": "127.0.0.1:7100", "advertised": "q:1"},
    ]
    plan = make_plan(config(listeners=json.dumps(listeners)), 3)
    third = {one.name: one for one in listeners_of(plan.of_process(3, None))}
    assert third["inside"].address.port == 7003
    assert third["outside"].address.port == 7103
    assert third["outside"].advertised == Endpoint("q", 4)
    assert third["peers"].address.port == 19094


def test_any_free_port_stays_that():
    plan = make_plan(config(kafka__addr="127.0.0.1:0", http__addr="127.0.0.1:0"), 2)
    second = plan.of_process(2, None)
    assert (second.kafka.addr.port, second.http.addr.port) == (0, 0)
    assert plan.http_of(2) is None


def test_a_disabled_listener_stays_disabled():
    assert make_plan(config(grpc__addr=""), 2).of_process(2, None).grpc.addr is None


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (
            {"http__addr": "127.0.0.1:9094"},
            "http.addr needs port 9094 for the node, which is that of kafka.addr for process 2",
        ),
        ({"kafka__addr": "127.0.0.1:65534"}, "kafka.addr leaves no port for process 2: 65536"),
        (
            {"kafka__advertised": "queue.example:65534"},
            "the advertised address of kafka leaves no port for process 2: 65536 is above 65535",
        ),
        (
            {"raft__advertised": "queue.example:65535"},
            "the advertised address of raft leaves no port for process 2: 65536 is above 65535",
        ),
        ({"broker_id": "4"}, "broker_id is 4, but processes is 2"),
    ],
)
def test_what_does_not_fit_several_processes_is_refused_with_the_way_out(settings, reason):
    with pytest.raises(ConfigError, match=reason) as refused:
        make_plan(config(**settings), 2)
    assert refused.value.hint


def test_ports_of_different_addresses_do_not_meet():
    make_plan(config(http__addr="127.0.0.2:9094"), 2)


@pytest.mark.safety
def test_only_the_first_process_may_found_a_cluster():
    plan = make_plan(replace(config(bootstrap="true", join_addr="old:1")), 2)
    assert plan.of_process(1, None).bootstrap
    second = plan.of_process(2, Endpoint("h", 8081))
    assert not second.bootstrap
    assert second.join_addr == Endpoint("h", 8081)
    assert plan.of_process(2, None).join_addr is None
    members = make_plan(config(initial_members="a:1,b:2"), 2)
    assert members.of_process(1, None).initial_members == "a:1,b:2"
    assert members.of_process(2, Endpoint("h", 8081)).initial_members is None


def test_a_process_that_lost_its_data_joins_the_others_whatever_is_configured():
    first = make_plan(config(bootstrap="true"), 2).of_process(1, Endpoint("h", 8082))
    assert not first.bootstrap
    assert first.join_addr == Endpoint("h", 8082)


def test_each_process_has_a_directory_of_its_own(tmp_path):
    plan = make_plan(config(data_dir=str(tmp_path)), 2)
    assert plan.of_process(1, None).data_dir == str(tmp_path)
    assert plan.of_process(2, None).data_dir == str(tmp_path / "process-2")
    assert plan.of_process(2, None).processes == 1


def test_others_reach_a_process_by_its_advertised_name_or_on_this_machine():
    assert make_plan(config(), 2).http_of(2) == Endpoint("127.0.0.1", 8082)
    anywhere = config(http__addr="0.0.0.0:8080", security__insecure="true")
    assert make_plan(anywhere, 2).http_of(1) == Endpoint("127.0.0.1", 8081)
    named = config(http__advertised="queue.example:8080")
    assert make_plan(named, 2).http_of(1) == Endpoint("queue.example", 8081)


def test_auto_is_the_number_of_cores_and_never_less_than_the_directory_has(tmp_path):
    def count(text: str, cores: int) -> int:
        return process_count(config(data_dir=str(tmp_path), processes=text), lambda: cores)

    assert count("auto", 4) == 4
    assert count("auto", 1) == 1
    assert count("3", 1) == 3
    (tmp_path / "process-5").mkdir()
    identity = {"broker_id": 5, "cluster_id": "C"}
    (tmp_path / "process-5" / "broker.json").write_text(json.dumps(identity))
    assert count("auto", 2) == 5
    with pytest.raises(ConfigError, match="processes is 3"):
        count("3", 4)


def test_auto_starts_no_more_than_the_ports_leave_room_for(tmp_path, caplog):
    """Of the defaults gRPC has 8000, and HTTP 8080."""
    given = config(data_dir=str(tmp_path), processes="auto")
    caplog.set_level(logging.INFO)
    count = process_count(given, lambda: 96)
    assert count == 79
    make_plan(given, count)
    with pytest.raises(ConfigError, match=r"needs port 8080 for"):
        make_plan(given, count + 1)
    log_lack_of_room(given, count, lambda: 96)
    assert "processes is auto and starts 79 on 96 cores" in caplog.text
    assert "needs port 8080 for" in caplog.text


def test_auto_starts_no_more_than_may_open_their_files(tmp_path, caplog):
    given = config(data_dir=str(tmp_path), processes="auto")
    caplog.set_level(logging.INFO)
    count = process_count(given, lambda: 32, lambda: 200)
    assert count == 10
    assert process_count(given, lambda: 8, lambda: 200) == 8
    assert process_count(given, lambda: 32, lambda: None) == 32
    log_lack_of_room(given, count, lambda: 32, lambda: 200)
    assert "processes is auto and starts 10 on 32 cores" in caplog.text
    assert "each may open 200 files" in caplog.text


def test_auto_starts_no_more_than_a_node_may_have(tmp_path, caplog):
    given = config(
        data_dir=str(tmp_path), processes="auto", grpc__addr="", http__addr="127.0.0.1:7000"
    )
    caplog.set_level(logging.INFO)
    assert process_count(given, lambda: 400) == 256
    log_lack_of_room(given, 256, lambda: 400)
    assert not caplog.records


def test_auto_says_nothing_where_each_core_has_a_process(caplog):
    caplog.set_level(logging.INFO)
    log_lack_of_room(config(processes="auto"), 4, lambda: 4)
    log_lack_of_room(config(processes="2"), 2, lambda: 4)
    assert not caplog.records


def test_auto_starts_what_the_directory_has_and_not_what_the_ports_allow(tmp_path):
    (tmp_path / "process-3").mkdir()
    identity = {"broker_id": 3, "cluster_id": "C"}
    (tmp_path / "process-3" / "broker.json").write_text(json.dumps(identity))
    given = config(data_dir=str(tmp_path), processes="auto", http__addr="127.0.0.1:9094")
    assert process_count(given, lambda: 8) == 3
    with pytest.raises(ConfigError, match=r"http\.addr needs port 9094"):
        make_plan(given, 3)


@pytest.mark.parametrize("text", ["0", "-1", "257", "two", "1.5", ""])
def test_a_number_of_processes_that_makes_no_sense_is_refused(text):
    with pytest.raises(ConfigError, match=r"processes = .*must be auto, or a number from 1 to 256"):
        config(processes=text)


def test_the_setting_reads_as_it_was_written():
    assert str(Processes(0)) == "auto"
    assert config(processes="AUTO").processes == 0
    assert str(config(processes="4").processes) == "4"
