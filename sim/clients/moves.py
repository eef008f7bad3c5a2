"""An admin's moves: replicas to other brokers, and leaderships to those who shall lead."""

from moldau.model.errors import ErrorCode
from moldau.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from moldau.wire.messages.elect_leaders import ElectLeadersRequest, ElectLeadersTopic
from moldau.wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopic,
)
from moldau.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from sim.clients.own_topics import OwnTopic, State
from sim.clients.session import RETRIABLE, Session
from sim.clients.wire import Kafka, Place
from sim.scene import Scene

_MAY_BE = RETRIABLE | {ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}


class Moves:
    """Of the admin's own topics, and of the one that others write to."""

    def __init__(
        self, scene: Scene, kafka: Kafka, load: tuple[str, int, int], *, is_alone: bool
    ) -> None:
        self._scene = scene
        self._kafka = kafka
        self._rng = kafka.rng
        self._load = load
        self._is_alone = is_alone
        self._desired: dict[Place, list[int] | None] = {}
        """The last change that was acknowledged; None: unknown."""

    async def do(self, own: OwnTopic | None) -> None:
        """Raises Lost."""
        deed = self._rng.choice((self._move, self._move, self._cancel, self._elect, self._list))
        name, partitions, factor = self._load
        if own is not None and self._rng.random() < 0.6:
            name, partitions, factor = own.name, own.partitions, own.replication
            if self._is_alone and own.state is State.THERE:
                factor = self._rng.randint(1, self._load[2])
        await deed((name, self._rng.randrange(partitions)), factor)

    async def _reassign(self, place: Place, replicas: list[int] | None) -> bool:
        session = await Session.begin(self._kafka)
        self._desired[place] = None
        asked = ReassignablePartition(partition_index=place[1], replicas=replicas)
        answer = await session.ask(
            AlterPartitionReassignmentsRequest(
                timeout_ms=5000, topics=[ReassignableTopic(name=place[0], partitions=[asked])]
            )
        )
        code = ErrorCode(answer.error_code or answer.responses[0].partitions[0].error_code)
        allowed = set(_MAY_BE)
        if replicas is None:
            allowed.add(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)
        elif not self._is_alone:
            allowed.add(ErrorCode.INVALID_REPLICA_ASSIGNMENT)
        if code not in allowed:
            self._scene.violation(f"{self._kafka.name} moves {place} to {replicas}: {code.name}")
        if code is not ErrorCode.NONE or replicas is None:
            return False
        self._scene.count("moves")
        self._desired[place] = replicas
        await self._look(session, place, replicas)
        return True

    async def _move(self, place: Place, factor: int) -> None:
        brokers = sorted(self._kafka.brokers)
        if len(brokers) >= factor:
            await self._reassign(place, self._rng.sample(brokers, factor))

    async def _cancel(self, place: Place, factor: int) -> None:
        await self._move(place, factor)
        if self._rng.random() < 0.5:
            await self._scene.pause(self._rng, 0.1)
        await self._reassign(place, None)

    async def _look(self, session: Session, place: Place, desired: list[int]) -> None:
        """A move that is over has reached the desired replicas."""
        for _ in range(self._rng.randint(1, 6)):
            listed = ListPartitionReassignmentsTopic(name=place[0], partition_indexes=[place[1]])
            under_way = await session.ask(
                ListPartitionReassignmentsRequest(timeout_ms=5000, topics=[listed])
            )
            found = [each for topic in under_way.topics for each in topic.partitions]
            asked = MetadataRequestTopic(name=place[0])
            answer = await session.ask(
                MetadataRequest(topics=[asked], allow_auto_topic_creation=False), first=4
            )
            partitions = {each.partition_index: each for each in answer.topics[0].partitions}
            if not found and self._is_alone and place[1] in partitions:
                replicas = list(partitions[place[1]].replica_nodes)
                if replicas != desired:
                    self._scene.violation(f"{place} was moved to {desired}, and is on {replicas}")
                self._scene.count("moves done")
                return
            await self._scene.pause(self._rng, 1.0)

    async def _list(self, place: Place, factor: int) -> None:
        session = await Session.begin(self._kafka)
        answer = await session.ask(ListPartitionReassignmentsRequest(timeout_ms=5000, topics=None))
        for topic in answer.topics:
            for each in topic.partitions:
                outside = set(each.adding_replicas + each.removing_replicas) - set(each.replicas)
                if outside:
                    self._scene.violation(f"{topic.name} moves {outside}, which are no replicas")

    async def _elect(self, place: Place, factor: int) -> None:
        session = await Session.begin(self._kafka)
        asked: list[ElectLeadersTopic] | None = None
        if self._rng.random() < 0.7:
            asked = [ElectLeadersTopic(topic=place[0], partitions=[place[1]])]
        answer = await session.ask(
            ElectLeadersRequest(
                election_type=0, topic_partitions=asked, timeout_ms=self._rng.choice((100, 6000))
            )
        )
        allowed = _MAY_BE | {
            ErrorCode.ELECTION_NOT_NEEDED,
            ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
            ErrorCode.NETWORK_EXCEPTION,
        }
        for topic in answer.replica_election_results:
            for each in topic.partition_result:
                if ErrorCode(each.error_code) not in allowed:
                    self._scene.violation(f"elect {topic.topic}: {ErrorCode(each.error_code).name}")
                self._scene.count("elections")
