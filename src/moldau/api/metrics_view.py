"""What the metrics of a broker are made of: reads of its state, without rights on single topics."""

from collections.abc import Iterable, Iterator, Mapping

from moldau.api.broker import Broker
from moldau.api.cluster_queries import PartitionExtent
from moldau.api.local_replicas import LocalReplicas
from moldau.data.fetch_sessions import FetchSessions
from moldau.data.traffic import Traffic
from moldau.groups.results import FetchOffsetsResult, ListedGroup
from moldau.metadata.image import Broker as RegisteredBroker
from moldau.metadata.image import Partition, Topic
from moldau.metadata.leaders import Leader
from moldau.model.clock import Clock
from moldau.model.errors import ErrorCode
from moldau.model.histogram import Histogram
from moldau.model.ids import BrokerId, TopicPartition
from moldau.queues.queue_counts import Backlog, QueueCounts
from moldau.transactions.totals import TransactionTotals


class MetricsView:
    """Only for a session that may see all of it: see GuardedCluster.metrics."""

    __slots__ = ("_broker",)

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    @property
    def broker_id(self) -> BrokerId:
        return self._broker.broker_id

    @property
    def clock(self) -> Clock:
        return self._broker.clock

    @property
    def metadata_version(self) -> int:
        return self._broker.image.version

    @property
    def brokers(self) -> Mapping[BrokerId, RegisteredBroker]:
        return self._broker.image.brokers

    @property
    def topics(self) -> Mapping[str, Topic]:
        return self._broker.image.topics

    @property
    def alive(self) -> frozenset[BrokerId]:
        return self._broker.cluster.alive

    @property
    def controller_id(self) -> int:
        return self._broker.cluster.controller_id

    @property
    def is_controller_known(self) -> bool:
        return self._broker.cluster.is_controller_known

    @property
    def is_ready(self) -> bool:
        return not self._broker.cluster.health()

    def leaders_and_in_sync(
        self, topic: Topic, partitions: Iterable[Partition]
    ) -> Iterator[tuple[Leader, tuple[BrokerId, ...]]]:
        return self._broker.cluster.leaders_and_in_sync(topic, partitions)

    @property
    def replicas(self) -> LocalReplicas:
        return self._broker.replicas

    def total_traffic(self) -> Traffic:
        return self._broker.replicas.total_traffic(self._broker.image.topics)

    @property
    def fetch_sessions(self) -> FetchSessions:
        return self._broker.fetch_sessions

    @property
    def fetches_parked(self) -> int:
        return self._broker.fetch.parked_count

    def list_groups(self) -> tuple[ErrorCode, list[ListedGroup]]:
        return self._broker.groups.list_groups((), ())

    def groups_of_each(self) -> Iterator[tuple[ErrorCode, list[ListedGroup]]]:
        """As GroupService.groups_of_each."""
        return self._broker.groups.groups_of_each()

    def known_offsets(self, group_id: str) -> FetchOffsetsResult:
        return self._broker.groups.known_offsets(group_id)

    async def extents(
        self, wanted: Iterable[TopicPartition]
    ) -> Mapping[TopicPartition, PartitionExtent]:
        return await self._broker.queries.extents(wanted)

    def transaction_totals(self) -> Iterator[TransactionTotals | None]:
        """As TransactionService.totals."""
        return self._broker.transactions.totals()

    @property
    def fetch_wait_seconds(self) -> Histogram:
        return self._broker.fetch.wait_seconds

    def queue_backlogs(self) -> Iterator[tuple[str, str, Backlog]]:
        return self._broker.queues.backlogs()

    @property
    def queue_counts(self) -> Mapping[tuple[str, str], QueueCounts]:
        return self._broker.queues.counts

    def disk_free_bytes(self) -> int:
        return self._broker.disk_free_bytes()

    def disk_total_bytes(self) -> int:
        return self._broker.disk_total_bytes()
