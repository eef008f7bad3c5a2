"""The cluster: brokers and leaders, join, drain, reassignment and leader election."""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

import msgspec

from moldau.control.leader_announcements import LeaderAnnouncements
from moldau.control.metadata_store import MetadataStore
from moldau.data.disk_space import DiskGuard
from moldau.data.partitions import Partitions
from moldau.metadata.broker_rules import replicas_on
from moldau.metadata.commands import DrainBroker, KeepBroker, ReassignPartition, RegisterBroker
from moldau.metadata.image import Broker, BrokerState, Image, Partition, Topic
from moldau.metadata.leader_balance import ElectionType, elect_leader, elections_due
from moldau.metadata.leaders import NO_LEADER, NO_LEADER_ID, Leader, Leaders
from moldau.metadata.replica_rules import reassignments
from moldau.metadata.snapshot import encode_image
from moldau.metadata.voters import desired_members
from moldau.model.clock import Clock
from moldau.model.cluster_ids import is_named
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import BrokerId, PartitionIndex, TopicId
from moldau.model.topology import (
    Endpoint,
    JoinReply,
    JoinRequest,
    Topology,
    TopologyBroker,
    TopologyPartition,
    TopologyTopic,
)
from moldau.net.peers.caller import decode_request
from moldau.net.peers.methods import PeerMethod
from moldau.raft.errors import RaftRejection
from moldau.raft.membership import Members
from moldau.replica.driver import RaftDriver
from moldau.replica.transport import Transport

ALIVE_MS = 2000
"""A peer without a heartbeat for longer is not alive."""
_ELECT_SECONDS_MAX = 5.0
_POLL_SECONDS = 0.02
_CUT_OFF_SECONDS = 4.0
_LEADERS_KNOWN_SECONDS: Final = 10.0
"""Longer than elections and their announcements take."""
_decode_transfer: Final = msgspec.msgpack.Decoder(tuple[bytes, int, int]).decode


