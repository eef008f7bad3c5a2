"""Kafka's access control lists: rules that allow or deny operations on resources.

A rule matches by resource (literal name, prefix, or `*`), principal, host and operation. Any deny
that matches wins over all allows. Numbers are those of the Kafka protocol, and stored.
"""

import ipaddress
from collections.abc import Iterable
from enum import IntEnum
from typing import Final

from msgspec import Struct

WILDCARD: Final = "*"
"""As a literal resource name: all resources; as a host: all hosts."""
CLUSTER_NAME: Final = "kafka-cluster"
"""The only resource of type CLUSTER."""


class ResourceType(IntEnum):
    ANY = 1
    """In filters only."""
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    USER = 7


class PatternType(IntEnum):
    ANY = 1
    """In filters only, as is MATCH."""
    MATCH = 2
    """Every rule that applies to the resource of this name."""
    LITERAL = 3
    PREFIXED = 4


class Operation(IntEnum):
    ANY = 1
    """In filters only."""
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12


class Permission(IntEnum):
    ANY = 1
    """In filters only."""
    DENY = 2
    ALLOW = 3


_ALLOWED_BY: Final = {
    Operation.DESCRIBE: frozenset(
        {Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER}
    ),
    Operation.DESCRIBE_CONFIGS: frozenset({Operation.ALTER_CONFIGS}),
}
"""What also allows an operation. A deny implies nothing."""


class Resource(Struct, frozen=True):
    """What an operation is done to."""

    type: ResourceType
    name: str


CLUSTER: Final = Resource(ResourceType.CLUSTER, CLUSTER_NAME)


class Acl(Struct, frozen=True, order=True):
    """One rule. `principal` is text as in Kafka: `User:alice`, or `User:*` for everyone."""

    resource_type: ResourceType
    resource_name: str
    pattern_type: PatternType
    principal: str
    host: str
    """An IP address, a CIDR block, or `*`."""
    operation: Operation
    permission: Permission

    def covers(self, resource: Resource) -> bool:
        if self.resource_type != resource.type:
            return False
        if self.pattern_type is PatternType.PREFIXED:
            return resource.name.startswith(self.resource_name)
        return self.resource_name in (resource.name, WILDCARD)

    def concerns(self, principal: str, host: str) -> bool:
        return self.principal in (principal, "User:*") and host_matches(self.host, host)

    def denies(self, operation: Operation) -> bool:
        return self.permission is Permission.DENY and self.operation in (operation, Operation.ALL)

    def allows(self, operation: Operation) -> bool:
        return self.permission is Permission.ALLOW and (
            self.operation in (operation, Operation.ALL)
            or self.operation in _ALLOWED_BY.get(operation, ())
        )


class AclFilter(Struct, frozen=True):
    """Which rules are listed or deleted; None and ANY leave something open."""

    resource_type: ResourceType = ResourceType.ANY
    resource_name: str | None = None
    pattern_type: PatternType = PatternType.ANY
    principal: str | None = None
    host: str | None = None
    operation: Operation = Operation.ANY
    permission: Permission = Permission.ANY

    def matches(self, acl: Acl) -> bool:
        return (
            self.resource_type in (ResourceType.ANY, acl.resource_type)
            and self._matches_pattern(acl)
            and self.principal in (None, acl.principal)
            and self.host in (None, acl.host)
            and self.operation in (Operation.ANY, acl.operation)
            and self.permission in (Permission.ANY, acl.permission)
        )

    def _matches_pattern(self, acl: Acl) -> bool:
        if self.pattern_type is PatternType.MATCH:
            name = self.resource_name
            return name is None or acl.covers(Resource(acl.resource_type, name))
        return self.pattern_type in (
            PatternType.ANY,
            acl.pattern_type,
        ) and self.resource_name in (None, acl.resource_name)


def host_matches(pattern: str, host: str) -> bool:
    if pattern in (WILDCARD, host):
        return True
    try:
        address = ipaddress.ip_address(host)
        network = ipaddress.ip_network(pattern)
    except ValueError:
        return False
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return address.version == network.version and address in network


def is_allowed(
    acls: Iterable[Acl], principal: str, host: str, operation: Operation, resource: Resource
) -> bool:
    """The decision of these rules: no rule that matches means no."""
    allowed = False
    for acl in acls:
        if acl.covers(resource) and acl.concerns(principal, host):
            if acl.denies(operation):
                return False
            allowed = allowed or acl.allows(operation)
    return allowed
