"""Principals as text."""

import pytest

from moldau.security.principal import Principal, authenticated_user, parse_principal, user


def test_a_principal_is_written_as_kafka_does():
    assert str(user("alice")) == "User:alice"
    assert parse_principal("User:CN=a,O=b:c") == Principal("User", "CN=a,O=b:c")


@pytest.mark.parametrize("text", ["", "alice", ":alice", "User:"])
def test_other_texts_are_refused(text):
    with pytest.raises(ValueError, match="User:name"):
        parse_principal(text)


def test_a_name_from_outside_is_a_user():
    for name in ("alice", "CN=a,O=b", "Žofie", "a b", "User:alice", "a" * 255):
        assert authenticated_user(name) == user(name)


@pytest.mark.parametrize(
    "name",
    ["", "*", "ANONYMOUS", "moldau-admin", " a", "a ", "a\nb", "a\0b", "a" * 256, "\ud800"],
)
def test_a_name_with_another_meaning_does_not_come_from_outside(name):
    with pytest.raises(ValueError):
        authenticated_user(name)
