"""`moldau role` on a broker that requires a login."""

import json

import pytest

pytestmark = pytest.mark.system


def test_roles_are_listed(admin):
    listed = json.loads(admin("role", "list", "-o", "json").out)
    assert [row["role"] for row in listed] == ["reader", "writer", "operator", "admin"]


def test_a_role_is_granted_and_revoked(admin, new_user):
    run = new_user("kim")
    assert admin("topic", "create", "role.orders").code == 0
    assert admin("role", "grant", "reader", "kim", "--topic", "role.orders").code == 0
    assert admin("role", "grant", "writer", "kim", "--prefix", "role.").code == 0
    assert run("topic", "list", "-o", "name").out == "role.orders\n"
    listed = json.loads(admin("role", "list", "kim", "-o", "json").out)
    assert {(row["role"], row["topic"], row["prefix"]) for row in listed} == {
        ("reader", "role.orders", None),
        ("writer", None, "role."),
    }
    assert admin("role", "revoke", "reader", "kim", "--topic", "role.orders").code == 0
    assert admin("role", "revoke", "writer", "kim", "--prefix", "role.").code == 0
    assert json.loads(admin("acl", "list", "kim", "-o", "json").out) == []
    again = admin("role", "revoke", "writer", "kim", "--prefix", "role.")
    assert "does not have the role writer for prefix role.; nothing" in again.err


def test_what_another_role_gives_stays(admin):
    for name in ("reader", "writer"):
        assert admin("role", "grant", name, "lea", "--topic", "role.shared").code == 0
    assert admin("role", "revoke", "writer", "lea", "--topic", "role.shared").code == 0
    listed = json.loads(admin("role", "list", "lea", "-o", "json").out)
    assert [row["role"] for row in listed] == ["reader"]
    admin("acl", "delete", "lea", "-y")


def test_a_rule_that_is_no_role_is_not_revoked(admin):
    """It was made by `acl add`, and is deleted by `acl delete`."""
    assert admin("role", "grant", "reader", "ned").code == 0
    assert admin("acl", "add", "ned", "read", "--topic", "role.own").code == 0
    before = admin("acl", "list", "ned", "-o", "json").out
    refused = admin("role", "revoke", "reader", "ned", "--topic", "role.own")
    assert refused.code == 4
    assert "does not have the role reader for topic role.own, only 1 ACL" in refused.err
    assert "read on topic role.own; nothing was changed" in refused.err
    assert "moldau acl delete User:ned" in refused.err
    assert admin("acl", "list", "ned", "-o", "json").out == before
    admin("acl", "delete", "ned", "-y")


def test_what_the_user_still_may_is_said(admin):
    assert admin("role", "grant", "reader", "ola").code == 0
    assert admin("role", "grant", "reader", "ola", "--topic", "role.both").code == 0
    revoked = admin("role", "revoke", "reader", "ola", "--topic", "role.both")
    assert "revoked reader of User:ola for topic role.both: deleted 5 ACLs" in revoked.err
    assert "other ACLs still allow" in revoked.err
    assert "read,describe,describe-configs on topic *" in revoked.err
    last = admin("role", "revoke", "reader", "ola")
    assert "revoked reader of User:ola: deleted 5 ACLs" in last.err
    assert "still" not in last.err


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("--topic", "t", "--prefix", "p"), "for a prefix or for a topic"),
        (("--topic", ""), "must not be empty"),
        (("--host", "b.example"), "names are not resolved"),
    ],
)
def test_what_is_wrong_is_reported(admin, arguments, why):
    refused = admin("role", "grant", "reader", "mia", *arguments)
    assert refused.code == 2
    assert why in refused.err
