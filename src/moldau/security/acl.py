"""Kafka's access control lists: rules that allow or deny operations on resources.

A rule matches by resource (literal name, prefix, or `*`), principal, host and operation. Any deny
that matches wins over all allows. Numbers are those of the Kafka protocol, and stored.
"""

import ipaddress
from collections.abc import Collection, Iterable, Set
from enum import IntEnum
from functools import lru_cache
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

ON_CLUSTER: Final = (
    Operation.CREATE,
    Operation.ALTER,
    Operation.DESCRIBE,
    Operation.CLUSTER_ACTION,
    Operation.DESCRIBE_CONFIGS,
    Operation.ALTER_CONFIGS,
    Operation.IDEMPOTENT_WRITE,
)
ON_TOPIC: Final = (
    Operation.READ,
    Operation.WRITE,
    Operation.CREATE,
    Operation.DELETE,
    Operation.ALTER,
    Operation.DESCRIBE,
    Operation.DESCRIBE_CONFIGS,
    Operation.ALTER_CONFIGS,
)
ON_GROUP: Final = (Operation.READ, Operation.DELETE, Operation.DESCRIBE)
"""What replies name of what a client may do, in the order of Kafka's tools."""


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
        return self.resource_type == resource.type and self.covers_name(resource.name)

    def covers_name(self, name: str) -> bool:
        """Whether the rule is for a resource of its type with this name."""
        if self.pattern_type is PatternType.PREFIXED:
            return name.startswith(self.resource_name)
        return self.resource_name in (name, WILDCARD)

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
        return bool(self.select((acl,)))

    def only(self) -> Acl | None:
        """The one rule that matches, if nothing is left open."""
        if (
            self.resource_name is None
            or self.principal is None
            or self.host is None
            or self.pattern_type in (PatternType.ANY, PatternType.MATCH)
            or self.resource_type == ResourceType.ANY
            or self.operation == Operation.ANY
            or self.permission == Permission.ANY
        ):
            return None
        return Acl(
            self.resource_type,
            self.resource_name,
            self.pattern_type,
            self.principal,
            self.host,
            self.operation,
            self.permission,
        )

    def find(self, acls: Set[Acl]) -> Collection[Acl]:
        """The rules that match. Tools delete rules one by one, with nothing left open: that takes
        no longer with many rules."""
        only = self.only()
        if only is not None:
            return (only,) if only in acls else ()
        return self.select(acls)

    def select(self, acls: Collection[Acl]) -> Collection[Acl]:
        """Field by field, which is several times as fast as rule by rule."""
        name, pattern = self.resource_name, self.pattern_type
        if self.principal is not None:
            acls = [acl for acl in acls if acl.principal == self.principal]
        if self.host is not None:
            acls = [acl for acl in acls if acl.host == self.host]
        if self.resource_type is not ResourceType.ANY:
            acls = [acl for acl in acls if acl.resource_type is self.resource_type]
        if self.operation is not Operation.ANY:
            acls = [acl for acl in acls if acl.operation is self.operation]
        if self.permission is not Permission.ANY:
            acls = [acl for acl in acls if acl.permission is self.permission]
        if pattern is PatternType.MATCH:
            if name is not None:
                acls = [acl for acl in acls if acl.covers_name(name)]
            return acls
        if pattern is not PatternType.ANY:
            acls = [acl for acl in acls if acl.pattern_type is pattern]
        if name is not None:
            acls = [acl for acl in acls if acl.resource_name == name]
        return acls


def host_matches(pattern: str, host: str) -> bool:
    if pattern in (WILDCARD, host):
        return True
    address, network = _address(host), _network(pattern)
    if address is None or network is None:
        return False
    return address.version == network.version and address in network


# Parsing takes longer than all the rest of a decision.
@lru_cache(maxsize=4096)
def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address


@lru_cache(maxsize=4096)
def _network(pattern: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
    try:
        return ipaddress.ip_network(pattern)
    except ValueError:
        return None


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
