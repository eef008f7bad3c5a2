"""Owns an admin: topics of its own that come, grow, change and go, and what has to hold of them."""

import random
from collections.abc import Awaitable, Callable
from typing import Final

from moldau.model.errors import ErrorCode
from moldau.wire.messages.alter_configs import (
    AlterableConfig,
    AlterConfigsRequest,
    AlterConfigsResource,
)
from moldau.wire.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from moldau.wire.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from moldau.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from moldau.wire.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalConfig,
    IncrementalConfigsResource,
)
from sim.clients.looks import Looks
from sim.clients.moves import Moves
from sim.clients.own_topics import BROKER_KIND, TOPIC_KIND, OwnTopic, State, find_wrong
from sim.clients.scribbles import Scribbles
from sim.clients.session import PASSING, Session
from sim.clients.wire import Kafka, Lost
from sim.clients.wrong import Wrong
from sim.process import ClientProcess
from sim.scene import Scene

TOPICS_MAX: Final = 4
PARTITIONS_MAX: Final = 6
FINISH_SECONDS: Final = 150.0
"""So long after all is healed, every broker has heard of everything."""
_SET, _DELETE, _APPEND, _SUBTRACT = range(4)
_VALUES: Final = {
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
    "message.max.bytes": ("900000", "1000000"),
}


