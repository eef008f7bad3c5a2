"""Settings are described and changed, of topics and of brokers."""

import pytest

from moldau.client.wire.connection import KafkaConnection
from moldau.model.errors import ErrorCode
from moldau.wire.messages.alter_configs import (
    AlterableConfig,
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResponse,
)
from moldau.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)
from moldau.wire.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
    IncrementalConfig,
    IncrementalConfigsResource,
)

pytestmark = pytest.mark.system

TOPIC, BROKER, LOGGER = 2, 4, 8
SET, DELETE, APPEND, SUBTRACT = range(4)
TOPIC_SOURCE, DEFAULT_SOURCE, LOGGER_SOURCE = 1, 5, 6


def describe_one(
    connection: KafkaConnection,
    kind: int,
    name: str,
    keys: list[str] | None = None,
    *,
    version: int = 4,
    synonyms: bool = False,
    documentation: bool = False,
) -> DescribeConfigsResult:
    request = DescribeConfigsRequest(
        resources=[
            DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=keys)
        ],
        include_synonyms=synonyms,
        include_documentation=documentation,
    )
    (result,) = connection.request(request, DescribeConfigsResponse, version).results
    assert (result.resource_type, result.resource_name) == (kind, name)
    return result


def value_of(
    connection: KafkaConnection, kind: int, name: str, key: str
) -> DescribeConfigsResourceResult:
    (found,) = describe_one(connection, kind, name, [key]).configs
    return found


def alter(
    connection: KafkaConnection,
    kind: int,
    name: str,
    *changes: tuple[str, int, str | None],
    version: int = 1,
    validate_only: bool = False,
) -> tuple[int, str | None]:
    request = IncrementalAlterConfigsRequest(
        resources=[
            IncrementalConfigsResource(
                resource_type=kind,
                resource_name=name,
                configs=[
                    IncrementalConfig(name=key, config_operation=operation, value=value)
                    for key, operation, value in changes
                ],
            )
        ],
        validate_only=validate_only,
    )
    (response,) = connection.request(request, IncrementalAlterConfigsResponse, version).responses
    assert (response.resource_type, response.resource_name) == (kind, name)
    return response.error_code, response.error_message


def replace(
    connection: KafkaConnection,
    kind: int,
    name: str,
    configs: dict[str, str | None],
    *,
    version: int = 2,
    validate_only: bool = False,
) -> int:
    request = AlterConfigsRequest(
        resources=[
            AlterConfigsResource(
                resource_type=kind,
                resource_name=name,
                configs=[AlterableConfig(name=key, value=value) for key, value in configs.items()],
            )
        ],
        validate_only=validate_only,
    )
    (response,) = connection.request(request, AlterConfigsResponse, version).responses
    return response.error_code


# ---- DescribeConfigs


@pytest.mark.parametrize("version", range(1, 5))
def test_a_topic_shows_every_setting_with_its_source(
    connection: KafkaConnection, moldau_topic: str, version: int
) -> None:
    result = describe_one(
        connection,
        TOPIC,
        moldau_topic,
        version=version,
        synonyms=True,
        documentation=version >= 3,
    )
    assert result.error_code == 0
    configs = {config.name: config for config in result.configs}
    policy = configs["cleanup.policy"]
    assert policy.value == "delete"
    assert policy.synonyms[-1].source == DEFAULT_SOURCE
    assert not policy.is_sensitive
    if version >= 3:
        assert policy.config_type == 7
        assert policy.documentation


def test_synonyms_and_documentation_come_only_if_asked_for(
    connection: KafkaConnection, moldau_topic: str
) -> None:
    for config in describe_one(connection, TOPIC, moldau_topic).configs:
        assert (config.synonyms, config.documentation) == ([], None)


def test_only_the_wanted_keys_come(connection: KafkaConnection, moldau_topic: str) -> None:
    some = describe_one(connection, TOPIC, moldau_topic, ["retention.ms", "not.there"])
    assert [config.name for config in some.configs] == ["retention.ms"]
    # Kafka takes an empty list for no list.
    everything = describe_one(connection, TOPIC, moldau_topic, [])
    assert everything == describe_one(connection, TOPIC, moldau_topic, None)


