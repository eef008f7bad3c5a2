"""Owns what is told about a broker that has started."""

from dataclasses import dataclass

from moldau.server.config.schema import Address


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerInfo:
    """What is told about a broker that has become ready."""

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
