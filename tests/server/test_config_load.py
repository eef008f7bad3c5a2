"""Layers, sources and errors of the configuration."""

import pytest

from moldau.model.errors import ConfigError
from moldau.model.flush import FlushPolicy
from moldau.model.topology import Endpoint
from moldau.server.config.keys import KEYS
from moldau.server.config.load import InvalidConfigError, load_config
from moldau.server.config.schema import ServerConfig


def problems(*args, **kwargs):
    with pytest.raises(InvalidConfigError) as caught:
        load_config(*args, **kwargs)
    return caught.value.problems


def test_without_any_layer_the_defaults_are_in_force():
    resolved = load_config({}, {})
    assert resolved.config == ServerConfig()
    assert {str(source) for source in resolved.sources.values()} == {"default"}
    assert set(resolved.sources) == set(KEYS)


def test_flags_win_over_environment_and_environment_over_file(tmp_path):
    path = tmp_path / "broker.yaml"
    path.write_text("topic:\n  partitions: 2\n  replication_factor: 2\nbroker_id: 2\n")
    environ = {"MOLDAU_TOPIC__PARTITIONS": "3", "MOLDAU_BROKER_ID": "3"}
    resolved = load_config({"broker_id": 4, "rack": None}, environ, str(path))
    assert resolved.config.topic.replication_factor == 2
    assert resolved.config.topic.partitions == 3
    assert resolved.config.broker_id == 4
    assert resolved.config.rack is None
    assert str(resolved.sources["topic.replication_factor"]) == f"file {path}:3"
    assert str(resolved.sources["topic.partitions"]) == "environment MOLDAU_TOPIC__PARTITIONS"
    assert str(resolved.sources["broker_id"]) == "flag --broker-id"
    assert str(resolved.sources["rack"]) == "default"
    assert resolved.value("topic.partitions") == 3


def test_a_preset_only_changes_defaults():
    preset = {"group.initial_rebalance_delay_ms": 0, "topic.partitions": 4}
    resolved = load_config({}, {"MOLDAU_TOPIC__PARTITIONS": "5"}, preset=preset)
    assert resolved.config.group.initial_rebalance_delay_ms == 0
    assert resolved.config.topic.partitions == 5
    assert str(resolved.sources["group.initial_rebalance_delay_ms"]) == "preset moldau dev"


def test_the_file_may_be_named_by_the_environment_but_a_flag_wins(tmp_path):
    one, two = tmp_path / "one.yaml", tmp_path / "two.yaml"
    one.write_text("broker_id: 11\n")
    two.write_text("broker_id: 22\n")
    environ = {"MOLDAU_CONFIG": str(one)}
    assert load_config({}, environ).config.broker_id == 11
    assert load_config({}, environ, str(two)).config.broker_id == 22


def test_the_seed_keys_are_understood(tmp_path):
    path = tmp_path / "broker.yaml"
    path.write_text(
        "broker_id: 7\nport: 9192\nreplication_factor: 3\n"
        "min_insync_replicas: 2\nlog_retention_hours: 168\n"
    )
    config = load_config({}, {}, str(path)).config
    assert config.broker_id == 7
    assert config.kafka.addr == Endpoint("127.0.0.1", 9192)
    assert config.topic.replication_factor == 3
    assert config.topic.min_insync_replicas == 2
    assert config.log.retention_ms == 168 * 3600 * 1000


def test_a_port_keeps_the_host_of_a_lower_layer():
    flags = {"port": 9999, "security.insecure": True}
    environ = {"MOLDAU_KAFKA__ADDR": "10.0.0.1:9092"}
    assert load_config(flags, environ).config.kafka.addr == Endpoint("10.0.0.1", 9999)


@pytest.mark.parametrize("port", ["-1", "70000", "x", "9092.5"])
def test_a_bad_port_is_refused(port):
    assert "must be a port" in problems({"port": port}, {})[0].text


def test_unlimited_hours_of_retention_stay_unlimited():
    assert load_config({"log_retention_hours": "-1"}, {}).config.log.retention_ms == -1


def test_two_names_of_one_setting_in_one_layer_are_refused():
    found = problems({"port": 1, "kafka.addr": "h:2"}, {})
    assert "both set kafka.addr" in found[0].text


def test_an_unknown_key_names_its_source_and_the_nearest_key(tmp_path):
    path = tmp_path / "b.yaml"
    path.write_text("# first line\nlog:\n  flsh: never\n")
    (problem,) = problems({}, {}, str(path))
    assert problem.text == f"unknown key log.flsh (file {path}:3)"
    assert problem.hint == "did you mean log.flush?"


def test_a_key_without_its_section_is_recognised():
    (problem,) = problems({"retention_check_ms": 1}, {})
    assert problem.hint == "did you mean log.retention_check_ms?"


def test_an_unknown_variable_is_an_error_with_a_suggestion():
    (problem,) = problems({}, {"MOLDAU_LOG_FLUSH": "never"})
    assert "unknown variable MOLDAU_LOG_FLUSH " in problem.text
    assert problem.hint == "did you mean MOLDAU_LOG__FLUSH?"


def test_client_variables_and_those_of_other_programs_are_left_alone():
    environ = {"MOLDAU_BROKERS": "a:1", "KAFKA_PORT": "x", "_MOLDAU_COMPLETE": "bash_source"}
    assert load_config({}, environ).config == ServerConfig()


