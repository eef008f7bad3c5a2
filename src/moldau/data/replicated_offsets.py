"""Up to which offset all replicas of a partition have its records.

Only the leader knows. A follower that compacts needs it before it removes a tombstone: it may
become leader, and a replica that was down until then would never learn that the key was deleted. So
followers query the leaders, for many partitions at a time.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from moldau.data.leader_queries import PartitionKey, query_leaders, respond_each
from moldau.data.partitions import Partitions
from moldau.model.ids import BrokerId, Offset, TopicPartition
from moldau.net.peers.caller import PeerCaller
from moldau.net.peers.methods import PeerMethod
from moldau.raft.membership import NO_BROKER
from moldau.replica.replica import Replica

_CALL_SECONDS_MAX: Final = 5.0
_decode: Final = msgspec.msgpack.Decoder(list[Offset]).decode


class ReplicatedOffsets:
    def __init__(self, partitions: Partitions, caller: PeerCaller) -> None:
        self._partitions = partitions
        self._caller = caller

    async def query(self, replicas: Iterable[Replica]) -> Mapping[TopicPartition, Offset]:
        """The offset below which all replicas have everything; without those that are unknown."""
        by_leader: dict[BrokerId, list[PartitionKey]] = defaultdict(list)
        offsets: dict[TopicPartition, Offset] = {}
        for replica in replicas:
            if replica.is_leader:
                offsets[replica.partition] = replica.replicated_offset
            elif replica.leader != NO_BROKER:
                by_leader[replica.leader].append((*replica.partition, replica.topic_id))
        method = PeerMethod.REPLICATED_OFFSETS
        return offsets | await query_leaders(
            self._caller, method, by_leader, _decode, _CALL_SECONDS_MAX
        )

    async def on_request(self, sender: BrokerId, payload: bytes) -> bytes:
        return respond_each(payload, self._replicated_offset)

    def _replicated_offset(self, topic: str, partition: int, topic_id: bytes) -> Offset:
        hosted = self._partitions.get(topic, partition)
        if hosted is None or hosted.replica.topic_id != topic_id:
            return Offset(0)
        return hosted.replica.replicated_offset if hosted.replica.is_leader else Offset(0)
