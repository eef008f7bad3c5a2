"""Topic settings: validation, resolution to a typed TopicConfig, and listing.

Precedence, highest first: the topic, the broker (changed at run time), all brokers (changed at run
time), the broker's configuration file, the default in `topic_config_table`. Names, types and
defaults are Kafka's, for its tools; `moldau.*` settings are Moldau's own.
"""

from collections.abc import Mapping
from functools import cache
from typing import Final

from msgspec import Struct

from moldau.metadata.broker_config_table import RUNTIME_CONFIGS
from moldau.metadata.config_types import (
    LONG_MAX,
    ConfigDefinition,
    ConfigSource,
    ConfigType,
    ConfigValue,
    Synonym,
    shown,
)
from moldau.metadata.image import CLUSTER_DEFAULT, Image
from moldau.metadata.topic_config_table import TOPIC_CONFIGS
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import BrokerId

Layer = tuple[ConfigSource, Mapping[str, str]]
"""Broker settings of one source, by broker name (`log.retention.ms`) or topic name."""


class TopicConfig(Struct, frozen=True, kw_only=True):
    """The effective settings of a topic, typed. Settings without effect are left out."""

    retention_ms: int
    """-1: unlimited."""
    retention_bytes: int
    """Per partition; -1: unlimited."""
    segment_bytes: int
    segment_ms: int
    index_interval_bytes: int
    message_bytes_max: int
    cleanup_policy: frozenset[str]
    """'delete', 'compact' or both."""
    insync_replicas_min: int
    compression_type: str
    timestamp_type: str
    """'CreateTime' or 'LogAppendTime'."""
    timestamp_before_max_ms: int
    timestamp_after_max_ms: int
    compaction_lag_min_ms: int
    compaction_lag_max_ms: int
    delete_retention_ms: int
    cleanable_dirty_ratio_min: float
    flush: str
    """'always', 'interval' or 'never'."""
    restoring: str = ""
    """The backup that it is being restored from."""

    @property
    def compacted(self) -> bool:
        return "compact" in self.cleanup_policy

    @classmethod
    def resolve(
        cls, topic_overrides: Mapping[str, str], layers: tuple[Layer, ...]
    ) -> "TopicConfig":
        """`layers`: the broker's settings by source, highest precedence first.

        Raises RefusedError for invalid values.
        """

        def whole(name: str) -> int:
            value = _typed(name, topic_overrides, layers)
            return value if isinstance(value, int) else int(str(value))

        def text(name: str) -> str:
            return str(_typed(name, topic_overrides, layers))

        policy = _typed("cleanup.policy", topic_overrides, layers)
        # The older setting bounds both directions; tools before Kafka 3.6 only know that one.
        difference = whole("message.timestamp.difference.max.ms")
        return cls(
            retention_ms=whole("retention.ms"),
            retention_bytes=whole("retention.bytes"),
            segment_bytes=whole("segment.bytes"),
            segment_ms=whole("segment.ms"),
            index_interval_bytes=whole("index.interval.bytes"),
            message_bytes_max=whole("max.message.bytes"),
            cleanup_policy=frozenset(policy if isinstance(policy, tuple) else ()),
            insync_replicas_min=whole("min.insync.replicas"),
            compression_type=text("compression.type"),
            timestamp_type=text("message.timestamp.type"),
            timestamp_before_max_ms=min(whole("message.timestamp.before.max.ms"), difference),
            timestamp_after_max_ms=min(whole("message.timestamp.after.max.ms"), difference),
            compaction_lag_min_ms=whole("min.compaction.lag.ms"),
            compaction_lag_max_ms=whole("max.compaction.lag.ms"),
            delete_retention_ms=whole("delete.retention.ms"),
            cleanable_dirty_ratio_min=float(text("min.cleanable.dirty.ratio")),
            flush=text("moldau.flush"),
            restoring=text("moldau.restoring"),
        )


def broker_layers(
    image: Image, broker_id: BrokerId, static: Mapping[str, str]
) -> tuple[Layer, ...]:
    """The broker's settings by source, highest precedence first; `static` is its file.

    Not merged: hours set at run time override milliseconds in the file.
    """
    return (
        (ConfigSource.DYNAMIC_BROKER_CONFIG, image.broker_overrides(broker_id)),
        (ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG, image.broker_overrides(CLUSTER_DEFAULT)),
        (ConfigSource.STATIC_BROKER_CONFIG, static),
    )


class ConfigSynonym(Struct, frozen=True, kw_only=True):
    """A possible source of a value, with the value that it has there."""

    name: str
    value: str
    source: ConfigSource


class ConfigEntry(Struct, frozen=True, kw_only=True):
    """A setting with its effective value, for DescribeConfigs."""

    name: str
    value: str
    source: ConfigSource
    type: ConfigType
    documentation: str
    synonyms: tuple[ConfigSynonym, ...]
    read_only: bool = False
    sensitive: bool = False

    @property
    def default(self) -> str | None:
        """None: it has none of its own."""
        found = (one.value for one in self.synonyms if one.source is ConfigSource.DEFAULT_CONFIG)
        return next(found, None)


def fixed_entry(
    name: str,
    value: str,
    documentation: str,
    *,
    type: ConfigType = ConfigType.STRING,
    default: str | None = None,
) -> ConfigEntry:
    """A setting that does not change at run time."""
    found = []
    if value != default:
        source = ConfigSource.STATIC_BROKER_CONFIG
        found.append(ConfigSynonym(name=name, value=value, source=source))
    if default is not None:
        source = ConfigSource.DEFAULT_CONFIG
        found.append(ConfigSynonym(name=name, value=default, source=source))
    return ConfigEntry(
        name=name,
        value=value,
        source=found[0].source,
        type=type,
        documentation=documentation,
        synonyms=tuple(found),
        read_only=True,
    )


