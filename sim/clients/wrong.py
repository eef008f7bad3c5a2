"""Owns an admin's mistakes: requests that a broker has to refuse, with the right code."""

import asyncio
import struct
from collections.abc import Callable
from typing import Any, Final

from moldau.model.errors import ErrorCode
from moldau.model.ids import Offset, TimestampMs
from moldau.records.record import Record, build_batch
from moldau.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from moldau.wire.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from moldau.wire.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from moldau.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from moldau.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from moldau.wire.messages.elect_leaders import ElectLeadersRequest, ElectLeadersTopic
from moldau.wire.messages.fetch import FetchRequest
from moldau.wire.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalConfig,
    IncrementalConfigsResource,
)
from moldau.wire.messages.produce import ProducePartition, ProduceRequest, ProduceTopic
from moldau.wire.schema import Request
from sim.clients.own_topics import BROKER_KIND, TOPIC_KIND
from sim.clients.session import PASSING, Session
from sim.clients.wire import Kafka, Lost
from sim.scene import Scene

E = ErrorCode
_LOAD: Final = "log"
_HEAD: Final = struct.Struct(">ihhih")
Case = tuple[Request, Callable[[Any], int], set[ErrorCode]]


def _create(name: str, partitions: int = 1, factor: int = 1, **named: Any) -> CreateTopicsRequest:
    topic = CreatableTopic(name=name, num_partitions=partitions, replication_factor=factor, **named)
    return CreateTopicsRequest(topics=[topic], timeout_ms=3000)


def _alter(kind: int, name: str, *changes: tuple[str, int, str | None]) -> Request:
    configs = [IncrementalConfig(name=n, config_operation=o, value=v) for n, o, v in changes]
    resource = IncrementalConfigsResource(resource_type=kind, resource_name=name, configs=configs)
    return IncrementalAlterConfigsRequest(resources=[resource], validate_only=False)


def _grow(name: str, count: int, assignments: Any = None) -> Request:
    topic = CreatePartitionsTopic(name=name, count=count, assignments=assignments)
    return CreatePartitionsRequest(topics=[topic], timeout_ms=3000, validate_only=False)


def _move(name: str, index: int, replicas: list[int] | None) -> Request:
    partition = ReassignablePartition(partition_index=index, replicas=replicas)
    topic = ReassignableTopic(name=name, partitions=[partition])
    return AlterPartitionReassignmentsRequest(timeout_ms=3000, topics=[topic])


def _delete(name: str | None, topic_id: bytes = bytes(16)) -> Request:
    return DeleteTopicsRequest(
        topics=[DeleteTopicState(name=name, topic_id=topic_id)], timeout_ms=3000
    )


def _created(answer: Any) -> int:
    return int(answer.topics[0].error_code)


def _answered(answer: Any) -> int:
    return int(answer.responses[0].error_code)


def _grown(answer: Any) -> int:
    return int(answer.results[0].error_code)


def _moved(answer: Any) -> int:
    return int(answer.error_code or answer.responses[0].partitions[0].error_code)


def _of_partition(answer: Any) -> int:
    return int(answer.topics[0].partitions[0].error_code)


def _whole(answer: Any) -> int:
    return int(answer.error_code)


