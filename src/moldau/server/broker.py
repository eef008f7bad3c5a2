"""Owns the order in which a broker starts and stops.

Start: open the data directory, replay the metadata, open the partitions, load the groups, and only
then listen: a client that gets a connection gets an answer. Stop: stop accepting, answer parked
fetches, let connections finish, close the logs cleanly, unlock the directory.
"""

import asyncio
import errno
import logging
import uuid
from collections.abc import Callable
from dataclasses import dataclass

from moldau.edge.kafka.apis import APIS
from moldau.edge.kafka.dispatcher import Dispatcher
from moldau.groups.config import GroupConfig as CoordinatorConfig
from moldau.groups.coordinator import Coordinator
from moldau.log.interface import LogConfig
from moldau.metadata.commands import CreateCluster, RegisterBroker
from moldau.metadata.image import Image
from moldau.model.clock import Clock
from moldau.model.errors import ConfigError, StorageError
from moldau.model.flush import FlushPolicy
from moldau.model.ids import BrokerId, PartitionIndex, RaftIndex, TopicId, TopicPartition
from moldau.net.buffers import ByteBudget
from moldau.net.connection import ConnectionLimits
from moldau.net.listener import Listener, ListenerLimits
from moldau.raft.group import RaftGroup
from moldau.replica.election import elect, group_key
from moldau.replica.flusher import Flusher
from moldau.replica.replica import Replica
from moldau.server.config.schema import Address, ServerConfig
from moldau.server.descriptors import connections_allowed, raise_limit
from moldau.server.settings import fixed_settings, topic_defaults
from moldau.server.storage import METADATA_TOPIC, METADATA_TOPIC_ID, Storage
from moldau.service.broker import Broker
from moldau.service.configs import ConfigService
from moldau.service.disk import DiskGuard
from moldau.service.fetch import FetchService
from moldau.service.groups import GroupService
from moldau.service.metadata_store import MetadataStore
from moldau.service.offsets import OffsetService
from moldau.service.partitions import Partitions
from moldau.service.produce import ProduceService
from moldau.service.producer_ids import ProducerIds
from moldau.service.topics import TopicService
from moldau.service.upkeep import Upkeep, UpkeepConfig

log = logging.getLogger(__name__)

