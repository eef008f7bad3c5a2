"""Plans leadership transfers: to preferred leaders, off draining brokers, and for ElectLeaders.

Pure: the inputs are the known leaders and live brokers, the result is the transfers to request. The
partition's Raft group decides whether one succeeds: it elects only a broker with all committed
records.
"""

from collections import Counter
from collections.abc import Collection, Iterable
from enum import IntEnum
from typing import NamedTuple

from moldau.metadata.checks import existing_partition
from moldau.metadata.image import Image, Partition
from moldau.metadata.leaders import NO_LEADER_ID, Leaders
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import BrokerId, PartitionIndex, TopicId


class ElectionType(IntEnum):
    """Numbers as in ElectLeaders."""

    PREFERRED = 0
    UNCLEAN = 1


class LeaderTransfer(NamedTuple):
    """A transfer of leadership from broker `source` to broker `target`."""

    topic_id: TopicId
    partition: PartitionIndex
    source: BrokerId
    target: BrokerId


def preferred_leader(image: Image, partition: Partition) -> BrokerId:
    """The first desired replica on an active broker; if none is active, the first."""
    for number in partition.desired:
        broker = image.brokers.get(number)
        if broker is not None and broker.active:
            return number
    return partition.desired[0]


def balance_leaders(
    image: Image,
    leaders: Leaders,
    alive: Collection[BrokerId],
    *,
    imbalance_percent_max: int = 10,
    count_max: int = 100,
) -> list[LeaderTransfer]:
    """At most `count_max` transfers towards preferred leaders.

    A draining broker hands over everything. Otherwise a preferred leader gets its partitions back
    only if it does not lead more than `imbalance_percent_max` of them: a single one is not worth an
    interruption. Partitions under reassignment are skipped: new replicas may not have caught up.
    """
    due: dict[BrokerId, int] = Counter()
    found: list[LeaderTransfer] = []
    for topic in image.topics.values():
        for partition in topic.partitions:
            preferred = preferred_leader(image, partition)
            due[preferred] += 1
            source = leaders.of(topic.topic_id, partition.index).broker
            if source in (NO_LEADER_ID, preferred) or partition.moving:
                continue
            if preferred in alive:
                found.append(LeaderTransfer(topic.topic_id, partition.index, source, preferred))
    missing = Counter(transfer.target for transfer in found)
    return [
        transfer
        for transfer in found
        if _is_leaving(image, transfer.source)
        or missing[transfer.target] * 100 > imbalance_percent_max * due[transfer.target]
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
    found, found_partition = existing_partition(image, topic, partition)
    source = leaders.of(found.topic_id, found_partition.index).broker
    if election is ElectionType.UNCLEAN:
        if source != NO_LEADER_ID and source in alive:
            raise RefusedError(
                ErrorCode.ELECTION_NOT_NEEDED, f"Partition {partition} of '{topic}' has a leader"
            )
        # Unclean elections, which lose committed records, are not supported.
        raise RefusedError(
            ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
            f"Unclean elections are not supported: partition {partition} of '{topic}' elects a "
            f"leader when a majority of its replicas {list(found_partition.replicas)} is up",
        )
    target = preferred_leader(image, found_partition)
    if source == target:
        raise RefusedError(
            ErrorCode.ELECTION_NOT_NEEDED,
            f"Broker {target}, the preferred leader, leads partition {partition} of '{topic}'",
        )
    if source == NO_LEADER_ID or target not in alive or target in found_partition.adding:
        raise RefusedError(
            ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
            f"Broker {target}, the preferred leader of partition {partition} of '{topic}', is not "
            "available",
        )
    return LeaderTransfer(found.topic_id, found_partition.index, source, target)


def elections_due(image: Image, leaders: Leaders) -> Iterable[tuple[str, PartitionIndex]]:
    """Every partition that the preferred leader does not lead: ElectLeaders without a list."""
    for topic in image.topics.values():
        for partition in topic.partitions:
            leader = leaders.of(topic.topic_id, partition.index).broker
            if leader != preferred_leader(image, partition):
                yield topic.name, partition.index


def _is_leaving(image: Image, broker_id: BrokerId) -> bool:
    broker = image.brokers.get(broker_id)
    return broker is None or not broker.active
