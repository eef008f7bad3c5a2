"""An admin: topics of its own that come, grow, change and go, and what has to hold of them."""

import random
from collections.abc import Awaitable, Callable
from typing import Final

from moldau.model.errors import ErrorCode
from moldau.wire.messages.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from moldau.wire.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from moldau.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from sim.clients.looks import Looks
from sim.clients.moves import Moves
from sim.clients.own_topics import OwnTopic, State, find_wrong
from sim.clients.scribbles import Scribbles
from sim.clients.session import RETRIABLE, Session
from sim.clients.settings import VALUES, Settings
from sim.clients.wire import Kafka, Lost
from sim.clients.wrong import Wrong
from sim.process import ClientProcess
from sim.scene import Scene

TOPICS_MAX: Final = 4
PARTITIONS_MAX: Final = 6
FINISH_SECONDS: Final = 150.0
"""So long after all is healed, every broker has heard of everything."""


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
        self._settings = Settings(scene, self._kafka, self._rng)
        self._moves = Moves(scene, self._kafka, load, is_alone=is_alone)
        self._deeds: tuple[tuple[Callable[[], Awaitable[None]], int], ...] = (
            (self._create, 4),
            (self._delete, 2),
            (self._grow, 2),
            (self._set, 5),
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
        names = rng.sample(sorted(VALUES), rng.randint(0, 3))
        topic = OwnTopic(
            f"{self._name}-{self._made}",
            rng.randint(1, 3),
            factor,
            {name: rng.choice(VALUES[name]) for name in names},
        )
        session = await Session.begin(self._kafka)
        answer = await session.ask(
            CreateTopicsRequest(
                topics=[self._creatable(topic)],
                timeout_ms=rng.choice((0, 1000, 5000)),
                validate_only=False,
            )
        )
        reported = answer.topics[0]
        code = ErrorCode(reported.error_code)
        if code is not ErrorCode.NONE:
            may_be_refused = {ErrorCode.INVALID_REPLICA_ASSIGNMENT} if not self._is_alone else set()
            self._expect(code, f"create {topic.name}", may_be_refused)
            return
        self._scene.count("topics created")
        topic.topic_id = reported.topic_id
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
        brokers = sorted(self._kafka.brokers)
        placed: list[CreatePartitionsAssignment] | None = None
        if self._rng.random() < 0.5 and len(brokers) >= topic.replication:
            placed = [
                CreatePartitionsAssignment(broker_ids=self._rng.sample(brokers, topic.replication))
                for _ in range(count - topic.partitions)
            ]
        asked = CreatePartitionsTopic(name=topic.name, count=count, assignments=placed)
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
            # A move may have changed the number of replicas, or a broker is about to leave.
            is_placed = {ErrorCode.INVALID_REPLICA_ASSIGNMENT} if placed is not None else set()
            self._expect(code, f"grow {topic.name}", is_placed)

    # ---- the rest

    async def _set(self) -> None:
        topic = self._pick()
        if topic is not None and await self._settings.do(topic):
            # On the connection on which it was said.
            assert self._settings.session is not None
            await self._check(self._settings.session, topic)

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
        if code not in RETRIABLE | (also or set()):
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
