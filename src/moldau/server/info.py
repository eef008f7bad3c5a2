"""What a started broker reports about itself."""

from msgspec import Struct

from moldau.server.config.schema import Address


class BrokerInfo(Struct, frozen=True, kw_only=True):
    """Addresses and numbers of a broker that is ready."""

    broker_id: int
    cluster_id: str
    kafka_addr: Address
    raft_addr: Address
    http_addr: Address
    grpc_addr: Address | None
    data_dir: str
    broker_count: int
    partition_count: int
    offline_partitions: tuple[str, ...]