def test_a_broker_shows_what_can_change_and_what_cannot(connection: KafkaConnection) -> None:
    configs = {config.name: config for config in describe_one(connection, BROKER, "1").configs}
    assert not configs["log.retention.ms"].read_only
    assert any(config.read_only for config in configs.values())


@pytest.mark.parametrize(
    ("kind", "name", "code"),
    [
        (TOPIC, "not-there", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (BROKER, "99", ErrorCode.INVALID_REQUEST),
        (BROKER, "one", ErrorCode.INVALID_REQUEST),
        (LOGGER, "2", ErrorCode.INVALID_REQUEST),
        (LOGGER, "", ErrorCode.INVALID_REQUEST),
    ],
)
def test_settings_of_what_is_not_there_are_refused(
    connection: KafkaConnection, kind: int, name: str, code: ErrorCode
) -> None:
    result = describe_one(connection, kind, name)
    assert (result.error_code, result.configs) == (code, [])
    assert result.error_message
    assert alter(connection, kind, name, ("retention.ms", SET, "1"))[0] == code
    assert replace(connection, kind, name, {}) == code


# ---- IncrementalAlterConfigs


@pytest.mark.parametrize("version", range(2))
def test_single_settings_change(
    connection: KafkaConnection, moldau_topic: str, version: int
) -> None:
    def change(key: str, operation: int, value: str | None) -> None:
        done = alter(connection, TOPIC, moldau_topic, (key, operation, value), version=version)
        assert done == (0, None)

    def shown(key: str) -> str | None:
        return value_of(connection, TOPIC, moldau_topic, key).value

    change("retention.ms", SET, "5000")
    change("cleanup.policy", APPEND, "compact")
    assert shown("retention.ms") == "5000"
    assert shown("cleanup.policy") == "delete,compact"
    change("cleanup.policy", SUBTRACT, "delete")
    assert shown("cleanup.policy") == "compact"
    change("retention.ms", DELETE, None)
    assert value_of(connection, TOPIC, moldau_topic, "retention.ms").config_source != TOPIC_SOURCE


def test_validate_only_changes_nothing(connection: KafkaConnection, moldau_topic: str) -> None:
    change = ("retention.ms", SET, "77")
    assert alter(connection, TOPIC, moldau_topic, change, validate_only=True) == (0, None)
    assert replace(connection, TOPIC, moldau_topic, {"retention.ms": "77"}, validate_only=True) == 0
    assert value_of(connection, TOPIC, moldau_topic, "retention.ms").value != "77"


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ([("retention.ms", SET, "soon")], ErrorCode.INVALID_CONFIG),
        ([("no.such.key", SET, "1")], ErrorCode.INVALID_CONFIG),
        ([("retention.ms", APPEND, "1")], ErrorCode.INVALID_CONFIG),
        ([("retention.ms", 9, "1")], ErrorCode.INVALID_REQUEST),
        ([("retention.ms", SET, "1"), ("retention.ms", SET, "2")], ErrorCode.INVALID_REQUEST),
        ([("segment.ms", SET, "1000"), ("retention.ms", SET, "soon")], ErrorCode.INVALID_CONFIG),
    ],
)
def test_a_wrong_change_is_refused_as_a_whole(
    connection: KafkaConnection,
    moldau_topic: str,
    changes: list[tuple[str, int, str | None]],
    code: ErrorCode,
) -> None:
    before = describe_one(connection, TOPIC, moldau_topic)
    error, message = alter(connection, TOPIC, moldau_topic, *changes)
    assert error == code
    assert message
    assert describe_one(connection, TOPIC, moldau_topic) == before


@pytest.mark.safety
def test_a_resource_named_twice_is_refused(connection: KafkaConnection, moldau_topic: str) -> None:
    config = IncrementalConfig(name="retention.ms", config_operation=SET, value="1")
    resource = IncrementalConfigsResource(
        resource_type=TOPIC, resource_name=moldau_topic, configs=[config]
    )
    incremental = connection.request(
        IncrementalAlterConfigsRequest(resources=[resource, resource], validate_only=False),
        IncrementalAlterConfigsResponse,
    )
    whole = AlterConfigsResource(resource_type=TOPIC, resource_name=moldau_topic, configs=[])
    replaced = connection.request(
        AlterConfigsRequest(resources=[whole, whole], validate_only=False), AlterConfigsResponse
    )
    for responses in (incremental.responses, replaced.responses):
        assert [each.error_code for each in responses] == [ErrorCode.INVALID_REQUEST]


