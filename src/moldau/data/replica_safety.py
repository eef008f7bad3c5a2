"""Owns the question whether a group can spare a replica: may it forget what it acknowledged?

Only the leader knows. It says yes if, without the one that asks, a majority of the voters is heard,
has the logs that the group counts on, and holds all that is committed. And it says yes to one at a
time: two that begin anew together may leave nobody whose vote counts.
"""

import logging
from collections.abc import Callable
from typing import Final

import msgspec

from moldau.data.partitions import HostedPartition, Partitions
from moldau.data.replicated_offsets import PeerCaller
from moldau.metadata.image import Topic
from moldau.metadata.leaders import Leader
from moldau.model.clock import Clock
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import BrokerId, PartitionIndex, TopicId
from moldau.raft.membership import NO_BROKER
from moldau.replica.driver import RaftDriver

log = logging.getLogger(__name__)

SPARE_METHOD: Final = 8
_CALL_SECONDS_MAX: Final = 5.0
_GRANT_SECONDS: Final = 600.0
"""After it, who was told yes has begun anew, and its leader knows; or it is not heard."""

_Asked = tuple[str, int, bytes]
_decode_asked: Final = msgspec.msgpack.Decoder(_Asked).decode
_decode_answer: Final = msgspec.msgpack.Decoder(bool).decode


class ReplicaSafety:
    """Asks the leaders, and answers for those that lead here."""

    def __init__(
        self,
        *,
        partitions: Partitions,
        driver: RaftDriver,
        caller: PeerCaller,
        clock: Clock,
        me: BrokerId,
        leader_of: Callable[[Topic, int], Leader],
    ) -> None:
        self._partitions = partitions
        self._driver = driver
        self._caller = caller
        self._clock = clock
        self._me = me
        self._leader_of = leader_of
        self._granted: dict[tuple[bytes, int], tuple[BrokerId, float]] = {}

    async def may_rebuild(self, topic: Topic, index: PartitionIndex) -> bool:
        """Whether the leader of a partition, another broker, can spare its replica here."""
        leader = self._leader_of(topic, index).broker
        if leader in (NO_BROKER, self._me):
            return False
        return await self._ask(leader, topic.name, index, topic.topic_id)

    async def can_lose(self, hosted: HostedPartition) -> bool:
        """The same of a replica that is served, and may lead itself."""
        replica = hosted.replica
        name, index = replica.partition
        if replica.is_leader:
            return self._grant(self._me, name, index, replica.topic_id)
        if replica.leader == NO_BROKER:
            return False
        return await self._ask(replica.leader, name, index, replica.topic_id)

    async def _ask(self, leader: BrokerId, name: str, index: int, topic_id: TopicId) -> bool:
        payload = msgspec.msgpack.encode((name, index, topic_id))
        try:
            return _decode_answer(
                await self._caller.call(leader, SPARE_METHOD, payload, _CALL_SECONDS_MAX)
            )
        except (RefusedError, msgspec.MsgspecError) as error:
            log.debug("broker %d did not say whether it can spare a replica: %s", leader, error)
            return False

    async def answer(self, sender: BrokerId, payload: bytes) -> bytes:
        """For the peers."""
        try:
            name, index, topic_id = _decode_asked(payload)
        except msgspec.MsgspecError as error:
            raise RefusedError(ErrorCode.INVALID_REQUEST, f"a spare replica: {error}") from None
        return msgspec.msgpack.encode(self._grant(sender, name, index, topic_id))

    def _grant(self, broker: BrokerId, name: str, index: int, topic_id: bytes) -> bool:
        hosted = self._partitions.get(name, index)
        if hosted is None or hosted.replica.topic_id != topic_id:
            return False
        now = self._clock.monotonic()
        key = (topic_id, index)
        before = self._granted.get(key)
        if before is not None and before[0] != broker and now < before[1]:
            return False
        replica = hosted.replica
        if not replica.is_ready or not self._driver.can_lose_replica(replica.group, broker):
            return False
        self._granted[key] = (broker, now + _GRANT_SECONDS)
        return True
