"""`moldau cluster token` against a real broker."""

import re

import pytest

pytestmark = pytest.mark.system


def test_a_token_is_created_listed_and_deleted(cli, moldau_broker):
    http = ("--http", moldau_broker.http_address)
    empty = cli("cluster", "token", "list", *http)
    assert (empty.code, empty.out) == (0, "")
    assert "moldau cluster token create" in empty.err
    created = cli("cluster", "token", "create", *http)
    assert created.code == 0, created.err
    # Nothing else is on stdout: it goes into a file.
    assert re.fullmatch(r"[\w-]{12}\.[\w-]{32}\n", created.out)
    token_id, _, secret = created.out.strip().partition(".")
    assert secret not in created.err
    listed = cli("cluster", "token", "list", *http)
    assert token_id in listed.out
    assert "valid" in listed.out
    assert secret not in listed.out
    assert cli("cluster", "token", "list", "-o", "name", *http).out == f"{token_id}\n"
    deleted = cli("cluster", "token", "delete", token_id, *http)
    assert (deleted.code, deleted.err) == (0, f"deleted token {token_id}\n")
    again = cli("cluster", "token", "delete", token_id, *http)
    assert again.code != 0
    assert "does not exist" in again.err


@pytest.mark.parametrize("expires", ["0s", "31d", "soon"])
def test_a_time_that_makes_no_sense_is_refused(cli, moldau_session_broker, expires):
    address = moldau_session_broker.http_address
    outcome = cli("cluster", "token", "create", "--expires", expires, "--http", address)
    assert outcome.code != 0
    assert outcome.out == ""
    assert outcome.err.startswith("error: ")
