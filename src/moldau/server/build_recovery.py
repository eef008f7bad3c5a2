"""Builds what lets partitions go on that lost a majority of their replicas."""

from moldau.control.metadata_store import MetadataStore
from moldau.control.partition_recovery import PartitionRecovery
from moldau.data.forced_replicas import ForcedReplicas
from moldau.data.partitions import Partitions
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
) -> PartitionRecovery:
    forced = ForcedReplicas(me=me, partitions=partitions, driver=driver, fresh_image=metadata.fresh)
    transport.rpc.serve(PeerMethod.SURVEY_REPLICAS, forced.on_survey_request)
    transport.rpc.serve(PeerMethod.MAKE_ONLY_VOTER, forced.on_order)
    return PartitionRecovery(me=me, metadata=metadata, caller=transport, forced=forced)
