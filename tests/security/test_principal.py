"""Principals as text."""

import pytest

from moldau.security.principal import Principal, parse_principal, user


def test_a_principal_is_written_as_kafka_does():
    assert str(user("alice")) == "User:alice"
    assert parse_principal("User:CN=a,O=b:c") == Principal("User", "CN=a,O=b:c")


@pytest.mark.parametrize("text", ["", "alice", ":alice", "User:"])
def test_other_texts_are_refused(text):
    with pytest.raises(ValueError, match="User:name"):
        parse_principal(text)
