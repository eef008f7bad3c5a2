"""Settings of topics and brokers."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from moldau.api.audit import VALIDATED, Parts
from moldau.api.broker import Broker
from moldau.api.guard import Guard
from moldau.control.config_service import ResourceKind
from moldau.metadata.commands import ConfigChange, ConfigOperation
from moldau.metadata.config_types import ConfigDefinition
from moldau.metadata.image import Topic
from moldau.metadata.topic_config_table import TOPIC_CONFIGS
from moldau.metadata.topic_configs import BROKER_CONFIGS, ConfigEntry
from moldau.model.log_levels import NAMES as LOG_COMPONENTS
from moldau.security.acl import CLUSTER_NAME, Operation, ResourceType


class TopicSetting(NamedTuple):
    """A setting that topics may have."""

    definition: ConfigDefinition
    default: str


class GuardedConfigs:
    """The settings of a broker need rights on the cluster. Methods raise RefusedError."""

    __slots__ = ("_guard", "_service")

    def __init__(self, guard: Guard, broker: Broker) -> None:
        self._guard = guard
        self._service = broker.configs

    def describe(self, kind: int, name: str) -> list[ConfigEntry]:
        """Every setting of a resource, defaults included."""
        self._check("configs.describe", kind, name)
        return self._service.describe(kind, name)

    def describe_topic(self, topic: Topic) -> list[ConfigEntry]:
        """Every setting of a topic, which need not exist."""
        self._guard.check("configs.describe_topic", ResourceType.TOPIC, topic.name)
        return self._service.describe_topic(topic)

    async def alter(
        self, kind: int, name: str, changes: Sequence[ConfigChange], *, validate_only: bool
    ) -> None:
        """Changes only these keys."""
        about = Parts(changes, _change_text, _heading(kind, name, validate_only=validate_only))
        self._check("configs.alter", kind, name, about)
        check_restoring(self._guard, name, ((each.name, each.value) for each in changes))
        await self._service.alter(kind, name, changes, validate_only=validate_only)

    async def alter_topic(
        self, name: str, changes: Sequence[ConfigChange], *, validate_only: bool
    ) -> list[ConfigEntry]:
        """Like `alter`. Returns the settings that the topic has then, or would have; none to a
        client that may not see them."""
        guard = self._guard
        about = Parts(changes, _change_text, VALIDATED if validate_only else "")
        guard.check("configs.alter_topic", ResourceType.TOPIC, name, about=about)
        check_restoring(guard, name, ((each.name, each.value) for each in changes))
        image = await self._service.alter(
            ResourceKind.TOPIC, name, changes, validate_only=validate_only
        )
        topic = image.topic(name)
        if topic is None or not guard.may(Operation.DESCRIBE_CONFIGS, ResourceType.TOPIC, name):
            return []
        return self._service.describe_topic(topic)

    def topic_settings(self) -> list[TopicSetting]:
        """What there is to set, with the defaults of this cluster; with those of Moldau for a
        client that may not see the settings of brokers."""
        is_known = self._guard.may(Operation.DESCRIBE_CONFIGS, ResourceType.CLUSTER, CLUSTER_NAME)
        defaults = (
            {entry.name: entry.value for entry in self._service.topic_defaults()}
            if is_known
            else {}
        )
        return [
            TopicSetting(definition, defaults.get(name, definition.default))
            for name, definition in TOPIC_CONFIGS.items()
        ]

    async def replace(
        self, kind: int, name: str, configs: Mapping[str, str | None], *, validate_only: bool
    ) -> None:
        """Sets these keys and unsets all others."""
        heading = _heading(kind, name, validate_only=validate_only)
        self._check("configs.replace", kind, name, Parts([*configs.items()], setting_text, heading))
        check_restoring(self._guard, name, configs.items())
        await self._service.replace(kind, name, configs, validate_only=validate_only)

    def _check(self, use_case: str, kind: int, name: str, about: object = "") -> None:
        if kind == ResourceKind.TOPIC:
            self._guard.check(use_case, ResourceType.TOPIC, name, about=about)
        else:
            # Also of kinds without settings, which the service refuses.
            about = about or f"broker {name}"
            self._guard.check(use_case, ResourceType.CLUSTER, about=about)


_RESTORING: Final = "moldau.restoring"
_PUBLIC = frozenset({*TOPIC_CONFIGS, *BROKER_CONFIGS, *LOG_COMPONENTS})
"""Settings and log components whose values are in the audit log."""


def check_restoring(guard: Guard, topic: str, settings: Iterable[tuple[str, str | None]]) -> None:
    """Nobody produces to a topic that is being restored, and nothing of it is deleted: only who may
    restore may begin that. Raises RefusedError."""
    if any(name == _RESTORING and value for name, value in settings):
        guard.check("backup.append", ResourceType.CLUSTER, about=f"{topic}: {_RESTORING}")


def _heading(kind: int, name: str, *, validate_only: bool) -> str:
    whose = "" if kind == ResourceKind.TOPIC else f"broker {name}: "
    return (VALIDATED if validate_only else "") + whose


def _change_text(change: ConfigChange) -> str:
    if change.operation is ConfigOperation.SET:
        return setting_text((change.name, change.value))
    return f"{change.operation.name} {setting_text((change.name, change.value))}"


def setting_text(setting: tuple[str, str | None]) -> str:
    """Without the value of a setting that there is not: it may be a secret of another program."""
    name, value = setting
    if value is None:
        return name
    return f"{name}={value if name in _PUBLIC else '(hidden)'}"
