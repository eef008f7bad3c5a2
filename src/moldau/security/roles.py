"""Roles: named sets of ACLs for people, which are granted to a principal in one step.

A role is not stored: granting it creates its ACLs, taking it away deletes the same ones. It is for
everything, for names with a prefix, or for one topic. Rights on the whole cluster are only part of
a role that is for everything.
"""

from collections.abc import Iterator
from typing import Final

from msgspec import Struct

from moldau.security.acl import (
    CLUSTER_NAME,
    WILDCARD,
    Acl,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from moldau.security.principal import Principal

_Rights = dict[ResourceType, tuple[Operation, ...]]


class Role(Struct, frozen=True):
    """What a role may do, by type of resource."""

    name: str
    summary: str
    rights: _Rights


_READER: Final[_Rights] = {
    ResourceType.TOPIC: (Operation.READ, Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS),
    ResourceType.GROUP: (Operation.READ, Operation.DESCRIBE),
}
_WRITER: Final[_Rights] = {
    ResourceType.TOPIC: (Operation.WRITE, Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS),
    ResourceType.TRANSACTIONAL_ID: (Operation.WRITE, Operation.DESCRIBE),
    ResourceType.CLUSTER: (Operation.IDEMPOTENT_WRITE,),
}
_OPERATOR: Final[_Rights] = {
    ResourceType.TOPIC: (
        Operation.CREATE,
        Operation.DELETE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    ResourceType.GROUP: (
        Operation.DELETE,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    ResourceType.TRANSACTIONAL_ID: (Operation.DESCRIBE,),
    # Not ALTER: it includes the right to create ACLs, and with it every other right. To drain
    # brokers and to move replicas, ALTER_CONFIGS is enough.
    ResourceType.CLUSTER: (
        Operation.CREATE,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
}
_ADMIN: Final[_Rights] = {
    ResourceType.TOPIC: (Operation.ALL,),
    ResourceType.GROUP: (Operation.ALL,),
    ResourceType.TRANSACTIONAL_ID: (Operation.ALL,),
    ResourceType.CLUSTER: (Operation.ALL,),
}

ROLES: Final = {
    role.name: role
    for role in (
        Role("reader", "reads records, alone and in consumer groups", _READER),
        Role("writer", "writes records, also in transactions", _WRITER),
        Role(
            "operator",
            "manages topics, groups, settings and brokers; reads no records",
            _OPERATOR,
        ),
        Role("admin", "does everything, and grants rights to others", _ADMIN),
    )
}


def role_acls(
    role: str,
    principal: Principal,
    *,
    prefix: str | None = None,
    topic: str | None = None,
    host: str = WILDCARD,
) -> list[Acl]:
    """The ACLs of a role. Raises ValueError.

    For one topic, groups and transactional ids are those whose names begin with the topic's: their
    names are chosen by clients, and all of them would be the rights on those of others.
    """
    found = ROLES.get(role)
    if found is None:
        raise ValueError(f"there is no role {role!r}: use one of {', '.join(ROLES)}")
    if prefix is not None and topic is not None:
        raise ValueError("a role is for a prefix or for a topic, not for both")
    if "" in (prefix, topic):
        raise ValueError("a prefix or a topic must not be empty: leave it out to mean all")
    return [
        Acl(kind, name, pattern, str(principal), host, operation, Permission.ALLOW)
        for kind, operations in found.rights.items()
        for name, pattern in _names(kind, prefix, topic)
        for operation in operations
    ]


def _names(
    kind: ResourceType, prefix: str | None, topic: str | None
) -> Iterator[tuple[str, PatternType]]:
    """The resources of a type that a role is for."""
    if kind is ResourceType.CLUSTER:
        if prefix is None and topic is None:
            yield CLUSTER_NAME, PatternType.LITERAL
    elif topic is not None:
        is_topic = kind is ResourceType.TOPIC
        yield topic, PatternType.LITERAL if is_topic else PatternType.PREFIXED
    elif prefix is not None:
        yield prefix, PatternType.PREFIXED
    else:
        yield WILDCARD, PatternType.LITERAL
