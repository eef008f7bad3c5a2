"""Owns questions that no broker can answer alone: how far partitions reach, and which groups exist.

The leader of a partition knows its offsets, the coordinator of a group that there is one. They are
asked over the peer links. Who does not answer is named: part of an answer must not look like all.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple, Protocol

import msgspec

from moldau.control.cluster_service import ClusterService
from moldau.coordination.group_service import GroupService
from moldau.data.partitions import Partitions
from moldau.metadata.leaders import NO_LEADER_ID
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import BrokerId, PartitionIndex, TopicPartition

log = logging.getLogger(__name__)

EXTENTS_METHOD: Final = 20
GROUPS_METHOD: Final = 21
_CALL_SECONDS_MAX: Final = 3.0
_PARTITIONS_PER_CALL_MAX: Final = 10_000
GROUPS_PER_BROKER_MAX: Final = 20_000
"""A reply between brokers has a bound, and so has the patience of who asks."""


class PartitionExtent(NamedTuple):
    """What a partition holds, as its leader says."""

    start: int
    end: int
    """The high watermark: the offset after the last record that is committed."""
    size_bytes: int


class GroupListing(NamedTuple):
    """A group as its coordinator lists it."""

    group_id: str
    protocol_type: str
    state: str
    group_type: str


_Asked = list[tuple[str, int, bytes]]
"""Name, partition and id of the topic: one of the same name may be another."""
_decode_asked: Final = msgspec.msgpack.Decoder(_Asked).decode
_decode_extents: Final = msgspec.msgpack.Decoder(list[PartitionExtent | None]).decode
_decode_groups: Final = msgspec.msgpack.Decoder(list[GroupListing]).decode


class PeerCaller(Protocol):
    """Asks a peer. Raises RefusedError."""

    async def call(
        self, peer: BrokerId, method: int, payload: bytes, timeout_seconds: float
    ) -> bytes: ...


class ClusterQueries:
    """Asks those who know, and answers for this broker."""

    def __init__(
        self,
        *,
        me: BrokerId,
        cluster: ClusterService,
        partitions: Partitions,
        groups: GroupService,
        caller: PeerCaller,
    ) -> None:
        self._me = me
        self._cluster = cluster
        self._partitions = partitions
        self._groups = groups
        self._caller = caller

    # ---- how far partitions reach

    async def extents(
        self, wanted: Iterable[TopicPartition]
    ) -> Mapping[TopicPartition, PartitionExtent]:
        """Of those partitions whose leader tells; the others are missing."""
        by_leader: dict[BrokerId, _Asked] = defaultdict(list)
        for name, index in wanted:
            topic = self._cluster.image.topic(name)
            if topic is not None and 0 <= index < len(topic.partitions):
                leader = self._cluster.leader_of(topic, index).broker
                if leader != NO_LEADER_ID:
                    by_leader[leader].append((name, index, topic.topic_id))
        found: dict[TopicPartition, PartitionExtent] = {}
        for told in await asyncio.gather(
            *(
                self._ask_leader(leader, asked[at : at + _PARTITIONS_PER_CALL_MAX])
                for leader, asked in by_leader.items()
                for at in range(0, len(asked), _PARTITIONS_PER_CALL_MAX)
            )
        ):
            found.update(told)
        return found

    async def _ask_leader(
        self, leader: BrokerId, asked: _Asked
    ) -> Mapping[TopicPartition, PartitionExtent]:
        told: list[PartitionExtent | None]
        if leader == self._me:
            told = [self._extent(*one) for one in asked]
        else:
            try:
                reply = await self._caller.call(
                    leader, EXTENTS_METHOD, msgspec.msgpack.encode(asked), _CALL_SECONDS_MAX
                )
                told = _decode_extents(reply)
            except (RefusedError, msgspec.MsgspecError) as error:
                log.debug("broker %d did not say how far its partitions reach: %s", leader, error)
                return {}
        return {
            TopicPartition(name, PartitionIndex(index)): extent
            for (name, index, _), extent in zip(asked, told, strict=False)
            if extent is not None
        }

    def _extent(self, topic: str, partition: int, topic_id: bytes) -> PartitionExtent | None:
        hosted = self._partitions.get(topic, partition)
        if hosted is None or hosted.replica.topic_id != topic_id or not hosted.replica.is_ready:
            return None
        replica = hosted.replica
        return PartitionExtent(
            replica.log.start_offset, replica.high_watermark, replica.log.size_bytes
        )

    async def on_extents_request(self, sender: BrokerId, payload: bytes) -> bytes:
        """For the peers."""
        try:
            asked = _decode_asked(payload)
        except msgspec.MsgspecError as error:
            raise RefusedError(ErrorCode.INVALID_REQUEST, f"extents: {error}") from None
        return msgspec.msgpack.encode([self._extent(*one) for one in asked])

    # ---- which groups there are

    async def groups(self) -> tuple[list[tuple[GroupListing, BrokerId]], list[BrokerId]]:
        """All groups with their coordinators, by name; and the brokers that did not answer."""
        brokers = sorted(self._cluster.image.brokers)
        found: dict[str, tuple[GroupListing, BrokerId]] = {}
        silent = []
        answers = await asyncio.gather(*(self._ask_coordinator(broker) for broker in brokers))
        for broker, told in zip(brokers, answers, strict=True):
            if told is None:
                silent.append(broker)
            else:
                found.update((group.group_id, (group, broker)) for group in told)
        return [found[name] for name in sorted(found)], silent

    async def _ask_coordinator(self, broker: BrokerId) -> list[GroupListing] | None:
        try:
            if broker == self._me:
                return self._list_groups()
            if broker not in self._cluster.alive:
                return None
            reply = await self._caller.call(broker, GROUPS_METHOD, b"", _CALL_SECONDS_MAX)
            return _decode_groups(reply)
        except (RefusedError, msgspec.MsgspecError) as error:
            log.debug("broker %d did not list its groups: %s", broker, error)
            return None

    def _list_groups(self) -> list[GroupListing]:
        error, listed = self._groups.list_groups((), ())
        if error is not ErrorCode.NONE:
            raise RefusedError(error, "groups are being loaded")
        if len(listed) > GROUPS_PER_BROKER_MAX:
            raise RefusedError(
                ErrorCode.POLICY_VIOLATION, f"{len(listed)} groups are too many to be listed"
            )
        return [
            GroupListing(one.group_id, one.protocol_type, str(one.state), str(one.group_type))
            for one in listed
        ]

    async def on_groups_request(self, sender: BrokerId, payload: bytes) -> bytes:
        """For the peers."""
        return msgspec.msgpack.encode(self._list_groups())
