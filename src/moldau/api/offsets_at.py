"""The first offsets at or after a time: the leaders of the partitions are asked by peer RPC."""

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from moldau.api.asking import ask_each
from moldau.control.cluster_service import ClusterService
from moldau.data.offsets import OffsetService
from moldau.data.record_reader import offset_at
from moldau.metadata.image import Topic
from moldau.metadata.leaders import NO_LEADER_ID
from moldau.model.errors import RefusedError
from moldau.model.ids import BrokerId
from moldau.net.peers.caller import PeerCaller, decode_request
from moldau.net.peers.methods import PeerMethod

_CALL_SECONDS_MAX: Final = 5.0


class _Request(msgspec.Struct, frozen=True, array_like=True):
    topic: str
    topic_id: bytes
    timestamp: int
    partitions: tuple[int, ...]


_decode_request: Final = msgspec.msgpack.Decoder(_Request).decode
_decode_offsets: Final = msgspec.msgpack.Decoder(list[int | None]).decode


class OffsetsAt:
    """Asks the leaders, and responds for the partitions that this broker leads."""

    def __init__(
        self, *, me: BrokerId, cluster: ClusterService, offsets: OffsetService, caller: PeerCaller
    ) -> None:
        self._me = me
        self._cluster = cluster
        self._offsets = offsets
        self._caller = caller

    async def find(
        self, topic: Topic, partitions: Iterable[int], timestamp: int
    ) -> Mapping[int, int]:
        """The end where all records are older. Without the partitions whose leader does not
        respond."""
        by_leader: dict[BrokerId, list[int]] = defaultdict(list)
        for partition in partitions:
            leader = self._cluster.leader_of(topic, partition).broker
            if leader != NO_LEADER_ID:
                by_leader[leader].append(partition)
        replies = await ask_each(
            self._caller,
            PeerMethod.OFFSETS_AT,
            {
                leader: _Request(topic.name, topic.topic_id, timestamp, tuple(theirs))
                for leader, theirs in by_leader.items()
            },
            _decode_offsets,
            _CALL_SECONDS_MAX,
            me=self._me,
            here=self._here,
        )
        return {
            partition: offset
            for leader, reply in replies.items()
            for partition, offset in zip(by_leader[leader], reply, strict=False)
            if offset is not None
        }

    async def _here(self, request: _Request) -> list[int | None]:
        found: list[int | None] = []
        for partition in request.partitions:
            found.append(self._find(request, partition))
            # Each may read from the disk.
            await asyncio.sleep(0)
        return found

    def _find(self, request: _Request, partition: int) -> int | None:
        topic = self._cluster.image.topic(request.topic)
        if topic is None or topic.topic_id != request.topic_id:
            return None
        try:
            return offset_at(self._offsets, request.topic, partition, request.timestamp)
        except RefusedError:
            return None

    async def on_request(self, sender: BrokerId, payload: bytes) -> bytes:
        """Raises RefusedError."""
        return msgspec.msgpack.encode(await self._here(decode_request(_decode_request, payload)))
