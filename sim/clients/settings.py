"""An admin's changes of settings: of its topics, and of brokers."""

import random
from typing import Final

from moldau.model.errors import ErrorCode
from moldau.wire.messages.alter_configs import (
    AlterableConfig,
    AlterConfigsRequest,
    AlterConfigsResource,
)
from moldau.wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from moldau.wire.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalConfig,
    IncrementalConfigsResource,
)
from moldau.wire.schema import Request
from sim.clients.own_topics import BROKER_KIND, TOPIC_KIND, OwnTopic
from sim.clients.session import RETRIABLE, Session
from sim.clients.wire import Kafka
from sim.scene import Scene

_SET, _DELETE, _APPEND, _SUBTRACT = range(4)
VALUES: Final = {
    "retention.ms": ("500", "5000", "3600000", "-1"),
    "retention.bytes": ("2000", "-1"),
    "segment.bytes": ("600", "4000", "100000"),
    "segment.ms": ("2000", "3600000"),
    "cleanup.policy": ("delete", "compact"),
    "max.message.bytes": ("5000", "1000000"),
    "compression.type": ("producer", "gzip", "zstd", "uncompressed"),
    "message.timestamp.type": ("CreateTime", "LogAppendTime"),
    "min.cleanable.dirty.ratio": ("0.0", "0.5"),
    "min.insync.replicas": ("1", "2"),
    "flush.ms": ("1000", "2000"),
}
_BROKER_VALUES: Final = {
    "log.index.interval.bytes": ("512", "4096"),
    "log.segment.bytes": ("5000", "70000"),
    "log.retention.hours": ("100", "200"),
    "unclean.leader.election.enable": ("false", "FALSE"),
    "message.max.bytes": ("900000", "1000000"),
}


class Settings:
    """What was acknowledged is noted in the topic; what was not is unsure from then on."""

    def __init__(self, scene: Scene, kafka: Kafka, rng: random.Random) -> None:
        self._scene = scene
        self._kafka = kafka
        self._rng = rng
        self.session: Session | None = None
        """Where the last change was acknowledged."""

    async def do(self, topic: OwnTopic) -> bool:
        """Whether the topic was changed. Raises Lost."""
        deeds = (self._alter, self._alter, self._alter, self._replace, self._alter_broker)
        return await self._rng.choice(deeds)(topic)

    async def _alter(self, topic: OwnTopic) -> bool:
        names = self._rng.sample(sorted(VALUES), self._rng.randint(1, 3))
        changes = {name: self._change(topic, name) for name in names}
        before = set(topic.unsure)
        topic.unsure.update(names)
        session = await Session.begin(self._kafka)
        resource = IncrementalConfigsResource(
            resource_type=TOPIC_KIND,
            resource_name=topic.name,
            configs=[
                IncrementalConfig(name=name, config_operation=operation, value=value)
                for name, (operation, value, _) in changes.items()
            ],
        )
        answer = await session.ask(
            IncrementalAlterConfigsRequest(resources=[resource], validate_only=False)
        )
        code = ErrorCode(answer.responses[0].error_code)
        if code is not ErrorCode.NONE:
            self._expect(code, f"alter {topic.name}")
            return False
        self._scene.count("settings altered")
        topic.unsure.intersection_update(before)
        for name, (_, _, after) in changes.items():
            if after is None:
                topic.configs.pop(name, None)
            else:
                topic.configs[name] = after
        self.session = session
        return True

    def _change(self, topic: OwnTopic, name: str) -> tuple[int, str | None, str | None]:
        """Operation, its value, and what the setting is then."""
        if self._rng.random() < 0.3:
            return _DELETE, None, None
        value = self._rng.choice(VALUES[name])
        if name == "cleanup.policy" and name not in topic.unsure and self._rng.random() < 0.5:
            before = topic.configs.get(name, "delete")
            if "," in before and self._rng.random() < 0.5:
                return _SUBTRACT, value, ",".join(one for one in before.split(",") if one != value)
            return _APPEND, *self._appended(before, value)
        return _SET, value, value

    def _appended(self, before: str, value: str) -> tuple[str, str]:
        return value, before if value in before.split(",") else f"{before},{value}"

    async def _replace(self, topic: OwnTopic) -> bool:
        """All settings of a topic at once."""
        if topic.unsure:
            return False
        names = self._rng.sample(sorted(VALUES), self._rng.randint(0, 3))
        configs = {name: self._rng.choice(VALUES[name]) for name in names}
        topic.unsure.update(VALUES)
        session = await Session.begin(self._kafka)
        resource = AlterConfigsResource(
            resource_type=TOPIC_KIND,
            resource_name=topic.name,
            configs=[AlterableConfig(name=n, value=v) for n, v in configs.items()],
        )
        answer = await session.ask(AlterConfigsRequest(resources=[resource], validate_only=False))
        code = ErrorCode(answer.responses[0].error_code)
        if code is not ErrorCode.NONE:
            self._expect(code, f"replace settings of {topic.name}")
            return False
        topic.unsure.clear()
        topic.configs = configs
        self.session = session
        return True

    async def _alter_broker(self, topic: OwnTopic) -> bool:
        """Of one broker, or of all."""
        name = self._rng.choice(sorted(_BROKER_VALUES))
        value = self._rng.choice(_BROKER_VALUES[name])
        broker = self._rng.choice(sorted(self._kafka.brokers))
        resource_name = self._rng.choice(("", str(broker)))
        session = await Session.begin(self._kafka, self._kafka.brokers[broker])
        answer = await session.ask(self._broker_change(resource_name, name, value))
        code = ErrorCode(answer.responses[0].error_code)
        if code is not ErrorCode.NONE:
            self._expect(code, "alter a broker", {ErrorCode.INVALID_REQUEST})
            return False
        described = DescribeConfigsResource(
            resource_type=BROKER_KIND,
            resource_name=resource_name,
            configuration_keys=[name],
        )
        reported = (await session.ask(DescribeConfigsRequest(resources=[described]))).results[0]
        shown = [each.value for each in reported.configs]
        if not reported.error_code and shown != [value]:
            self._scene.violation(f"{name} of broker {broker} is {shown} instead of {value}")
        return False

    def _broker_change(self, broker: str, name: str, value: str) -> Request:
        """Of one setting, or of all to one that is set."""
        if self._rng.random() < 0.3:
            all_of_it = AlterConfigsResource(
                resource_type=BROKER_KIND,
                resource_name=broker,
                configs=[AlterableConfig(name=name, value=value)],
            )
            return AlterConfigsRequest(resources=[all_of_it], validate_only=False)
        change = IncrementalConfig(name=name, config_operation=_SET, value=value)
        resource = IncrementalConfigsResource(
            resource_type=BROKER_KIND, resource_name=broker, configs=[change]
        )
        return IncrementalAlterConfigsRequest(resources=[resource], validate_only=False)

    def _expect(self, code: ErrorCode, what: str, also: set[ErrorCode] | None = None) -> None:
        """A refusal that may be."""
        self._scene.count(f"refused {code.name}")
        if code not in RETRIABLE | (also or set()):
            self._scene.violation(f"{self._kafka.name}: {what}: {code.name}")
