"""Converts rules and filters of ACLs between the numbers of the protocol and their types."""

from collections.abc import Callable
from enum import IntEnum
from typing import Protocol, TypeVar

from moldau.model.errors import ErrorCode, RefusedError
from moldau.security.acl import Acl, AclFilter, Operation, PatternType, Permission, ResourceType
from moldau.wire.messages.create_acls import AclCreation

E = TypeVar("E", bound=IntEnum)
F = TypeVar("F")
P = TypeVar("P", Acl, AclFilter)


class FilterFields(Protocol):
    """The fields of a filter, in whichever request."""

    resource_type_filter: int
    resource_name_filter: str | None
    pattern_type_filter: int
    principal_filter: str | None
    host_filter: str | None
    operation: int
    permission_type: int


def acl_of(fields: AclCreation) -> Acl:
    """Raises RefusedError for numbers that mean nothing here."""
    return Acl(
        resource_type=_known(ResourceType, fields.resource_type, "resource type"),
        resource_name=fields.resource_name,
        pattern_type=_known(PatternType, fields.resource_pattern_type, "pattern type"),
        principal=fields.principal,
        host=fields.host,
        operation=_known(Operation, fields.operation, "operation"),
        permission=_known(Permission, fields.permission_type, "permission type"),
    )


def filter_of(fields: FilterFields) -> AclFilter:
    """Raises RefusedError for numbers that mean nothing here."""
    return AclFilter(
        resource_type=_known(ResourceType, fields.resource_type_filter, "resource type"),
        resource_name=fields.resource_name_filter,
        pattern_type=_known(PatternType, fields.pattern_type_filter, "pattern type"),
        principal=fields.principal_filter,
        host=fields.host_filter,
        operation=_known(Operation, fields.operation, "operation"),
        permission=_known(Permission, fields.permission_type, "permission type"),
    )


def attempt(parse: Callable[[F], P], fields: F) -> P | RefusedError:
    """What `parse` returns or raises: other rules of the request are not affected."""
    try:
        return parse(fields)
    except RefusedError as error:
        return error


def _known(kind: type[E], number: int, name: str) -> E:
    try:
        return kind(number)
    except ValueError:
        raise RefusedError(
            ErrorCode.INVALID_REQUEST, f"The {name} {number} is not supported"
        ) from None
