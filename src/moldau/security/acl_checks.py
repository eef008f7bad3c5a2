"""Which rules may exist: what Kafka accepts, and nothing that could never match.

Snapshots of the metadata are checked with it, too: what one version accepted, no later one may
refuse.
"""

import ipaddress
from typing import Final

from moldau.model.errors import ErrorCode, RefusedError
from moldau.security.acl import (
    CLUSTER_NAME,
    ON_CLUSTER,
    ON_GROUP,
    ON_TOPIC,
    WILDCARD,
    Acl,
    AclFilter,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from moldau.security.principal import NAME_BYTES_MAX, USER, parse_principal

RESOURCE_NAME_BYTES_MAX: Final = 255
_SHOWN_LENGTH_MAX: Final = 80

OPERATIONS: Final = {
    ResourceType.TOPIC: frozenset(ON_TOPIC),
    ResourceType.GROUP: frozenset(
        {*ON_GROUP, Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS},
    ),
    ResourceType.CLUSTER: frozenset(ON_CLUSTER),
    ResourceType.TRANSACTIONAL_ID: frozenset({Operation.WRITE, Operation.DESCRIBE}),
}
"""The operations of each type of resource, besides ALL. Types without any cannot have rules: users
are resources of delegation tokens only, which do not exist here."""


def check_acl(acl: Acl) -> None:
    """Raises RefusedError with the reason."""
    _check_resource(acl)
    _check_principal(acl.principal)
    check_host(acl.host)
    if acl.permission is Permission.ANY:
        raise _invalid("a rule either allows or denies; ANY is for filters")


def check_filter(acl_filter: AclFilter) -> None:
    """Raises RefusedError: a filter with a typing error would seem to match nothing."""
    if acl_filter.principal is not None:
        _parsed(acl_filter.principal)
    if acl_filter.resource_name == "":
        raise _invalid("the name of a resource must not be empty")


def _check_resource(acl: Acl) -> None:
    operations = OPERATIONS.get(acl.resource_type)
    if operations is None:
        known = ", ".join(kind.name for kind in OPERATIONS)
        raise _invalid(f"a rule is for one of {known}, not {acl.resource_type.name}")
    if acl.operation not in operations and acl.operation is not Operation.ALL:
        known = ", ".join(sorted(each.name for each in operations))
        raise _invalid(
            f"a {acl.resource_type.name} has no operation {acl.operation.name}: use ALL, {known}"
        )
    if acl.pattern_type not in (PatternType.LITERAL, PatternType.PREFIXED):
        raise _invalid(
            f"the pattern of a rule is LITERAL or PREFIXED; {acl.pattern_type.name} is for filters"
        )
    size = len(acl.resource_name.encode())
    if not 0 < size <= RESOURCE_NAME_BYTES_MAX:
        raise _invalid(
            f"the name of a resource has 1 to {RESOURCE_NAME_BYTES_MAX} bytes, not {size}"
        )
    if acl.resource_type is ResourceType.CLUSTER and acl.resource_name != CLUSTER_NAME:
        raise _invalid(
            f"the only CLUSTER is '{CLUSTER_NAME}', there is no {_shown(acl.resource_name)}"
        )


def _check_principal(text: str) -> None:
    principal = _parsed(text)
    if principal[0] != USER:
        raise _invalid(f"principals are users, as in User:alice, not {_shown(text)}")
    if len(principal[1].encode()) > NAME_BYTES_MAX or not text.isprintable():
        raise _invalid(
            f"a principal has at most {NAME_BYTES_MAX} bytes and no control characters: "
            f"{_shown(text)}"
        )


def _parsed(text: str) -> tuple[str, str]:
    try:
        return parse_principal(text)
    except ValueError:
        raise _invalid(f"a principal is written as User:name, not {_shown(text)}") from None


def check_host(host: str) -> None:
    """An address, a block of addresses, or all. Raises RefusedError."""
    if host == WILDCARD:
        return
    try:
        network = ipaddress.ip_network(host)
    except ValueError:
        raise _invalid(
            f"a host is *, an IP address, or a block as in 10.0.0.0/8, not {_shown(host)}; names "
            "are not resolved"
        ) from None
    if isinstance(network, ipaddress.IPv6Network):
        if network.network_address.ipv4_mapped is not None:
            # Clients are known by their IPv4 addresses: it would never match.
            raise _invalid(f"write {_shown(host)} as an IPv4 address")
        if "%" in host:
            raise _invalid(f"write {_shown(host)} without its zone")


def _shown(text: str) -> str:
    return repr(text if len(text) <= _SHOWN_LENGTH_MAX else text[:_SHOWN_LENGTH_MAX] + "…")


def _invalid(message: str) -> RefusedError:
    return RefusedError(ErrorCode.INVALID_REQUEST, f"Invalid ACL: {message}")