class Admin:
    """Does one thing after the other, and looks whether it was done."""

    def __init__(
        self,
        scene: Scene,
        process: ClientProcess,
        *,
        load: tuple[str, int, int],
        is_alone: bool,
    ) -> None:
        """`load`: a topic of others, its partitions and replicas. `is_alone`: nobody drains."""
        self._scene = scene
        self._name = process.name
        self._kafka: Kafka = scene.kafka(process)
        self._rng: random.Random = process.rng
        self._replication = load[2]
        self._is_alone = is_alone
        self._made = 0
        self._topics: list[OwnTopic] = []
        self._looks = Looks(scene, self._kafka)
        self._wrong = Wrong(scene, self._kafka)
        self._scribbles = Scribbles(scene, self._kafka)
        self._moves = Moves(scene, self._kafka, load, is_alone=is_alone)
        self._deeds: tuple[tuple[Callable[[], Awaitable[None]], int], ...] = (
            (self._create, 4),
            (self._delete, 2),
            (self._grow, 2),
            (self._alter, 3),
            (self._replace, 1),
            (self._alter_broker, 1),
            (self._move, 4),
            (self._write, 6),
            (self._look, 4),
            (self._wrong.do, 3),
        )

    async def run(self) -> None:
        deeds = [deed for deed, weight in self._deeds for _ in range(weight)]
        while not self._scene.is_over:
            try:
                if not self._kafka.brokers or self._rng.random() < 0.2:
                    await self._kafka.refresh()
                await self._rng.choice(deeds)()
            except Lost:
                self._scene.count("admin lost")
            await self._scene.pause(self._rng, 0.1)
        await self._finish()

    # ---- topics

    def _pick(self) -> OwnTopic | None:
        there = [topic for topic in self._topics if topic.state is State.THERE]
        return self._rng.choice(there) if there else None

    async def _create(self) -> None:
        rng = self._rng
        if sum(topic.state is State.THERE for topic in self._topics) >= TOPICS_MAX:
            return
        self._made += 1
        factor = self._replication if not self._is_alone else rng.randint(1, self._replication)
        names = rng.sample(sorted(_VALUES), rng.randint(0, 3))
        topic = OwnTopic(
            f"{self._name}-{self._made}",
            rng.randint(1, 3),
            factor,
            {name: rng.choice(_VALUES[name]) for name in names},
        )
        session = await Session.begin(self._kafka)
        answer = await session.ask(
            CreateTopicsRequest(
                topics=[self._creatable(topic)],
                timeout_ms=rng.choice((0, 1000, 5000)),
                validate_only=False,
            )
        )
        told = answer.topics[0]
        code = ErrorCode(told.error_code)
        if code is not ErrorCode.NONE:
            may_be_refused = {ErrorCode.INVALID_REPLICA_ASSIGNMENT} if not self._is_alone else set()
            self._expect(code, f"create {topic.name}", may_be_refused)
            return
        self._scene.count("topics created")
        topic.topic_id = told.topic_id
        self._topics.append(topic)
        await self._check(session, topic)

    def _creatable(self, topic: OwnTopic) -> CreatableTopic:
        configs = [CreatableTopicConfig(name=n, value=v) for n, v in topic.configs.items()]
        brokers = sorted(self._kafka.brokers)
        if self._rng.random() < 0.3 and len(brokers) >= topic.replication:
            return CreatableTopic(
                name=topic.name,
                num_partitions=-1,
                replication_factor=-1,
                assignments=[
                    CreatableReplicaAssignment(
                        partition_index=index,
                        broker_ids=self._rng.sample(brokers, topic.replication),
                    )
                    for index in range(topic.partitions)
                ],
                configs=configs,
            )
        return CreatableTopic(
            name=topic.name,
            num_partitions=topic.partitions,
            replication_factor=topic.replication,
            configs=configs,
        )

    async def _delete(self) -> None:
        topic = self._pick()
        if topic is None or self._rng.random() < 0.5:
            return
        topic.state = State.UNSURE
        session = await Session.begin(self._kafka)
        by_id = topic.has_id and self._rng.random() < 0.5
        state = DeleteTopicState(
            name=None if by_id else topic.name, topic_id=topic.topic_id if by_id else bytes(16)
        )
        request = DeleteTopicsRequest(topics=[state], topic_names=[topic.name], timeout_ms=5000)
        version = 6 if by_id else self._rng.randint(1, 6)
        if version < 6:
            request.topics = []
        answer = await session.ask(request, version=version)
        code = ErrorCode(answer.responses[0].error_code)
        if code is ErrorCode.NONE:
            topic.state = State.GONE
            self._scene.count("topics deleted")
            await self._check(session, topic)
        else:
            self._expect(code, f"delete {topic.name}")

    async def _grow(self) -> None:
        topic = self._pick()
        if topic is None or topic.partitions >= PARTITIONS_MAX or not topic.is_count_sure:
            return
        count = topic.partitions + self._rng.randint(1, 2)
        asked = CreatePartitionsTopic(name=topic.name, count=count, assignments=None)
        topic.is_count_sure = False
        session = await Session.begin(self._kafka)
        answer = await session.ask(
            CreatePartitionsRequest(topics=[asked], timeout_ms=5000, validate_only=False)
        )
        code = ErrorCode(answer.results[0].error_code)
        if code is ErrorCode.NONE:
            topic.partitions, topic.is_count_sure = count, True
            self._scene.count("topics grown")
            await self._check(session, topic)
        else:
            self._expect(code, f"grow {topic.name}")

    # ---- settings

    async def _alter(self) -> None:
        topic = self._pick()
        if topic is None:
            return
        names = self._rng.sample(sorted(_VALUES), self._rng.randint(1, 3))
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
            return
        self._scene.count("settings altered")
        topic.unsure.intersection_update(before)
        for name, (_, _, after) in changes.items():
            if after is None:
                topic.configs.pop(name, None)
            else:
                topic.configs[name] = after
        await self._check(session, topic)

    def _change(self, topic: OwnTopic, name: str) -> tuple[int, str | None, str | None]:
        """Operation, its value, and what the setting is then."""
        if self._rng.random() < 0.3:
            return _DELETE, None, None
        value = self._rng.choice(_VALUES[name])
        if name == "cleanup.policy" and name not in topic.unsure and self._rng.random() < 0.5:
            return _APPEND, *self._appended(topic.configs.get(name, "delete"), value)
        return _SET, value, value

    def _appended(self, before: str, value: str) -> tuple[str, str]:
        return value, before if value in before.split(",") else f"{before},{value}"

    async def _replace(self) -> None:
        """All settings of a topic at once."""
        topic = self._pick()
        if topic is None or topic.unsure:
            return
        names = self._rng.sample(sorted(_VALUES), self._rng.randint(0, 3))
        configs = {name: self._rng.choice(_VALUES[name]) for name in names}
        topic.unsure.update(_VALUES)
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
            return
        topic.unsure.clear()
        topic.configs = configs
        await self._check(session, topic)

    async def _alter_broker(self) -> None:
        """Of one broker, or of all."""
        name = self._rng.choice(sorted(_BROKER_VALUES))
        value = self._rng.choice(_BROKER_VALUES[name])
        broker = self._rng.choice(sorted(self._kafka.brokers))
        change = IncrementalConfig(name=name, config_operation=_SET, value=value)
        resource = IncrementalConfigsResource(
            resource_type=BROKER_KIND,
            resource_name=self._rng.choice(("", str(broker))),
            configs=[change],
        )
        session = await Session.begin(self._kafka, self._kafka.brokers[broker])
        answer = await session.ask(
            IncrementalAlterConfigsRequest(resources=[resource], validate_only=False)
        )
        code = ErrorCode(answer.responses[0].error_code)
        if code is not ErrorCode.NONE:
            self._expect(code, "alter a broker", {ErrorCode.INVALID_REQUEST})
            return
        shown = await self._looks.setting(session, BROKER_KIND, resource.resource_name, name)
        if shown is not None and shown != value:
            self._scene.violation(f"{name} of broker {broker} is {shown} instead of {value}")

    # ---- the rest

    async def _move(self) -> None:
        await self._moves.do(self._pick())

    async def _write(self) -> None:
        topic = self._pick()
        if topic is not None:
            await self._scribbles.do(topic)

    async def _look(self) -> None:
        await self._looks.do([topic.name for topic in self._topics[-3:]])

    # ---- what has to hold

    def _expect(self, code: ErrorCode, what: str, also: set[ErrorCode] | None = None) -> None:
        """A refusal that may be."""
        self._scene.count(f"refused {code.name}")
        if code not in PASSING | (also or set()):
            self._scene.violation(f"{self._name}: {what}: {code.name}")

    async def _check(self, session: Session, topic: OwnTopic) -> None:
        wrong = await find_wrong(session, topic, by_id=self._rng.random() < 0.3)
        if wrong is not None:
            self._scene.violation(f"{session.address} said so, and now: {wrong}")

    async def _finish(self) -> None:
        """Every broker has to say what was acknowledged by any."""
        end = self._scene.scheduler.now + FINISH_SECONDS
        for topic in self._topics:
            while (wrong := await self._find_wrong(topic)) is not None:
                if self._scene.scheduler.now > end:
                    self._scene.violation(f"in the end: {wrong}")
                    return
                await self._scene.pause(self._rng, 1.0)

    async def _find_wrong(self, topic: OwnTopic) -> str | None:
        kafka = self._kafka
        try:
            await kafka.refresh()
            for broker, address in sorted(kafka.brokers.items()):
                session = await Session.begin(kafka, address)
                wrong = await find_wrong(session, topic, by_id=topic.has_id and broker % 2 == 0)
                if wrong is not None:
                    return f"broker {broker}: {wrong}"
            if topic.state is State.THERE:
                return await self._scribbles.find_wrong(topic)
        except Lost as error:
            return str(error)
        return None
