"""Owns the choice of brokers for new partitions. Deterministic: the seed comes with the command.

Brokers are laid out in a ring in which neighbours are in different racks as far as possible. The
leaders of successive partitions go round the ring; followers come from the rest of the ring, first
from racks that the partition does not use yet. Each turn of the ring begins its search one place
further, so that two brokers do not always share the same partitions.
"""

from collections.abc import Iterable, Sequence
from zlib import crc32

from moldau.metadata.image import Broker
from moldau.model.ids import BrokerId, TopicId


def place(
    brokers: Iterable[Broker],
    *,
    topic_id: TopicId,
    first: int,
    count: int,
    replication_factor: int,
) -> tuple[tuple[BrokerId, ...], ...]:
    """Replicas for partitions first … first + count - 1, the preferred leader first."""
    ring = _ring(brokers)
    start = crc32(topic_id) % len(ring)
    return tuple(
        _replicas(ring, start + index, index // len(ring), replication_factor)
        for index in range(first, first + count)
    )


def _ring(brokers: Iterable[Broker]) -> list[Broker]:
    racks: dict[str | None, list[Broker]] = {}
    for broker in sorted(brokers, key=lambda broker: broker.id):
        racks.setdefault(broker.rack, []).append(broker)
    columns = [racks[rack] for rack in sorted(racks, key=lambda rack: (rack is not None, rack))]
    depth = max((len(column) for column in columns), default=0)
    return [column[row] for row in range(depth) for column in columns if row < len(column)]


def _replicas(
    ring: Sequence[Broker], position: int, turn: int, replication_factor: int
) -> tuple[BrokerId, ...]:
    leader = ring[position % len(ring)]
    others = [ring[(position + step) % len(ring)] for step in range(1, len(ring))]
    if others:
        shift = turn % len(others)
        others = others[shift:] + others[:shift]
    chosen = [leader]
    racks_used = {leader.rack}
    while len(chosen) < replication_factor:
        fresh = next((broker for broker in others if broker.rack not in racks_used), None)
        if fresh is None:
            # Every rack that has a broker left is used: begin another round over the racks.
            racks_used = set()
            continue
        others.remove(fresh)
        chosen.append(fresh)
        racks_used.add(fresh.rack)
    return tuple(broker.id for broker in chosen)
