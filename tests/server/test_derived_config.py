"""The broker's configuration under Kafka's names, and what is doubtful in it."""

import pytest
from msgspec.structs import replace

from moldau.server.config.schema import ServerConfig, TopicConfig
from moldau.server.derived_config import config_warnings


def test_the_defaults_are_not_doubtful():
    assert config_warnings(ServerConfig()) == []


@pytest.mark.parametrize("key", ["replication_factor", "min_insync_replicas"])
def test_more_replicas_than_there_are_brokers_are_doubtful(key):
    config = replace(ServerConfig(), topic=replace(TopicConfig(), **{key: 2}))
    (text,) = config_warnings(config)
    assert text.startswith(f"topic.{key} is 2, but this is the only broker")
    assert text.endswith(f"topic.{key} is 1")
