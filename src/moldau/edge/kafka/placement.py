"""Owns what clients are told about the cluster: its brokers, and who holds and leads a partition.

Every broker that is registered is listed, also one that this broker cannot reach: a client may
reach it, and a broker that is cut off from the others must not make its clients forget them.
"""

import asyncio
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

from moldau.api.broker import Broker
from moldau.metadata.image import Broker as RegisteredBroker
from moldau.metadata.image import Partition, Topic
from moldau.model.errors import ErrorCode
from moldau.model.ids import BrokerId

_ELECTION_SECONDS_MAX = 1.0
_LOOK_SECONDS = 0.002
_LOOK_SECONDS_MAX = 0.05


class PartitionPlacement(NamedTuple):
    """Where one partition is, in the words of Metadata."""

    error: ErrorCode
    leader: int
    epoch: int
    replicas: list[int]
    in_sync: list[int]
    offline: list[int]


def placements_of(
    broker: Broker, topic: Topic, partitions: Sequence[Partition], alive: Collection[BrokerId]
) -> Iterator[PartitionPlacement]:
    """Each in the order given; `alive` is taken once for all topics of an answer."""
    places = broker.cluster.places(topic, partitions)
    for partition, ((leader, epoch), in_sync) in zip(partitions, places, strict=True):
        replicas = partition.replicas
        yield PartitionPlacement(
            # Nobody leads, or one that was removed since: a client can only ask again.
            ErrorCode.NONE if leader >= 0 else ErrorCode.LEADER_NOT_AVAILABLE,
            leader,
            epoch,
            list(replicas),
            # A leader's list may be older than a move that the metadata holds already.
            [number for number in in_sync if number in replicas],
            [number for number in replicas if number not in alive],
        )


async def await_leaders(broker: Broker, names: Iterable[str]) -> None:
    """Wait until these topics can be written to, for a moment at most.

    Who creates a topic writes to it next, and would have to ask again after a pause of its own.
    """
    waiting = list(names)
    deadline = broker.clock.monotonic() + _ELECTION_SECONDS_MAX
    pause_seconds = _LOOK_SECONDS
    while True:
        waiting = [name for name in waiting if not _is_led(broker, name)]
        if not waiting or broker.clock.monotonic() >= deadline:
            return
        await asyncio.sleep(pause_seconds)
        pause_seconds = min(2 * pause_seconds, _LOOK_SECONDS_MAX)


def _is_led(broker: Broker, name: str) -> bool:
    topic = broker.image.topic(name)
    if topic is None:
        return True
    return all(leader.broker >= 0 for leader, _ in broker.cluster.places(topic, topic.partitions))


def controller_of(broker: Broker) -> int:
    """Where clients send what only the controller does in Kafka; here any broker takes it."""
    controller = broker.cluster.controller_id
    return controller if controller in broker.image.brokers else broker.broker_id


class CurrentLeader(NamedTuple):
    """Who leads a partition now, and how to reach it (KIP-951)."""

    id: int
    epoch: int
    node: RegisteredBroker


LEADER_CHANGED = frozenset({ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH})
"""Errors whose answer names the leader, so that the client need not ask for it."""


def current_leader(broker: Broker, topic: str | None, partition: int) -> CurrentLeader | None:
    """The leader as far as this broker knows; None if it does not."""
    found = broker.image.topic(topic) if topic is not None else None
    if found is None or not 0 <= partition < len(found.partitions):
        return None
    leader, epoch = broker.cluster.leader_of(found, partition)
    node = broker.image.brokers.get(leader)
    return None if node is None else CurrentLeader(leader, epoch, node)
