"""What classic consumers say to each other: subscriptions, and how their leader assigns."""

import struct
from collections.abc import Iterable, Mapping, Sequence

from moldau.groups.consumer_protocol import assignment_bytes, read_subscription
from moldau.records.kafka_types import string_bytes
from sim.clients.wire import Place


def subscription_bytes(
    topics: Sequence[str], owned: Iterable[Place], generation: int, version: int
) -> bytes:
    """In one of the versions that clients have had."""
    parts = [struct.pack(">hi", version, len(topics)), *map(string_bytes, topics)]
    parts.append(struct.pack(">i", -1))
    if version >= 1:
        by_topic: dict[str, list[int]] = {}
        for topic, index in owned:
            by_topic.setdefault(topic, []).append(index)
        parts.append(assignment_bytes(by_topic)[2:-4])
    if version >= 2:
        parts.append(struct.pack(">i", generation))
    if version >= 3:
        parts.append(struct.pack(">h", -1))
    return b"".join(parts)


def assign(
    protocol: str, members: Mapping[str, bytes], places: Sequence[Place]
) -> dict[str, list[Place]]:
    """By the protocol of the group; members with what they said."""
    names = sorted(members)
    if protocol == "range":
        return _by_range(names, places)
    if protocol == "roundrobin":
        return {name: list(places[at :: len(names)]) for at, name in enumerate(names)}
    return _cooperatively(names, members, places)


def _by_range(names: Sequence[str], places: Sequence[Place]) -> dict[str, list[Place]]:
    size, more = divmod(len(places), len(names))
    plan: dict[str, list[Place]] = {}
    at = 0
    for number, name in enumerate(names):
        end = at + size + (number < more)
        plan[name] = list(places[at:end])
        at = end
    return plan


def _cooperatively(
    names: Sequence[str], members: Mapping[str, bytes], places: Sequence[Place]
) -> dict[str, list[Place]]:
    """What another still has is given on in the next generation."""
    owners: dict[Place, tuple[int, str]] = {}
    for name in names:
        subscribed = read_subscription(members[name])
        assert subscribed is not None
        for topic, indexes in subscribed.owned.items():
            for index in indexes:
                claim = (subscribed.generation, name)
                owners[topic, index] = max(claim, owners.get((topic, index), claim))
    most = -(-len(places) // len(names))
    plan: dict[str, list[Place]] = {name: [] for name in names}
    rest: list[Place] = []
    for place in places:
        owner = owners.get(place)
        if owner is not None and len(plan[owner[1]]) < most:
            plan[owner[1]].append(place)
        else:
            rest.append(place)
    # One that has too few gets of one that has too many, too.
    wanted = {name: list(own) for name, own in plan.items()}
    for place in rest:
        wanted[min(names, key=lambda name: (len(wanted[name]), name))].append(place)
    while True:
        low = min(names, key=lambda name: (len(wanted[name]), name))
        high = max(names, key=lambda name: (len(wanted[name]), name))
        if len(wanted[high]) - len(wanted[low]) < 2:
            break
        wanted[low].append(wanted[high].pop())
    return {
        name: [place for place in own if owners.get(place, (0, name))[1] == name]
        for name, own in wanted.items()
    }