_DRAIN_SECONDS_MAX = 10.0
_METADATA_LOG = LogConfig(
    segment_bytes_max=64 * 1024 * 1024,
    retention_ms=-1,
    delete_expired=False,
    flush=FlushPolicy.ALWAYS,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerInfo:
    """What is told about a broker that has become ready."""

    broker_id: int
    cluster_id: str
    kafka_addr: Address
    data_dir: str
    partition_count: int
    offline_partitions: tuple[str, ...]


class BrokerServer:
    """One broker process from start to stop."""

    def __init__(
        self,
        config: ServerConfig,
        clock: Clock,
        *,
        on_storage_failure: Callable[[StorageError], None],
        on_defect: Callable[[BaseException], None],
    ) -> None:
        self._config = config
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._broker_id = BrokerId(1 if config.broker_id is None else config.broker_id)
        self._storage = Storage.open(config)
        self._disk = DiskGuard()
        self._flusher = Flusher(
            loop=self._loop,
            clock=clock,
            threads=config.log.flush_threads,
            on_failure=on_storage_failure,
        )
        self._on_defect = on_defect
        self._upkeep: asyncio.Task[None] | None = None
        self._listener: Listener | None = None

    # ---- start

    async def start(self) -> BrokerInfo:
        """Returns when clients are served. Raises ConfigError, StorageError, CorruptionError."""
        config = self._config
        defaults = topic_defaults(config)
        self._partitions = Partitions(
            broker=self._broker_id,
            open_log=self._storage.open_log,
            drop_log=self._storage.drop_log,
            votes=self._storage.votes,
            flusher=self._flusher,
            clock=self._clock,
            defaults=defaults,
        )
        self._metadata_replica = self._open_metadata()
        self._metadata = MetadataStore(self._metadata_replica, self._clock, self._on_image)
        for topic in self._metadata.replay():
            for partition in topic.partitions:
                self._storage.drop_log(topic.name, topic.topic_id, partition.index)
        self._build_services(defaults)
        self._listener = listener = self._make_listener()
        bound = self._bind(listener)
        await self._register(bound)
        self._partitions.reconcile(self._metadata.image)
        self._groups.load()
        upkeep = Upkeep(
            config=UpkeepConfig(
                retention_check_ms=config.log.retention_check_ms,
                flush_interval_ms=config.log.flush_interval_ms,
                producer_id_expiry_ms=config.producer.id_expiry_ms,
                disk_reserve_bytes=config.log.disk_reserve_bytes,
            ),
            partitions=self._partitions,
            disk=self._disk,
            clock=self._clock,
            free_bytes=self._storage.free_bytes,
        )
        upkeep.check_disk()
        self._upkeep = asyncio.create_task(upkeep.run())
        self._upkeep.add_done_callback(self._upkeep_ended)
        listener.start()
        return BrokerInfo(
            broker_id=self._broker_id,
            cluster_id=self._metadata.image.cluster_id,
            kafka_addr=bound,
            data_dir=config.data_dir,
            partition_count=len(self._partitions),
            offline_partitions=tuple(
                f"{topic}-{index}" for topic, index in self._partitions.offline
            ),
        )

    def _open_metadata(self) -> Replica:
        """The metadata group is a replica like any other, of one voter so far."""
        epoch, _ = self._storage.votes.get(group_key(METADATA_TOPIC_ID, PartitionIndex(0)))
        replica = Replica(
            partition=TopicPartition(METADATA_TOPIC, PartitionIndex(0)),
            topic_id=METADATA_TOPIC_ID,
            log=self._storage.open_metadata_log(_METADATA_LOG),
            group=RaftGroup(
                broker=self._broker_id,
                voters=frozenset({self._broker_id}),
                epoch=epoch,
                commit=RaftIndex(0),
            ),
            flusher=self._flusher,
            clock=self._clock,
        )
        for error in elect([replica], self._storage.votes).values():
            raise error
        return replica

    def _build_services(self, defaults: dict[str, str]) -> None:
        config = self._config
        topics = TopicService(
            metadata=self._metadata,
            partitions=self._partitions,
            disk=self._disk,
            new_topic_id=lambda: TopicId(uuid.uuid4().bytes),
            default_partitions=config.topic.partitions,
            default_replication_factor=config.topic.replication_factor,
        )
        self._groups = GroupService(
            loop=self._loop,
            clock=self._clock,
            new_coordinator=lambda: Coordinator(
                CoordinatorConfig(
                    initial_rebalance_delay_ms=config.group.initial_rebalance_delay_ms,
                    session_timeout_ms_min=config.group.session_timeout_ms_min,
                    session_timeout_ms_max=config.group.session_timeout_ms_max,
                    offsets_retention_ms=config.group.offsets_retention_minutes * 60_000,
                ),
                new_member_id=lambda client_id: f"{client_id}-{uuid.uuid4()}",
                wall_ms=self._clock.wall_ms,
            ),
            partitions=self._partitions,
            topics=topics,
            offsets_partitions=config.group.offsets_partitions,
        )
        self._broker = Broker(
            broker_id=self._broker_id,
            auto_create_topics=config.topic.auto_create,
            data_dir=config.data_dir,
            disk_free_bytes=self._storage.free_bytes,
            disk_total_bytes=self._storage.total_bytes,
            clock=self._clock,
            metadata=self._metadata,
            partitions=self._partitions,
            produce=ProduceService(self._partitions, self._disk, self._clock),
            fetch=FetchService(self._loop, self._partitions),
            offsets=OffsetService(self._partitions),
            topics=topics,
            configs=ConfigService(
                metadata=self._metadata,
                broker=self._broker_id,
                defaults=defaults,
                fixed=fixed_settings(config),
            ),
            groups=self._groups,
            producer_ids=ProducerIds(self._metadata),
        )

    def _make_listener(self) -> Listener:
        kafka = self._config.kafka
        self._dispatcher = Dispatcher(self._broker, APIS)
        idle_ms = kafka.idle_ms_max
        return Listener(
            loop=self._loop,
            handler=self._dispatcher,
            limits=ListenerLimits(
                connections_max=connections_allowed(kafka.connections_max, raise_limit()),
                connections_per_address_max=kafka.connections_per_address_max,
                idle_seconds_max=float("inf") if idle_ms < 0 else idle_ms / 1000,
            ),
            connection_limits=ConnectionLimits(
                request_bytes_max=kafka.request_bytes_max,
                inflight_bytes_max=kafka.inflight_bytes_per_connection_max,
                inflight_requests_max=kafka.inflight_requests_per_connection_max,
            ),
            budget=ByteBudget(kafka.inflight_bytes_max),
            clock=self._clock,
        )

    def _bind(self, listener: Listener) -> Address:
        addr = self._config.kafka.addr
        try:
            host, port = listener.bind(addr.host, addr.port)
        except OSError as error:
            failure = ConfigError(
                f"cannot listen on {addr} (kafka.addr): {error.strerror or error}"
            )
            if error.errno == errno.EADDRINUSE:
                failure.hint = (
                    f"who is there? moldau doctor · another port: --set kafka.addr={addr.host}:PORT"
                )
            raise failure from None
        return Address(addr.host if addr.host != "0.0.0.0" else host, port)

    async def _register(self, bound: Address) -> None:
        if not self._metadata.image.cluster_id:
            await self._metadata.submit(CreateCluster(cluster_id=self._storage.cluster_id))
        told = self._config.kafka.advertised or bound
        await self._metadata.submit(
            RegisterBroker(
                id=self._broker_id,
                host=told.host,
                port=told.port,
                rack=self._config.rack,
                incarnation=self._storage.directory_id,
            )
        )

    def _upkeep_ended(self, task: asyncio.Task[None]) -> None:
        """A broker without retention and disk watch must not go on as if nothing were."""
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_defect(error)

    async def _on_image(self, image: Image) -> None:
        before = self._partitions.topic_names
        await self._partitions.reconcile_gently(image)
        gone = before - self._partitions.topic_names
        if gone:
            self._groups.topics_deleted(gone)

    # ---- stop

    async def stop(self) -> None:
        """Finish what is in flight, then close everything cleanly.

        After a failure of the disk nothing can be finished: all is left as it is.
        """
        if self._upkeep is not None:
            self._upkeep.cancel()
            await asyncio.gather(self._upkeep, return_exceptions=True)
        listener = self._listener
        if listener is not None:
            listener.stop_accepting()
            if not self._flusher.failed:
                await self._drain(listener)
            listener.close()
        await self._dispatcher.stop()
        self._groups.stop()
        self._flusher.stop()
        # Flushes that the threads finished just now are counted before the logs close.
        await asyncio.sleep(0)
        if not self._flusher.failed:
            self._partitions.close()
            self._metadata_replica.close()
        self._storage.close()

    async def _drain(self, listener: Listener) -> None:
        listener.drain()
        deadline = self._clock.monotonic() + _DRAIN_SECONDS_MAX
        while listener.connection_count and self._clock.monotonic() < deadline:
            self._broker.fetch.answer_all()
            self._groups.answer_waiting()
            await asyncio.sleep(0.01)

    def abandon(self) -> None:
        """The start failed half-way: let go of the directory, touch nothing else."""
        self._flusher.stop()
        if self._listener is not None:
            self._listener.close()
        self._storage.close()
