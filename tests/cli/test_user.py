"""`moldau user` on a broker that requires a login."""

import json

import pytest

pytestmark = pytest.mark.system

SECRET = "pl4nted-s3cret"


def test_users_are_added_listed_and_deleted(admin):
    made = admin("user", "add", "ann", "--generate", "-o", "json")
    assert made.code == 0, made.err
    password = json.loads(made.out)["password"]
    assert len(password) >= 20
    assert password not in made.err
    listed = json.loads(admin("user", "list", "-o", "json").out)
    row = {"user": "ann", "mechanisms": ["SCRAM-SHA-256", "SCRAM-SHA-512"], "iterations": 8192}
    assert row in listed
    assert admin("user", "delete", "ann", "-y").code == 0
    assert "ann" not in admin("user", "list", "-o", "name").out.split()


def test_a_user_can_be_written_as_a_principal(admin, tmp_path):
    """As in the commands for ACLs; it would become User:User:gil, whom no rule is for."""
    assert "added user gil;" in admin("user", "add", "User:gil", "--generate").err
    assert "gil" in admin("user", "list", "-o", "name").out.split()
    assert "changed the password of gil" in admin("user", "passwd", "user:gil", "--generate").err
    assert "deleted user gil;" in admin("user", "delete", "User:gil", "-y").err
    assert "gil" not in admin("user", "list", "-o", "name").out


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_user_logs_in_by_every_mechanism(new_user, mechanism):
    run = new_user(f"by-{mechanism}")
    assert run("topic", "list", "--mechanism", mechanism).code == 0


def test_a_new_password_replaces_the_old_one(admin, cli, new_user, secured, tmp_path):
    run = new_user("bea")
    file = tmp_path / "new"
    file.write_text(SECRET + "\n")
    assert admin("user", "passwd", "bea", "--new-password-file", file).code == 0
    refused = run("topic", "list")
    assert refused.code == 1
    assert "rejected user bea (SCRAM-SHA-512)" in refused.err
    assert "--user and --password-file" in refused.err
    login = ("--user", "bea", "--password-file", file)
    assert cli("topic", "list", "-b", secured.bootstrap, *login).code == 0


def test_what_is_wrong_is_reported(admin, cli, secured, new_user, tmp_path):
    new_user("cid")
    exists = admin("user", "add", "cid", "--generate")
    assert (exists.code, "user cid exists" in exists.err) == (1, True)
    missing = admin("user", "passwd", "nobody", "--generate")
    assert "user nobody does not exist" in missing.err
    assert "user nobody does not exist" in admin("user", "delete", "nobody", "-y").err
    assert admin("user", "delete", "nobody", "-y", "--if-exists").code == 0
    silent = admin("user", "add", "dan")
    assert "no new password for user dan" in silent.err
    assert "--new-password-file" in silent.err
    reserved = admin("user", "add", "moldau-admin", "--generate")
    assert reserved.code == 1


def test_nobody_else_may(new_user, cli, secured):
    run = new_user("eve")
    for arguments in (("list",), ("add", "mallory", "--generate"), ("delete", "eve", "-y")):
        refused = run("user", *arguments)
        assert refused.code == 1, arguments
        assert "Not authorized" in refused.err
    anonymous = cli("user", "list", "-b", secured.bootstrap)
    assert "does the broker require a user? pass --user" in anonymous.err


def test_the_password_is_not_sent_and_not_shown(admin, new_user, secured, tmp_path):
    new_user("flo")
    file = tmp_path / "new"
    file.write_text(SECRET + "\n")
    changed = admin("user", "passwd", "flo", "--new-password-file", file, "-o", "json")
    assert SECRET not in changed.out + changed.err
    stored = [path for path in secured.data_dir.rglob("*") if path.is_file()]
    assert any(path.stat().st_size for path in stored)
    for path in (*stored, secured.output_path):
        assert SECRET.encode() not in path.read_bytes(), path
