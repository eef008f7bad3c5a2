"""ACLs as people write them."""

import click
import pytest

from moldau.cli.acl_rules import (
    OperationsParam,
    PrincipalParam,
    resources,
    row_of,
    rules_for,
    wire_rule,
)
from moldau.cli.errors import CommandError
from moldau.client.wire.security_admin import AclRule
from moldau.security.acl import Operation, Permission


def made(operations: str, hosts: tuple[str, ...] = ("*",), prefix: bool = False, **named: object):
    kinds = {"topics": (), "groups": (), "transactional_ids": (), "cluster": False, **named}
    return rules_for(
        "User:ann",
        OperationsParam().convert(operations, None, None),
        resources(**kinds),  # type: ignore[arg-type]
        prefix=prefix,
        permission=Permission.ALLOW,
        hosts=hosts,
    )


@pytest.mark.parametrize(
    ("text", "principal"),
    [("ann", "User:ann"), ("User:ann", "User:ann"), ("user:a:b", "User:a:b"), ("*", "User:*")],
)
def test_a_principal_is_a_user(text, principal):
    assert PrincipalParam().convert(text, None, None) == principal


@pytest.mark.parametrize("text", ["", "User:", "Group:x"])
def test_nothing_else_is_a_principal(text):
    with pytest.raises(click.BadParameter, match="write User:NAME"):
        PrincipalParam().convert(text, None, None)


def test_operations_are_words():
    found = OperationsParam().convert("read, Describe-Configs,READ,alter_configs", None, None)
    assert found == (Operation.READ, Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS)
    with pytest.raises(
        click.BadParameter, match="'any' is not an operation; write some of all, re"
    ):
        OperationsParam().convert("any", None, None)


def test_operations_are_completed_one_after_the_other():
    context = click.Context(click.Command("x"))
    found = OperationsParam().shell_complete(context, click.Argument(["x"]), "read,describe")
    assert [item.value for item in found] == ["read,describe", "read,describe-configs"]


def test_all_names_are_no_prefix():
    rules = made("read", prefix=True, topics=("*", "a-"))
    assert [row_of(wire_rule(rule))["pattern"] for rule in rules] == ["literal", "prefixed"]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"operations": "read"}, "no resource given"),
        ({"operations": "write", "groups": ("g",)}, "write is not an operation of a group"),
        ({"operations": "read", "topics": ("",)}, "1 to 255 bytes"),
        (
            {"operations": "read", "topics": ("t",), "hosts": ("b.example",)},
            "names are not resolved",
        ),
    ],
)
def test_a_rule_that_could_not_match_is_an_error(arguments, why):
    with pytest.raises(CommandError, match=why):
        made(**arguments)


def test_numbers_of_a_newer_broker_are_shown():
    assert row_of(AclRule(99, "n", 3, "User:a", "*", 98, 3))["resource"] == "99"


def test_a_wrong_operation_is_reported_with_what_it_belongs_to():
    with pytest.raises(CommandError) as caught:
        made("write", groups=("g",))
    assert caught.value.hint == "it is an operation of: topic, transactional-id"
