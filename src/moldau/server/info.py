"""What a started broker reports about itself."""

from msgspec import Struct

from moldau.model.topology import Endpoint


class BrokerInfo(Struct, frozen=True, kw_only=True):
    """Addresses and numbers of a broker that is ready."""

    broker_id: int
    cluster_id: str
    kafka_addr: Endpoint
    raft_addr: Endpoint
    http_addr: Endpoint
    http_tls: bool = False
    grpc_addr: Endpoint | None
    data_dir: str
    broker_count: int
    partition_count: int
    offline_partitions: tuple[str, ...]
