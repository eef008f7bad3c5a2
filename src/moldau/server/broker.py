"""Starts and stops a broker.

Start: open the data directory, reserve the ports, bootstrap or join the cluster, run the metadata
group, register, open the partitions, and only then listen: a client that can connect is served.
Stop: transfer leadership, stop accepting, complete pending fetches, drain connections, close the
logs cleanly, unlock the directory.
"""

import asyncio
import errno
import logging
from collections.abc import Callable
from functools import partial

from moldau.api.broker import Broker
from moldau.api.connections import ConnectionSource
from moldau.api.metric_sources import MetricSources
from moldau.api.session import Sessions
from moldau.control.cluster_service import ClusterService
from moldau.control.config_service import ConfigService
from moldau.control.leader_announcements import LeaderAnnouncements
from moldau.control.metadata_replica import MetadataReplica
from moldau.control.metadata_store import MetadataStore, RemovedReplica
from moldau.control.producer_ids import ProducerIds
from moldau.control.reconciler import Reconciler
from moldau.control.security_service import SecurityService
from moldau.control.topic_service import TopicService
from moldau.data.cleaner import Cleaner
from moldau.data.disk_space import DiskGuard
from moldau.data.fetch import FetchService
from moldau.data.fetch_sessions import sessions_over
from moldau.data.offsets import OffsetService
from moldau.data.partitions import Partitions
from moldau.data.produce import ProduceService
from moldau.data.replicated_offsets import ReplicatedOffsets
from moldau.data.scrub import Scrubber
from moldau.data.transactional_produce import TransactionalProduce
from moldau.edge.http.listener import HttpListener
from moldau.metadata.image import EMPTY_IMAGE, Image, Topic
from moldau.model import log_events as events
from moldau.model.errors import StorageError, as_storage_failure
from moldau.model.ids import NO_EPOCH, PartitionIndex, TopicId, TopicPartition
from moldau.net.peers.methods import PeerMethod
from moldau.net.tls.handshake_turns import HandshakeTurns
from moldau.raft.membership import NO_BROKER
from moldau.replica.driver import RaftDriver
from moldau.replica.flusher import Flusher
from moldau.replica.replica import Replica
from moldau.replica.transport import Transport
from moldau.server.background_tasks import BackgroundTasks
from moldau.server.build_authentication import Authentication, super_users
from moldau.server.build_cluster_lists import build_cluster_lists
from moldau.server.build_coordination import CoordinationServices
from moldau.server.build_metrics import build_metric_sources
from moldau.server.build_overview import build_views
from moldau.server.build_peers import build_join_service, build_peers
from moldau.server.build_protocols import (
    build_append_service,
    build_grpc_server,
    build_http_listener,
    build_offsets_at,
    build_play,
    build_record_deletion,
    build_search,
)
from moldau.server.build_queues import build_queue_services
from moldau.server.build_recovery import build_recovery, build_replica_safety
from moldau.server.build_upkeep import build_cleaner, build_scrub, build_upkeep
from moldau.server.certificates import Certificates
from moldau.server.cluster_secret import keep_first_secret
from moldau.server.config.schema import ServerConfig
from moldau.server.config.security_schema import ListenerProtocol
from moldau.server.derived_config import (
    read_only_configs,
    runtime_defaults,
    with_machine,
    with_rack,
)
from moldau.server.info import BrokerInfo
from moldau.server.kafka_server import KafkaServer
from moldau.server.machine import GrpcServer, LogCleaner, Machine
from moldau.server.membership import ClusterMembership, Endpoints, enter_cluster
from moldau.server.peer_links import PeerLinks
from moldau.server.ports import ReservedPort, ReservedPorts
from moldau.server.registration import Registration, SupersededError
from moldau.server.storage import METADATA_TOPIC, METADATA_TOPIC_ID, Storage

log = logging.getLogger(__name__)

_DRAIN_SECONDS_MAX, _GRACE_SECONDS = 10.0, 1.0