def _cases() -> list[Case]:
    twice = [
        CreatableReplicaAssignment(partition_index=0, broker_ids=[1, 1]),
        CreatableReplicaAssignment(partition_index=1, broker_ids=[1]),
    ]
    bad = CreatableTopicConfig(name="retention.ms", value="soon")
    unknown = CreatableTopicConfig(name="no.such.thing", value="1")
    trim = DeleteRecordsTopic(
        name="nobody", partitions=[DeleteRecordsPartition(partition_index=0, offset=0)]
    )
    elect = ElectLeadersTopic(topic="nobody", partitions=[0])
    return [
        (_create("a b"), _created, {E.INVALID_TOPIC_EXCEPTION}),
        (_create(""), _created, {E.INVALID_TOPIC_EXCEPTION}),
        (_create(".."), _created, {E.INVALID_TOPIC_EXCEPTION}),
        (_create("x" * 300), _created, {E.INVALID_TOPIC_EXCEPTION}),
        (
            _create("__consumer_offsets"),
            _created,
            {E.INVALID_TOPIC_EXCEPTION, E.TOPIC_ALREADY_EXISTS},
        ),
        (_create(_LOAD), _created, {E.TOPIC_ALREADY_EXISTS}),
        (_create("w", 0), _created, {E.INVALID_PARTITIONS}),
        (_create("w", -7), _created, {E.INVALID_PARTITIONS}),
        (_create("w", 2_000_000), _created, {E.INVALID_PARTITIONS}),
        (_create("w", 1, 99), _created, {E.INVALID_REPLICATION_FACTOR}),
        (_create("w", 1, 0), _created, {E.INVALID_REPLICATION_FACTOR}),
        (_create("w", 1, 1, configs=[bad]), _created, {E.INVALID_CONFIG}),
        (_create("w", 1, 1, configs=[unknown]), _created, {E.INVALID_CONFIG}),
        (_create("w", -1, -1, assignments=twice), _created, {E.INVALID_REPLICA_ASSIGNMENT}),
        (_create("w", 2, 1, assignments=twice[1:]), _created, {E.INVALID_REQUEST}),
        (_delete("nobody"), _answered, {E.UNKNOWN_TOPIC_OR_PARTITION}),
        (_delete(None, b"7" * 16), _answered, {E.UNKNOWN_TOPIC_ID}),
        (_delete("nobody", b"7" * 16), _answered, {E.INVALID_REQUEST}),
        (_grow("nobody", 3), _grown, {E.UNKNOWN_TOPIC_OR_PARTITION}),
        (_grow(_LOAD, 1), _grown, {E.INVALID_PARTITIONS}),
        (_grow(_LOAD, -1), _grown, {E.INVALID_PARTITIONS}),
        (_alter(TOPIC_KIND, "nobody"), _answered, {E.UNKNOWN_TOPIC_OR_PARTITION}),
        (_alter(TOPIC_KIND, _LOAD, ("no.such", 0, "1")), _answered, {E.INVALID_CONFIG}),
        (_alter(TOPIC_KIND, _LOAD, ("retention.ms", 0, "x")), _answered, {E.INVALID_CONFIG}),
        (_alter(TOPIC_KIND, _LOAD, ("retention.ms", 2, "1")), _answered, {E.INVALID_CONFIG}),
        (_alter(BROKER_KIND, "777"), _answered, {E.INVALID_REQUEST}),
        (_alter(3, "x"), _answered, {E.INVALID_REQUEST}),
        (_move(_LOAD, 0, [1, 1]), _moved, {E.INVALID_REPLICA_ASSIGNMENT}),
        (_move(_LOAD, 0, []), _moved, {E.INVALID_REPLICA_ASSIGNMENT}),
        (_move(_LOAD, 0, [777]), _moved, {E.INVALID_REPLICA_ASSIGNMENT}),
        (_move(_LOAD, 77, [1]), _moved, {E.UNKNOWN_TOPIC_OR_PARTITION}),
        (_move("nobody", 0, [1]), _moved, {E.UNKNOWN_TOPIC_OR_PARTITION}),
        (
            ElectLeadersRequest(election_type=0, topic_partitions=[elect]),
            lambda answer: answer.replica_election_results[0].partition_result[0].error_code,
            {E.UNKNOWN_TOPIC_OR_PARTITION},
        ),
        (
            ElectLeadersRequest(election_type=7, topic_partitions=[elect]),
            _whole,
            {E.INVALID_REQUEST},
        ),
        (
            DeleteRecordsRequest(topics=[trim], timeout_ms=100),
            _of_partition,
            {E.UNKNOWN_TOPIC_OR_PARTITION},
        ),
        (
            FetchRequest(max_wait_ms=0, min_bytes=0, session_id=99, session_epoch=2, topics=[]),
            _whole,
            {E.FETCH_SESSION_ID_NOT_FOUND},
        ),
    ]


