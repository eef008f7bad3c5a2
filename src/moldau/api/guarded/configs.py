"""Settings of topics and brokers."""

from collections.abc import Mapping, Sequence

from moldau.api.broker import Broker
from moldau.api.guard import Guard
from moldau.control.config_service import ResourceKind
from moldau.metadata.commands import ConfigChange
from moldau.metadata.image import Topic
from moldau.metadata.topic_configs import ConfigEntry
from moldau.security.acl import ResourceType


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
        self._check("configs.alter", kind, name)
        await self._service.alter(kind, name, changes, validate_only=validate_only)

    async def replace(
        self, kind: int, name: str, configs: Mapping[str, str | None], *, validate_only: bool
    ) -> None:
        """Sets these keys and unsets all others."""
        self._check("configs.replace", kind, name)
        await self._service.replace(kind, name, configs, validate_only=validate_only)

    def _check(self, use_case: str, kind: int, name: str) -> None:
        if kind == ResourceKind.TOPIC:
            self._guard.check(use_case, ResourceType.TOPIC, name)
        else:
            # Also of kinds without settings, which the service refuses.
            self._guard.check(use_case, ResourceType.CLUSTER, about=f"broker {name}")
