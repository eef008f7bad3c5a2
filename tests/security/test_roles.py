"""Roles: what each may do, where, and that all of their rules are valid."""

from functools import partial

import pytest

from moldau.security.acl import CLUSTER, Operation, Resource, ResourceType
from moldau.security.acl_checks import check_acl
from moldau.security.authorizer import Authorizer
from moldau.security.principal import user
from moldau.security.roles import ROLES, role_acls

ALICE = user("alice")


def may(
    role: str,
    operation: Operation,
    kind: ResourceType = ResourceType.TOPIC,
    name: str = "orders.eu",
    *,
    prefix: str | None = None,
    topic: str | None = None,
) -> bool:
    rules = role_acls(role, ALICE, prefix=prefix, topic=topic)
    resource = CLUSTER if kind is ResourceType.CLUSTER else Resource(kind, name)
    return Authorizer(rules, frozenset()).allows(ALICE, "10.0.0.1", operation, resource)


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("scope", [{}, {"prefix": "orders."}, {"topic": "orders.eu"}])
def test_every_rule_of_a_role_is_valid_and_for_its_principal(role: str, scope: dict[str, str]):
    rules = role_acls(role, ALICE, **scope)
    assert len(set(rules)) == len(rules) > 0
    for acl in rules:
        check_acl(acl)
        assert acl.principal == "User:alice"
    limited = role_acls(role, ALICE, host="10.0.0.0/8", **scope)
    assert {acl.host for acl in limited} == {"10.0.0.0/8"}


def test_a_reader_reads_and_a_writer_writes():
    assert may("reader", Operation.READ)
    assert may("reader", Operation.READ, ResourceType.GROUP, "g")
    assert not may("reader", Operation.WRITE)
    assert not may("reader", Operation.DELETE, ResourceType.GROUP, "g")
    assert may("writer", Operation.WRITE)
    assert may("writer", Operation.DESCRIBE)
    assert may("writer", Operation.WRITE, ResourceType.TRANSACTIONAL_ID, "t")
    assert not may("writer", Operation.READ)
    for role in ("reader", "writer"):
        for operation in (Operation.CREATE, Operation.DELETE, Operation.ALTER_CONFIGS):
            assert not may(role, operation)


def test_an_operator_reads_no_records_and_cannot_become_admin():
    for operation in (Operation.CREATE, Operation.DELETE, Operation.ALTER_CONFIGS):
        assert may("operator", operation)
    assert not may("operator", Operation.READ)
    assert not may("operator", Operation.WRITE)
    assert may("operator", Operation.ALTER_CONFIGS, ResourceType.CLUSTER)
    # ACLs are created with the right to alter the cluster.
    assert not may("operator", Operation.ALTER, ResourceType.CLUSTER)


def test_an_admin_may_do_everything():
    for operation in Operation:
        if operation > Operation.ALL:
            assert may("admin", operation)
            assert may("admin", operation, ResourceType.CLUSTER)


@pytest.mark.parametrize("role", ROLES)
def test_a_role_ends_at_its_scope(role: str):
    operations = [each for each in Operation if each > Operation.ALL]
    for prefix, topic in (("orders.", None), (None, "orders.eu")):
        limited = partial(may, role, prefix=prefix, topic=topic)
        for operation in operations:
            assert limited(operation) == may(role, operation)
            assert not limited(operation, name="payments")
            assert not limited(operation, ResourceType.CLUSTER)
            assert not limited(operation, ResourceType.GROUP, "others")
    assert not any(
        may(role, operation, name="orders.eu2", topic="orders.eu") for operation in operations
    )


def test_a_reader_of_one_topic_has_groups_of_its_name():
    assert may("reader", Operation.READ, ResourceType.GROUP, "orders.eu-app", topic="orders.eu")


def test_mistakes_are_named():
    for change in (
        {"role": "root"},
        {"prefix": "a", "topic": "b"},
        {"prefix": ""},
        {"topic": ""},
    ):
        given = {"role": "reader", **change}
        with pytest.raises(ValueError):
            role_acls(given.pop("role"), ALICE, **given)
