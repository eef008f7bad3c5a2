"""The cluster: brokers and leaders, joins and drains, reassignments and elections."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from moldau.api.broker import Broker
from moldau.api.connections import ConnectionList
from moldau.api.guard import Guard
from moldau.api.guarded.topics import unknown_topic
from moldau.api.local_replicas import LocalReplica
from moldau.api.lookup import remote_leader
from moldau.api.metrics_view import MetricsView
from moldau.api.overview.sampler import Shown
from moldau.api.raft_groups import RaftGroupList, parse_after
from moldau.metadata.config_types import shown
from moldau.metadata.image import Broker as RegisteredBroker
from moldau.metadata.image import Partition, Topic, brokers_at
from moldau.metadata.leader_balance import ElectionType
from moldau.metadata.leaders import Leader
from moldau.model.errors import RefusedError
from moldau.model.ids import BrokerId
from moldau.model.topology import (
    JoinChallenge,
    ProvenJoinRequest,
    RecoveryReply,
    SealedJoinReply,
    Topology,
)
from moldau.security.acl import ResourceType

_CLUSTER: Final = ResourceType.CLUSTER
_TOPIC: Final = ResourceType.TOPIC


class LogDirs(Struct, frozen=True, kw_only=True):
    """The data directory of this broker."""

    path: str
    replicas: list[LocalReplica]
    total_bytes: int
    free_bytes: int


class GuardedCluster:
    """Methods raise RefusedError."""

    __slots__ = ("_broker", "_guard", "_service")

    def __init__(self, guard: Guard, broker: Broker) -> None:
        self._guard = guard
        self._broker = broker
        self._service = broker.cluster

    # ---- what every client may know

    @property
    def cluster_id(self) -> str:
        return self._broker.image.cluster_id

    @property
    def controller_id(self) -> int:
        """The leader of the metadata group, or -1."""
        return self._service.controller_id

    @property
    def brokers(self) -> Mapping[BrokerId, RegisteredBroker]:
        """Active and draining ones, with their addresses at the listener of the client."""
        return brokers_at(self._broker.image, self._guard.access.name)

    @property
    def alive(self) -> frozenset[BrokerId]:
        return self._service.alive

    @property
    def is_cut_off(self) -> bool:
        """No contact with the metadata leader for longer than an election takes."""
        return self._service.is_cut_off

    def health(self) -> list[str]:
        """Why this broker is not ready to serve; empty if it is."""
        return self._service.readiness()

    # ---- topics

    def topology(self, names: Sequence[str] | None = None) -> Topology:
        """The cluster as this broker knows it; with these topics, or all that may be described.

        Raises RefusedError, also for a topic that does not exist.
        """
        guard, use_case = self._guard, "cluster.topology"
        for name in names or ():
            guard.check(use_case, _TOPIC, name)
        found = self._service.topology()
        topics = found.topics
        if names is not None:
            by_name = {topic.name: topic for topic in topics}
            for name in names:
                if name not in by_name:
                    raise unknown_topic(name)
            topics = tuple(by_name[name] for name in dict.fromkeys(names))
        elif not guard.is_open:
            topics = tuple(each for each in topics if guard.sees(use_case, _TOPIC, each.name))
        return found if topics is found.topics else replace(found, topics=topics)

    def leader_of(self, topic: Topic, index: int) -> Leader:
        """The leader of a partition, as far as known here."""
        self._check_topic("cluster.leader_of", topic)
        return self._service.leader_of(topic, index)

    def leaders_and_in_sync(
        self, topic: Topic, partitions: Iterable[Partition]
    ) -> Iterator[tuple[Leader, tuple[BrokerId, ...]]]:
        """Leader and in-sync replicas of each, both empty without a leader."""
        self._check_topic("cluster.leaders_and_in_sync", topic)
        return self._service.leaders_and_in_sync(topic, partitions)

    def remote_leader(self, topic: Topic, partition: int) -> int | None:
        """The leader of the partition; None if it is this broker."""
        self._check_topic("cluster.remote_leader", topic)
        return remote_leader(self._broker, topic, partition)

    def _check_topic(self, use_case: str, topic: Topic) -> None:
        if not self._guard.is_open:
            self._guard.check(use_case, _TOPIC, topic.name)

    # ---- brokers

    def join_challenge(self) -> JoinChallenge:
        """What a broker that wants to join must prove its key with."""
        return self._broker.joins.challenge()

    async def join_proven(self, proven: ProvenJoinRequest) -> SealedJoinReply:
        """Lets a broker in that proves that it may join."""
        guard, use_case = self._guard, "cluster.join_proven"
        by = f"token {shown(proven.token_id)}" if proven.token_id else "the secret of the cluster"
        try:
            if proven.token_id:
                # Without a token it proves the secret of the cluster: one of its brokers returns,
                # and finds its way back through any listener.
                guard.check_listener(use_case)
            joined = await self._broker.joins.join(proven)
        except RefusedError as error:
            guard.record(use_case, is_allowed=False, about=f"by {by}: {error}")
            raise
        if joined.refusal:
            guard.record(use_case, is_allowed=False, about=f"by {by}: {joined.refusal}")
        else:
            guard.record(use_case, is_allowed=True, about=f"broker {joined.broker_id} by {by}")
        return joined.reply

    async def drain(self, broker_id: int) -> None:
        self._guard.check("cluster.drain", _CLUSTER, about=f"broker {broker_id}")
        await self._service.drain(broker_id)

    async def keep(self, broker_id: int) -> None:
        """Cancels a drain."""
        self._guard.check("cluster.keep", _CLUSTER, about=f"broker {broker_id}")
        await self._service.keep(broker_id)

    # ---- replicas

    async def reassign(
        self,
        topic: str,
        partition: int,
        replicas: Sequence[int] | None,
        *,
        allow_replication_factor_change: bool = True,
    ) -> None:
        """Sets the desired replicas of a partition; None cancels."""
        desired = "cancelled" if replicas is None else f"to {list(replicas)}"
        self._guard.check("cluster.reassign", _CLUSTER, about=f"{topic}-{partition} {desired}")
        await self._service.reassign(
            topic,
            partition,
            replicas,
            allow_replication_factor_change=allow_replication_factor_change,
        )

    async def recover(
        self,
        lost: Iterable[int],
        partitions: Sequence[tuple[str, int]] | None,
        *,
        dry_run: bool,
    ) -> RecoveryReply:
        """Lets partitions go on that lost a majority with these brokers, which are removed."""
        brokers = frozenset(BrokerId(broker) for broker in lost)
        names = "all" if partitions is None else [f"{topic}-{index}" for topic, index in partitions]
        about = f"lost brokers {sorted(brokers)}, partitions {names}" + ", dry run" * dry_run
        self._guard.check("cluster.recover", _CLUSTER, about=about)
        return await self._broker.recovery.recover(brokers, partitions, dry_run=dry_run)

    def reassignments(
        self, wanted: Iterable[tuple[str, int]] | None
    ) -> list[tuple[str, Partition]]:
        """Partitions under reassignment, these or all, with the names of their topics."""
        self._guard.check("cluster.reassignments", _CLUSTER)
        return self._service.reassignments(wanted)

    def elections_due(self) -> Iterable[tuple[str, int]]:
        """Partitions that are not led by their preferred replica."""
        self._guard.check("cluster.elections_due", _CLUSTER)
        return self._service.elections_due()

    async def elect(self, topic: str, partition: int, election: ElectionType) -> None:
        """Transfers leadership to the preferred leader and waits for it."""
        about = f"{topic}-{partition} {election.name}"
        self._guard.check("cluster.elect", _CLUSTER, about=about)
        await self._service.elect(topic, partition, election)

    # ---- this broker

    def log_dirs(self) -> LogDirs:
        self._guard.check("cluster.log_dirs", _CLUSTER)
        broker = self._broker
        return LogDirs(
            path=broker.data_dir,
            replicas=list(broker.replicas),
            total_bytes=broker.disk_total_bytes(),
            free_bytes=broker.disk_free_bytes(),
        )

    def metrics(self) -> MetricsView:
        """What /metrics shows. A listener may give it to every client."""
        if not self._guard.access.public_metrics:
            self._guard.check("cluster.metrics", _CLUSTER)
        return MetricsView(self._broker)

    async def connections(self, broker_id: int) -> ConnectionList:
        """The clients of a broker. Their addresses are not for everyone."""
        self._guard.check("cluster.connections", _CLUSTER, about=f"broker {broker_id}")
        return await self._broker.connections.of(broker_id)

    async def raft_groups(self, search: str, after: str | None, limit: int) -> RaftGroupList:
        """A page of the groups, without those of topics that the client may not describe."""
        guard = self._guard
        guard.check("cluster.raft_groups", _CLUSTER)
        place = None if after is None else parse_after(after)
        return await self._broker.raft_groups.page(
            lambda topic: guard.sees("cluster.topology", _TOPIC, topic),
            search=search,
            after=place,
            limit=limit,
        )

    def report(self) -> MetricsView:
        """What the report of this broker is made of. It is never for every client."""
        self._guard.check("cluster.report", _CLUSTER)
        return MetricsView(self._broker)

    # ---- all brokers

    async def overview(self, after: Shown | None = None) -> Shown:
        """The whole cluster; the next overview after one that was shown, or the latest.

        Topics that the client may not describe are counted, and not named.
        """
        guard = self._guard
        guard.check("cluster.overview", _CLUSTER)
        service = self._broker.overview

        def sees(topic: str) -> bool:
            return guard.is_open or guard.sees("cluster.topology", _TOPIC, topic)

        return await (service.latest(sees) if after is None else service.after(after, sees))
