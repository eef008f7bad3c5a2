"""Owns what a broker does unasked to bring the cluster where its metadata wishes it.

Every leader takes the single steps of its groups' membership towards the wish, tells when it is
reached, says who is in sync, and hands over to preferred leaders. The leader of the metadata group
also submits what is due: moves off brokers that leave, more replicas of internal topics.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator

from moldau.control.cluster_service import ClusterService
from moldau.control.leader_announcements import LeaderAnnouncements
from moldau.control.metadata_store import MetadataStore
from moldau.data.partitions import Partitions
from moldau.metadata.commands import ReportReplicas
from moldau.metadata.due_commands import due_commands
from moldau.metadata.image import EMPTY_IMAGE, Image
from moldau.metadata.leader_balance import balance_leaders
from moldau.metadata.voters import desired_members, next_members
from moldau.model.errors import RefusedError
from moldau.model.ids import BrokerId, Epoch, PartitionIndex, TopicId
from moldau.raft.errors import RaftRejection
from moldau.raft.membership import Members
from moldau.replica.driver import RaftDriver
from moldau.replica.replica import LAG_MS_MAX, Replica

log = logging.getLogger(__name__)

_LOOK_SECONDS = 0.2
_IN_SYNC_SECONDS = 1.0
_BALANCE_SECONDS = 5.0
_MOVES_MAX = 8
"""Partitions that move at once because brokers leave."""
_CAUGHT_UP_MS = 1000
_HAND_OVER_SECONDS_MAX = 5.0
_VOTE_LOOK_SECONDS = 0.05
_VOTE_SECONDS_MAX = 10.0


class Reconciler:
    """The background work of one broker for its groups."""

    def __init__(
        self,
        *,
        me: BrokerId,
        metadata: MetadataStore,
        metadata_replica: Replica,
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
        self._unlike: set[tuple[TopicId, PartitionIndex]] = set()
        """Partitions led here whose group may not be what the metadata wishes, though it is said to
        be: a voter lost its log and has to become one again."""
        self._moving: tuple[Image, set[tuple[TopicId, PartitionIndex]]] = (EMPTY_IMAGE, set())
        """What moves, by an image: looked for once in each, not five times a second."""
        self._nothing_due: tuple[Image, tuple[BrokerId, ...]] = (EMPTY_IMAGE, ())
        """For this image and these members of the metadata group there is nothing to be done."""

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._keep(_LOOK_SECONDS, self._step_metadata))
            tasks.create_task(self._keep(_LOOK_SECONDS, self._step_partitions))
            tasks.create_task(self._keep(_IN_SYNC_SECONDS, self._tell_in_sync))
            tasks.create_task(self._keep(_BALANCE_SECONDS, self._balance))

    async def _keep(self, seconds: float, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            await asyncio.sleep(seconds)
            try:
                await work()
            except RefusedError as error:
                # Tried again in a moment, if it still is due.
                log.debug("not now: %s", error)

    # ---- the metadata group

    async def wait_for_vote(self) -> None:
        """Returns when this broker votes on the metadata, or is not to, or it takes too long.

        Until then it is no help against the loss of another broker, which whoever waits for it to
        be ready counts on.
        """
        deadline = asyncio.get_running_loop().time() + _VOTE_SECONDS_MAX
        while not self._has_vote():
            if asyncio.get_running_loop().time() >= deadline:
                log.warning("this broker does not vote on the metadata yet: it starts all the same")
                return
            await asyncio.sleep(_VOTE_LOOK_SECONDS)

    def _has_vote(self) -> bool:
        core = self._metadata_replica.group.core
        if core.members_index >= core.commit:
            return False  # May be taken back.
        wish = desired_members(self._metadata.image, core.members)
        return self._me in core.members.voters or self._me not in wish.voters

    async def _step_metadata(self) -> None:
        self._cluster.update_contact()
        replica = self._metadata_replica
        if not replica.is_ready:
            return
        image = self._metadata.image
        current = replica.members
        self._step(replica, current, desired_members(image, current))
        members = self._committed_members(replica)
        if self._nothing_due[0] is image and self._nothing_due[1] == members:
            return
        commands = due_commands(image, metadata_members=members, moves_max=_MOVES_MAX)
        if not commands:
            self._nothing_due = (image, members)
        for command in commands:
            await self._metadata.submit(command)

    def _committed_members(self, replica: Replica) -> tuple[BrokerId, ...]:
        """With those that are only on their way out, as long as that is not committed."""
        core = replica.group.core
        if core.members_index < core.commit:
            return core.members.everyone
        return tuple(sorted({*core.members.everyone, *self._metadata.image.brokers}))

    # ---- partitions

    def mend(self, replica: Replica) -> None:
        """A voter of this group, which is led here, lost its log."""
        self._unlike.add((replica.topic_id, replica.partition.partition))

    def took_over(self, replica: Replica) -> None:
        """The replica leads now: an earlier leader may have left a voter half mended."""
        topic = self._metadata.image.topic_by_id(replica.topic_id)
        if topic is not None and replica.partition.partition < len(topic.partitions):
            wanted = topic.partitions[replica.partition.partition].wanted
            if set(wanted) != set(replica.members.everyone) or replica.members.learners:
                self.mend(replica)

    async def _step_partitions(self) -> None:
        moving = list(self._moving_here())
        if not moving:
            return
        # An image that lags shows a wish that was reached long ago, and brokers that have dropped
        # their log since: following it would make them voters again. From here on only this leader
        # can reach a wish, so an image that is fresh now is fresh enough.
        await self._metadata.fresh()
        for topic_id, index, epoch in moving:
            await self._step_partition(topic_id, index, epoch)

    def _moving_here(self) -> Iterator[tuple[TopicId, PartitionIndex, Epoch]]:
        """What moves, or has to be mended, and is led here, with the epoch of that."""
        image = self._metadata.image
        if self._moving[0] is not image:
            self._moving = (
                image,
                {
                    (topic.topic_id, partition.index)
                    for topic in image.topics.values()
                    for partition in topic.partitions
                    if partition.moving
                },
            )
        for topic_id, index in sorted(self._moving[1] | self._unlike):
            topic = image.topic_by_id(topic_id)
            if topic is None:
                self._unlike.discard((topic_id, index))
                continue
            hosted = self._partitions.get(topic.name, index)
            if hosted is not None and hosted.replica.is_ready:
                yield topic_id, index, hosted.replica.epoch

    async def _step_partition(self, topic_id: TopicId, index: PartitionIndex, epoch: Epoch) -> None:
        # Looked up anew: the wish may have changed while another partition was waited for.
        topic = self._metadata.image.topic_by_id(topic_id)
        is_unlike = (topic_id, index) in self._unlike
        if topic is None or not (topic.partitions[index].moving or is_unlike):
            return
        partition = topic.partitions[index]
        hosted = self._partitions.get(topic.name, index)
        if hosted is None or not hosted.replica.is_ready or hosted.replica.epoch != epoch:
            return
        replica = hosted.replica
        wish = Members(tuple(sorted(partition.wanted)))
        current = replica.members
        core = replica.group.core
        if (
            current.has_same_brokers(wish)
            and core.members_index < core.commit
            and not core.replaced_voters()
        ):
            self._unlike.discard((topic_id, index))
            if not partition.moving:
                return
            await self._metadata.submit(
                ReportReplicas(
                    topic_id=topic.topic_id,
                    partition=partition.index,
                    wish=partition.wish,
                    voters=current.voters,
                    learners=current.learners,
                )
            )
        else:
            self._step(replica, current, wish)

    def _step(self, replica: Replica, current: Members, wish: Members) -> None:
        """One step from the current members to the wished ones, if it can be taken now."""
        driver, group = self._driver, replica.group
        core = group.core
        if core.members_index >= core.commit or self._is_stopping:
            return
        # What heartbeats said of an idle group counts from here on.
        replica.in_sync(_CAUGHT_UP_MS)
        since = driver.now - _CAUGHT_UP_MS
        followers = driver.followers(group)
        ready = {
            broker
            for broker, progress in followers.items()
            if progress.caught_up_at >= since and progress.flushed > core.epoch_start
        }
        replaced = core.replaced_voters()
        step = (
            current.with_learner(replaced[0])
            if replaced
            else next_members(current, wish, leader=self._me, ready=ready)
        )
        if step is None:
            return
        if replaced:
            log.warning(
                "%s: broker %d lost its log: it votes again once it has learned everything",
                group.name,
                replaced[0],
            )
        try:
            if self._me not in step.voters:
                takers = [broker for broker in step.voters if broker in ready]
                if takers:
                    driver.transfer(group, takers[0])
            else:
                driver.change_members(group, step)
        except RaftRejection as refusal:
            log.debug("%s: not now: %s", group.name, refusal)

    # ---- leaders

    def announce(self, replica: Replica) -> None:
        """The replica leads and is ready, or does so no longer."""
        key = (replica.topic_id, replica.partition.partition)
        if replica.is_ready:
            self._announcements.lead(key, replica.epoch, replica.in_sync(LAG_MS_MAX))
        else:
            self._announcements.unlead(key)

    async def _tell_in_sync(self) -> None:
        for number, hosted in enumerate(self._partitions):
            if hosted.replica.is_ready:
                self.announce(hosted.replica)
            if number % 100 == 99:
                await asyncio.sleep(0)

    async def _balance(self) -> None:
        image = self._metadata.image
        for transfer in balance_leaders(image, self._cluster.leaders, self._cluster.alive):
            topic = image.topic_by_id(transfer.topic_id)
            if transfer.giver != self._me or topic is None or self._is_stopping:
                continue
            hosted = self._partitions.get(topic.name, transfer.partition)
            if hosted is not None and hosted.replica.is_ready:
                self._transfer(hosted.replica, transfer.taker)

    def _transfer(self, replica: Replica, taker: BrokerId) -> bool:
        if taker not in self._caught_up(replica):
            return False
        try:
            self._driver.transfer(replica.group, taker)
        except RaftRejection as refusal:
            log.debug("%s stays: %s", replica.group.name, refusal)
            return False
        return True

    def _caught_up(self, replica: Replica) -> list[BrokerId]:
        """Other voters that hold everything, or as good as that, and answer."""
        alive = self._cluster.alive
        return [
            broker
            for broker in replica.in_sync(_CAUGHT_UP_MS)
            if broker != self._me and broker in alive
        ]

    async def hand_over(self) -> None:
        """Before a stop: let others lead what this broker leads, as far as anybody can."""
        self._is_stopping = True
        load: Counter[BrokerId] = Counter()
        deadline = asyncio.get_running_loop().time() + _HAND_OVER_SECONDS_MAX
        while asyncio.get_running_loop().time() < deadline:
            led = [hosted.replica for hosted in self._partitions if hosted.replica.is_leader]
            if self._metadata_replica.is_leader:
                led.append(self._metadata_replica)
            is_any = False
            for replica in led:
                takers = self._caught_up(replica)
                is_any = is_any or bool(takers)
                if takers and replica.group.core.may_propose:
                    taker = min(takers, key=lambda broker: (load[broker], broker))
                    load[taker] += self._transfer(replica, taker)
            if not is_any:
                # Nothing is led here, or nobody could take it.
                return
            await asyncio.sleep(0.02)
