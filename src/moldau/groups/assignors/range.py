"""Owns the `range` assignor: each member gets a run of neighbouring partitions of each topic.

Topics with the same number of partitions and the same takers are cut alike, so whoever joins two
of them finds partition n of both in one place. Members stand in the order of what they had, the
new ones behind: then a join or leave shifts the cuts and swaps nobody. Where they want different
topics, what they had gives no common order, and their names do. The first members get the
partitions that are left over, of every topic: `uniform` balances better, and moves less.
"""

from collections.abc import Mapping
from typing import Final

from moldau.groups.assignors.interface import Assignment, GroupSpec
from moldau.model.ids import TopicId


class RangeAssignor:
    """See the module."""

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
    """Where its first partition stood in the topic, as a share: topics differ in size."""
    return min(
        (
            min(indexes) / spec.topics[topic]
            for topic, indexes in spec.members[member_id].owned.items()
            if indexes and spec.topics.get(topic)
        ),
        default=float("inf"),
    )


def _name(spec: GroupSpec, member_id: str) -> tuple[str, str]:
    """A static member has the place of its name, whatever its id."""
    return spec.members[member_id].instance_id or member_id, member_id
