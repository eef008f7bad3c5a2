"""ACLs on the command line: parsing of principals, operations and resources, and rows of them."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import click
from msgspec.structs import astuple

from moldau.cli.errors import CommandError, ExitCode
from moldau.cli.options import ParamType, complete_groups, complete_topics, completions
from moldau.model.errors import RefusedError
from moldau.security.acl import (
    CLUSTER_NAME,
    Acl,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from moldau.security.acl_checks import OPERATIONS, check_acl

if TYPE_CHECKING:
    from moldau.client.wire.security_admin import AclRule

_F = TypeVar("_F", bound=Callable[..., Any])
_OPERATIONS: Final = {
    each.name.lower().replace("_", "-"): each for each in Operation if each is not Operation.ANY
}
_KINDS: Final = {
    ResourceType.TOPIC: "topic",
    ResourceType.GROUP: "group",
    ResourceType.CLUSTER: "cluster",
    ResourceType.TRANSACTIONAL_ID: "transactional-id",
    ResourceType.USER: "user",
}


class PrincipalParam(ParamType[str]):
    """User:alice, or alice; User:* is everyone."""

    name = "principal"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = str(value)
        kind, colon, name = text.partition(":")
        if not colon:
            kind, name = "User", text
        if kind.lower() != "user" or not name:
            self.fail(f"{text!r} is not a principal; write User:NAME", param, ctx)
        return f"User:{name}"


class UserParam(ParamType[str]):
    """alice, or User:alice as in ACLs."""

    name = "user"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        kind, colon, name = str(value).partition(":")
        return name if colon and name and kind.lower() == "user" else str(value)


class OperationsParam(ParamType[tuple[Operation, ...]]):
    """read,write"""

    name = "operations"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[Operation, ...]:
        if isinstance(value, tuple):
            return value
        found = []
        for word in str(value).split(","):
            operation = _OPERATIONS.get(word.strip().lower().replace("_", "-"))
            if operation is None:
                self.fail(
                    f"{word.strip()!r} is not an operation; write some of {', '.join(_OPERATIONS)}",
                    param,
                    ctx,
                )
            found.append(operation)
        return tuple(dict.fromkeys(found))

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[Any]:
        done, comma, word = incomplete.rpartition(",")
        names = [f"{done}{comma}{name}" for name in _OPERATIONS]
        return completions(f"{done}{comma}{word}", dict.fromkeys(names, ""))


class ResourceName(NamedTuple):
    """What a rule or a filter is about."""

    type: ResourceType
    name: str


def resource_options(function: _F) -> _F:
    """--topic, --group, --transactional-id and --cluster; see `resources`."""
    more: dict[str, Any] = {"multiple": True, "metavar": "NAME"}
    options = (
        click.option(
            "--topic",
            "topics",
            shell_complete=complete_topics,
            help="This topic, * for all; may be repeated.",
            **more,
        ),
        click.option(
            "--group",
            "groups",
            shell_complete=complete_groups,
            help="This consumer or queue group, * for all; may be repeated.",
            **more,
        ),
        click.option(
            "--transactional-id",
            "transactional_ids",
            help="This transactional id, * for all; may be repeated.",
            **more,
        ),
        click.option("--cluster", is_flag=True, help="The cluster itself."),
    )
    for option in reversed(options):
        function = option(function)
    return function


def resources(
    topics: Iterable[str], groups: Iterable[str], transactional_ids: Iterable[str], cluster: bool
) -> list[ResourceName]:
    """The resources that the options name."""
    return [
        *(ResourceName(ResourceType.TOPIC, name) for name in topics),
        *(ResourceName(ResourceType.GROUP, name) for name in groups),
        *(ResourceName(ResourceType.TRANSACTIONAL_ID, name) for name in transactional_ids),
        *((ResourceName(ResourceType.CLUSTER, CLUSTER_NAME),) if cluster else ()),
    ]


def rules_for(
    principal: str,
    operations: Sequence[Operation],
    named: Sequence[ResourceName],
    *,
    prefix: bool,
    permission: Permission,
    hosts: Sequence[str],
) -> list[Acl]:
    """A rule for each operation and resource that go together. Raises CommandError."""
    if not named:
        raise CommandError(
            "no resource given",
            hint="name one: --topic NAME, --group NAME, --transactional-id NAME or --cluster",
            code=ExitCode.USAGE,
        )
    rules = list(_combined(principal, operations, named, prefix, permission, hosts))
    for operation in operations:
        if all(rule.operation is not operation for rule in rules):
            kinds = [_KINDS[each] for each, known in OPERATIONS.items() if operation in known]
            raise CommandError(
                f"{operation_name(operation)} is not an operation of "
                f"{' or '.join(dict.fromkeys(f'a {_KINDS[each.type]}' for each in named))}",
                hint=f"it is an operation of: {', '.join(kinds)}",
                code=ExitCode.USAGE,
            )
    for rule in rules:
        try:
            check_acl(rule)
        except RefusedError as error:
            raise CommandError(
                str(error).removeprefix("Invalid ACL: "), code=ExitCode.USAGE
            ) from None
    return rules


def _combined(
    principal: str,
    operations: Sequence[Operation],
    named: Sequence[ResourceName],
    prefix: bool,
    permission: Permission,
    hosts: Sequence[str],
) -> Iterator[Acl]:
    for kind, name in named:
        # "*" as a prefix would only match names that begin with a star.
        is_prefix = prefix and kind is not ResourceType.CLUSTER and name != "*"
        for operation in operations:
            if operation is not Operation.ALL and operation not in OPERATIONS[kind]:
                continue
            for host in hosts:
                yield Acl(
                    resource_type=kind,
                    resource_name=name,
                    pattern_type=PatternType.PREFIXED if is_prefix else PatternType.LITERAL,
                    principal=principal,
                    host=host,
                    operation=operation,
                    permission=permission,
                )


def operation_name(operation: Operation) -> str:
    return operation.name.lower().replace("_", "-")


def wire_rule(acl: Acl) -> "AclRule":
    """The same for the client."""
    from moldau.client.wire.security_admin import AclRule

    return AclRule(*astuple(acl))


def acl_of(rule: "AclRule") -> Acl:
    """The rule of a client. Raises ValueError: a newer broker may have numbers unknown here."""
    return Acl(
        ResourceType(rule.resource_type),
        rule.resource_name,
        PatternType(rule.pattern_type),
        rule.principal,
        rule.host,
        Operation(rule.operation),
        Permission(rule.permission),
    )


def row_of(rule: "AclRule") -> dict[str, Any]:
    """A line of a table."""
    return {
        "principal": rule.principal,
        "permission": _word(Permission, rule.permission),
        "operation": _word(Operation, rule.operation),
        "resource": _word(ResourceType, rule.resource_type),
        "name": rule.resource_name,
        "pattern": _word(PatternType, rule.pattern_type),
        "host": rule.host,
    }


def _word(kind: Any, number: int) -> str:
    """A newer broker may have numbers that are unknown here."""
    try:
        return str(kind(number).name).lower().replace("_", "-")
    except ValueError:
        return str(number)
