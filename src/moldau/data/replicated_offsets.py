"""Up to which offset all replicas of a partition have its records.

Only the leader knows. A follower that compacts needs it before it removes a tombstone: it may
become leader, and a replica that was down until then would never learn that the key was deleted. So
followers query the leaders, for many partitions at a time.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from moldau.data.partitions import Partitions
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import BrokerId, Offset, TopicPartition
from moldau.net.peers.caller import PeerCaller
from moldau.net.peers.methods import PeerMethod
from moldau.raft.membership import NO_BROKER
from moldau.replica.replica import Replica

log = logging.getLogger(__name__)

_CALL_SECONDS_MAX: Final = 5.0
_PARTITIONS_PER_CALL_MAX: Final = 10_000

_Request = list[tuple[str, int, bytes]]
"""Topic name, partition and topic id, as a topic may be recreated with the same name."""
_decode_request: Final = msgspec.msgpack.Decoder(_Request).decode
_decode_response: Final = msgspec.msgpack.Decoder(list[int]).decode


class ReplicatedOffsets:
    """Queries the leaders, and responds for partitions led here."""

    def __init__(self, partitions: Partitions, caller: PeerCaller) -> None:
        self._partitions = partitions
        self._caller = caller

    async def query(self, replicas: Iterable[Replica]) -> Mapping[TopicPartition, Offset]:
        """The offset below which all replicas have everything; without those that are unknown."""
        by_leader: dict[BrokerId, list[Replica]] = defaultdict(list)
        offsets: dict[TopicPartition, Offset] = {}
        for replica in replicas:
            if replica.is_leader:
                offsets[replica.partition] = replica.replicated_offset
            elif replica.leader != NO_BROKER:
                by_leader[replica.leader].append(replica)
        for response in await asyncio.gather(
            *(
                self._query_leader(leader, followed[at : at + _PARTITIONS_PER_CALL_MAX])
                for leader, followed in by_leader.items()
                for at in range(0, len(followed), _PARTITIONS_PER_CALL_MAX)
            )
        ):
            offsets.update(response)
        return offsets

    async def _query_leader(
        self, leader: BrokerId, followed: list[Replica]
    ) -> dict[TopicPartition, Offset]:
        request: _Request = [
            (replica.partition.topic, replica.partition.partition, replica.topic_id)
            for replica in followed
        ]
        try:
            reply = await self._caller.call(
                leader,
                PeerMethod.REPLICATED_OFFSETS,
                msgspec.msgpack.encode(request),
                _CALL_SECONDS_MAX,
            )
            response = _decode_response(reply)
        except (RefusedError, msgspec.MsgspecError) as error:
            log.debug("broker %d returned no replicated offsets: %s", leader, error)
            return {}
        return {
            replica.partition: Offset(offset)
            for replica, offset in zip(followed, response, strict=False)
        }

    async def on_request(self, sender: BrokerId, payload: bytes) -> bytes:
        """The RPC handler."""
        try:
            request = _decode_request(payload)
        except msgspec.MsgspecError as error:
            raise RefusedError(
                ErrorCode.INVALID_REQUEST, f"invalid request for replicated offsets: {error}"
            ) from None
        return msgspec.msgpack.encode([self._replicated_offset(*entry) for entry in request])

    def _replicated_offset(self, topic: str, partition: int, topic_id: bytes) -> Offset:
        hosted = self._partitions.get(topic, partition)
        if hosted is None or hosted.replica.topic_id != topic_id:
            return Offset(0)
        return hosted.replica.replicated_offset if hosted.replica.is_leader else Offset(0)
