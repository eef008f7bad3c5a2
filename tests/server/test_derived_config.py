"""The broker's configuration under Kafka's names, and what is doubtful in it."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from moldau.model.errors import ConfigError
from moldau.server.config.schema import ServerConfig, TopicConfig
from moldau.server.derived_config import config_warnings, is_alone, with_rack


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
