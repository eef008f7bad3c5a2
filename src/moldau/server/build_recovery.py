"""Builds what decides about lost replicas: of one, and of the majority of a partition."""

from moldau.control.cluster_service import ClusterService
from moldau.control.metadata_store import MetadataStore
from moldau.control.partition_recovery import PartitionRecovery
from moldau.data.forced_replicas import ForcedReplicas
from moldau.data.partitions import Partitions
from moldau.data.replica_safety import ReplicaSafety
from moldau.model.clock import Clock
from moldau.net.peers.methods import PeerMethod
from moldau.replica.driver import RaftDriver
from moldau.replica.transport import Transport


def build_recovery(
    cluster: ClusterService,
    metadata: MetadataStore,
    partitions: Partitions,
    driver: RaftDriver,
    transport: Transport,
) -> PartitionRecovery:
    me = transport.me
    forced = ForcedReplicas(
        me=me,
        partitions=partitions,
        driver=driver,
        fresh_image=metadata.fresh,
        leader_epoch=lambda topic_id, index: cluster.leaders.of(topic_id, index).epoch,
    )
    transport.rpc.serve(PeerMethod.SURVEY_REPLICAS, forced.on_survey_request)
    transport.rpc.serve(PeerMethod.MAKE_ONLY_VOTER, forced.on_order)
    return PartitionRecovery(me=me, metadata=metadata, caller=transport, forced=forced)


def build_replica_safety(
    cluster: ClusterService,
    partitions: Partitions,
    driver: RaftDriver,
    transport: Transport,
    clock: Clock,
) -> ReplicaSafety:
    safety = ReplicaSafety(
        partitions=partitions,
        driver=driver,
        caller=transport,
        clock=clock,
        me=transport.me,
        leader_of=cluster.leader_of,
    )
    transport.rpc.serve(PeerMethod.CAN_LOSE_REPLICA, safety.on_request)
    return safety
