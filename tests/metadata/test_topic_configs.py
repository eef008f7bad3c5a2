from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.metadata.config_types import ConfigSource, ConfigType
from moldau.metadata.image import CLUSTER_DEFAULT, Image
from moldau.metadata.topic_config_table import TOPIC_CONFIGS
from moldau.metadata.topic_configs import (
    TopicConfig,
    broker_layers,
    check_broker_configs,
    check_topic_configs,
    topic_config_entries,
)
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import BrokerId


def resolve(topic: Mapping[str, str], broker: Mapping[str, str] | None = None) -> TopicConfig:
    return TopicConfig.resolve(topic, ((ConfigSource.STATIC_BROKER_CONFIG, broker or {}),))


def test_defaults_are_kafkas() -> None:
    config = resolve({})
    assert config.retention_ms == 604_800_000
    assert config.retention_bytes == -1
    assert config.segment_bytes == 1_073_741_824
    assert config.message_bytes_max == 1_048_588
    assert config.cleanup_policy == {"delete"}
    assert not config.compacted
    assert config.insync_replicas_min == 1
    assert config.compression_type == "producer"
    assert config.timestamp_type == "CreateTime"
    assert config.flush == "always"


def test_the_topic_wins_over_the_broker_and_the_broker_over_the_default() -> None:
    broker = {"log.retention.ms": "10", "log.segment.bytes": "20", "log.flush": "never"}
    config = resolve({"retention.ms": "1"}, broker)
    assert (config.retention_ms, config.segment_bytes, config.flush) == (1, 20, "never")


@pytest.mark.parametrize(
    ("broker", "expected"),
    [
        ({"log.retention.hours": "2"}, 7_200_000),
        ({"log.retention.minutes": "3", "log.retention.hours": "2"}, 180_000),
        ({"log.retention.ms": "4", "log.retention.minutes": "3"}, 4),
        ({"log.retention.hours": "-1"}, -1),
        ({"log.retention.hours": str(2**62)}, 2**63 - 1),
        ({"retention.ms": "7"}, 7),
    ],
)
def test_a_broker_gives_its_retention_in_any_unit(broker: dict[str, str], expected: int) -> None:
    assert resolve({}, broker).retention_ms == expected


def test_a_setting_made_at_run_time_wins_over_a_finer_one_in_the_file() -> None:
    image = Image(
        broker_configs={
            CLUSTER_DEFAULT: {"log.retention.hours": "1", "log.segment.bytes": "50"},
            BrokerId(1): {"log.segment.bytes": "60"},
        }
    )
    layers = broker_layers(image, BrokerId(1), {"log.retention.ms": "5"})
    config = TopicConfig.resolve({}, layers)
    assert config.retention_ms == 3_600_000
    assert config.segment_bytes == 60


def test_the_older_timestamp_bound_limits_both_directions() -> None:
    config = resolve(
        {"message.timestamp.difference.max.ms": "5", "message.timestamp.after.max.ms": "3"}
    )
    assert (config.timestamp_before_max_ms, config.timestamp_after_max_ms) == (5, 3)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("retention.ms", "-2"),
        ("retention.ms", "1_000"),
        ("retention.ms", "٣"),
        ("retention.ms", "9" * 5000),
        ("retention.ms", str(2**63)),
        ("retention.ms", "1.5"),
        ("retention.ms", ""),
        ("segment.bytes", str(2**31)),
        ("segment.bytes", "13"),
        ("cleanup.policy", "shred"),
        ("cleanup.policy", "delete,shred"),
        ("cleanup.policy", ""),
        ("min.insync.replicas", "0"),
        ("compression.type", "rar"),
        ("message.timestamp.type", "createtime"),
        ("moldau.flush", "sometimes"),
        ("min.cleanable.dirty.ratio", "1.1"),
        ("min.cleanable.dirty.ratio", "nan"),
        ("preallocate", "yes"),
        ("remote.storage.enable", "true"),
    ],
)
def test_a_bad_value_is_refused_with_its_key(name: str, value: str) -> None:
    with pytest.raises(RefusedError) as caught:
        check_topic_configs({name: value})
    assert caught.value.code is ErrorCode.INVALID_CONFIG
    assert name in caught.value.message
    assert len(caught.value.message) < 300


def test_the_compaction_lags_must_fit_together() -> None:
    with pytest.raises(RefusedError, match=r"min\.compaction\.lag\.ms"):
        check_topic_configs({"min.compaction.lag.ms": "5", "max.compaction.lag.ms": "4"})


def test_every_default_is_valid_and_documented() -> None:
    for definition in TOPIC_CONFIGS.values():
        definition.parse(definition.default)
        assert definition.documentation.endswith(".")


@pytest.mark.parametrize(
    ("name", "end"),
    [
        ("min.insync.replicas", "is acknowledged. At least 1."),
        ("min.cleanable.dirty.ratio", "triggers compaction. 0 to 1."),
        ("segment.index.bytes", "4 to 2147483647."),
        ("message.timestamp.type", "One of CreateTime, LogAppendTime."),
        ("retention.ms", "-1 is unlimited."),
        ("cleanup.policy", "or both."),
    ],
)
def test_the_meaning_has_bounds_that_do_not_go_without_saying(name: str, end: str) -> None:
    assert TOPIC_CONFIGS[name].meaning.endswith(end)


@given(
    name=st.sampled_from(sorted(TOPIC_CONFIGS)),
    value=st.one_of(st.none(), st.text(max_size=30), st.integers().map(str), st.floats().map(str)),
)
def test_a_checked_value_always_resolves(name: str, value: str | None) -> None:
    try:
        checked = check_topic_configs({name: value})
    except RefusedError:
        return
    resolve(checked)


@given(
    name=st.sampled_from(["log.retention.hours", "log.roll.ms", "min.insync.replicas"]),
    value=st.one_of(st.text(max_size=10), st.integers().map(str)),
)
def test_a_checked_broker_value_always_resolves(name: str, value: str) -> None:
    try:
        checked = check_broker_configs({name: value})
    except RefusedError:
        return
    resolve({}, checked)


def test_the_listing_names_value_source_and_synonyms() -> None:
    layers = (
        (ConfigSource.DYNAMIC_BROKER_CONFIG, {"log.retention.hours": "1"}),
        (ConfigSource.STATIC_BROKER_CONFIG, {"log.retention.ms": "5", "log.segment.bytes": "99"}),
    )
    entries = {e.name: e for e in topic_config_entries({"retention.ms": "7"}, layers)}
    assert set(entries) == set(TOPIC_CONFIGS)
    retention = entries["retention.ms"]
    assert (retention.value, retention.source) == ("7", ConfigSource.DYNAMIC_TOPIC_CONFIG)
    assert retention.type is ConfigType.LONG
    assert [(s.name, s.value, s.source.value) for s in retention.synonyms] == [
        ("retention.ms", "7", 1),
        ("log.retention.hours", "3600000", 2),
        ("log.retention.ms", "5", 4),
        ("log.retention.ms", "604800000", 5),
    ]
    assert entries["segment.bytes"].source is ConfigSource.STATIC_BROKER_CONFIG
    assert entries["segment.bytes"].value == "99"
    assert entries["flush.ms"].source is ConfigSource.DEFAULT_CONFIG
    assert "without effect" in entries["flush.ms"].documentation
    assert "without effect" not in entries["delete.retention.ms"].documentation