class Wrong:
    """One mistake at a time."""

    def __init__(self, scene: Scene, kafka: Kafka) -> None:
        self._scene = scene
        self._kafka = kafka
        self._rng = kafka.rng

    async def do(self) -> None:
        """Raises Lost."""
        chance = self._rng.random()
        if chance < 0.6:
            await self._refused()
        elif chance < 0.85:
            await self._bad_batch()
        else:
            await self._noise()

    async def _refused(self) -> None:
        request, code_of, expected = self._rng.choice(_cases())
        first = {20: 6, 43: 1, 1: 7}.get(request.API_KEY, 0)
        session = await Session.begin(self._kafka)
        code = ErrorCode(code_of(await session.ask(request, first=first)))
        if code not in expected | PASSING:
            self._scene.violation(f"{request} was answered with {code.name}")
        self._scene.count("mistakes")

    async def _bad_batch(self) -> None:
        """To the topic that others write to: nothing of it may ever be read."""
        good = build_batch([Record(Offset(0), TimestampMs(1_700_000_000_000), b"k", b"bad", [])])
        torn = bytearray(good)
        torn[self._rng.randrange(21, len(torn))] ^= 1 << self._rng.randrange(8)
        huge = build_batch(
            [Record(Offset(0), TimestampMs(1_700_000_000_000), b"k", bytes(1_100_000), [])]
        )
        data, acks, expected = self._rng.choice(
            (
                (bytes(torn), -1, {E.CORRUPT_MESSAGE, E.INVALID_RECORD}),
                (good[:-1], 1, {E.CORRUPT_MESSAGE, E.INVALID_RECORD}),
                (b"", 1, {E.INVALID_RECORD, E.CORRUPT_MESSAGE}),
                (huge, -1, {E.MESSAGE_TOO_LARGE}),
                (good, 5, {E.INVALID_REQUIRED_ACKS}),
            )
        )
        session = await Session.with_leader(self._kafka, (_LOAD, 0))
        topic = ProduceTopic(
            name=_LOAD,
            topic_id=self._kafka.topic_ids[_LOAD],
            partitions=[ProducePartition(index=0, records=data)],
        )
        answer = await session.ask(ProduceRequest(acks=acks, timeout_ms=1000, topics=[topic]))
        code = ErrorCode(_of_partition(answer))
        gone = {E.UNKNOWN_TOPIC_OR_PARTITION, E.UNKNOWN_TOPIC_ID}
        if code not in expected | PASSING | gone:
            self._scene.violation(f"a bad batch, acks {acks}, was answered with {code.name}")

    async def _noise(self) -> None:
        """On a connection of its own, which the broker closes; it stays up."""
        known = self._kafka.known
        frames = (
            struct.pack(">i", -5) + bytes(20),
            struct.pack(">i", 2_000_000_000) + bytes(20),
            _HEAD.pack(10, 999, 0, 1, -1),
            _HEAD.pack(10, 3, 99, 1, -1),
            _HEAD.pack(12, 0, 7, 1, -1) + b"\xff\xff",
            _HEAD.pack(30, 1, 12, 1, -1) + self._rng.randbytes(20),
            self._rng.randbytes(50),
            struct.pack(">i", 100),
        )
        host, port = self._rng.choice(known)
        try:
            async with asyncio.timeout(5.0):
                reader, writer = await asyncio.open_connection(host, port)
                try:
                    writer.write(self._rng.choice(frames))
                    await reader.read(100)
                finally:
                    writer.close()
        except (OSError, TimeoutError) as error:
            raise Lost(str(error)) from None
