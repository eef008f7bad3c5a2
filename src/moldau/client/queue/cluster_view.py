"""Owns what a client believes of the cluster: brokers, topics, and who leads what. Immutable.

It comes from either interface, HTTP or gRPC, and says the same.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from moldau.model.delivery_tokens import ROUTING_BYTES, decode_delivery_token
from moldau.model.topology import NO_BROKER, Topology
from moldau.proto.v1 import queue_pb2 as pb

_PLACES_MAX: Final = 100_000
"""Whoever sends tokens that are none must not fill the memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicView:
    """One topic: leaders by partition, -1 where there is none."""

    name: str
    topic_id: bytes
    leaders: Mapping[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterView:
    """The cluster as one of its brokers told it.

    `seed` is whom we asked. A broker whose gRPC address is not told is reached there: so a proxy
    hides the brokers behind it.
    """

    cluster_id: str = ""
    version: int = -1
    seed: str = ""
    addresses: Mapping[int, str] = field(default_factory=dict)
    """Of the brokers, by number; never empty ones."""
    alive: frozenset[int] = frozenset()
    topics: Mapping[str, TopicView] = field(default_factory=dict)
    names: Mapping[bytes, str] = field(default_factory=dict)
    """Of the topics, by id."""
    _places: dict[bytes, str | None] = field(default_factory=dict, repr=False, compare=False)
    """Addresses by the part of a token that says where it is from; filled as tokens come."""

    @property
    def alive_addresses(self) -> list[str]:
        """Each once: behind a proxy all brokers have the same."""
        found = (self.addresses[number] for number in sorted(self.alive))
        return list(dict.fromkeys(found))

    @property
    def all_addresses(self) -> list[str]:
        return list(dict.fromkeys(self.addresses.values()))

    def leader_address(self, topic: str, partition: int) -> str | None:
        """Where the partition is led, or None if nobody does or we do not know it."""
        known = self.topics.get(topic)
        if known is None:
            return None
        return self.addresses.get(known.leaders.get(partition, NO_BROKER))

    def token_address(self, token: bytes) -> str | None:
        """Where a delivery's token is to be brought back."""
        place = token[:ROUTING_BYTES]
        if place in self._places:
            return self._places[place]
        address = self._address_of(token)
        if len(self._places) < _PLACES_MAX:
            self._places[place] = address
        return address

    def _address_of(self, token: bytes) -> str | None:
        ticket = decode_delivery_token(token)
        if ticket is None:
            return None
        name = self.names.get(ticket.topic_id)
        return None if name is None else self.leader_address(name, ticket.partition)

    def leader_addresses(self, partitions: Iterable[tuple[str, int]]) -> list[str]:
        """Who leads some of them, each once; without those that nobody leads."""
        found = (self.leader_address(topic, number) for topic, number in partitions)
        return list(dict.fromkeys(address for address in found if address is not None))

    def topic_addresses(self, topic: str) -> list[str]:
        """Who leads some partition of the topic."""
        known = self.topics.get(topic)
        return self.leader_addresses((topic, number) for number in known.leaders) if known else []


def view_of_grpc(answer: pb.TopologyResponse, seed: str) -> ClusterView:
    """The view in an answer to Topology."""
    topics = [
        TopicView(
            name=topic.name,
            topic_id=topic.topic_id,
            leaders={each.partition: each.leader for each in topic.partitions},
        )
        for topic in answer.topics
    ]
    return ClusterView(
        cluster_id=answer.cluster_id,
        version=answer.version,
        seed=seed,
        addresses={broker.id: broker.grpc_address or seed for broker in answer.brokers},
        alive=frozenset(broker.id for broker in answer.brokers if broker.is_alive),
        topics={topic.name: topic for topic in topics},
        names={topic.topic_id: topic.name for topic in topics},
    )


def view_of_http(answer: Topology) -> ClusterView:
    """The view in an answer to GET /api/v1/topology."""
    topics = [
        TopicView(
            name=topic.name,
            topic_id=bytes.fromhex(topic.id),
            leaders={each.partition: each.leader for each in topic.partitions},
        )
        for topic in answer.topics
    ]
    return ClusterView(
        cluster_id=answer.cluster_id,
        version=answer.version,
        addresses={
            broker.id: str(broker.grpc) for broker in answer.brokers if broker.grpc is not None
        },
        alive=frozenset(
            broker.id for broker in answer.brokers if broker.alive and broker.grpc is not None
        ),
        topics={topic.name: topic for topic in topics},
        names={topic.topic_id: topic.name for topic in topics},
    )
