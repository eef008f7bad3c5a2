"""Queries that need other brokers: the offsets of partitions, and the list of groups.

The leader of a partition knows its offsets, the coordinator of a group its state; both are queried
by peer RPC. Brokers that do not respond are reported, so that a partial result is visible as such.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

import msgspec

from moldau.api.quotas import charged
from moldau.control.cluster_service import ClusterService
from moldau.coordination.group_service import GroupService
from moldau.data.leader_queries import PartitionKey, query_leaders, respond_each
from moldau.data.partitions import Partitions
from moldau.metadata.leaders import NO_LEADER_ID
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import BrokerId, TopicPartition
from moldau.model.malformed import MALFORMED
from moldau.net.peers.caller import PeerCaller
from moldau.net.peers.methods import PeerMethod

log = logging.getLogger(__name__)

_CALL_SECONDS_MAX: Final = 3.0
GROUPS_PER_BROKER_MAX: Final = 20_000
"""Limits the size of a response between brokers."""


class PartitionExtent(NamedTuple):
    """Offsets and size of a partition, from its leader."""

    start: int
    end: int
    """The high watermark."""
    size_bytes: int


class GroupListing(NamedTuple):
    """A group as its coordinator lists it."""

    group_id: str
    protocol_type: str
    state: str
    group_type: str


_decode_extents: Final = msgspec.msgpack.Decoder(list[PartitionExtent | None]).decode
_decode_groups: Final = msgspec.msgpack.Decoder(list[GroupListing]).decode


class ClusterQueries:
    """Queries the responsible brokers, and responds for this one."""

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

    # ---- offsets of partitions

    async def extents(
        self, wanted: Iterable[TopicPartition]
    ) -> Mapping[TopicPartition, PartitionExtent]:
        """Without the partitions whose leader does not respond."""
        by_leader: dict[BrokerId, list[PartitionKey]] = defaultdict(list)
        found: dict[TopicPartition, PartitionExtent] = {}
        for partition in wanted:
            name, index = partition
            topic = self._cluster.image.topic(name)
            if topic is None or not 0 <= index < len(topic.partitions):
                continue
            leader = self._cluster.leader_of(topic, index).broker
            if leader == self._me:
                extent = self._extent(name, index, topic.topic_id)
                if extent is not None:
                    found[partition] = extent
            elif leader != NO_LEADER_ID:
                by_leader[leader].append((name, index, topic.topic_id))
        method = PeerMethod.PARTITION_EXTENTS
        return found | await query_leaders(
            self._caller, method, by_leader, _decode_extents, _CALL_SECONDS_MAX
        )

    def _extent(self, topic: str, partition: int, topic_id: bytes) -> PartitionExtent | None:
        hosted = self._partitions.get(topic, partition)
        if hosted is None or hosted.replica.topic_id != topic_id or not hosted.replica.is_ready:
            return None
        replica = hosted.replica
        return PartitionExtent(
            replica.log.start_offset, replica.high_watermark, replica.log.size_bytes
        )

    async def on_extents_request(self, sender: BrokerId, payload: bytes) -> bytes:
        return respond_each(payload, self._extent)

    # ---- groups

    async def groups(self) -> tuple[list[tuple[GroupListing, BrokerId]], list[BrokerId]]:
        """All groups with their coordinators, by name; and the brokers that did not respond."""
        brokers = sorted(self._cluster.image.brokers)
        found: dict[str, tuple[GroupListing, BrokerId]] = {}
        unresponsive = []
        responses = await asyncio.gather(
            *(charged(self._query_coordinator(broker)) for broker in brokers)
        )
        for broker, response in zip(brokers, responses, strict=True):
            if response is None:
                unresponsive.append(broker)
            else:
                found.update((group.group_id, (group, broker)) for group in response)
        return [found[name] for name in sorted(found)], unresponsive

    async def _query_coordinator(self, broker: BrokerId) -> list[GroupListing] | None:
        try:
            if broker == self._me:
                return self._list_groups()
            if broker not in self._cluster.alive:
                return None
            reply = await self._caller.call(broker, PeerMethod.LIST_GROUPS, b"", _CALL_SECONDS_MAX)
            return _decode_groups(reply)
        except (RefusedError, *MALFORMED) as error:
            log.debug("broker %d did not list its groups: %s", broker, error)
            return None

    def _list_groups(self) -> list[GroupListing]:
        error, listed = self._groups.list_groups((), ())
        if error is not ErrorCode.NONE:
            raise RefusedError(error, "the coordinator is loading its groups")
        if len(listed) > GROUPS_PER_BROKER_MAX:
            raise RefusedError(
                ErrorCode.POLICY_VIOLATION,
                f"{len(listed)} groups; the limit of a list is {GROUPS_PER_BROKER_MAX}",
            )
        return [
            GroupListing(one.group_id, one.protocol_type, str(one.state), str(one.group_type))
            for one in listed
        ]

    async def on_groups_request(self, sender: BrokerId, payload: bytes) -> bytes:
        return msgspec.msgpack.encode(self._list_groups())