def test_service_links_of_kubernetes_are_no_configuration():
    environ = {
        "MOLDAU_PORT": "tcp://10.1.2.3:9092",
        "MOLDAU_PORT_9092_TCP": "tcp://10.1.2.3:9092",
        "MOLDAU_PORT_9092_TCP_ADDR": "10.1.2.3",
        "MOLDAU_PORT_9092_TCP_PROTO": "tcp",
        "MOLDAU_SERVICE_HOST": "10.1.2.3",
        "MOLDAU_SERVICE_PORT": "9092",
        "MOLDAU_SERVICE_PORT_KAFKA": "9092",
        "MOLDAU_KAFKA_SERVICE_HOST": "10.1.2.3",
        "MOLDAU_KAFKA_PORT": "tcp://10.1.2.3:9092",
    }
    assert load_config({}, environ).config == ServerConfig()


def test_all_that_is_wrong_is_reported_at_once():
    found = problems({"log.flush": "alway"}, {"MOLDAU_LOG__SEGMENT_BYTES": "1 parsec"})
    assert len(found) == 2
    texts = "\n".join(problem.text for problem in found)
    assert "log.flush = 'alway' (flag --log-flush) must be one of always, interval, never" in texts
    assert "did you mean always?" in texts
    assert "MOLDAU_LOG__SEGMENT_BYTES = '1 parsec'" in texts


def test_an_error_is_a_config_error_whose_text_holds_every_problem():
    with pytest.raises(ConfigError, match="broker_id") as caught:
        load_config({"broker_id": -1, "kafka.connections_max": 0}, {})
    assert "kafka.connections_max" in str(caught.value)


def test_the_option_of_a_flag_is_named_as_it_was_typed():
    (problem,) = problems({"broker_id": "x"}, {}, option_names={"broker_id": "--id"})
    assert "(flag --id)" in problem.text


@pytest.mark.parametrize(
    ("flags", "name"),
    [
        ({"topic.min_insync_replicas": 4}, "topic.min_insync_replicas"),
        ({"group.session_timeout_ms_min": "1h"}, "group.session_timeout_ms_min"),
        ({"group.member_bytes_max": "17MiB"}, "group.member_bytes_max"),
        ({"group.memory_bytes_max": "1MiB"}, "group.memory_bytes_max"),
        ({"kafka.connections_max": 10}, "kafka.connections_max"),
        ({"topic.message_bytes_max": "1GiB"}, "topic.message_bytes_max"),
        ({"kafka.inflight_bytes_max": "1MiB"}, "kafka.inflight_bytes_max"),
        ({"kafka.addr": "0.0.0.0:9092", "security.insecure": True}, "kafka.addr"),
        ({"kafka.addr": "[::]:9092", "security.insecure": True}, "kafka.addr"),
        ({"kafka.advertised": "example:0"}, "kafka.advertised"),
        ({"http.addr": "127.0.0.1:9092"}, "http.addr"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(flags, name):
    (problem,) = problems(flags, {})
    assert problem.text.startswith(f"{name} = ")


@pytest.mark.parametrize(
    ("text", "origins"),
    [
        (None, ()),
        ("*", ("*",)),
        (
            "https://a.example, http://b.example:8000",
            ("https://a.example", "http://b.example:8000"),
        ),
    ],
)
def test_origins_of_web_pages_are_given_by_commas(text, origins):
    flags = {} if text is None else {"http.cors_origins": text}
    assert load_config(flags, {}).config.http.cors_origin_list == origins


@pytest.mark.parametrize("text", ["a.example", "https://a.example/page", "https://a, b"])
def test_what_no_browser_calls_an_origin_is_refused(text):
    (problem,) = problems({"http.cors_origins": text}, {})
    assert "http.cors_origins" in str(problem)


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        (None, ()),
        ("broker.example, *.svc.local,::1", ("broker.example", "*.svc.local", "::1")),
        ("*", ("*",)),
    ],
)
def test_further_hosts_are_given_by_commas(text, hosts):
    flags = {} if text is None else {"http.hosts": text}
    assert load_config(flags, {}).config.http.host_list == hosts


@pytest.mark.parametrize("text", ["a.example:80", "http://a.example", "a.*.b", "a b", "[::1"])
def test_what_is_not_a_host_is_refused(text):
    (problem,) = problems({"http.hosts": text}, {})
    assert "http.hosts" in str(problem)


def test_a_wildcard_listener_is_fine_with_an_advertised_address():
    flags = {
        "kafka.addr": "0.0.0.0:9092",
        "kafka.advertised": "broker.example:9092",
        "security.insecure": True,
    }
    assert load_config(flags, {}).config.kafka.advertised == Endpoint("broker.example", 9092)


def test_free_ports_do_not_collide():
    flags = {"kafka.addr": "127.0.0.1:0", "raft.addr": "127.0.0.1:0"}
    assert load_config(flags, {}).config.kafka.addr.port == 0


def test_a_missing_file_is_a_config_error(tmp_path):
    with pytest.raises(ConfigError, match=r"cannot read.*nope\.yaml \(No such file"):
        load_config({}, {}, str(tmp_path / "nope.yaml"))


def test_the_config_is_frozen_and_its_values_are_typed():
    config = load_config({"log.flush": "NEVER"}, {}).config
    assert config.log.flush is FlushPolicy.NEVER
    with pytest.raises(AttributeError):
        config.broker_id = 2  # type: ignore[misc]


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"initial_members": "a:8080,b"}, "contains 'b': it must be an address"),
        ({"initial_members": "a:8080,b:0"}, "contains 'b:0': it must have ports"),
        ({"initial_members": "a:8080", "bootstrap": True}, "is for clusters without"),
    ],
)
def test_initial_members_are_addresses_and_decide_who_bootstraps(given, reason):
    (problem,) = problems(given, {})
    assert reason in problem.text
