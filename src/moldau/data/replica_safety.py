"""Whether a partition can lose a replica, so that the replica may discard its log.

Only the leader knows. It grants the request if, without that replica, a majority of the voters is
alive, has its logs, and has everything that is committed. It grants one replica at a time: two that
rebuild together could leave no quorum.
"""

import logging
from collections.abc import Callable
from typing import Final

import msgspec

from moldau.data.partitions import HostedPartition, Partitions
from moldau.metadata.image import Topic
from moldau.metadata.leaders import Leader
from moldau.model.clock import Clock
from moldau.model.errors import RefusedError
from moldau.model.ids import BrokerId, PartitionIndex, TopicId
from moldau.model.malformed import MALFORMED
from moldau.net.peers.caller import PeerCaller, decode_request
from moldau.net.peers.methods import PeerMethod
from moldau.raft.membership import NO_BROKER
from moldau.replica.driver import RaftDriver

log = logging.getLogger(__name__)

_CALL_SECONDS_MAX: Final = 5.0
_GRANT_SECONDS: Final = 600.0
"""After it, the replica has been rebuilt and the leader knows it, or is down."""

_Request = tuple[str, int, bytes]
_decode: Final = msgspec.msgpack.Decoder(_Request).decode
_decode_response: Final = msgspec.msgpack.Decoder(bool).decode


class ReplicaSafety:
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
        """Whether this broker may rebuild its replica; the leader must be another broker."""
        leader = self._leader_of(topic, index).broker
        if leader in (NO_BROKER, self._me):
            return False
        return await self._query(leader, topic.name, index, topic.topic_id)

    async def can_lose(self, hosted: HostedPartition) -> bool:
        """Whether the partition can lose this open replica, which may be the leader."""
        replica = hosted.replica
        name, index = replica.partition
        if replica.is_leader:
            return self._grant(self._me, name, index, replica.topic_id)
        if replica.leader == NO_BROKER:
            return False
        return await self._query(replica.leader, name, index, replica.topic_id)

    async def _query(self, leader: BrokerId, name: str, index: int, topic_id: TopicId) -> bool:
        payload = msgspec.msgpack.encode((name, index, topic_id))
        try:
            return _decode_response(
                await self._caller.call(
                    leader, PeerMethod.CAN_LOSE_REPLICA, payload, _CALL_SECONDS_MAX
                )
            )
        except (RefusedError, *MALFORMED) as error:
            log.debug("broker %d did not say whether it can lose a replica: %s", leader, error)
            return False

    async def on_request(self, sender: BrokerId, payload: bytes) -> bytes:
        name, index, topic_id = decode_request(_decode, payload)
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
