"""Decides by ACLs, with an index of the rules and a bounded cache of decisions.

The decision is that of `acl.is_allowed`. An authorizer is made for one set of rules: when they
change, a new one is made, so no decision outlives its rules.
"""

from collections.abc import Collection, Iterator
from typing import Final

from moldau.security.acl import (
    WILDCARD,
    Acl,
    Operation,
    PatternType,
    Resource,
    ResourceType,
    is_allowed,
)
from moldau.security.principal import EVERYONE, Principal

CACHE_ENTRIES: Final = 16_384
"""Decisions per generation; two generations are kept."""
_CACHED_NAME_LENGTH_MAX: Final = 255
"""Longer names, which no topic has, are not cached: they would fill the memory."""

_Place = tuple[ResourceType, str, str]
"""Type, name or prefix, and principal."""
_Key = tuple[Principal, str, Operation, Resource | ResourceType]


class Authorizer:
    def __init__(self, acls: Collection[Acl], super_users: frozenset[Principal]) -> None:
        self.super_users = super_users
        self._literal: dict[_Place, list[Acl]] = {}
        self._prefixed: dict[_Place, list[Acl]] = {}
        self._by_type: dict[tuple[ResourceType, str], list[Acl]] = {}
        lengths: dict[ResourceType, set[int]] = {}
        for acl in acls:
            place = (acl.resource_type, acl.resource_name, acl.principal)
            if acl.pattern_type is PatternType.PREFIXED:
                self._prefixed.setdefault(place, []).append(acl)
                lengths.setdefault(acl.resource_type, set()).add(len(acl.resource_name))
            else:
                self._literal.setdefault(place, []).append(acl)
            self._by_type.setdefault((acl.resource_type, acl.principal), []).append(acl)
        self._prefix_lengths = {kind: sorted(found) for kind, found in lengths.items()}
        self._recent: dict[_Key, bool] = {}
        self._older: dict[_Key, bool] = {}

    def allows(
        self, principal: Principal, host: str, operation: Operation, resource: Resource
    ) -> bool:
        key = (principal, host, operation, resource)
        known = self._recent.get(key)
        if known is not None:
            return known
        decision = self._older.get(key)
        if decision is None:
            decision = principal in self.super_users or is_allowed(
                self._candidates(principal, resource), str(principal), host, operation, resource
            )
        self._remember(key, decision, len(resource.name))
        return decision

    def allows_any(
        self, principal: Principal, host: str, operation: Operation, resource_type: ResourceType
    ) -> bool:
        """Whether there is a resource of this type, existing or not, that the operation is allowed
        on."""
        key = (principal, host, operation, resource_type)
        known = self._recent.get(key)
        if known is not None:
            return known
        decision = principal in self.super_users or self._allows_some(
            str(principal), host, operation, resource_type
        )
        self._remember(key, decision, 0)
        return decision

    def _candidates(self, principal: Principal, resource: Resource) -> Iterator[Acl]:
        """All rules for this resource and principal; hosts and operations are not looked at."""
        kind, name = resource.type, resource.name
        for who in (str(principal), _EVERYONE):
            yield from self._literal.get((kind, name, who), ())
            yield from self._literal.get((kind, WILDCARD, who), ())
            for length in self._prefix_lengths.get(kind, ()):
                if length > len(name):
                    break
                yield from self._prefixed.get((kind, name[:length], who), ())

    def _allows_some(
        self, principal: str, host: str, operation: Operation, resource_type: ResourceType
    ) -> bool:
        rules = [
            acl
            for who in (principal, _EVERYONE)
            for acl in self._by_type.get((resource_type, who), ())
            if acl.concerns(principal, host)
        ]
        denies = [acl for acl in rules if acl.denies(operation)]
        return any(
            acl.allows(operation) and not any(_hides(deny, acl) for deny in denies) for acl in rules
        )

    def _remember(self, key: _Key, decision: bool, name_length: int) -> None:
        if name_length > _CACHED_NAME_LENGTH_MAX:
            return
        if len(self._recent) >= CACHE_ENTRIES:
            self._older, self._recent = self._recent, {}
        self._recent[key] = decision


_EVERYONE: Final = str(EVERYONE)


def _hides(deny: Acl, allow: Acl) -> bool:
    """Whether the deny is for all resources that the allow is for."""
    if deny.pattern_type is PatternType.PREFIXED:
        # A literal wildcard allows names that the prefix does not cover.
        is_wildcard = allow.pattern_type is PatternType.LITERAL and allow.resource_name == WILDCARD
        return not is_wildcard and allow.resource_name.startswith(deny.resource_name)
    if deny.resource_name == WILDCARD:
        return True
    return allow.pattern_type is PatternType.LITERAL and allow.resource_name == deny.resource_name