class BrokerServer:
    """One broker process from start to stop."""

    def __init__(
        self,
        config: ServerConfig,
        machine: Machine,
        *,
        on_storage_failure: Callable[[StorageError], None],
        on_internal_error: Callable[[BaseException], None],
        on_removed: Callable[[], None],
    ) -> None:
        config = with_rack(config)
        self._storage = Storage.open(config, machine)
        self._config = config = with_machine(config, self._storage.machine_name)
        self._machine = machine
        self._clock = clock = machine.clock
        self._loop = asyncio.get_running_loop()
        self._report_storage_failure = on_storage_failure
        self._report_internal_error = on_internal_error
        self._on_removed = partial(self._storage.end, on_removed)
        self._disk = DiskGuard()
        self._flusher = Flusher(
            loop=self._loop,
            clock=clock,
            workers=machine.flush_workers(self._loop, config.log.flush_threads),
            on_failure=self._on_storage_failure,
        )
        self._loop_watch = machine.watch_loop(self._loop)
        self._logged_controller = (NO_BROKER, NO_EPOCH)
        self._tasks = BackgroundTasks(self._on_internal_error)
        self._settling: asyncio.Task[None] | None = None
        self._cleaner_process: LogCleaner | None = None
        self._cleaner: Cleaner | None = None
        self._scrub: Scrubber | None = None
        self._leaderships = 0
        self._ports = ReservedPorts(config, machine.sockets, machine.shared_addresses)
        self._certificates = Certificates(config, HandshakeTurns(self._loop, clock))
        self._kafka: KafkaServer | None = None
        self._http: HttpListener | None = None
        self._grpc: GrpcServer | None = None
        self._transport: Transport | None = None
        self._driver: RaftDriver | None = None

    # ---- start

    async def start(self) -> BrokerInfo:
        """Returns when clients are served. Raises ConfigError, StorageError, CorruptionError."""
        self._certificates.load()
        self._machine.http_tls = self._certificates.of_protocol(ListenerProtocol.HTTP)
        for warning in self._certificates.warnings(self._clock.wall_ms()):
            log.warning(warning, extra=events.CERTIFICATE_EXPIRES())
        try:
            return await self._start()
        except StorageError as error:
            if isinstance(error.__cause__, OSError) and error.__cause__.errno == errno.EIO:
                self._storage.write_fence(error)
            raise

    async def _start(self) -> BrokerInfo:
        self._loop_watch.start()
        config, machine = self._config, self._machine
        kafka_ports = self._ports.reserve(ListenerProtocol.KAFKA)
        kafka = kafka_ports[0]
        (raft,) = self._ports.reserve(ListenerProtocol.PEERS)
        (http,) = self._ports.reserve(ListenerProtocol.HTTP)
        grpc = next(iter(self._ports.reserve(ListenerProtocol.GRPC)), None)
        # No log before the directory has an identity: its owner would be unknown.
        metadata_log = self._storage.open_metadata_log() if self._storage.has_metadata else None
        membership = await enter_cluster(
            config,
            self._storage,
            Endpoints(
                kafka=kafka.advertised,
                raft=raft.advertised,
                http=http.advertised,
                grpc=grpc.advertised if grpc else None,
                listeners=self._ports.named_listeners(),
            ),
            machine,
            http,
            is_log_empty=metadata_log is None or metadata_log.end_index == 0,
        )
        self._broker_id = membership.broker_id
        self._peers = PeerLinks(membership)
        transport, driver = self._transport, self._driver = build_peers(
            membership,
            self._peers,
            raft,
            loop=self._loop,
            machine=machine,
            flusher=self._flusher,
            storage=self._storage,
            tls=self._certificates.of_protocol(ListenerProtocol.PEERS),
        )
        defaults = runtime_defaults(config)
        self._partitions = Partitions(
            open_log=self._storage.open_log,
            drop_log=self._storage.drop_log,
            driver=driver,
            flusher=self._flusher,
            clock=self._clock,
            defaults=defaults,
        )
        self._metadata_replica = MetadataReplica(
            partition=TopicPartition(METADATA_TOPIC, PartitionIndex(0)),
            topic_id=METADATA_TOPIC_ID,
            log=metadata_log or self._storage.open_metadata_log(),
            members=membership.metadata_members,
            driver=driver,
            flusher=self._flusher,
            on_leadership=self._on_metadata_leadership,
            on_failed=self._on_internal_error,
        )
        self._metadata = MetadataStore(
            self._metadata_replica,
            self._clock,
            transport,
            self._on_image,
            on_committed=driver.send_heartbeats_now,
        )
        self._peers.attach(transport, driver, self._metadata)
        self._registration = registration = Registration(
            config,
            membership,
            self._metadata,
            machine,
            on_member_image=self._peers.on_member_image,
            on_epoch=transport.set_epoch,
            is_cut_off=self._peers.is_cut_off,
            on_removed=self._on_removed,
        )
        self._build_cluster(membership, http, transport, driver)
        self._build_services(defaults, transport, driver, membership.secret.value)
        self._partitions.on_leadership = self._on_partition_leadership
        self._partitions.on_voter_replaced = self._reconciler.repair
        self._partitions.newest_image = lambda: self._metadata.image
        self._metadata.on_deleted = self._on_deleted
        self._kafka = kafka_server = KafkaServer(
            config,
            self._sessions,
            self._certificates,
            loop=self._loop,
            clock=self._clock,
            sockets=machine.sockets,
            gate=self._authentication.gate,
        )
        self._http = build_http_listener(
            config,
            machine,
            self._loop,
            self._authentication.http(self._sessions),
            self._metric_sources(kafka_server, driver),
            transport,
            self._ports.host_names(),
            self._certificates.of_protocol(ListenerProtocol.HTTP),
        )
        kafka_server.bind(kafka_ports)
        http.bind(self._http)
        self._grpc = build_grpc_server(
            machine,
            self._loop,
            self._authentication.grpc(self._sessions),
            grpc,
            self._certificates.of_protocol(ListenerProtocol.GRPC),
        )
        self._ports.release()
        self._peers.follow()
        raft.listen(transport.start)
        driver.start()
        http.listen(self._http.start)
        self._metadata.start()
        if (settling := self._metadata.applying) is not None:
            self._settling = settling
            self._tasks.watch(settling)
        played = () if machine.play is None else (machine.play.run(self._broker_id),)
        self._tasks.run(self._announcements.run(), self._reconciler.run(), *played)
        await registration.register()
        self._storage.finish_bootstrap()
        self._peers.on_member_image(EMPTY_IMAGE)
        # Only now: the image contains this start's registration, and so all earlier assignments.
        self._storage.set_strays_aside(self._metadata.image, self._broker_id)
        self._tasks.run(registration.run())
        upkeep = build_upkeep(
            config, self._partitions, self._storage, self._disk, self._clock, self._replica_safety
        )
        upkeep.check_disk()
        self._tasks.run(upkeep.run())
        self._cleaner = self._make_cleaner()
        self._tasks.run(self._cleaner.run())
        self._scrub = build_scrub(config, self._partitions, self._replica_safety)
        self._tasks.run(self._scrub.run())
        self._tasks.run(self._broker.queues.run(), self._broker.overview.watch_events())
        await self._partitions.wait_until_led()
        kafka_server.start(kafka_ports)
        self._tasks.run(self._certificates.run())
        if self._grpc is not None and grpc is not None:
            grpc.listen(self._grpc.start)
        self._cluster.starting = None
        await self._reconciler.wait_for_vote()
        return BrokerInfo(
            broker_id=self._broker_id,
            cluster_id=self._metadata.image.cluster_id,
            kafka_addr=kafka.address,
            raft_addr=raft.address,
            http_addr=http.address,
            http_tls=machine.http_tls is not None,
            grpc_addr=grpc.address if grpc else None,
            data_dir=config.data_dir,
            broker_count=len(self._metadata.image.brokers),
            partition_count=len(self._partitions),
            offline_partitions=tuple(
                f"{topic}-{index}" for topic, index in self._partitions.offline
            ),
        )

    # ---- events of the metadata and the groups

    async def _on_image(self, image: Image, removed: list[RemovedReplica]) -> None:
        try:
            self._registration.check(image)
        except SupersededError as error:
            self._on_internal_error(error)
            return
        self._peers.follow()
        self._sessions.quotas.replace(image.quotas)
        if self._kafka is not None:
            self._kafka.follow(image, self._broker_id)
        if self._broker_id in image.removed_brokers:
            self._on_removed()
        self._authentication.on_image(image)
        self._partitions.forget_logs(removed, image)
        await self._partitions.reconcile(image)
        self._announcements.remove_deleted_topics(image)
        self._broker.queues.on_image(image)

    def _on_deleted(self, topics: list[Topic]) -> None:
        """Called before an image without these topics is published."""
        self._partitions.stop_serving(topics)
        self._coordinators.topics_deleted(frozenset(topic.name for topic in topics))

    def _on_storage_failure(self, error: StorageError) -> None:
        self._storage.write_fence(error)
        self._report_storage_failure(error)

    def _on_internal_error(self, error: BaseException) -> None:
        if (failure := as_storage_failure(error)) is not None:
            if not self._flusher.failed:
                log.error("disk write failed", exc_info=error, extra=events.DISK_WRITE_FAILED())
            self._flusher.report(failure)
        else:
            self._report_internal_error(error)

    def _on_metadata_leadership(self) -> None:
        self._metadata.leader_changed()
        replica = self._metadata_replica
        current = (replica.leader, replica.epoch)
        if replica.leader != NO_BROKER and current != self._logged_controller:
            self._logged_controller = current
            log.info("broker %d is the metadata leader (epoch %d)", *current)

    def _on_partition_leadership(self, replica: Replica) -> None:
        self._leaderships += replica.is_leader and replica.is_ready
        self._reconciler.announce(replica)
        if replica.is_ready:
            self._reconciler.took_over(replica)
        self._coordinators.on_leadership(replica)
        self._broker.queues.on_leadership(replica)

    def _build_cluster(
        self,
        membership: ClusterMembership,
        http: ReservedPort,
        transport: Transport,
        driver: RaftDriver,
    ) -> None:
        known = self._metadata.forecast().brokers
        keep_first_secret(self._storage, membership.secret, self._broker_id, known)
        self._announcements = LeaderAnnouncements(
            me=self._broker_id,
            session=self._machine.rng.getrandbits(63),
            caller=transport,
            peers=lambda: [peer for peer, link in transport.links.items() if link.is_connected],
        )
        self._cluster = ClusterService(
            me=self._broker_id,
            cluster_id=membership.cluster_id,
            clock=self._clock,
            metadata=self._metadata,
            metadata_members=lambda: self._metadata_replica.members,
            partitions=self._partitions,
            driver=driver,
            transport=transport,
            announcements=self._announcements,
            disk=self._disk,
        )
        self._joins = build_join_service(
            membership, self._cluster, self._peers, http, self._machine, self._storage
        )
        self._reconciler = Reconciler(
            me=self._broker_id,
            metadata=self._metadata,
            metadata_replica=self._metadata_replica,
            partitions=self._partitions,
            cluster=self._cluster,
            announcements=self._announcements,
            driver=driver,
        )
        serve = transport.rpc.serve
        serve(PeerMethod.SUBMIT_COMMAND, self._metadata.on_command)
        serve(PeerMethod.FRESH_METADATA_OFFSET, self._metadata.on_fresh_offset_request)
        serve(PeerMethod.ANNOUNCE_LEADERS, self._announcements.on_announcement)
        serve(PeerMethod.TRANSFER_LEADERSHIP, self._cluster.on_transfer_request)
        self._replicated_offsets = ReplicatedOffsets(self._partitions, transport)
        serve(PeerMethod.REPLICATED_OFFSETS, self._replicated_offsets.on_request)
        self._replica_safety = build_replica_safety(
            self._cluster, self._partitions, driver, transport, self._clock
        )
        self._recovery = build_recovery(
            self._cluster, self._metadata, self._partitions, driver, transport
        )

    def _make_cleaner(self) -> Cleaner:
        self._cleaner_process = self._machine.log_cleaner(self._storage.root)
        return build_cleaner(
            self._config,
            self._partitions,
            self._storage,
            self._flusher,
            self._clock,
            self._cleaner_process,
            self._replicated_offsets,
        )

    def _build_services(
        self, defaults: dict[str, str], transport: Transport, driver: RaftDriver, secret: bytes
    ) -> None:
        config = self._config
        topics = TopicService(
            metadata=self._metadata,
            partitions=self._partitions,
            disk=self._disk,
            new_topic_id=lambda: TopicId(self._machine.new_uuid().bytes),
            default_partitions=config.topic.partitions,
            default_replication_factor=config.topic.replication_factor,
            default_segment_bytes=config.log.segment_bytes,
        )
        producer_ids = ProducerIds(self._metadata)
        self._coordinators = coordinators = CoordinationServices(
            config,
            loop=self._loop,
            machine=self._machine,
            me=self._broker_id,
            metadata=self._metadata,
            partitions=self._partitions,
            topics=topics,
            cluster=self._cluster,
            transport=transport,
            producer_ids=producer_ids,
            on_internal_error=self._on_internal_error,
        )
        produce = ProduceService(self._partitions, self._disk, self._clock)
        self._transactional_produce = TransactionalProduce(
            self._loop, self._partitions, produce, coordinators.transactions
        )
        fetch = FetchService(self._loop, self._partitions)
        appends = build_append_service(self._broker_id, self._cluster, produce, transport)
        offsets = OffsetService(self._partitions)
        self._broker = Broker(
            broker_id=self._broker_id,
            auto_create_topics=config.topic.auto_create,
            data_dir=config.data_dir,
            disk_free_bytes=self._storage.free_bytes,
            disk_total_bytes=self._storage.total_bytes,
            clock=self._clock,
            metadata=self._metadata,
            cluster=self._cluster,
            joins=self._joins,
            recovery=self._recovery,
            produce=produce,
            transactional_produce=self._transactional_produce,
            fetch=fetch,
            fetch_sessions=sessions_over(self._partitions, self._clock),
            offsets=offsets,
            topics=topics,
            configs=ConfigService(
                metadata=self._metadata,
                broker=self._broker_id,
                defaults=defaults,
                fixed=read_only_configs(config, self._broker_id),
                log_levels=self._machine.log_levels,
            ),
            groups=coordinators.groups,
            transactions=coordinators.transactions,
            producer_ids=producer_ids,
            **build_views(
                self._broker_id, self._cluster, self._announcements, coordinators, self._storage
            ),
            offsets_at=build_offsets_at(self._broker_id, self._cluster, offsets, transport),
            deletions=build_record_deletion(self._broker_id, self._cluster, topics, transport),
            **build_search(
                self._broker_id, self._clock, self._cluster, self._partitions, fetch, transport
            ),
            **build_cluster_lists(self._cluster, transport, driver, self._clock, self._servers),
            appends=appends,
            **build_queue_services(config, coordinators, fetch, appends),
            **coordinators.copies(self._disk),
            play=build_play(self._broker_id, self._machine),
            security=SecurityService(
                metadata=self._metadata, clock=self._clock, random_bytes=self._machine.secret_bytes
            ),
        )
        self._sessions = Sessions(self._broker, super_users=super_users(config))
        self._authentication = Authentication(
            config, self._machine, self._storage.root, self._broker.security.users, secret
        )

    def _servers(self) -> tuple[ConnectionSource | None, ...]:
        return self._kafka, self._http, self._grpc

    def _metric_sources(self, kafka: KafkaServer, driver: RaftDriver) -> MetricSources:
        return build_metric_sources(
            kafka,
            self._certificates,
            self._authentication,
            self._sessions.quotas,
            self._loop_watch,
            self._coordinators,
            driver,
            flusher=self._flusher,
            disk_reserve_bytes=self._config.log.disk_reserve_bytes,
            cleaner=lambda: self._cleaner,
            scrub=lambda: self._scrub,
            leaderships=lambda: self._leaderships,
            overview=self._broker.overview,
            http_connections=lambda: self._http.connection_count if self._http else 0,
        )

    # ---- stop

    async def stop(self) -> None:
        """Transfer leadership, finish pending requests, then close everything cleanly.

        After a disk failure the data directory is left unchanged.
        """
        if not self._flusher.failed:
            await self._reconciler.hand_over()
        self._cluster.starting = "the broker is stopping"
        await self._tasks.cancel()
        if self._cleaner_process is not None:
            await self._cleaner_process.close()
        if self._grpc is not None:
            await self._grpc.stop(_GRACE_SECONDS)
        if (kafka := self._kafka) is not None:
            kafka.stop_accepting()
            if not self._flusher.failed:
                await kafka.drain(_DRAIN_SECONDS_MAX, self._end_waits)
            kafka.close()
            await kafka.stop_handlers()
        await self._authentication.stop()
        self._broker.overview.stop()
        if self._http is not None:
            await self._http.stop(_GRACE_SECONDS)
        self._coordinators.stop()
        self._broker.queues.stop()
        self._transactional_produce.stop()
        if not self._flusher.failed:
            await self._metadata.stop()
        self._end_peers()
        self._flusher.stop()
        # Record flushes that the threads have just finished, before the logs close.
        await asyncio.sleep(0)
        if not self._flusher.failed:
            self._partitions.close()
            self._metadata_replica.close()
        self._storage.close()
        self._loop_watch.stop()

    def _end_peers(self) -> None:
        if self._transport is not None:
            self._transport.close()
        if self._driver is not None:
            self._driver.stop()

    def _end_waits(self) -> None:
        self._broker.fetch.complete_all()
        self._coordinators.reject_waiting()

    async def abandon(self) -> None:
        """The start failed or was interrupted: release the ports and the directory."""
        self._loop_watch.stop()
        await self._tasks.cancel(*([self._settling] if self._settling is not None else []))
        self._ports.release()
        if self._grpc is not None:
            await self._grpc.stop(0)
        if self._http is not None:
            await self._http.stop(_GRACE_SECONDS)
        self._end_peers()
        self._flusher.stop()
        if self._kafka is not None:
            self._kafka.close()
        self._storage.close()
