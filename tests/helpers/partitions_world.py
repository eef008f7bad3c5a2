"""Owns a broker's partitions without the broker: in memory, with logs that fail when told to."""

from collections.abc import Mapping, Sequence

import pytest
from memory_log import MemoryLog

from moldau.data.partitions import HostedPartition, Partitions
from moldau.log.interface import LogConfig, PartitionLog
from moldau.metadata.apply import apply
from moldau.metadata.commands import (
    Command,
    CreateTopic,
    ReassignPartition,
    RegisterBroker,
    ReportReplicas,
)
from moldau.metadata.decide import decide
from moldau.metadata.image import EMPTY_IMAGE, Image
from moldau.model.errors import ErrorCode, MoldauError, RefusedError, StorageError
from moldau.model.ids import BrokerId, LogId, PartitionIndex, TopicId
from moldau.raft.config import RaftConfig
from moldau.replica.replica import Replica
from moldau.server.clock import SystemClock
from moldau.testing.replicas import MemoryVotes, make_driver, make_flusher

TOPIC_ID = TopicId(b"0123456789abcdef")
OTHER, THIRD = BrokerId(2), BrokerId(3)


class TroubledLog(MemoryLog):
    failure: StorageError | None = None
    closed = False
    discarded = False

    def append_control(self, *arguments: object) -> None:
        if self.failure is not None:
            raise self.failure
        super().append_control(*arguments)  # type: ignore[arg-type]

    def close(self) -> None:
        self.closed = True
        super().close()

    def discard(self) -> None:
        self.discarded = True
        super().discard()


def changed(image: Image, command: Command) -> Image:
    for record in decide(command, image):
        image = apply(image, record)
    return image


def creation(
    partitions: int = 3,
    *,
    name: str = "t",
    topic_id: TopicId = TOPIC_ID,
    assignments: Mapping[int, Sequence[int]] | None = None,
    configs: Mapping[str, str] | None = None,
) -> CreateTopic:
    return CreateTopic(
        name=name,
        topic_id=topic_id,
        partitions=partitions if assignments is None else -1,
        replication_factor=1 if assignments is None else -1,
        assignments=assignments,
        configs=configs or {},
    )


def reconcile_now(partitions: Partitions, image: Image) -> None:
    """As Partitions.reconcile, without threads."""
    with partitions._flusher.fencing():
        for openings in partitions._reconcile_steps(image):
            for opening in openings:
                partitions._host(opening, partitions._open(opening))


class World:
    """Broker 1 of as many as the test wants; nobody hears it but itself."""

    def __init__(self, brokers: int = 1, config: RaftConfig | None = None) -> None:
        self.failures: list[StorageError] = []
        self.votes = MemoryVotes()
        self.logs: dict[int, TroubledLog] = {}
        self.dropped: list[int] = []
        self.log_failures: dict[int, MoldauError] = {}
        """By partition: what its log says when it is opened."""
        self.append_failures: dict[int, StorageError] = {}
        """And what it says when it is written to."""
        self.told: list[tuple[int, bool]] = []
        self.flusher = make_flusher(on_failure=self.failures.append)
        self.driver = make_driver(
            self.flusher,
            clock=SystemClock(),
            votes=self.votes,
            config=config or RaftConfig(election_ms_min=50, election_ms_max=100),
        )
        self.partitions = Partitions(
            open_log=self._open_log,
            drop_log=lambda name, topic_id, index: self.dropped.append(index),
            driver=self.driver,
            flusher=self.flusher,
            clock=SystemClock(),
            defaults={},
        )
        self.partitions.on_leadership = lambda replica: self.told.append(
            (replica.partition.partition, replica.is_ready)
        )
        self.image: Image = EMPTY_IMAGE
        for number in range(1, brokers + 1):
            self.submit(
                RegisterBroker(id=BrokerId(number), host="h", port=9092, incarnation=f"{number}")
            )
        self.partitions.newest_image = lambda: self.image

    def _open_log(
        self,
        name: str,
        topic_id: TopicId,
        index: PartitionIndex,
        config: LogConfig,
        new_id: LogId,
    ) -> PartitionLog:
        if index in self.log_failures:
            raise self.log_failures[index]
        log = self.logs.get(index)
        if log is not None and log.discarded and index not in self.dropped:
            # Its files are still there.
            log.discarded = False
            return log
        log = self.logs[index] = TroubledLog(config, new_id)
        log.failure = self.append_failures.get(index)
        return log

    def submit(self, command: Command) -> None:
        self.image = changed(self.image, command)
        reconcile_now(self.partitions, self.image)

    async def create(self, partitions: int = 3) -> None:
        self.submit(creation(partitions))
        await self.partitions.wait_until_led()

    def hosted(self, index: int) -> HostedPartition:
        hosted = self.partitions.get("t", index)
        assert hosted is not None
        return hosted

    def replica(self, index: int = 0) -> Replica:
        return self.hosted(index).replica

    @property
    def ready(self) -> list[bool]:
        found = [self.partitions.get("t", index) for index in range(3)]
        return [hosted is not None and hosted.replica.is_ready for hosted in found]

    def refusal(self, index: int, name: str = "t") -> ErrorCode:
        with pytest.raises(RefusedError) as refused:
            self.partitions.lead(name, index)
        return refused.value.code

    def stop(self) -> None:
        self.driver.stop()
        self.flusher.stop()


def reported(image: Image, index: int = 0) -> ReportReplicas:
    """The move of a partition is over."""
    partition = image.topics["t"].partitions[index]
    return ReportReplicas(
        topic_id=TOPIC_ID,
        partition=PartitionIndex(index),
        desired_version=partition.desired_version,
        voters=partition.target,
    )


def moved(index: int, *replicas: int) -> ReassignPartition:
    return ReassignPartition(topic="t", partition=PartitionIndex(index), replicas=replicas)