def test_a_broker_setting_gives_topics_their_default(
    connection: KafkaConnection, moldau_topic: str
) -> None:
    key = "log.message.timestamp.after.max.ms"
    before = value_of(connection, TOPIC, moldau_topic, "message.timestamp.after.max.ms").value
    try:
        assert alter(connection, BROKER, "", (key, SET, "123456")) == (0, None)
        shown = value_of(connection, TOPIC, moldau_topic, "message.timestamp.after.max.ms")
        assert (shown.value, shown.config_source) == ("123456", 3)
        assert alter(connection, BROKER, "1", (key, SET, "234567")) == (0, None)
        shown = value_of(connection, TOPIC, moldau_topic, "message.timestamp.after.max.ms")
        assert (shown.value, shown.config_source) == ("234567", 2)
    finally:
        for broker in ("", "1"):
            assert alter(connection, BROKER, broker, (key, DELETE, None)) == (0, None)
    after = value_of(connection, TOPIC, moldau_topic, "message.timestamp.after.max.ms").value
    assert after == before


def test_a_setting_that_needs_a_restart_is_refused(connection: KafkaConnection) -> None:
    error, message = alter(connection, BROKER, "1", ("listeners", SET, "x"))
    assert error == ErrorCode.INVALID_CONFIG
    assert "listeners" in (message or "")


# ---- AlterConfigs


@pytest.mark.parametrize("version", range(3))
def test_replacing_unsets_what_is_not_named(
    connection: KafkaConnection, moldau_topic: str, version: int
) -> None:
    def put(configs: dict[str, str | None]) -> int:
        return replace(connection, TOPIC, moldau_topic, configs, version=version)

    def shown(key: str) -> tuple[str | None, int]:
        found = value_of(connection, TOPIC, moldau_topic, key)
        return found.value, found.config_source

    assert put({"retention.ms": "1000", "segment.ms": "2000"}) == 0
    assert shown("segment.ms") == ("2000", TOPIC_SOURCE)
    assert put({"retention.ms": "3000"}) == 0
    assert shown("retention.ms") == ("3000", TOPIC_SOURCE)
    assert shown("segment.ms")[1] != TOPIC_SOURCE
    assert put({"retention.ms": None}) == ErrorCode.INVALID_CONFIG
    assert shown("retention.ms") == ("3000", TOPIC_SOURCE)


# ---- levels of the log


def test_levels_of_the_log_are_those_of_kafkas_broker_loggers(connection: KafkaConnection) -> None:
    before = value_of(connection, LOGGER, "1", "raft")
    assert (before.value, before.config_source) == ("info", DEFAULT_SOURCE)
    assert alter(connection, LOGGER, "1", ("raft", SET, "DEBUG"), validate_only=True)[0] == 0
    assert value_of(connection, LOGGER, "1", "raft").value == "info"
    assert alter(connection, LOGGER, "1", ("raft", SET, "DEBUG"), ("net", SET, "WARN"))[0] == 0
    changed = value_of(connection, LOGGER, "1", "raft")
    assert (changed.value, changed.config_source) == ("debug", LOGGER_SOURCE)
    assert alter(connection, LOGGER, "1", ("raft", DELETE, None), ("net", DELETE, None))[0] == 0
    assert value_of(connection, LOGGER, "1", "raft").value == "info"


@pytest.mark.parametrize(
    ("change", "code", "words"),
    [
        (("rafft", SET, "debug"), ErrorCode.INVALID_CONFIG, "no component 'rafft'"),
        (("raft", SET, "loud"), ErrorCode.INVALID_CONFIG, "levels are debug, info"),
        (("raft", APPEND, "debug"), ErrorCode.INVALID_REQUEST, "set or deleted"),
    ],
)
def test_a_bad_level_of_the_log_changes_nothing(
    connection: KafkaConnection, change: tuple[str, int, str], code: ErrorCode, words: str
) -> None:
    found, message = alter(connection, LOGGER, "1", ("net", SET, "error"), change)
    assert found == code
    assert words in (message or "")
    assert value_of(connection, LOGGER, "1", "net").value == "info"
