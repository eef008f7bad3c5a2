"""What this broker has of partitions that lost a majority, and making its replica the only voter.

A broker does that only if the committed metadata say that a majority of the voters in its own log
was removed from the cluster for good. Once it is done, that is no longer so: a request that comes
twice, or after a crash in the middle, is carried out once.
"""

import logging
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec
from msgspec.structs import replace

from moldau.data.partitions import HostedPartition, Partitions
from moldau.log.interface import PartitionLog
from moldau.metadata.image import Image, Partition, Topic
from moldau.model import log_events as events
from moldau.model.errors import (
    CorruptionError,
    DiskFullError,
    ErrorCode,
    RefusedError,
    StorageError,
)
from moldau.model.ids import BrokerId, Epoch, PartitionIndex, TopicId
from moldau.model.topology import ReplicaSurvey
from moldau.net.peers.caller import decode_request
from moldau.raft.membership import NO_BROKER, Members
from moldau.replica.driver import RaftDriver
from moldau.replica.only_voter import make_only_voter

log = logging.getLogger(__name__)

HEARD_MS: Final = 10_000
"""A broker that was heard within that time is not lost."""

PartitionKey = tuple[bytes, int]
"""Topic id and partition."""


class BrokerSurvey(msgspec.Struct, frozen=True, array_like=True):
    """The answer of one broker."""

    heard: tuple[int, ...]
    """Brokers whose heartbeat it received recently."""
    replicas: tuple[ReplicaSurvey, ...]
    """One for each partition of the request."""


_decode_keys: Final = msgspec.msgpack.Decoder(tuple[PartitionKey, ...]).decode
_decode_order: Final = msgspec.msgpack.Decoder(tuple[bytes, int, int, bool]).decode


class ForcedReplicas:
    def __init__(
        self,
        *,
        me: BrokerId,
        partitions: Partitions,
        driver: RaftDriver,
        fresh_image: Callable[[], Awaitable[Image]],
        leader_epoch: Callable[[TopicId, PartitionIndex], Epoch],
    ) -> None:
        """`leader_epoch`: of the leader that was announced to this broker, if any."""
        self._me = me
        self._partitions = partitions
        self._driver = driver
        self._fresh_image = fresh_image
        self._leader_epoch = leader_epoch

    # ---- what is here

    def survey(self, image: Image, keys: tuple[PartitionKey, ...]) -> BrokerSurvey:
        return BrokerSurvey(
            tuple(sorted(self._driver.alive(HEARD_MS))),
            tuple(self._survey_one(image, *key) for key in keys),
        )

    def _survey_one(self, image: Image, topic_id: bytes, index: int) -> ReplicaSurvey:
        found = self._survey_replica(image, topic_id, index)
        # Nobody follows a leader of an epoch that is below the one that they know.
        heard = self._leader_epoch(TopicId(topic_id), PartitionIndex(index))
        return replace(found, known_epoch=max(found.known_epoch, heard))

    def _survey_replica(self, image: Image, topic_id: bytes, index: int) -> ReplicaSurvey:
        topic = image.topic_by_id(TopicId(topic_id))
        hosted = self._partitions.get(topic.name, index) if topic is not None else None
        if topic is None or hosted is None or hosted.replica.topic_id != topic_id:
            return self._survey_absent(topic, index)
        replica = hosted.replica
        log_id, core = replica.log.log_id, replica.group.core
        return ReplicaSurvey(
            broker=self._me,
            is_voter=core.members.is_voter(self._me, log_id),
            voters=core.members.voters,
            known_epoch=core.epoch,
            last_epoch=replica.log.last_epoch,
            end_index=replica.log.end_index,
            start_offset=replica.log.start_offset,
            end_offset=replica.log.end_offset,
            high_watermark=replica.high_watermark,
            has_leader=core.leader != NO_BROKER,
        )

    def _survey_absent(self, topic: Topic | None, index: int) -> ReplicaSurvey:
        if topic is not None and (why := self._partitions.offline.get((topic.name, index))):
            is_full = isinstance(why, DiskFullError)
            return ReplicaSurvey(broker=self._me, problem=str(why), may_pass=is_full)
        if topic is not None and self._me in topic.partitions[index].replicas:
            return ReplicaSurvey(broker=self._me, problem="it is not open yet", may_pass=True)
        return ReplicaSurvey(broker=self._me, problem="it has no replica")

    async def on_survey_request(self, sender: BrokerId, payload: bytes) -> bytes:
        keys = decode_request(_decode_keys, payload)
        return msgspec.msgpack.encode(self.survey(await self._fresh_image(), keys))

    # ---- the only voter

    async def on_order(self, sender: BrokerId, payload: bytes) -> bytes:
        topic_id, index, epoch, needs_voter = decode_request(_decode_order, payload)
        await self.make_only_voter(TopicId(topic_id), index, Epoch(epoch), needs_voter=needs_voter)
        return b""

    async def make_only_voter(
        self, topic_id: TopicId, index: int, epoch: Epoch, *, needs_voter: bool
    ) -> None:
        """`needs_voter`: as in replica/only_voter.py. Raises RefusedError."""
        # What was removed is removed in this image, or the majority is not known to be lost.
        image = await self._fresh_image()
        topic = image.topic_by_id(topic_id)
        hosted = self._partitions.get(topic.name, index) if topic is not None else None
        if topic is None or hosted is None or hosted.replica.topic_id != topic_id:
            raise RefusedError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"broker {self._me} has no replica of this partition that is online",
            )
        self._check_majority_lost(image, hosted)
        try:
            self._reopen(topic, topic.partitions[index], epoch, needs_voter=needs_voter)
        except (CorruptionError, StorageError) as error:
            raise RefusedError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error

    def _check_majority_lost(self, image: Image, hosted: HostedPartition) -> None:
        replica = hosted.replica
        members = replica.members
        left = [voter for voter in members.voters if voter in image.brokers]
        # A learner never stands for election, and so remembers a leader that is lost.
        if len(left) >= members.quorum or replica.leader in image.brokers:
            raise RefusedError(
                ErrorCode.INVALID_REQUEST,
                f"{replica.partition} has a majority of its voters {list(members.voters)}: "
                f"{left} are in the cluster",
            )

    def _reopen(
        self, topic: Topic, partition: Partition, epoch: Epoch, *, needs_voter: bool
    ) -> None:
        hosted = self._partitions.find(topic.name, partition.index)
        before = hosted.replica.members
        known = hosted.replica.epoch

        def change(opened: PartitionLog, initial: Members) -> None:
            make_only_voter(
                opened,
                me=self._me,
                voted_epoch=known,
                initial=initial,
                epoch=epoch,
                needs_voter=needs_voter,
            )

        self._partitions.reopen(topic, partition, change)
        log.warning(
            "partition %s-%d: the replica here is the only voter now, up to offset %d; lost are "
            "the replicas of the voters %s",
            topic.name,
            partition.index,
            hosted.replica.log.end_offset,
            [voter for voter in before.voters if voter != self._me],
            extra=events.REPLICA_FORCED(topic=topic.name, partition=int(partition.index)),
        )
