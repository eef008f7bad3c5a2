"""The assignor interface, and the validation of an assignor's result.

An assignor gets the whole group and returns the whole assignment. It must be deterministic: the
same input gives the same result, on every broker and in every run.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Protocol

from msgspec import Struct, field

from moldau.model.errors import MoldauError
from moldau.model.ids import TopicId

Assignment = Mapping[TopicId, frozenset[int]]
"""Partitions by topic; a topic without partitions is absent."""

NOTHING: Final[Assignment] = MappingProxyType({})


class AssignorError(MoldauError):
    """An assignor failed, or its result is invalid; the group keeps its assignment."""


class MemberSpec(Struct, frozen=True, kw_only=True):
    """One member: the topics it subscribes to, and its last target assignment."""

    topics: frozenset[TopicId]
    owned: Assignment = field(default_factory=lambda: NOTHING)
    instance_id: str | None = None
    rack: str | None = None


class GroupSpec(Struct, frozen=True, kw_only=True):
    members: Mapping[str, MemberSpec]
    """By member id."""
    topics: Mapping[TopicId, int]
    """Partition counts of all existing topics that any member subscribes to."""


class Assignor(Protocol):
    @property
    def name(self) -> str:
        """The name that members request."""
        ...

    def assign(self, spec: GroupSpec) -> Mapping[str, Assignment]:
        """The partitions of every member; empty for an empty group."""
        ...


def checked(
    assignor: Assignor, spec: GroupSpec, result: Mapping[str, Assignment]
) -> dict[str, Assignment]:
    """The result, with an entry for each member. Raises AssignorError.

    Unassigned partitions are allowed; unknown members, topics or partitions, and partitions with
    two members, are not.
    """
    if unknown := sorted(set(result) - set(spec.members)):
        raise AssignorError(f"assignor {assignor.name} returned the unknown member {unknown[0]!r}")
    given: dict[TopicId, set[int]] = {topic: set() for topic in spec.topics}
    for member_id, assignment in result.items():
        wanted = spec.members[member_id].topics
        for topic, partitions in assignment.items():
            if topic not in wanted or topic not in given:
                raise AssignorError(
                    f"assignor {assignor.name} assigned {member_id!r} an unsubscribed topic"
                )
            if any(not 0 <= partition < spec.topics[topic] for partition in partitions):
                raise AssignorError(f"assignor {assignor.name} assigned unknown partitions")
            if not given[topic].isdisjoint(partitions):
                raise AssignorError(
                    f"assignor {assignor.name} assigned one partition to two members"
                )
            given[topic] |= partitions
    return {
        member_id: {
            topic: frozenset(partitions)
            for topic, partitions in result.get(member_id, NOTHING).items()
            if partitions
        }
        for member_id in spec.members
    }
