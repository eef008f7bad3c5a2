"""Owns the plan for moving leadership: to preferred leaders, off brokers that leave, on request.

Pure: it is told who leads and who is alive, and says which transfers to ask for. Whether a transfer
succeeds is up to the partition's group, which elects only a broker that has everything committed.
"""

from collections import Counter
from collections.abc import Collection, Iterable
from enum import IntEnum
from typing import NamedTuple

from moldau.metadata.checks import existing_topic
from moldau.metadata.image import Image, Partition
from moldau.metadata.leaders import NO_LEADER_ID, Leaders
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import BrokerId, PartitionIndex, TopicId


class ElectionType(IntEnum):
    """Numbers as in ElectLeaders."""

    PREFERRED = 0
    UNCLEAN = 1


class LeaderTransfer(NamedTuple):
    """The leader `giver` of a partition is to hand over to `taker`."""

    topic_id: TopicId
    partition: PartitionIndex
    giver: BrokerId
    taker: BrokerId


def preferred_leader(image: Image, partition: Partition) -> BrokerId:
    """The first wished replica whose broker stays; the first of all if none does."""
    for number in partition.wanted:
        broker = image.brokers.get(number)
        if broker is not None and broker.active:
            return number
    return partition.wanted[0]


def balance_leaders(
    image: Image,
    leaders: Leaders,
    alive: Collection[BrokerId],
    *,
    imbalance_percent_max: int = 10,
    count_max: int = 100,
) -> list[LeaderTransfer]:
    """The transfers that bring leadership where it belongs, `count_max` at most.

    A broker that leaves hands over everything. For the others, a broker is looked at only if more
    than `imbalance_percent_max` of the partitions that it should lead are led elsewhere: a single
    one is not worth an interruption. A partition that is being moved is left alone until it is
    there: its new replicas may still be learning.
    """
    due: dict[BrokerId, int] = Counter()
    found: list[LeaderTransfer] = []
    for topic in image.topics.values():
        for partition in topic.partitions:
            preferred = preferred_leader(image, partition)
            due[preferred] += 1
            giver = leaders.of(topic.topic_id, partition.index).broker
            if giver in (NO_LEADER_ID, preferred) or partition.moving:
                continue
            if preferred in alive:
                found.append(LeaderTransfer(topic.topic_id, partition.index, giver, preferred))
    missing = Counter(transfer.taker for transfer in found)
    return [
        transfer
        for transfer in found
        if _is_leaving(image, transfer.giver)
        or missing[transfer.taker] * 100 > imbalance_percent_max * due[transfer.taker]
    ][:count_max]


def elect_leader(
    image: Image,
    leaders: Leaders,
    alive: Collection[BrokerId],
    *,
    topic: str,
    partition: int,
    election: ElectionType,
) -> LeaderTransfer:
    """One partition of ElectLeaders. Raises RefusedError with the code of that partition."""
    found = existing_topic(image, topic)
    if not 0 <= partition < len(found.partitions):
        raise RefusedError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            f"Topic '{topic}' has {len(found.partitions)} partitions, and none is {partition}",
        )
    wanted = found.partitions[partition]
    giver = leaders.of(found.topic_id, wanted.index).broker
    if election is ElectionType.UNCLEAN:
        if giver != NO_LEADER_ID and giver in alive:
            raise RefusedError(
                ErrorCode.ELECTION_NOT_NEEDED, f"Partition {partition} of '{topic}' has a leader"
            )
        # An election that forgets committed records is never held.
        raise RefusedError(
            ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
            f"Partition {partition} of '{topic}' elects a leader by itself as soon as a majority "
            f"of its replicas {list(wanted.replicas)} is there",
        )
    taker = wanted.wanted[0]
    if giver == taker:
        raise RefusedError(
            ErrorCode.ELECTION_NOT_NEEDED,
            f"Broker {taker}, the preferred leader, leads partition {partition} of '{topic}'",
        )
    if giver == NO_LEADER_ID or taker not in alive or taker in wanted.adding:
        raise RefusedError(
            ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
            f"Broker {taker}, the preferred leader, cannot lead partition {partition} of "
            f"'{topic}' now",
        )
    return LeaderTransfer(found.topic_id, wanted.index, giver, taker)


def elections_due(image: Image, leaders: Leaders) -> Iterable[tuple[str, PartitionIndex]]:
    """Every partition that the preferred leader does not lead: ElectLeaders without a list."""
    for topic in image.topics.values():
        for partition in topic.partitions:
            if leaders.of(topic.topic_id, partition.index).broker != partition.wanted[0]:
                yield topic.name, partition.index


def _is_leaving(image: Image, broker_id: BrokerId) -> bool:
    broker = image.brokers.get(broker_id)
    return broker is None or not broker.active
