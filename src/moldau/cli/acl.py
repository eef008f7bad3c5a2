"""`moldau acl`: rules that allow and deny operations."""

from typing import TYPE_CHECKING

import click

from moldau.cli.acl_rules import (
    OperationsParam,
    PrincipalParam,
    ResourceName,
    resource_options,
    resources,
    row_of,
    rules_for,
    wire_rule,
)
from moldau.cli.click_groups import LazyGroup
from moldau.cli.errors import CommandError, ExitCode
from moldau.cli.options import output_option, plain_brokers_option, yes_option
from moldau.cli.output import confirm, counted, emit_rows, emit_table, say
from moldau.cli.security_client import complete_principals, security_admin
from moldau.security.acl import Operation, PatternType, Permission

if TYPE_CHECKING:
    from moldau.client.wire.security_admin import AclPattern, AclRule


@click.group(
    "acl",
    cls=LazyGroup,
    examples=(
        "moldau acl add User:alice read,write --topic orders",
        "moldau acl list User:alice",
        "moldau acl delete User:alice --topic orders",
    ),
)
def acl() -> None:
    """Allow and deny operations. A user may do what a rule allows and no rule denies."""


@acl.command(
    "add",
    examples=(
        "moldau acl add User:alice read,write --topic orders- --prefix",
        "moldau acl add User:billing read --topic orders --group billing --host 10.1.0.0/16",
        "moldau acl add User:bob all --topic payroll --deny",
    ),
)
@click.argument("principal", type=PrincipalParam(), shell_complete=complete_principals)
@click.argument("operations", metavar="OPERATION[,…]", type=OperationsParam())
@resource_options
@click.option("--prefix", is_flag=True, help="All resources whose name begins so.")
@click.option("--deny", is_flag=True, help="Deny instead of allow; any deny wins.")
@click.option(
    "--host",
    "hosts",
    multiple=True,
    default=("*",),
    show_default=True,
    metavar="ADDRESS",
    help="Only from this address or block, as 10.1.0.0/16; may be repeated.",
)
@output_option
@plain_brokers_option
def add(
    principal: str,
    operations: tuple[Operation, ...],
    topics: tuple[str, ...],
    groups: tuple[str, ...],
    transactional_ids: tuple[str, ...],
    cluster: bool,
    prefix: bool,
    deny: bool,
    hosts: tuple[str, ...],
    output: str,
    brokers: str,
) -> None:
    """Add rules for a user: one for each operation, resource and host.

    Operations: read, write, create, delete, alter, describe, describe-configs, alter-configs,
    cluster-action, idempotent-write, and all. Reading and writing include describe.
    """
    rules = rules_for(
        principal,
        operations,
        resources(topics, groups, transactional_ids, cluster),
        prefix=prefix,
        permission=Permission.DENY if deny else Permission.ALLOW,
        hosts=hosts,
    )
    wire = [wire_rule(rule) for rule in rules]
    with security_admin(brokers) as admin:
        admin.create_acls(wire)
    emit_rows([row_of(rule) for rule in wire], output, name="principal")


@acl.command(
    "list",
    examples=(
        "moldau acl list",
        "moldau acl list User:alice -o json",
        "moldau acl list --topic orders      # all rules that apply to this topic",
    ),
)
@click.argument(
    "principal", type=PrincipalParam(), required=False, shell_complete=complete_principals
)
@resource_options
@output_option
@plain_brokers_option
def list_acls(
    principal: str | None,
    topics: tuple[str, ...],
    groups: tuple[str, ...],
    transactional_ids: tuple[str, ...],
    cluster: bool,
    output: str,
    brokers: str,
) -> None:
    """List rules: all, of a user, or those that apply to a resource."""
    named = resources(topics, groups, transactional_ids, cluster)
    found: set[AclRule] = set()
    with security_admin(brokers) as admin:
        for pattern in _patterns(principal, named, PatternType.MATCH):
            found.update(admin.acls(pattern))
    rows = [row_of(rule) for rule in sorted(found, key=lambda rule: (rule.principal, rule))]
    emit_rows(rows, output, name="principal", if_empty="no ACLs; add one: moldau acl add --help")


@acl.command(
    "delete",
    examples=(
        "moldau acl delete User:alice                          # all rules of alice",
        "moldau acl delete User:alice write --topic orders -y",
        "moldau acl delete 'User:*' --cluster",
    ),
)
@click.argument("principal", type=PrincipalParam(), shell_complete=complete_principals)
@click.argument("operations", metavar="[OPERATION[,…]]", type=OperationsParam(), required=False)
@resource_options
@yes_option
@plain_brokers_option
def delete(
    principal: str,
    operations: tuple[Operation, ...] | None,
    topics: tuple[str, ...],
    groups: tuple[str, ...],
    transactional_ids: tuple[str, ...],
    cluster: bool,
    yes: bool,
    brokers: str,
) -> None:
    """Delete rules of a user: all, or those with these operations and exactly these names."""
    named = resources(topics, groups, transactional_ids, cluster)
    found: set[AclRule] = set()
    with security_admin(brokers) as admin:
        for pattern in _patterns(principal, named, PatternType.ANY):
            found.update(admin.acls(pattern))
        rules = sorted(rule for rule in found if not operations or rule.operation in operations)
        if not rules:
            raise CommandError(
                f"no ACL of {principal} matches; nothing was deleted",
                hint=f"list them: moldau acl list {principal}",
                code=ExitCode.NOT_FOUND,
            )
        if not yes:
            emit_table([row_of(rule) for rule in rules])
        confirm(f"Delete {counted(len(rules), 'ACL')} of {principal}?", yes=yes)
        count = admin.delete_acls(rules)
    say(f"deleted {counted(count, 'ACL')} of {principal}")


def _patterns(
    principal: str | None, named: list[ResourceName], pattern_type: PatternType
) -> "list[AclPattern]":
    from moldau.client.wire.security_admin import AclPattern

    if not named:
        return [AclPattern(principal=principal)]
    return [
        AclPattern(
            resource_type=int(resource.type),
            resource_name=resource.name,
            pattern_type=int(pattern_type),
            principal=principal,
        )
        for resource in named
    ]