class ClusterService:
    def __init__(
        self,
        *,
        me: BrokerId,
        cluster_id: str,
        clock: Clock,
        metadata: MetadataStore,
        metadata_members: Callable[[], Members],
        partitions: Partitions,
        driver: RaftDriver,
        transport: Transport,
        announcements: LeaderAnnouncements,
        disk: DiskGuard,
    ) -> None:
        self._me = me
        self._cluster_id = cluster_id
        self._disk = disk
        self._clock = clock
        self._metadata = metadata
        self._metadata_members = metadata_members
        self._partitions = partitions
        self._driver = driver
        self._transport = transport
        self._announcements = announcements
        self._in_touch_at = clock.monotonic()
        self.starting: str | None = "the broker is starting"
        """Why clients are not served yet."""
        self._is_catching_up = True
        self._served_at: float | None = None

    # ---- reads

    @property
    def image(self) -> Image:
        return self._metadata.image

    @property
    def leaders(self) -> Leaders:
        return self._announcements.leaders

    @property
    def alive(self) -> frozenset[BrokerId]:
        """This broker, and connected peers with a recent heartbeat."""
        links = self._transport.links
        recent = self._driver.alive(ALIVE_MS)
        return frozenset(
            (self._me, *(peer for peer in recent if peer in links and links[peer].is_connected))
        )

    @property
    def controller_id(self) -> int:
        """The leader of the metadata group, or -1. This broker only when it has applied all records
        committed before its election."""
        leader = self._metadata.leader
        return leader if leader != self._me or self._metadata.is_leading else NO_LEADER_ID

    @property
    def is_controller_known(self) -> bool:
        """This broker is the controller, or heard from it recently."""
        return self.controller_id != NO_LEADER_ID and self._metadata.has_recent_leader

    def update_contact(self) -> None:
        """Called periodically: record recent contact with the metadata leader."""
        if self._metadata.has_recent_leader:
            self._in_touch_at = self._clock.monotonic()

    @property
    def is_cut_off(self) -> bool:
        """No contact with the metadata leader for longer than an election takes."""
        # The last call may be long ago.
        self.update_contact()
        return self._clock.monotonic() - self._in_touch_at > _CUT_OFF_SECONDS

    @property
    def leaders_version(self) -> tuple[int, int]:
        """Equal as long as no other leader was announced, and the metadata are the same."""
        return self.image.version, self._announcements.changes

    def leader_of(self, topic: Topic, index: int) -> Leader:
        """The leader of a partition: from the local replica, or as announced."""
        me, topic_id = self._me, topic.topic_id
        leader = self.leaders.of(topic_id, PartitionIndex(index))
        hosted = self._partitions.get(topic.name, index)
        # The name may still be, or be already, that of another topic here.
        replica = None if hosted is None or hosted.replica.topic_id != topic_id else hosted.replica
        if replica is not None:
            core = replica.group.core
            broker, epoch = core.leader, core.epoch
            if (
                epoch >= leader.epoch
                and (broker, epoch) != leader
                and broker >= 0
                and (broker != me or replica.is_ready)
            ):
                leader = Leader(broker, epoch)
        if leader.broker == me and (replica is None or not replica.is_ready):
            # Announced once; leadership was lost since, and the successor is unknown.
            return NO_LEADER
        return leader if leader.broker in self.image.brokers else NO_LEADER

    def leaders_and_in_sync(
        self, topic: Topic, partitions: Iterable[Partition]
    ) -> Iterator[tuple[Leader, tuple[BrokerId, ...]]]:
        """Leader and in-sync replicas of each, both empty without a leader."""
        topic_id, in_sync = topic.topic_id, self._announcements.in_sync
        for partition in partitions:
            leader = self.leader_of(topic, partition.index)
            if leader.broker < 0:
                yield NO_LEADER, ()
            else:
                yield leader, in_sync((topic_id, partition.index), leader) or (leader.broker,)

    def health(self) -> list[str]:
        """Why this broker is not ready to serve; empty if it is."""
        reasons = [self.starting] if self.starting is not None else []
        if self._metadata.leader < 0:
            reasons.append("the metadata group has no leader: is a majority of the brokers up?")
        elif self.is_cut_off:
            reasons.append("no heartbeat from the metadata leader: is it reachable from here?")
        if self._disk.is_full:
            reasons.append("the disk is full: writes are rejected until there is space")
        return reasons

    def readiness(self) -> list[str]:
        """Why this broker is not ready; empty if it is.

        After a start it is ready only when its replicas are in sync again: who restarts brokers
        one after the other may go on then. Later it stays ready when a replica is behind.
        """
        reasons = self.health()
        if self._is_catching_up and self.starting is None:
            behind = self._count_behind()
            members = self._metadata_members()
            is_voter = self._me in members.voters
            if not is_voter and self._me in desired_members(self.image, members).voters:
                reasons.append("not yet a voter of the metadata group, which it is to be")
            elif not behind:
                self._is_catching_up = False
            if behind:
                reasons.append(f"{behind} replicas here are not in sync yet since the start")
        return reasons

    def _count_behind(self) -> int:
        """Replicas here that their leaders do not report as in sync."""
        now = self._clock.monotonic()
        if self._served_at is None:
            self._served_at = now
        # A partition without a leader is waited for only until leaders are known: what has lost
        # its majority must not keep healthy brokers from being ready.
        are_leaders_known = now - self._served_at > _LEADERS_KNOWN_SECONDS
        me, alive, behind = self._me, self.alive, 0
        for topic in self.image.topics.values():
            mine = [p for p in topic.partitions if me in p.replicas and me not in p.adding]
            for leader, in_sync in self.leaders_and_in_sync(topic, mine):
                has_leader = leader.broker in alive
                behind += me not in in_sync if has_leader else not are_leaders_known
        return behind

    def topology(self) -> Topology:
        """The cluster as this broker knows it; empty right after a start."""
        image, alive = self.image, self.alive
        led: dict[int, int] = {}
        topics = []
        for topic in sorted(image.topics.values(), key=lambda topic: topic.name):
            parts = []
            known = self.leaders_and_in_sync(topic, topic.partitions)
            for partition, (leader, in_sync) in zip(topic.partitions, known, strict=True):
                if leader.broker not in alive:
                    leader = NO_LEADER
                led[leader.broker] = led.get(leader.broker, 0) + 1
                parts.append(
                    TopologyPartition(
                        partition=partition.index,
                        leader=leader.broker,
                        leader_epoch=leader.epoch,
                        replicas=partition.replicas,
                        # A leader reports a dead broker as in sync for some seconds more.
                        in_sync=tuple(one for one in in_sync if one in alive),
                        adding=partition.adding,
                        removing=partition.removing,
                    )
                )
            topics.append(
                TopologyTopic(
                    name=topic.name,
                    id=topic.topic_id.hex(),
                    internal=topic.internal,
                    partitions=tuple(parts),
                )
            )
        brokers = [
            self._describe(broker, led.get(broker.id, 0), broker.id in alive)
            for broker in sorted(image.brokers.values(), key=lambda broker: broker.id)
        ]
        return Topology(
            cluster_id=image.cluster_id,
            version=image.version,
            controller=self.controller_id,
            answered_by=self._me,
            brokers=tuple(brokers),
            topics=tuple(topics),
            voters=self._metadata_members().voters,
        )

    def _describe(self, broker: Broker, leaders: int, is_alive: bool) -> TopologyBroker:
        return TopologyBroker(
            id=broker.id,
            kafka=Endpoint(broker.host, broker.port),
            raft=broker.raft,
            http=broker.http,
            rack=broker.rack,
            state="draining" if broker.state is BrokerState.DRAINING else "active",
            alive=is_alive,
            epoch=broker.epoch,
            leaders=leaders,
            replicas=replicas_on(self.image, broker.id),
            is_controller=broker.id == self.controller_id,
            is_me=broker.id == self._me,
            grpc=broker.grpc,
            machine=broker.machine,
        )

    # ---- joining and leaving

    async def join(self, request: JoinRequest, join_token_id: str = "") -> JoinReply:
        """Register a joining or restarted broker. Raises RefusedError.

        The caller has checked that it may join, if need be by the token.
        """
        cluster_id = self._cluster_id
        if self._me not in self.image.brokers:
            # The image is empty, or this broker is bootstrapping the cluster: its own id must not
            # be assigned.
            raise RefusedError(ErrorCode.BROKER_NOT_AVAILABLE, f"broker {self._me} is starting")
        if not is_named(cluster_id, request.cluster_id):
            raise RefusedError(
                ErrorCode.INCONSISTENT_CLUSTER_ID,
                f"its data directory belongs to cluster {request.cluster_id}, not to {cluster_id}",
            )
        if not request.is_query:
            await self._register(request, join_token_id)
        image = self.image
        members = self._metadata_members()
        for broker in image.brokers.values():
            if broker.incarnation == request.incarnation:
                return JoinReply(
                    cluster_id=cluster_id,
                    broker_id=broker.id,
                    epoch=broker.epoch,
                    image=encode_image(image),
                    voters=members.voters,
                    learners=members.learners,
                )
        raise RefusedError(
            ErrorCode.BROKER_ID_NOT_REGISTERED,
            "the broker is not a member"
            if request.is_query
            else "the broker was removed right after it joined",
        )

    async def _register(self, request: JoinRequest, join_token_id: str) -> None:
        await self._metadata.submit(
            RegisterBroker(
                id=None if request.broker_id is None else BrokerId(request.broker_id),
                host=request.kafka.host,
                port=request.kafka.port,
                rack=request.rack,
                incarnation=request.incarnation,
                process=request.process,
                raft=request.raft,
                http=request.http,
                feature_level_max=request.feature_level_max,
                grpc=request.grpc,
                listeners=request.listeners,
                machine=request.machine,
                join_token_id=join_token_id,
                now_ms=self._clock.wall_ms(),
            )
        )

    async def drain(self, broker_id: int) -> None:
        """Start draining a broker. Raises RefusedError."""
        await self._metadata.submit(DrainBroker(broker_id=BrokerId(broker_id)))

    async def keep(self, broker_id: int) -> None:
        """Cancel a drain. Raises RefusedError."""
        await self._metadata.submit(KeepBroker(broker_id=BrokerId(broker_id)))

    # ---- reassignment

    async def reassign(
        self,
        topic: str,
        partition: int,
        replicas: Sequence[int] | None,
        *,
        allow_replication_factor_change: bool = True,
    ) -> None:
        """Set the desired replicas of a partition; None cancels. Raises RefusedError."""
        await self._metadata.submit(
            ReassignPartition(
                topic=topic,
                partition=PartitionIndex(partition),
                replicas=replicas,
                allow_replication_factor_change=allow_replication_factor_change,
            )
        )

    def reassignments(
        self, wanted: Iterable[tuple[str, int]] | None
    ) -> list[tuple[str, Partition]]:
        """Partitions under reassignment, these or all, with the names of their topics."""
        return reassignments(self.image, wanted)

    # ---- leaders

    def elections_due(self) -> Iterable[tuple[str, int]]:
        return elections_due(self.image, self.leaders)

    async def elect(self, topic: str, partition: int, election: ElectionType) -> None:
        """Transfer leadership to the preferred leader and wait for it. Raises RefusedError."""
        transfer = elect_leader(
            self.image,
            self.leaders,
            self.alive,
            topic=topic,
            partition=partition,
            election=election,
        )
        found = self.image.topic_by_id(transfer.topic_id)
        payload = msgspec.msgpack.encode((transfer.topic_id, transfer.partition, transfer.target))
        if transfer.source == self._me:
            await self.on_transfer_request(self._me, payload)
        else:
            await self._transport.call(
                transfer.source, PeerMethod.TRANSFER_LEADERSHIP, payload, _ELECT_SECONDS_MAX
            )
        deadline = self._clock.monotonic() + _ELECT_SECONDS_MAX
        while found is not None and self._clock.monotonic() < deadline:
            if self.leader_of(found, partition).broker == transfer.target:
                return
            await asyncio.sleep(_POLL_SECONDS)
        raise RefusedError(
            ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
            f"broker {transfer.target} did not become leader of partition {partition} of '{topic}' "
            f"within {_ELECT_SECONDS_MAX:.0f} s",
        )

    async def on_transfer_request(self, sender: BrokerId, payload: bytes) -> bytes:
        """Handle the RPC to transfer leadership of a partition. Raises RefusedError."""
        topic_id, index, target = decode_request(_decode_transfer, payload)
        topic = self.image.topic_by_id(TopicId(topic_id))
        hosted = self._partitions.get(topic.name, index) if topic is not None else None
        if hosted is None or not hosted.replica.is_leader:
            raise RefusedError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        group = hosted.replica.group
        if target not in self._driver.in_sync(group, ALIVE_MS):
            # Writes would stall until it has caught up.
            raise RefusedError(
                ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, f"broker {target} has not caught up"
            )
        try:
            self._driver.transfer(group, BrokerId(target))
        except RaftRejection as error:
            raise RefusedError(ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, str(error)) from None
        return b""
