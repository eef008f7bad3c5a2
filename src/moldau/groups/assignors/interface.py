"""Owns the contract of an assignor, and the check of what one gives back.

An assignor is given the whole group and returns the whole assignment. It must be deterministic:
the same specification gives the same result, on every broker and in every run.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Protocol

from msgspec import Struct, field

from moldau.model.errors import MoldauError
from moldau.model.ids import TopicId

Assignment = Mapping[TopicId, frozenset[int]]
"""Partitions by topic. No topic stands in it without partitions."""

NOTHING: Final[Assignment] = MappingProxyType({})


class AssignorError(MoldauError):
    """An assignor failed, or its result breaks the contract; the group keeps what it has."""


class MemberSpec(Struct, frozen=True, kw_only=True):
    """One member: what it wants, and what it was last meant to have."""

    topics: frozenset[TopicId]
    owned: Assignment = field(default_factory=lambda: NOTHING)
    instance_id: str | None = None
    rack: str | None = None


class GroupSpec(Struct, frozen=True, kw_only=True):
    members: Mapping[str, MemberSpec]
    """By member id."""
    topics: Mapping[TopicId, int]
    """Number of partitions of every topic that exists and that any member wants."""


class Assignor(Protocol):
    @property
    def name(self) -> str:
        """By which members ask for it."""
        ...

    def assign(self, spec: GroupSpec) -> Mapping[str, Assignment]:
        """For every member of the group its partitions; an empty group has none."""
        ...


def checked(
    assignor: Assignor, spec: GroupSpec, result: Mapping[str, Assignment]
) -> dict[str, Assignment]:
    """The result, with an entry for each member. Raises AssignorError.

    Partitions that nobody was given are the assignor's own affair; what would send a member
    somewhere wrong, or two members to one place, is not.
    """
    if strangers := sorted(set(result) - set(spec.members)):
        raise AssignorError(f"assignor {assignor.name} names the stranger {strangers[0]!r}")
    given: dict[TopicId, set[int]] = {topic: set() for topic in spec.topics}
    for member_id, assignment in result.items():
        wanted = spec.members[member_id].topics
        for topic, partitions in assignment.items():
            if topic not in wanted or topic not in given:
                raise AssignorError(
                    f"assignor {assignor.name} gives {member_id!r} a topic that it did not ask for"
                )
            if any(not 0 <= partition < spec.topics[topic] for partition in partitions):
                raise AssignorError(f"assignor {assignor.name} gives partitions that do not exist")
            if not given[topic].isdisjoint(partitions):
                raise AssignorError(f"assignor {assignor.name} gives a partition to two members")
            given[topic] |= partitions
    return {
        member_id: {
            topic: frozenset(partitions)
            for topic, partitions in result.get(member_id, NOTHING).items()
            if partitions
        }
        for member_id in spec.members
    }
