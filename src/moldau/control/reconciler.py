"""Background work that brings the cluster to the state desired by its metadata.

Every partition leader changes its voters step by step towards the desired replicas, reports when
they are reached, announces the in-sync replicas, and hands over to preferred leaders. The metadata
leader also submits due commands: reassignments off draining brokers, and more replicas of internal
topics.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping

from moldau.control.cluster_service import ClusterService
from moldau.control.leader_announcements import LeaderAnnouncements
from moldau.control.metadata_store import MetadataStore
from moldau.data.partitions import Partitions
from moldau.metadata.commands import ReportReplicas
from moldau.metadata.due_commands import due_commands
from moldau.metadata.image import EMPTY_IMAGE, Image, Place
from moldau.metadata.leader_balance import balance_leaders
from moldau.metadata.voters import NOWHERE, desired_members, next_members, voter_places
from moldau.model import log_events as events
from moldau.model.errors import RefusedError
from moldau.model.ids import BrokerId, Epoch, PartitionIndex, TopicId
from moldau.raft.errors import RaftRejection
from moldau.raft.membership import Members
from moldau.replica.driver import RaftDriver
from moldau.replica.raft_replica import RaftReplica
from moldau.replica.replica import LAG_MS_MAX, Replica

log = logging.getLogger(__name__)

_STEP_SECONDS = 0.2
_IN_SYNC_SECONDS = 1.0
_TAKEN_OVER_SECONDS = 0.1
_TAKEN_OVER_ROUNDS = 5
"""After so many, the next announcement of all partitions is near."""
_BALANCE_SECONDS = 5.0
_MOVES_MAX = 8
"""Limit of concurrent reassignments for draining brokers."""
_CAUGHT_UP_MS = 1000
_HAND_OVER_SECONDS_MAX = 5.0
_VOTE_POLL_SECONDS = 0.05
_VOTE_SECONDS_MAX = 10.0


class Reconciler:
    def __init__(
        self,
        *,
        me: BrokerId,
        metadata: MetadataStore,
        metadata_replica: RaftReplica,
        partitions: Partitions,
        cluster: ClusterService,
        announcements: LeaderAnnouncements,
        driver: RaftDriver,
    ) -> None:
        self._me = me
        self._metadata = metadata
        self._metadata_replica = metadata_replica
        self._partitions = partitions
        self._cluster = cluster
        self._announcements = announcements
        self._driver = driver
        self._is_stopping = False
        self._to_repair: set[tuple[TopicId, PartitionIndex]] = set()
        """Partitions led here whose voters may differ from the metadata without a reassignment: a
        voter lost its log and must become a voter again."""
        self._reassigned: tuple[Image, set[tuple[TopicId, PartitionIndex]]] = (EMPTY_IMAGE, set())
        """Partitions under reassignment, computed once per image."""
        self._nothing_due: tuple[Image, tuple[BrokerId, ...]] = (EMPTY_IMAGE, ())
        """With this image and these members of the metadata group, no command is due."""
        self._taken_over: dict[Replica, int] = {}
        """New leaders that do not have all voters in sync yet, and the rounds left."""

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._repeat(_STEP_SECONDS, self._step_metadata))
            tasks.create_task(self._repeat(_STEP_SECONDS, self._step_partitions))
            tasks.create_task(self._repeat(_IN_SYNC_SECONDS, self._announce_in_sync))
            tasks.create_task(self._repeat(_TAKEN_OVER_SECONDS, self._announce_taken_over))
            tasks.create_task(self._repeat(_BALANCE_SECONDS, self._balance))

    async def _repeat(self, seconds: float, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            await asyncio.sleep(seconds)
            try:
                await work()
            except RefusedError as error:
                # Retried in the next round, if it is still due.
                log.debug("reconciliation step rejected, retrying in %.1f s: %s", seconds, error)

    # ---- the metadata group

    async def wait_for_vote(self) -> None:
        """Wait, with a timeout, until this broker is a voter of the metadata group, if desired.

        Until then it does not help against the failure of another broker, as operators expect of a
        ready broker.
        """
        deadline = asyncio.get_running_loop().time() + _VOTE_SECONDS_MAX
        while not self._has_vote():
            if asyncio.get_running_loop().time() >= deadline:
                log.warning(
                    "this broker is not a voter of the metadata group after %.0f s: starting "
                    "anyway; it becomes one when it has caught up",
                    _VOTE_SECONDS_MAX,
                    extra=events.NOT_A_VOTER(),
                )
                return
            await asyncio.sleep(_VOTE_POLL_SECONDS)

    def _has_vote(self) -> bool:
        core = self._metadata_replica.group.core
        if core.members_index >= core.commit:
            return False  # Not committed.
        desired = desired_members(self._metadata.image, core.members)
        return self._me in core.members.voters or self._me not in desired.voters

    async def _step_metadata(self) -> None:
        self._cluster.update_contact()
        replica = self._metadata_replica
        if not replica.is_ready:
            return
        image = self._metadata.image
        current = replica.members
        places = voter_places(image.brokers.values())
        self._step(replica, current, desired_members(image, current), places)
        members = self._committed_members(replica)
        if self._nothing_due[0] is image and self._nothing_due[1] == members:
            return
        commands = due_commands(image, metadata_members=members, moves_max=_MOVES_MAX)
        if not commands:
            self._nothing_due = (image, members)
        for command in commands:
            await self._metadata.submit(command)

    def _committed_members(self, replica: RaftReplica) -> tuple[BrokerId, ...]:
        """All members; also those being removed, as long as that is not committed."""
        core = replica.group.core
        if core.members_index < core.commit:
            return core.members.everyone
        return tuple(sorted({*core.members.everyone, *self._metadata.image.brokers}))

    # ---- partitions

    def repair(self, replica: Replica) -> None:
        """A voter of this group, which this broker leads, lost its log."""
        self._to_repair.add((replica.topic_id, replica.partition.partition))

    def took_over(self, replica: Replica) -> None:
        """The replica became leader: an earlier leader may have left a voter half repaired."""
        self._taken_over[replica] = _TAKEN_OVER_ROUNDS
        topic = self._metadata.image.topic_by_id(replica.topic_id)
        if topic is not None and replica.partition.partition < len(topic.partitions):
            wanted = topic.partitions[replica.partition.partition].desired
            if set(wanted) != set(replica.members.everyone) or replica.members.learners:
                self.repair(replica)

    async def _step_partitions(self) -> None:
        moving = list(self._due_here())
        if not moving:
            return
        # A lagging image shows desired replicas that were reached long ago, on brokers that have
        # deleted their log since: they must not become voters again. From here on only this leader
        # can change the voters, so an image that is fresh now is fresh enough.
        await self._metadata.fresh()
        for topic_id, index, epoch in moving:
            await self._step_partition(topic_id, index, epoch)

    def _due_here(self) -> Iterator[tuple[TopicId, PartitionIndex, Epoch]]:
        """Partitions led here that are reassigned or need repair, with the leader epoch."""
        image = self._metadata.image
        if self._reassigned[0] is not image:
            self._reassigned = (
                image,
                {
                    (topic.topic_id, partition.index)
                    for topic in image.topics.values()
                    for partition in topic.partitions
                    if partition.moving
                },
            )
        for topic_id, index in sorted(self._reassigned[1] | self._to_repair):
            topic = image.topic_by_id(topic_id)
            if topic is None:
                self._to_repair.discard((topic_id, index))
                continue
            hosted = self._partitions.get(topic.name, index)
            if hosted is not None and hosted.replica.is_ready:
                yield topic_id, index, hosted.replica.epoch

    async def _step_partition(self, topic_id: TopicId, index: PartitionIndex, epoch: Epoch) -> None:
        # Looked up again: the desired replicas may have changed meanwhile.
        topic = self._metadata.image.topic_by_id(topic_id)
        needs_repair = (topic_id, index) in self._to_repair
        if topic is None or not (topic.partitions[index].moving or needs_repair):
            return
        partition = topic.partitions[index]
        hosted = self._partitions.get(topic.name, index)
        if hosted is None or not hosted.replica.is_ready or hosted.replica.epoch != epoch:
            return
        replica = hosted.replica
        desired = Members(tuple(sorted(partition.desired)))
        current = replica.members
        core = replica.group.core
        if (
            current.has_same_brokers(desired)
            and core.members_index < core.commit
            and not core.replaced_voters()
        ):
            self._to_repair.discard((topic_id, index))
            if not partition.moving:
                return
            await self._metadata.submit(
                ReportReplicas(
                    topic_id=topic.topic_id,
                    partition=partition.index,
                    desired_version=partition.desired_version,
                    voters=current.voters,
                    learners=current.learners,
                )
            )
        else:
            self._step(replica, current, desired)

    def _step(
        self,
        replica: RaftReplica,
        current: Members,
        desired: Members,
        places: Mapping[BrokerId, Place] = NOWHERE,
    ) -> None:
        """Take one step from the current to the desired members, if possible now."""
        driver, group = self._driver, replica.group
        core = group.core
        if core.members_index >= core.commit or self._is_stopping:
            return
        # Takes heartbeats of an idle group into account.
        replica.in_sync(_CAUGHT_UP_MS)
        since = driver.now - _CAUGHT_UP_MS
        ready = {
            broker
            for broker, progress in core.progress.items()
            if progress.caught_up_at >= since and progress.match > core.epoch_start
        }
        replaced = core.replaced_voters()
        step = (
            current.with_learner(replaced[0])
            if replaced
            else next_members(current, desired, leader=self._me, ready=ready, places=places)
        )
        if step is None:
            return
        if replaced:
            log.warning(
                "%s: broker %d lost its log: it becomes a voter again when it has caught up",
                group.name,
                replaced[0],
                extra=events.VOTER_LOST_LOG(broker=replaced[0]),
            )
        try:
            if self._me not in step.voters:
                targets = [broker for broker in step.voters if broker in ready]
                if targets:
                    driver.transfer(group, targets[0])
            else:
                driver.change_members(group, step)
        except RaftRejection as rejection:
            log.debug("%s: membership change rejected, retrying: %s", group.name, rejection)

    # ---- leaders

    def announce(self, replica: Replica) -> None:
        """Announce that the replica leads, or withdraw it."""
        key = (replica.topic_id, replica.partition.partition)
        if replica.is_ready:
            self._announcements.lead(key, replica.epoch, replica.in_sync(LAG_MS_MAX))
        else:
            self._announcements.unlead(key)

    async def _announce_in_sync(self) -> None:
        for number, hosted in enumerate(self._partitions):
            if hosted.replica.is_ready:
                self.announce(hosted.replica)
            if number % 100 == 99:
                await asyncio.sleep(0)
        # Notes when all are in sync since the start, also if nobody asks.
        self._cluster.readiness()

    async def _announce_taken_over(self) -> None:
        """A leader is ready with a majority, and the other voters respond some milliseconds later.
        Announced a second later, each election would look as if replicas were behind."""
        for replica, rounds in list(self._taken_over.items()):
            if replica.is_ready:
                self.announce(replica)
            if (
                rounds == 1
                or not replica.is_ready
                or len(replica.in_sync(LAG_MS_MAX)) >= len(replica.members.voters)
            ):
                del self._taken_over[replica]
            else:
                self._taken_over[replica] = rounds - 1

    async def _balance(self) -> None:
        image = self._metadata.image
        for transfer in balance_leaders(image, self._cluster.leaders, self._cluster.alive):
            topic = image.topic_by_id(transfer.topic_id)
            if transfer.source != self._me or topic is None or self._is_stopping:
                continue
            hosted = self._partitions.get(topic.name, transfer.partition)
            if hosted is not None and hosted.replica.is_ready:
                self._transfer(hosted.replica, transfer.target)

    def _transfer(self, replica: RaftReplica, target: BrokerId) -> bool:
        if target not in self._caught_up(replica):
            return False
        try:
            self._driver.transfer(replica.group, target)
        except RaftRejection as rejection:
            log.debug("%s: leadership transfer rejected: %s", replica.group.name, rejection)
            return False
        return True

    def _caught_up(self, replica: RaftReplica) -> list[BrokerId]:
        """Other voters that are alive and have caught up."""
        alive = self._cluster.alive
        return [
            broker
            for broker in replica.in_sync(_CAUGHT_UP_MS)
            if broker != self._me and broker in alive
        ]

    async def hand_over(self) -> None:
        """Before a stop: transfer leadership of all partitions, as far as possible."""
        self._is_stopping = True
        load: Counter[BrokerId] = Counter()
        deadline = asyncio.get_running_loop().time() + _HAND_OVER_SECONDS_MAX
        while asyncio.get_running_loop().time() < deadline:
            led: list[RaftReplica] = [
                hosted.replica for hosted in self._partitions if hosted.replica.is_leader
            ]
            if self._metadata_replica.is_leader:
                led.append(self._metadata_replica)
            is_any = False
            for replica in led:
                targets = self._caught_up(replica)
                is_any = is_any or bool(targets)
                if targets and replica.group.core.may_propose:
                    target = min(targets, key=lambda broker: (load[broker], broker))
                    load[target] += self._transfer(replica, target)
            if not is_any:
                # This broker leads nothing, or no other broker has caught up.
                return
            await asyncio.sleep(0.02)
