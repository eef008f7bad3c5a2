"""Partition leaders and replicas as clients see them.

Every registered broker is listed, also one that this broker cannot reach: a client may reach it,
and the clients of an isolated broker must not forget the others.
"""

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from moldau.api.session import Session
from moldau.api.types import Partition, RegisteredBroker, Topic
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import BrokerId

ELECTION_SECONDS_MAX = 1.0
"""How long the creation of a topic waits for its leaders."""


class PartitionPlacement(NamedTuple):
    """Leader and replicas of one partition, as in the Metadata response."""

    error: ErrorCode
    leader: int
    epoch: int
    replicas: list[int]
    in_sync: list[int]
    offline: list[int]


def placements_of(
    session: Session, topic: Topic, partitions: Sequence[Partition], alive: Collection[BrokerId]
) -> Iterator[PartitionPlacement]:
    """In the given order; `alive` is computed once for all topics of a response."""
    known = session.cluster.leaders_and_in_sync(topic, partitions)
    for partition, ((leader, epoch), in_sync) in zip(partitions, known, strict=True):
        replicas = partition.replicas
        yield PartitionPlacement(
            # No leader, or one that was removed: the client has to retry.
            ErrorCode.NONE if leader >= 0 else ErrorCode.LEADER_NOT_AVAILABLE,
            leader,
            epoch,
            list(replicas),
            # A leader's list may be older than a reassignment in the metadata.
            [number for number in in_sync if number in replicas],
            [number for number in replicas if number not in alive],
        )


def controller_of(session: Session) -> int:
    """The broker for requests to the controller; any broker accepts them."""
    controller = session.cluster.controller_id
    return controller if controller in session.cluster.brokers else session.broker_id


class CurrentLeader(NamedTuple):
    """The leader of a partition and its address (KIP-951)."""

    id: int
    epoch: int
    node: RegisteredBroker


LEADER_CHANGED = frozenset({ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH})
"""Errors whose response contains the leader, which saves the client a Metadata request."""


def current_leader(session: Session, topic: str | None, partition: int) -> CurrentLeader | None:
    """The leader that this broker knows; None if it knows none, or may not say it."""
    try:
        found = session.topics.find(topic) if topic is not None else None
    except RefusedError:
        found = None
    if found is None or not 0 <= partition < len(found.partitions):
        return None
    leader, epoch = session.cluster.leader_of(found, partition)
    node = session.cluster.brokers.get(leader)
    return None if node is None else CurrentLeader(leader, epoch, node)
