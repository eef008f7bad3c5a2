"""`moldau acl` on a broker that requires a login: rules, and what they do."""

import json

import pytest

from moldau.cli.errors import ExitCode

pytestmark = pytest.mark.system


def rows(outcome) -> list[tuple[str, ...]]:
    assert outcome.code == 0, outcome.err
    return sorted(tuple(row.values()) for row in json.loads(outcome.out))


def test_rights_are_given_and_taken(admin, new_user):
    run = new_user("gus")
    assert admin("topic", "create", "acl-orders").code == 0
    assert run("topic", "list", "-o", "name").out == ""
    given = admin(
        "acl", "add", "User:gus", "read,write", "--topic", "acl-", "--prefix", "-o", "json"
    )
    expected = [
        ("User:gus", "allow", "read", "topic", "acl-", "prefixed", "*"),
        ("User:gus", "allow", "write", "topic", "acl-", "prefixed", "*"),
    ]
    assert rows(given) == expected
    assert run("topic", "list", "-o", "name").out == "acl-orders\n"
    assert rows(admin("acl", "list", "gus", "-o", "json")) == expected
    assert rows(admin("acl", "list", "gus", "--topic", "acl-orders", "-o", "json")) == expected
    assert rows(admin("acl", "list", "gus", "--topic", "other", "-o", "json")) == []
    assert admin("acl", "add", "gus", "all", "--topic", "acl-orders", "--deny").code == 0
    assert run("topic", "list", "-o", "name").out == ""
    deleted = admin("acl", "delete", "gus", "--topic", "acl-orders", "-y")
    assert "deleted 1 ACL of User:gus" in deleted.err
    assert run("topic", "list", "-o", "name").out == "acl-orders\n"
    assert "deleted 2 ACLs" in admin("acl", "delete", "gus", "-y").err
    assert rows(admin("acl", "list", "gus", "-o", "json")) == []


def test_records_are_read_without_rights_on_a_group(admin, new_user, spawn, secured, tmp_path):
    run = new_user("hal")
    assert admin("topic", "create", "acl-records").code == 0
    writer = spawn(
        *("produce", "acl-records", "-b", secured.bootstrap, "--data-dir", secured.data_dir),
        stdin=-1,
    )
    assert writer.communicate("one\n", timeout=60)[1]
    assert writer.returncode == 0
    read = ("consume", "acl-records", "--from-beginning", "--exit-at-end")
    assert run(*read).code != 0
    assert admin("acl", "add", "hal", "read", "--topic", "acl-records").code == 0
    assert run(*read).out == "one\n"
    refused = run(*read, "--group", "acl-group")
    assert "acl-group" in refused.err
    assert "moldau acl add" in refused.err


def test_a_topic_without_rights_is_not_said_to_be_missing(admin, new_user):
    run = new_user("ida")
    assert admin("topic", "create", "acl-unseen").code == 0
    for command in (
        ("consume", "acl-unseen", "--from-beginning", "--exit-at-end"),
        ("tail", "acl-unseen", "-n", "1"),
        ("topic", "describe", "acl-unseen"),
        ("topic", "alter", "acl-unseen", "--partitions", "3"),
        ("topic", "delete", "acl-unseen", "-y"),
        ("topic", "delete", "acl-unseen", "-y", "--if-exists"),
    ):
        refused = run(*command)
        assert refused.code == ExitCode.FAILED, command
        assert "topic acl-unseen: Topic authorization failed" in refused.err
        assert "does not exist" not in refused.err
        assert "moldau acl add" in refused.err
        assert "create it" not in refused.err


def test_a_refused_deletion_of_a_topic_hints_at_rights(admin, new_user):
    run = new_user("jon")
    assert admin("topic", "create", "acl-kept").code == 0
    assert admin("acl", "add", "jon", "describe", "--topic", "acl-kept").code == 0
    refused = run("topic", "delete", "acl-kept", "-y")
    assert "cannot delete topic acl-kept" in refused.err
    assert "moldau acl add" in refused.err
    assert "topic list" not in refused.err


def test_a_refused_producer_gets_our_error_and_no_line_of_librdkafka(admin, new_user):
    run = new_user("hue")
    assert admin("topic", "create", "acl-seen").code == 0
    assert admin("acl", "add", "hue", "describe", "--topic", "acl-seen").code == 0
    refused = run("produce", "acl-seen", "-m", "one")
    assert refused.code != 0
    assert "moldau acl add" in refused.err
    assert "FATAL" not in refused.err
    # Who asks for its log gets it.
    assert "FATAL" in run("produce", "acl-seen", "-m", "one", "-X", "log_level=0").err


def test_operations_go_to_the_resources_that_have_them(admin):
    given = admin(
        *("acl", "add", "ida", "read,write", "--topic", "t", "--group", "g", "--cluster"),
        *("--host", "10.0.0.0/8", "--host", "::1", "-o", "json"),
    )
    assert {row[2:5] for row in rows(given)} == {
        ("read", "topic", "t"),
        ("write", "topic", "t"),
        ("read", "group", "g"),
    }
    assert {row[6] for row in rows(given)} == {"10.0.0.0/8", "::1"}
    assert "deleted 6 ACLs" in admin("acl", "delete", "ida", "-y").err


def test_a_rule_that_does_not_exist_is_not_deleted(admin):
    missing = admin("acl", "delete", "jon", "read", "--topic", "t", "-y")
    assert "no ACL of User:jon matches" in missing.err
    assert missing.code != 0
