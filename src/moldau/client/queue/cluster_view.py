"""An immutable view of the cluster: brokers, topics and leaders.

It is built from the topology of either API, HTTP or gRPC.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from moldau.model.delivery_tokens import ROUTING_BYTES, decode_delivery_token
from moldau.model.topology import NO_BROKER, Topology
from moldau.proto.v1 import queue_pb2 as pb

_CACHED_TOKENS_MAX: Final = 100_000
"""Bounds the memory for invalid tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterView:
    """The cluster as seen by one of its brokers."""

    cluster_id: str = ""
    version: int = -1
    addresses: Mapping[int, str] = field(default_factory=dict)
    """Of the brokers, by id; never empty."""
    alive: frozenset[int] = frozenset()
    topics: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    """The leader of each partition, by topic and partition; -1 if there is none."""
    names: Mapping[bytes, str] = field(default_factory=dict)
    """Topic names by topic id."""
    _token_addresses: dict[bytes, str | None] = field(
        default_factory=dict, repr=False, compare=False
    )
    """Cached addresses, by the part of a token that identifies its partition."""

    @property
    def alive_addresses(self) -> list[str]:
        """Without duplicates: behind a proxy all brokers have the same."""
        found = (self.addresses[number] for number in sorted(self.alive))
        return list(dict.fromkeys(found))

    @property
    def all_addresses(self) -> list[str]:
        return list(dict.fromkeys(self.addresses.values()))

    def leader_address(self, topic: str, partition: int) -> str | None:
        """The address of the leader; None if there is none, or the partition is unknown."""
        leaders = self.topics.get(topic)
        return None if leaders is None else self.addresses.get(leaders.get(partition, NO_BROKER))

    def token_address(self, token: bytes) -> str | None:
        """The address at which a delivery is settled."""
        key = token[:ROUTING_BYTES]
        if key in self._token_addresses:
            return self._token_addresses[key]
        address = self._address_of(token)
        if len(self._token_addresses) < _CACHED_TOKENS_MAX:
            self._token_addresses[key] = address
        return address

    def _address_of(self, token: bytes) -> str | None:
        ticket = decode_delivery_token(token)
        if ticket is None:
            return None
        name = self.names.get(ticket.topic_id)
        return None if name is None else self.leader_address(name, ticket.partition)

    def leader_addresses(self, partitions: Iterable[tuple[str, int]]) -> list[str]:
        """The leaders of these partitions, each once."""
        found = (self.leader_address(topic, number) for topic, number in partitions)
        return list(dict.fromkeys(address for address in found if address is not None))

    def topic_addresses(self, topic: str) -> list[str]:
        """The leaders of the topic's partitions, each once."""
        return self.leader_addresses((topic, number) for number in self.topics.get(topic, ()))


def view_of_grpc(response: pb.TopologyResponse, seed: str) -> ClusterView:
    """The view of a Topology response from the address `seed`.

    Brokers without a gRPC address are reached there: so a proxy hides the brokers behind it.
    """
    return ClusterView(
        cluster_id=response.cluster_id,
        version=response.version,
        addresses={broker.id: broker.grpc_address or seed for broker in response.brokers},
        alive=frozenset(broker.id for broker in response.brokers if broker.is_alive),
        topics={
            topic.name: {each.partition: each.leader for each in topic.partitions}
            for topic in response.topics
        },
        names={topic.topic_id: topic.name for topic in response.topics},
    )


def view_of_http(response: Topology) -> ClusterView:
    """The view of a response to GET /api/v1/topology."""
    return ClusterView(
        cluster_id=response.cluster_id,
        version=response.version,
        addresses={
            broker.id: str(broker.grpc) for broker in response.brokers if broker.grpc is not None
        },
        alive=frozenset(
            broker.id for broker in response.brokers if broker.alive and broker.grpc is not None
        ),
        topics={
            topic.name: {each.partition: each.leader for each in topic.partitions}
            for topic in response.topics
        },
        names={bytes.fromhex(topic.id): topic.name for topic in response.topics},
    )
