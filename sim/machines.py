"""What must hold where brokers share machines.

- No machine gets two replicas of a new partition while another one with an active broker has none;
- in the end, no machine has a majority of the voters of the metadata, unless it is the only one.
"""

from collections import Counter
from collections.abc import Iterable

from moldau.metadata.image import Image, Place
from moldau.metadata.voters import has_majority
from moldau.model.ids import BrokerId


def crowded(before: Image, now: Image) -> list[str]:
    """The partitions of new topics that have two replicas on one machine for no reason."""
    # Between the two images brokers may have come or gone: only what was there all the time counts.
    free = _active_places(before) & _active_places(now)
    found = []
    for topic in now.topics.values():
        if before.topic_by_id(topic.topic_id) is not None:
            continue
        for partition in topic.partitions:
            used = Counter(
                now.brokers[one].place for one in partition.desired if one in now.brokers
            )
            if max(used.values(), default=0) > 1 and free - used.keys():
                found.append(f"{topic.name}-{partition.index}")
    return found


def rules_alone(voters: Iterable[BrokerId], image: Image) -> bool:
    """Whether one of several machines has a majority of these voters."""
    places = {one.id: one.place for one in image.brokers.values() if one.active}
    return has_majority(voters, places)


def _active_places(image: Image) -> set[Place]:
    return {one.place for one in image.brokers.values() if one.active}
