"""Builds the coordinators of groups and transactions, and the ledgers of queues.

All of them follow the leadership of their internal topics' partitions.
"""

from asyncio import AbstractEventLoop
from collections.abc import Callable
from typing import TypedDict

from moldau.control.cluster_service import ClusterService
from moldau.control.metadata_store import MetadataStore
from moldau.control.producer_ids import ProducerIds
from moldau.control.topic_service import TopicService
from moldau.coordination.group_service import GroupService
from moldau.coordination.group_topics import ImageTopics
from moldau.coordination.markers import MarkerSender, MarkerWriter
from moldau.coordination.transaction_service import TransactionService
from moldau.data.disk_space import DiskGuard
from moldau.data.partitions import Partitions
from moldau.data.restore import RestoreService
from moldau.groups.assignors.queue import QueueAssignor
from moldau.groups.config import GroupConfig
from moldau.groups.coordinator import GroupCoordinator as GroupCore
from moldau.groups.weights import GroupMemory
from moldau.metadata.image import (
    CONSUMER_OFFSETS_TOPIC,
    QUEUE_STATE_TOPIC,
    TRANSACTION_STATE_TOPIC,
)
from moldau.model.ids import BrokerId
from moldau.net.peers.methods import PeerMethod
from moldau.queues.ledgers import Ledgers
from moldau.queues.queue_copies import QueueCopies
from moldau.replica.replica import Replica
from moldau.replica.transport import Transport
from moldau.server.assignors import load_assignors
from moldau.server.config.schema import ServerConfig
from moldau.server.machine import Machine
from moldau.transactions.config import TransactionConfig
from moldau.transactions.coordinator import TransactionCoordinator as TransactionCore
from moldau.transactions.totals import EndedTransactions


class CopyServices(TypedDict):
    """Of the facade."""

    restore: RestoreService
    queue_copies: QueueCopies


class CoordinationServices:
    """The coordinators and ledgers of one broker."""

    def __init__(
        self,
        config: ServerConfig,
        *,
        loop: AbstractEventLoop,
        machine: Machine,
        me: BrokerId,
        metadata: MetadataStore,
        partitions: Partitions,
        topics: TopicService,
        cluster: ClusterService,
        transport: Transport,
        producer_ids: ProducerIds,
        on_internal_error: Callable[[BaseException], None],
    ) -> None:
        self.clock = clock = machine.clock
        self.loop, self.me, self.on_internal_error = loop, me, on_internal_error
        self.new_uuid = machine.new_uuid
        self.metadata, self.partitions, self.topics = metadata, partitions, topics
        self.cluster, self.transport = cluster, transport
        group_config = _group_config(config)
        group_topics = ImageTopics(lambda: topics.image)
        offered = load_assignors(config.group.consumer_assignors.split(","))
        assignors = [*offered, QueueAssignor()]
        group_memory = GroupMemory()
        self.groups = GroupService(
            loop=loop,
            clock=clock,
            new_coordinator=lambda: GroupCore(
                group_config,
                topics=group_topics,
                assignors=assignors,
                new_member_id=lambda client_id: f"{client_id}-{machine.new_uuid()}",
                wall_ms=clock.wall_ms,
                memory=group_memory,
            ),
            partitions=partitions,
            topics=topics,
            offsets_partitions=config.group.offsets_partitions,
            broker=me,
            leader_of=cluster.leader_of,
            fresh_image=metadata.fresh,
            on_internal_error=on_internal_error,
        )
        writer = MarkerWriter(partitions, self.groups)
        transaction_config = TransactionConfig(
            timeout_ms_max=config.transaction.timeout_ms_max,
            id_expiry_ms=config.transaction.id_expiry_ms,
        )
        self.ended_transactions = ended = EndedTransactions()
        self.transactions = TransactionService(
            loop=loop,
            clock=clock,
            new_coordinator=lambda epoch, first_token: TransactionCore(
                transaction_config, epoch, clock.wall_ms, first_token=first_token, ended=ended
            ),
            partitions=partitions,
            topics=topics,
            groups=self.groups,
            state_partitions=config.transaction.state_partitions,
            broker=me,
            leader_of=cluster.leader_of,
            on_internal_error=on_internal_error,
            take_producer_id=producer_ids.take,
            markers=MarkerSender(
                loop=loop,
                me=me,
                writer=writer,
                caller=transport,
                image=lambda: metadata.image,
                fresh_image=metadata.fresh,
                leader_of=cluster.leader_of,
            ),
            caller=transport,
        )
        self.ledgers = Ledgers(
            loop=loop,
            clock=clock,
            partitions=partitions,
            topics=topics,
            state_partitions=config.queue.state_partitions,
            broker=me,
            leader_of=cluster.leader_of,
            fresh_image=metadata.fresh,
            on_internal_error=on_internal_error,
            caller=transport,
        )
        self.ledgers.serve(transport.rpc)
        transport.rpc.serve(PeerMethod.WRITE_MARKERS, writer.answer)
        transport.rpc.serve(PeerMethod.ADMIT_TO_TRANSACTION, self.transactions.answer_admit)

    def copies(self, disk: DiskGuard) -> CopyServices:
        """What backups and restores use."""
        return CopyServices(
            restore=RestoreService(self.partitions, disk),
            queue_copies=QueueCopies(self.metadata, self.ledgers, self.partitions),
        )

    def on_leadership(self, replica: Replica) -> None:
        """The leader of a partition changed, or this broker became ready to lead it."""
        topic, index = replica.partition
        served: GroupService | TransactionService | Ledgers
        if topic == CONSUMER_OFFSETS_TOPIC:
            served = self.groups
        elif topic == TRANSACTION_STATE_TOPIC:
            served = self.transactions
        elif topic == QUEUE_STATE_TOPIC:
            served = self.ledgers
        else:
            return
        hosted = self.partitions.get(topic, index)
        if replica.is_ready and hosted is not None and hosted.replica is replica:
            served.lead(index, hosted)
        else:
            served.unlead(index)

    def topics_deleted(self, names: frozenset[str]) -> None:
        """Called before the image without these topics is published."""
        self.groups.topics_deleted(names)
        self.ledgers.topics_deleted()

    def reject_waiting(self) -> None:
        """The broker is stopping: complete requests that would wait in vain."""
        self.groups.reject_waiting()
        self.transactions.reject_waiting()
        self.ledgers.reject_waiting()

    def stop(self) -> None:
        self.groups.stop()
        self.transactions.stop()
        self.ledgers.stop()


def _group_config(config: ServerConfig) -> GroupConfig:
    group = config.group
    return GroupConfig(
        initial_rebalance_delay_ms=group.initial_rebalance_delay_ms,
        session_timeout_ms_min=group.session_timeout_ms_min,
        session_timeout_ms_max=group.session_timeout_ms_max,
        offsets_retention_ms=group.offsets_retention_minutes * 60_000,
        group_size_max=group.size_max,
        member_bytes_max=group.member_bytes_max,
        group_bytes_max=group.bytes_max,
        groups_bytes_max=group.memory_bytes_max,
        consumer_heartbeat_interval_ms=group.consumer_heartbeat_interval_ms,
        consumer_session_timeout_ms=group.consumer_session_timeout_ms,
        consumer_group_size_max=group.size_max,
    )
