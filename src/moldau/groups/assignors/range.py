"""The `range` assignor: each member gets consecutive partitions of each topic.

Topics with the same number of partitions and the same subscribers are split alike, so partition n
of two such topics goes to the same member, as joins of streams need. Members are ordered by their
previous partitions, new ones last: a join or leave then moves only the boundaries. If members
subscribe to different topics, they are ordered by name. The first members get the remainder of
every topic: `uniform` balances better, and moves fewer partitions.
"""

from collections.abc import Mapping
from typing import Final

from moldau.groups.assignors.interface import Assignment, GroupSpec
from moldau.model.ids import TopicId


class RangeAssignor:
    name: Final = "range"

    def assign(self, spec: GroupSpec) -> Mapping[str, Assignment]:
        plan: dict[str, dict[TopicId, frozenset[int]]] = {member: {} for member in spec.members}
        by_name = len({member.topics for member in spec.members.values()}) > 1
        order = sorted(
            spec.members,
            key=lambda one: (0.0 if by_name else _lowest(spec, one), *_name(spec, one)),
        )
        for topic in sorted(spec.topics):
            takers = [member for member in order if topic in spec.members[member].topics]
            if not takers:
                continue
            share, more = divmod(spec.topics[topic], len(takers))
            start = 0
            for rank, member_id in enumerate(takers):
                end = start + share + (rank < more)
                if end > start:
                    plan[member_id][topic] = frozenset(range(start, end))
                start = end
        return plan


def _lowest(spec: GroupSpec, member_id: str) -> float:
    """The position of its first partition, relative to the size of the topic."""
    return min(
        (
            min(indexes) / spec.topics[topic]
            for topic, indexes in spec.members[member_id].owned.items()
            if indexes and spec.topics.get(topic)
        ),
        default=float("inf"),
    )


def _name(spec: GroupSpec, member_id: str) -> tuple[str, str]:
    """A static member is ordered by its instance id, which outlives its member id."""
    return spec.members[member_id].instance_id or member_id, member_id
