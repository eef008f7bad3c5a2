"""Builds what lets partitions go on that lost a majority of their replicas."""

from collections.abc import Callable

from moldau.control.metadata_store import MetadataStore
from moldau.control.partition_recovery import PartitionRecovery
from moldau.data.forced_replicas import ForcedReplicas
from moldau.data.partitions import Partitions
from moldau.metadata.leaders import Leaders
from moldau.model.ids import BrokerId
from moldau.net.peers.methods import PeerMethod
from moldau.replica.driver import RaftDriver
from moldau.replica.transport import Transport


def build_recovery(
    me: BrokerId,
    metadata: MetadataStore,
    partitions: Partitions,
    driver: RaftDriver,
    transport: Transport,
    leaders: Callable[[], Leaders],
) -> PartitionRecovery:
    forced = ForcedReplicas(
        me=me,
        partitions=partitions,
        driver=driver,
        fresh_image=metadata.fresh,
        leader_epoch=lambda topic_id, index: leaders().of(topic_id, index).epoch,
    )
    transport.rpc.serve(PeerMethod.SURVEY_REPLICAS, forced.on_survey_request)
    transport.rpc.serve(PeerMethod.MAKE_ONLY_VOTER, forced.on_order)
    return PartitionRecovery(me=me, metadata=metadata, caller=transport, forced=forced)
