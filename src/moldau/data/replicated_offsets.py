"""Owns the question up to where all replicas of a partition hold its records.

Only the leader knows. A follower that compacts must know it too, before it lets go of a tombstone:
it may lead one day, and one who was away until then would never hear that a key was deleted. So
followers ask, many partitions at a time. Who cannot be asked knows of nothing.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Final, Protocol

import msgspec

from moldau.data.partitions import Partitions
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import BrokerId, Offset, TopicPartition
from moldau.raft.membership import NO_BROKER
from moldau.replica.replica import Replica

log = logging.getLogger(__name__)

HELD_METHOD: Final = 7
_CALL_SECONDS_MAX: Final = 5.0
_PARTITIONS_PER_CALL_MAX: Final = 10_000

_Asked = list[tuple[str, int, bytes]]
"""Name, partition and id of the topic: one of the same name may be another."""
_decode_asked: Final = msgspec.msgpack.Decoder(_Asked).decode
_decode_held: Final = msgspec.msgpack.Decoder(list[int]).decode


class PeerCaller(Protocol):
    """Asks a peer. Raises RefusedError."""

    async def call(
        self, peer: BrokerId, method: int, payload: bytes, timeout_seconds: float
    ) -> bytes: ...


class ReplicatedOffsets:
    """Asks the leaders, and answers for those that lead here."""

    def __init__(self, partitions: Partitions, caller: PeerCaller) -> None:
        self._partitions = partitions
        self._caller = caller

    async def ask(self, replicas: Iterable[Replica]) -> Mapping[TopicPartition, Offset]:
        """Below which offset each partition is everywhere; those that nobody tells are missing."""
        by_leader: dict[BrokerId, list[Replica]] = defaultdict(list)
        held: dict[TopicPartition, Offset] = {}
        for replica in replicas:
            if replica.is_leader:
                held[replica.partition] = replica.replicated_offset
            elif replica.leader != NO_BROKER:
                by_leader[replica.leader].append(replica)
        for told in await asyncio.gather(
            *(
                self._ask_leader(leader, followed[at : at + _PARTITIONS_PER_CALL_MAX])
                for leader, followed in by_leader.items()
                for at in range(0, len(followed), _PARTITIONS_PER_CALL_MAX)
            )
        ):
            held.update(told)
        return held

    async def _ask_leader(
        self, leader: BrokerId, followed: list[Replica]
    ) -> dict[TopicPartition, Offset]:
        asked: _Asked = [
            (replica.partition.topic, replica.partition.partition, replica.topic_id)
            for replica in followed
        ]
        try:
            reply = await self._caller.call(
                leader, HELD_METHOD, msgspec.msgpack.encode(asked), _CALL_SECONDS_MAX
            )
            told = _decode_held(reply)
        except (RefusedError, msgspec.MsgspecError) as error:
            log.debug("broker %d did not say what all replicas hold: %s", leader, error)
            return {}
        return {
            replica.partition: Offset(offset)
            for replica, offset in zip(followed, told, strict=False)
        }

    async def answer(self, sender: BrokerId, payload: bytes) -> bytes:
        """For the peers."""
        try:
            asked = _decode_asked(payload)
        except msgspec.MsgspecError as error:
            raise RefusedError(ErrorCode.INVALID_REQUEST, f"what is held: {error}") from None
        return msgspec.msgpack.encode([self._held(*entry) for entry in asked])

    def _held(self, topic: str, partition: int, topic_id: bytes) -> Offset:
        hosted = self._partitions.get(topic, partition)
        if hosted is None or hosted.replica.topic_id != topic_id:
            return Offset(0)
        return hosted.replica.replicated_offset if hosted.replica.is_leader else Offset(0)