def topic_config_entries(
    topic_overrides: Mapping[str, str], broker_layers: tuple[Layer, ...] = ()
) -> list[ConfigEntry]:
    entries = []
    for definition in TOPIC_CONFIGS.values():
        found = []
        override = topic_overrides.get(definition.name)
        if override is not None:
            found.append(
                ConfigSynonym(
                    name=definition.name, value=override, source=ConfigSource.DYNAMIC_TOPIC_CONFIG
                )
            )
        found += _broker_values(definition, broker_layers)
        found.append(
            ConfigSynonym(
                name=definition.synonyms[0].name if definition.synonyms else definition.name,
                value=definition.default,
                source=ConfigSource.DEFAULT_CONFIG,
            )
        )
        entries.append(
            ConfigEntry(
                name=definition.name,
                value=found[0].value,
                source=found[0].source,
                type=definition.type,
                documentation=definition.meaning,
                synonyms=tuple(found),
            )
        )
    return entries


def check_topic_configs(configs: Mapping[str, str | None]) -> dict[str, str]:
    """Validate overrides; returns them as stored. Raises RefusedError."""
    checked: dict[str, str] = {}
    for name, value in configs.items():
        definition = TOPIC_CONFIGS.get(name)
        if definition is None:
            raise RefusedError(
                ErrorCode.INVALID_CONFIG, f"Unknown topic config name: {shown(name)}"
            )
        definition.parse(value)
        checked[name] = "" if value is None else value.strip()
    lag_least = _typed("min.compaction.lag.ms", checked, ())
    lag_most = _typed("max.compaction.lag.ms", checked, ())
    if int(str(lag_least)) > int(str(lag_most)):
        raise RefusedError(
            ErrorCode.INVALID_CONFIG,
            f"Invalid value {shown(str(lag_least))} for min.compaction.lag.ms: "
            f"must be at most max.compaction.lag.ms, which is {lag_most}",
        )
    if checked.get("remote.storage.enable", "false").lower() == "true":
        raise RefusedError(
            ErrorCode.INVALID_CONFIG,
            "Invalid value 'true' for remote.storage.enable: tiered storage is not available",
        )
    return checked


def check_broker_configs(configs: Mapping[str, str | None]) -> dict[str, str]:
    """Validate dynamic broker settings: the defaults of topic settings."""
    checked: dict[str, str] = {}
    for name, value in configs.items():
        found = BROKER_CONFIGS.get(name)
        if found is None:
            raise RefusedError(
                ErrorCode.INVALID_CONFIG,
                f"Broker config {shown(name)} is unknown or cannot change while the broker runs: "
                "set it in the broker's configuration and restart it",
            )
        definition, synonym = found
        parse_scaled(definition, synonym, value)
        checked[name] = "" if value is None else value.strip()
    return checked


def parse_scaled(
    definition: ConfigDefinition, synonym: Synonym, value: str | None
) -> tuple[ConfigValue, str]:
    """A broker's value in the unit of the topic setting: typed, and as text."""
    if synonym.scale == 1 or value is None:
        return definition.parse(value), "" if value is None else value.strip()
    hours = ConfigDefinition(
        name=synonym.name, type=ConfigType.LONG, default="0", documentation="", least=-1
    ).parse(value)
    # -1 is unlimited in every unit; values that overflow a long are capped.
    number = int(str(hours))
    scaled = str(number if number < 0 else min(number * synonym.scale, LONG_MAX))
    return definition.parse(scaled), scaled


def _broker_values(definition: ConfigDefinition, layers: tuple[Layer, ...]) -> list[ConfigSynonym]:
    found = []
    for source, settings in layers:
        for synonym in (*definition.synonyms, Synonym(name=definition.name)):
            value = settings.get(synonym.name)
            if value is not None:
                text = parse_scaled(definition, synonym, value)[1]
                found.append(ConfigSynonym(name=synonym.name, value=text, source=source))
    return found


def _typed(name: str, topic_overrides: Mapping[str, str], layers: tuple[Layer, ...]) -> ConfigValue:
    definition = TOPIC_CONFIGS[name]
    override = topic_overrides.get(name)
    if override is not None:
        return definition.parse(override)
    for _, settings in layers:
        for synonym in (*definition.synonyms, Synonym(name=name)):
            value = settings.get(synonym.name)
            if value is not None:
                return parse_scaled(definition, synonym, value)[0]
    return _default(name)


@cache
def _default(name: str) -> ConfigValue:
    definition = TOPIC_CONFIGS[name]
    return definition.parse(definition.default)


BROKER_CONFIGS: Final[Mapping[str, tuple[ConfigDefinition, Synonym]]] = {
    **{
        synonym.name: (definition, synonym)
        for definition in TOPIC_CONFIGS.values()
        for synonym in definition.synonyms
    },
    **{name: (definition, Synonym(name=name)) for name, definition in RUNTIME_CONFIGS.items()},
}
"""Dynamic broker settings, with the topic setting whose default they set, or their own."""


def runtime_value(name: str, layers: tuple[Layer, ...]) -> ConfigValue:
    """One of RUNTIME_CONFIGS as it is in force."""
    definition = RUNTIME_CONFIGS[name]
    for _, settings in layers:
        if name in settings:
            return definition.parse(settings[name])
    return definition.parse(definition.default)
