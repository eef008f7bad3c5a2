"""The broker's configuration under Kafka's names, and what is doubtful in it."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from moldau.metadata.config_types import ConfigSource, ConfigType
from moldau.model.errors import ConfigError
from moldau.model.ids import BrokerId
from moldau.model.topology import Endpoint
from moldau.server.config.load import load_config
from moldau.server.config.schema import ServerConfig, TopicConfig
from moldau.server.config.security_schema import ListenerConfig, ListenerProtocol, Listeners
from moldau.server.derived_config import (
    config_warnings,
    is_alone,
    read_only_configs,
    with_machine,
    with_rack,
)


def test_the_defaults_are_not_doubtful():
    assert config_warnings(ServerConfig()) == []


@pytest.mark.parametrize("key", ["replication_factor", "min_insync_replicas"])
def test_more_replicas_than_there_are_brokers_are_doubtful(key):
    config = replace(ServerConfig(), topic=replace(TopicConfig(), **{key: 2}))
    (text,) = config_warnings(config)
    assert text.startswith(f"topic.{key} is 2, but this is the only broker")
    assert text.endswith(f"topic.{key} is 1")


@pytest.mark.parametrize(
    ("members", "count", "expected"),
    [(None, 1, True), (None, 2, False), ("a:1", 1, True), ("a:1,b:1,c:1", 1, False)],
)
def test_the_first_of_several_initial_members_is_not_alone(members, count, expected):
    assert is_alone(replace(ServerConfig(), initial_members=members), count) is expected


def test_the_rack_may_be_in_a_file(tmp_path: Path):
    file = tmp_path / "rack"
    config = ServerConfig(rack_file=str(file))
    with pytest.raises(ConfigError, match=r"\(rack_file\): No such file"):
        with_rack(config)
    file.write_text("")
    assert with_rack(config).rack is None, "a node without a zone"
    file.write_text("zone-a\n")
    assert with_rack(config).rack == "zone-a"
    assert with_rack(replace(config, rack="zone-b")).rack == "zone-b"


def test_the_machine_is_the_host_name_unless_it_is_set():
    assert with_machine(ServerConfig(), "host-1").machine == "host-1"
    assert with_machine(ServerConfig(machine="node-7"), "host-1").machine == "node-7"
    assert with_machine(ServerConfig(machine=""), "host-1").machine == "host-1"
    assert with_machine(ServerConfig(), "").machine is None, "a host without a name"


def test_what_only_a_restart_changes_is_explained_from_the_schema():
    config = load_config({"group.session_timeout_ms_max": "1h"}, {}).config
    shown = {one.name: one for one in read_only_configs(config, BrokerId(7))}
    longest = shown["group.max.session.timeout.ms"]
    assert longest.documentation == (
        "Longest session timeout that a member may request. At least 1ms. "
        "Set at the start, as group.session_timeout_ms_max."
    )
    assert (longest.value, longest.default, longest.type) == ("3600000", "1800000", ConfigType.LONG)
    assert longest.source is ConfigSource.STATIC_BROKER_CONFIG
    assert shown["group.max.size"].source is ConfigSource.DEFAULT_CONFIG
    assert shown["broker.id"].value == "7"
    assert shown["default.replication.factor"].value == "3"
    create = shown["auto.create.topics.enable"]
    assert (create.value, create.type) == ("true", ConfigType.BOOLEAN)


def test_what_is_a_default_has_no_other_source():
    shown = {one.name: one for one in read_only_configs(ServerConfig(), BrokerId(1))}
    sources = [one.source for one in shown["group.max.size"].synonyms]
    assert sources == [ConfigSource.DEFAULT_CONFIG]
    assert all(one.read_only and one.documentation for one in shown.values())


def test_named_listeners_are_named_as_what_is_set():
    named = ListenerConfig(
        name="inside", protocol=ListenerProtocol.KAFKA, address=Endpoint("127.0.0.1", 1)
    )
    config = ServerConfig(listeners=Listeners([named]))
    shown = {one.name: one for one in read_only_configs(config, BrokerId(1))}
    assert shown["listeners"].value == "INSIDE://127.0.0.1:1"
    assert shown["listeners"].documentation.endswith("Set at the start, as listeners.")
    assert shown["log.dirs"].documentation.endswith("Set at the start, as data_dir.")
