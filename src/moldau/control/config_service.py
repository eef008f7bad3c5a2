"""Describes and alters topic and broker settings at run time."""

import logging
from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Final

from moldau.control.log_level_configs import level_entry, levels_to_set
from moldau.control.metadata_store import MetadataStore
from moldau.metadata.commands import (
    AlterBrokerConfigs,
    AlterTopicConfigs,
    Command,
    ConfigChange,
    ReplaceBrokerConfigs,
    ReplaceTopicConfigs,
)
from moldau.metadata.config_types import ConfigSource, shown
from moldau.metadata.image import CLUSTER_DEFAULT, Image, Topic
from moldau.metadata.topic_configs import (
    BROKER_CONFIGS,
    ConfigEntry,
    ConfigSynonym,
    TopicConfig,
    broker_layers,
    fixed_entry,
    topic_config_entries,
)
from moldau.model import log_events as events
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import BrokerId
from moldau.model.log_levels import LogLevel, LogLevels
from moldau.model.topology import HTTP_ADDRESS_SETTING, MACHINE_SETTING, STATE_SETTING

log = logging.getLogger(__name__)


_RESOLVED_MAX: Final = 1000
"""Sets of settings of topics that are kept."""


class ResourceKind(IntEnum):
    """Resource types, with numbers as in the Kafka protocol."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    """The levels of a broker's log: of the broker that is asked, until its process ends."""


