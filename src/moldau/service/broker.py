"""Owns the broker as its doors see it: every use case behind one object."""

from collections.abc import Callable

from msgspec import Struct

from moldau.metadata.image import Image
from moldau.model.clock import Clock
from moldau.model.ids import BrokerId
from moldau.service.appending import AppendService
from moldau.service.cluster import ClusterService
from moldau.service.configs import ConfigService
from moldau.service.fetch import FetchService
from moldau.service.groups import GroupService
from moldau.service.metadata_store import MetadataStore
from moldau.service.offsets import OffsetService
from moldau.service.partitions import Partitions
from moldau.service.produce import ProduceService
from moldau.service.producer_ids import ProducerIds
from moldau.service.queues.service import QueueService
from moldau.service.topics import TopicService
from moldau.service.transactional_produce import TransactionalProduce
from moldau.service.transactions import TransactionService
from moldau.service.views import ClusterViews


class Broker(Struct, frozen=True, kw_only=True):
    """One broker's use cases. Protocols adapt to this; it knows none of them."""

    broker_id: BrokerId
    auto_create_topics: bool
    data_dir: str
    clock: Clock
    metadata: MetadataStore
    cluster: ClusterService
    partitions: Partitions
    produce: ProduceService
    transactional_produce: TransactionalProduce
    fetch: FetchService
    offsets: OffsetService
    topics: TopicService
    configs: ConfigService
    groups: GroupService
    transactions: TransactionService
    producer_ids: ProducerIds
    views: ClusterViews
    appends: AppendService
    queues: QueueService
    disk_free_bytes: Callable[[], int]
    disk_total_bytes: Callable[[], int]

    @property
    def image(self) -> Image:
        return self.metadata.image
