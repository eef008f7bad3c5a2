"""`moldau role`: named sets of ACLs for people."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from moldau.cli.acl_rules import PrincipalParam, acl_of, operation_name, row_of, wire_rule
from moldau.cli.click_groups import LazyGroup
from moldau.cli.errors import CommandError, ExitCode
from moldau.cli.options import complete_topics, output_option, plain_brokers_option
from moldau.cli.output import counted, emit_rows, say
from moldau.cli.security_client import complete_principals, security_admin
from moldau.security.acl import PatternType, ResourceType
from moldau.security.acl_checks import check_acl
from moldau.security.principal import parse_principal
from moldau.security.roles import ROLES, role_acls

if TYPE_CHECKING:
    from moldau.client.wire.security_admin import AclRule


@click.group(
    "role",
    cls=LazyGroup,
    examples=(
        "moldau role grant reader User:alice --topic orders",
        "moldau role list User:alice",
        "moldau role revoke reader User:alice --topic orders",
    ),
)
def role() -> None:
    """Grant and revoke roles: reader, writer, operator and admin. A role is a set of ACLs."""


_SCOPE_OPTIONS = (
    click.argument("name", metavar="ROLE", type=click.Choice(tuple(ROLES))),
    click.argument("principal", type=PrincipalParam(), shell_complete=complete_principals),
    click.option("--topic", shell_complete=complete_topics, help="Only for this topic."),
    click.option("--prefix", metavar="TEXT", help="Only for names that begin so."),
    click.option(
        "--host",
        default="*",
        show_default=True,
        metavar="ADDRESS",
        help="Only from this address or block, as 10.1.0.0/16.",
    ),
)


def _scope_options(function: "click.decorators.FC") -> "click.decorators.FC":
    for option in reversed(_SCOPE_OPTIONS):
        function = option(function)
    return function


@role.command(
    "grant",
    examples=(
        "moldau role grant reader User:alice --topic orders",
        "moldau role grant writer User:shop --prefix shop.",
        "moldau role grant admin User:root --host 127.0.0.1",
    ),
)
@_scope_options
@output_option
@plain_brokers_option
def grant(
    name: str,
    principal: str,
    topic: str | None,
    prefix: str | None,
    host: str,
    output: str,
    brokers: str,
) -> None:
    """Give a user the rights of a role: for everything, one topic, or names with a prefix."""
    rules = _rules(name, principal, topic, prefix, host)
    with security_admin(brokers) as admin:
        admin.create_acls(rules)
    emit_rows([row_of(rule) for rule in rules], output, name="principal")


@role.command(
    "revoke",
    examples=(
        "moldau role revoke reader User:alice --topic orders",
        "moldau role revoke writer User:shop --prefix shop.",
        "moldau role revoke admin User:root --host 127.0.0.1",
    ),
)
@_scope_options
@plain_brokers_option
def revoke(
    name: str, principal: str, topic: str | None, prefix: str | None, host: str, brokers: str
) -> None:
    """Take the rights of a role away. Rights that another role or rule gives as well stay."""
    rules = _rules(name, principal, topic, prefix, host)
    where = f" for {'topic' if topic else 'prefix'} {topic or prefix}" if topic or prefix else ""
    with security_admin(brokers) as admin:
        every = {each for who in (principal, "User:*") for each in admin.acls(_pattern(who))}
        owned = {each for each in every if (each.principal, each.host) == (principal, host)}
        held = list(_held(owned, principal, host))
        if (name, (topic, prefix)) not in held:
            some = [each for each in rules if each in owned]
            part = f", only {counted(len(some), 'ACL')} as it has: {_words(some)}" if some else ""
            raise CommandError(
                f"{principal} does not have the role {name}{where}{part}; nothing was changed",
                hint=f"delete them: moldau acl delete {principal} --help"
                if some
                else f"list roles: moldau role list {principal}",
                code=ExitCode.NOT_FOUND,
            )
        others = {
            rule
            for other, scope in held
            if not (other == name and scope == (topic, prefix))
            for rule in _rules(other, principal, *scope, host)
        }
        gone = [rule for rule in rules if rule not in others]
        count = admin.delete_acls(gone) if gone else 0
    say(f"revoked {name} of {principal}{where}: deleted {counted(count, 'ACL')}")
    still = [each for each in sorted(every - set(gone)) if any(_gives(each, one) for one in rules)]
    if still:
        say(f"other ACLs still allow, wholly or in part: {_words(still)}")


@role.command(
    "list",
    examples=(
        "moldau role list                  # the roles, and what they allow",
        "moldau role list User:alice       # the roles of a user",
        "moldau role list User:alice -o json",
    ),
)
@click.argument(
    "principal", type=PrincipalParam(), required=False, shell_complete=complete_principals
)
@output_option
@plain_brokers_option
def list_roles(principal: str | None, output: str, brokers: str) -> None:
    """List the roles, or those that a user has."""
    if principal is None:
        emit_rows([_described(name) for name in ROLES], output, name="role")
        return
    with security_admin(brokers) as admin:
        owned = set(admin.acls(_pattern(principal)))
    rows = [
        {
            "role": name,
            "principal": principal,
            "topic": topic,
            "prefix": prefix,
            "host": host,
        }
        for host in sorted({rule.host for rule in owned})
        for name, (topic, prefix) in _held(
            {each for each in owned if each.host == host}, principal, host
        )
    ]
    emit_rows(rows, output, name="role", if_empty=f"{principal} has no role; see moldau acl list")


def _described(name: str) -> dict[str, Any]:
    found = ROLES[name]
    rights = {
        kind.name.lower().replace("_", "-"): ",".join(map(operation_name, operations))
        for kind, operations in found.rights.items()
    }
    kinds = ("topic", "group", "transactional-id", "cluster")
    return {"role": name, **{kind: rights.get(kind) for kind in kinds}, "summary": found.summary}


def _pattern(principal: str) -> Any:
    from moldau.client.wire.security_admin import AclPattern

    return AclPattern(principal=principal)


def _rules(
    name: str, principal: str, topic: str | None, prefix: str | None, host: str
) -> "list[AclRule]":
    """The rules of a role. Raises CommandError."""
    from moldau.model.errors import RefusedError

    try:
        rules = role_acls(name, parse_principal(principal), prefix=prefix, topic=topic, host=host)
        for rule in rules:
            check_acl(rule)
    except (ValueError, RefusedError) as error:
        text = str(error).removeprefix("Invalid ACL: ")
        raise CommandError(text, code=ExitCode.USAGE) from None
    return [wire_rule(rule) for rule in rules]


def _gives(rule: "AclRule", other: "AclRule") -> bool:
    """Whether a rule allows what another one does, for some names that both are for."""
    try:
        one, two = acl_of(rule), acl_of(other)
    except ValueError:
        # Of a newer broker.
        return False
    return (
        one.resource_type is two.resource_type
        and one.allows(two.operation)
        and (one.covers_name(two.resource_name) or two.covers_name(one.resource_name))
    )


def _words(rules: "list[AclRule]") -> str:
    """read,describe on topic orders; read on group orders… of User:*"""
    found: dict[str, list[str]] = {}
    for rule in rules:
        row = row_of(rule)
        more = "…" if row["pattern"] == "prefixed" else ""
        whose = f" of {rule.principal}" if rule.principal == "User:*" else ""
        host = f" from {rule.host}" if rule.host != "*" else ""
        place = f"{row['resource']} {row['name']}{more}{whose}{host}"
        found.setdefault(place, []).append(row["operation"])
    return "; ".join(f"{','.join(words)} on {place}" for place, words in found.items())


def _held(
    owned: "set[AclRule]", principal: str, host: str
) -> Iterator[tuple[str, tuple[str | None, str | None]]]:
    """The roles whose rules are all there, with the topic or prefix that they are for."""
    scopes: dict[tuple[str | None, str | None], None] = {(None, None): None}
    for rule in sorted(owned):
        if rule.pattern_type == PatternType.PREFIXED:
            scopes[None, rule.resource_name] = None
        elif rule.resource_type == ResourceType.TOPIC and rule.resource_name != "*":
            scopes[rule.resource_name, None] = None
    for scope in scopes:
        for name in ROLES:
            rules = role_acls(
                name, parse_principal(principal), topic=scope[0], prefix=scope[1], host=host
            )
            if rules and owned.issuperset(map(wire_rule, rules)):
                yield name, scope
