"""Messages of PLAIN and OAUTHBEARER: read strictly, and no secret in an error."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.security.sasl import (
    MESSAGE_BYTES_MAX,
    AuthenticationError,
    parse_oauthbearer,
    parse_plain,
)


def test_plain_has_a_user_and_a_password():
    login = parse_plain(b"\0alice\0s3cret \xff")
    assert (login.user, login.password) == ("alice", b"s3cret \xff")
    assert parse_plain(b"alice\0alice\0pw").user == "alice"
    assert "s3cret" not in repr(login) + str(login)


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"alice",
        b"alice\0pw",
        b"root\0alice\0pw",
        b"\0alice\0pw\0",
        b"\0alice\0p\0w",
        b"\0\0pw",
        b"\0alice\0",
        b"\0\xff\0pw",
        b"\0" + b"a" * 256 + b"\0pw",
        b"\0alice\0" + b"p" * 1025,
        b"\0alice\0" + b"p" * MESSAGE_BYTES_MAX,
    ],
)
def test_what_is_not_plain_is_refused(message: bytes):
    with pytest.raises(AuthenticationError):
        parse_plain(message)


def test_oauthbearer_has_one_token():
    assert parse_oauthbearer(b"n,,\x01auth=Bearer a.b.c\x01\x01") == "a.b.c"
    assert parse_oauthbearer(b"n,,\x01auth=bearer a.b.c\x01\x01") == "a.b.c"
    assert parse_oauthbearer(b"y,,\x01host=h\x01auth=Bearer a.b.c\x01x=y\x01\x01") == "a.b.c"


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\x01",
        b"n,,",
        b"n,,\x01\x01",
        b"n,,\x01auth=Bearer a.b.c\x01",
        b"n,,\x01auth=Bearer a.b.c",
        b"n,\x01auth=Bearer a.b.c\x01\x01",
        b"n,,x\x01auth=Bearer a.b.c\x01\x01",
        b"p=tls-unique,,\x01auth=Bearer a.b.c\x01\x01",
        b"n,a=root,\x01auth=Bearer a.b.c\x01\x01",
        b"n,,\x01auth=Basic a.b.c\x01\x01",
        b"n,,\x01auth=Bearer \x01\x01",
        b"n,,\x01auth=Bearer\x01\x01",
        b"n,,\x01auth=Bearer a\x01auth=Bearer b\x01\x01",
        b"n,,\x01xauth=Bearer a\x01\x01",
        b"n,,\x01auth=Bearer \xff\x01\x01",
        b"n,,\x01auth=Bearer " + b"a" * MESSAGE_BYTES_MAX + b"\x01\x01",
    ],
)
def test_what_is_not_oauthbearer_is_refused(message: bytes):
    with pytest.raises(AuthenticationError):
        parse_oauthbearer(message)


@given(st.binary(max_size=60))
def test_no_bytes_do_worse_than_being_refused(message: bytes):
    for parse in (parse_plain, parse_oauthbearer):
        for sent in (message, b"n,,\x01auth=" + message + b"\x01\x01", b"\0" + message):
            with suppress(AuthenticationError):
                parse(sent)


def test_an_error_holds_no_secret():
    for parse, message in (
        (parse_plain, b"root\0alice\0s3cret"),
        (parse_plain, b"\0alice\0s3\0cret"),
        (parse_oauthbearer, b"n,a=x,\x01auth=Bearer s3cret\x01\x01"),
        (parse_oauthbearer, b"n,,\x01auth=Bearer s3cret\xff\x01\x01"),
    ):
        with pytest.raises(AuthenticationError) as caught:
            parse(message)
        error = caught.value
        assert error.__cause__ is None
        assert error.__suppress_context__ or error.__context__ is None
        assert "s3" not in f"{error} {error!r} {error.reason}"
