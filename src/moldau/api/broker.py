"""The facade: every use case of a broker behind one object."""

from collections.abc import Callable

from msgspec import Struct

from moldau.api.cluster_pipelines import ClusterPipelines
from moldau.api.cluster_queries import ClusterQueries
from moldau.api.cluster_transactions import ClusterTransactions
from moldau.api.connections import Connections
from moldau.api.local_replicas import LocalReplicas
from moldau.api.offsets_at import OffsetsAt
from moldau.api.overview.group_lags import GroupLags
from moldau.api.overview.sampler import OverviewSampler
from moldau.api.play import PlayService
from moldau.api.raft_groups import RaftGroups
from moldau.api.record_deletion import RecordDeletion
from moldau.api.search.live import LiveViews
from moldau.api.search.pages import TopicSearch
from moldau.api.topic_groups import TopicGroups
from moldau.api.topic_stats import TopicStats
from moldau.control.cluster_service import ClusterService
from moldau.control.config_service import ConfigService
from moldau.control.join_service import JoinService
from moldau.control.metadata_store import MetadataStore
from moldau.control.partition_recovery import PartitionRecovery
from moldau.control.producer_ids import ProducerIds
from moldau.control.security_service import SecurityService
from moldau.control.topic_service import TopicService
from moldau.coordination.group_service import GroupService
from moldau.coordination.transaction_service import TransactionService
from moldau.data.append_forwarding import AppendForwarder
from moldau.data.fetch import FetchService
from moldau.data.fetch_sessions import FetchSessions
from moldau.data.offsets import OffsetService
from moldau.data.produce import ProduceService
from moldau.data.restore import RestoreService
from moldau.data.transactional_produce import TransactionalProduce
from moldau.metadata.image import Image
from moldau.model.clock import Clock
from moldau.model.ids import BrokerId
from moldau.queues.admin import QueueAdmin
from moldau.queues.queue_copies import QueueCopies
from moldau.queues.service import QueueService


class Broker(Struct, frozen=True, kw_only=True):
    broker_id: BrokerId
    auto_create_topics: bool
    data_dir: str
    clock: Clock
    metadata: MetadataStore
    cluster: ClusterService
    joins: JoinService
    recovery: PartitionRecovery
    replicas: LocalReplicas
    produce: ProduceService
    transactional_produce: TransactionalProduce
    fetch: FetchService
    fetch_sessions: FetchSessions
    offsets: OffsetService
    search: TopicSearch
    live: LiveViews
    topics: TopicService
    configs: ConfigService
    groups: GroupService
    transactions: TransactionService
    producer_ids: ProducerIds
    cluster_transactions: ClusterTransactions
    pipelines: ClusterPipelines
    queries: ClusterQueries
    topic_groups: TopicGroups
    deletions: RecordDeletion
    offsets_at: OffsetsAt
    topic_stats: TopicStats
    group_lags: GroupLags
    overview: OverviewSampler
    connections: Connections
    raft_groups: RaftGroups
    appends: AppendForwarder
    queues: QueueService
    queue_admin: QueueAdmin
    security: SecurityService
    restore: RestoreService
    queue_copies: QueueCopies
    play: PlayService
    disk_free_bytes: Callable[[], int]
    disk_total_bytes: Callable[[], int]

    @property
    def image(self) -> Image:
        return self.metadata.image