class ConfigService:
    def __init__(
        self,
        *,
        metadata: MetadataStore,
        broker: BrokerId,
        defaults: Mapping[str, str],
        fixed: Sequence[ConfigEntry],
        log_levels: LogLevels,
    ) -> None:
        self._metadata = metadata
        self._broker = broker
        self._defaults = defaults
        self._fixed = fixed
        """Read-only settings of this broker."""
        self._log_levels = log_levels
        self._resolved: dict[frozenset[tuple[str, str]], TopicConfig] = {}
        self._resolved_for: object = None
        """The settings of brokers that they were made with."""

    def describe(self, kind: int, name: str) -> list[ConfigEntry]:
        """Every setting of a resource, defaults included. Raises RefusedError."""
        image = self._metadata.image
        if kind == ResourceKind.TOPIC:
            topic = image.topic(name)
            if topic is None:
                raise RefusedError(
                    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"unknown topic {shown(name)}"
                )
            return self.describe_topic(topic)
        if kind == ResourceKind.BROKER:
            return self._describe_broker(self._broker_of(name))
        if kind == ResourceKind.BROKER_LOGGER:
            self._check_me(name)
            return [level_entry(each) for each in self._log_levels.shown()]
        raise _without_settings(kind)

    def describe_topic(self, topic: Topic) -> list[ConfigEntry]:
        """Every setting of a topic, which need not exist."""
        layers = broker_layers(self._metadata.image, self._broker, self._defaults)
        return topic_config_entries(topic.configs, layers)

    def topic_defaults(self) -> list[ConfigEntry]:
        """Every setting as a topic has it that sets none."""
        layers = broker_layers(self._metadata.image, self._broker, self._defaults)
        return topic_config_entries({}, layers)

    def topic_config(self, topic: Topic) -> TopicConfig:
        """The settings of a topic, typed. Most topics of a cluster have the same."""
        image = self._metadata.image
        if image.broker_configs is not self._resolved_for or len(self._resolved) > _RESOLVED_MAX:
            self._resolved_for = image.broker_configs
            self._resolved.clear()
        key = frozenset(topic.configs.items())
        found = self._resolved.get(key)
        if found is None:
            layers = broker_layers(image, self._broker, self._defaults)
            found = self._resolved[key] = TopicConfig.resolve(topic.configs, layers)
        return found

    def _describe_broker(self, broker: BrokerId) -> list[ConfigEntry]:
        layers = broker_layers(self._metadata.image, broker, self._defaults)
        entries = []
        for name, (definition, synonym) in BROKER_CONFIGS.items():
            found = [
                ConfigSynonym(name=name, value=settings[name], source=source)
                for source, settings in layers
                if name in settings
            ]
            if synonym.scale == 1:
                found.append(
                    ConfigSynonym(
                        name=name, value=definition.default, source=ConfigSource.DEFAULT_CONFIG
                    )
                )
            if found:
                entries.append(
                    ConfigEntry(
                        name=name,
                        value=found[0].value,
                        source=found[0].source,
                        type=definition.type,
                        documentation=definition.meaning,
                        synonyms=tuple(found),
                    )
                )
        if broker != CLUSTER_DEFAULT:
            entries += self._fixed
            registered = self._metadata.image.brokers[broker]
            state = registered.state.name.lower()
            entries.append(fixed_entry(STATE_SETTING, state, "Active, or draining."))
            if registered.machine is not None:
                meaning = "Brokers with the same one fail together."
                entries.append(fixed_entry(MACHINE_SETTING, registered.machine, meaning))
            if registered.http is not None:
                meaning = "Where clients of Kafka's protocol find the HTTP API of the broker."
                entries.append(fixed_entry(HTTP_ADDRESS_SETTING, str(registered.http), meaning))
        return entries

    async def alter(
        self, kind: int, name: str, changes: Sequence[ConfigChange], *, validate_only: bool
    ) -> Image:
        """Change only these keys. Returns the image with the change; with `validate_only`, what it
        would be."""
        if kind == ResourceKind.BROKER_LOGGER:
            self._check_me(name)
            levels = levels_to_set(changes)
            if not validate_only:
                self._set_levels(levels)
            return self._metadata.image
        command: Command
        if kind == ResourceKind.TOPIC:
            command = AlterTopicConfigs(topic=name, changes=changes)
        elif kind == ResourceKind.BROKER:
            command = AlterBrokerConfigs(broker_id=self._broker_of(name), changes=changes)
        else:
            raise _without_settings(kind)
        return await self._submit(command, validate_only)

    async def replace(
        self, kind: int, name: str, configs: Mapping[str, str | None], *, validate_only: bool
    ) -> None:
        """Set these keys and unset all others."""
        command: Command
        if kind == ResourceKind.TOPIC:
            command = ReplaceTopicConfigs(topic=name, configs=configs)
        elif kind == ResourceKind.BROKER:
            command = ReplaceBrokerConfigs(broker_id=self._broker_of(name), configs=configs)
        else:
            raise _without_settings(kind)
        await self._submit(command, validate_only)

    async def _submit(self, command: Command, validate_only: bool) -> Image:
        if validate_only:
            return self._metadata.preview(command)
        await self._metadata.submit(command)
        return self._metadata.image

    def _set_levels(self, levels: Mapping[str, LogLevel | None]) -> None:
        self._log_levels.set(levels)
        for component, level in levels.items():
            to = level or "as configured"
            log.info(
                "log level of %s: %s", component, to, extra=events.LOG_LEVEL_CHANGED(of=component)
            )

    def _check_me(self, name: str) -> None:
        """Levels belong to a process. Raises RefusedError."""
        if name != str(self._broker):
            self._broker_of(name)
            raise RefusedError(
                ErrorCode.INVALID_REQUEST,
                f"This is broker {self._broker}; send it to the broker whose log it is",
            )

    def _broker_of(self, name: str) -> BrokerId:
        """The broker of a resource name; an empty name means all brokers."""
        if not name:
            return CLUSTER_DEFAULT
        if not name.isdecimal() or BrokerId(int(name)) not in self._metadata.image.brokers:
            raise RefusedError(ErrorCode.INVALID_REQUEST, f"unknown broker {shown(name)}")
        return BrokerId(int(name))


def _without_settings(kind: int) -> RefusedError:
    return RefusedError(ErrorCode.INVALID_REQUEST, f"resources of type {kind} have no settings")
