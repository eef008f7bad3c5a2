"""SCRAM by its RFCs: examples, a client of others, and all that must be refused."""

import base64
import hashlib
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.net.sasl.scram import ScramClient as KafkaClient
from scram_client import PASSWORD, ScramClient

from moldau.security import scram
from moldau.security.principal import user
from moldau.security.sasl import AuthenticationError
from moldau.security.scram import (
    ITERATIONS_DEFAULT,
    ScramCredential,
    ScramMechanism,
    ScramServer,
    credential_of_salted,
    decoy_credential,
    is_password,
    make_credential,
)

SHA_256, SHA_512 = ScramMechanism.SHA_256, ScramMechanism.SHA_512
SALT = b"0123456789abcdef"
USERS = {
    name: {each: make_credential(PASSWORD, SALT, 4096, each) for each in ScramMechanism}
    for name in ("alice", "a,b=c", "Žofie")
}


def server(mechanism: ScramMechanism = SHA_256, nonce: str = "server") -> ScramServer:
    return ScramServer(
        mechanism,
        find=lambda name: USERS.get(name, {}).get(mechanism),
        nonce=nonce,
        decoy_key=b"secret of this cluster",
    )


def reason_of(one: ScramServer, *messages: bytes) -> str:
    """Why the last of these messages is refused."""
    for message in messages[:-1]:
        one.step(message)
    with pytest.raises(AuthenticationError) as caught:
        one.step(messages[-1])
    assert one.principal is None
    return caught.value.reason


def test_the_example_of_rfc_7677():
    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    stored = make_credential(b"pencil", salt, 4096, SHA_256)
    one = ScramServer(
        SHA_256,
        find={"user": stored}.get,
        nonce="%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0",
        decoy_key=b"k",
    )
    reply = one.first(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO")
    assert reply == (
        b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    )
    assert one.principal is None
    reply = one.final(
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
        b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    assert reply == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    assert one.principal == user("user")
    assert one.expires_at_ms is None


@pytest.mark.parametrize("mechanism", ScramMechanism)
def test_a_client_of_others_logs_in_and_knows_the_server(mechanism: ScramMechanism):
    client = KafkaClient("alice", PASSWORD.decode(), mechanism.sasl_name)
    one = server(mechanism)
    client.process_server_first_message(one.step(client.first_message()))
    client.process_server_final_message(one.step(client.final_message()))
    assert one.principal == user("alice")


@pytest.mark.parametrize("mechanism", ScramMechanism)
@pytest.mark.parametrize("header", ["n,,", "y,,"])
@pytest.mark.parametrize("name", USERS)
def test_every_kind_of_name_logs_in(name: str, header: str, mechanism: ScramMechanism):
    client, one = ScramClient(name, mechanism=mechanism, header=header), server(mechanism)
    final = client.final(one.step(client.first))
    assert one.step(final) == client.expected
    assert one.principal == user(name)


def test_a_client_may_name_itself_as_whom_it_acts_and_no_one_else():
    client, one = ScramClient(header="n,a=alice,"), server()
    one.step(client.final(one.step(client.first)))
    assert one.principal == user("alice")
    assert "authorization id" in reason_of(server(), ScramClient(header="n,a=root,").first)
    assert "authorization id" in reason_of(server(), ScramClient(header="n,alice,").first)


def test_a_wrong_password_and_an_unknown_user_get_the_same_response():
    texts = set()
    for name, password in (("alice", b"wrong"), ("nobody", PASSWORD)):
        client, one = ScramClient(name, password), server()
        final = client.final(one.step(client.first))
        with pytest.raises(AuthenticationError) as caught:
            one.step(final)
        texts.add(str(caught.value))
        assert name in caught.value.reason
        assert name not in str(caught.value)
        assert one.principal is None
    assert len(texts) == 1


def test_an_unknown_user_has_a_salt_as_others_have():
    def salt_of(name: str, key: bytes = b"k") -> ScramCredential:
        return decoy_credential(name, key, SHA_256)

    assert salt_of("nobody") == salt_of("nobody")
    assert salt_of("nobody").salt != salt_of("noone").salt
    # Nobody can compute it to compare: it depends on a secret.
    assert salt_of("nobody").salt != salt_of("nobody", b"other").salt
    assert salt_of("nobody").iterations == ITERATIONS_DEFAULT
    assert len(salt_of("nobody").salt) == len(SALT)
    first = server().first(ScramClient("nobody").first)
    assert server().first(ScramClient("nobody").first) == first
    # Users made by other tools look different, and so does the decoy then.
    theirs = make_credential(PASSWORD, bytes(26), 5000, SHA_512)
    decoy = decoy_credential("nobody", b"k", SHA_512, theirs)
    assert (len(decoy.salt), decoy.iterations) == (26, 5000)
    assert len(decoy.stored_key) == len(decoy.server_key) == 64
    one = ScramServer(
        SHA_512, find=lambda _: None, nonce="s", decoy_key=b"k", decoy_like={"nobody": theirs}.get
    )
    assert one.first(ScramClient("nobody").first).endswith(b",i=5000")


def test_no_password_fits_an_unknown_user(monkeypatch: pytest.MonkeyPatch):
    """Not even one that fits the decoy."""
    known = USERS["alice"][SHA_256]
    monkeypatch.setattr(scram, "decoy_credential", lambda *_: known)
    client, one = ScramClient("nobody"), server()
    final = client.final(one.step(client.first))
    assert "does not exist" in reason_of(one, final)


def test_a_wrong_nonce_is_refused():
    for nonce in ("client", "server", "clientserve", "clientserver2", "xclientserver"):
        client, one = ScramClient(), server()
        final = client.final(one.step(client.first), nonce=nonce)
        assert "nonce" in reason_of(one, final)


def test_a_replayed_message_is_refused():
    client, one = ScramClient(), server(nonce="first")
    first = client.first
    final = client.final(one.step(first))
    one.step(final)
    # In the same exchange, and in the next one, which has another nonce.
    assert "wrong place" in _again(one, final)
    again = server(nonce="second")
    assert "nonce" in reason_of(again, first, final)


def _again(one: ScramServer, message: bytes) -> str:
    with pytest.raises(AuthenticationError) as caught:
        one.step(message)
    return caught.value.reason


def test_there_is_one_attempt_per_exchange():
    client, one = ScramClient(password=b"wrong"), server()
    reply = one.step(client.first)
    reason_of(one, client.final(reply))
    assert "wrong place" in reason_of(one, ScramClient().final(reply))
    broken = server()
    reason_of(broken, b"nonsense")
    reason_of(broken, ScramClient().first)


def test_the_messages_come_in_their_order():
    one = server()
    with pytest.raises(AuthenticationError):
        one.final(b"c=biws,r=x,p=AAAA")
    one.first(ScramClient().first)
    with pytest.raises(AuthenticationError):
        one.first(ScramClient().first)


def test_channel_binding_is_refused_and_its_absence_checked():
    assert "channel binding" in reason_of(server(), ScramClient(header="p=tls-unique,,").first)
    # Someone in between has changed y to n, to hide that the client can do more.
    for sent, signed in (("n,,", "y,,"), ("y,,", "n,,"), ("n,,", "p=tls-unique,,")):
        client, one = ScramClient(header=sent), server()
        final = client.final(one.step(client.first), channel=signed)
        assert "channel binding" in reason_of(one, final)


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"n",
        b"n,",
        b"n,,",
        b"x,,n=alice,r=abc",
        b"n,,n=alice",
        b"n,,r=abc,n=alice",
        b"n,,m=ext,n=alice,r=abc",
        b"n,,n=alice,r=abc,m=ext",
        b"n,,n=,r=abc",
        b"n,,n=alice,r=",
        b"n,,n=alice,r=a\x00c",
        b"n,,n=alice,r=a c",
        "n,,n=alice,r=ä".encode(),
        b"n,,n=al=ice,r=abc",
        b"n,,n=al=2cice,r=abc",
        b"n,,n=al=,r=abc",
        b"n,,n=a==2C3D,r=abc",
        b"n,,n=al\x00ice,r=abc",
        b"n,,n=\xff\xfe,r=abc",
        b"n,,n=alice,r=abc,",
        b"n,,n=alice,r=abc,9=x",
        b"n,,n=" + b"a" * 256 + b",r=abc",
        b"n,,n=alice,r=" + b"a" * 257,
        b"n,,n=alice,r=abc,x=" + b"a" * 5000,
    ],
)
def test_a_malformed_first_message_is_refused(message: bytes):
    reason_of(server(), message)


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"c=biws",
        b"c=biws,r=clientserver",
        b"r=clientserver,c=biws,p=AAAA",
        b"c=biws,r=clientserver,p=",
        b"c=biws,r=clientserver,p=AAAA",
        b"c=biws,r=clientserver,p=!!!!",
        b"c=b iws,r=clientserver,p=AAAA",
        b"c=,r=clientserver,p=AAAA",
        b"c=biws,r=clientserver,m=x,p=AAAA",
        b"c=biws,r=clientserver,p=AAAA,x=1",
        b"c=biws,r=clientserver,p=" + base64.b64encode(bytes(33)),
        b"c=biws,r=clientserver,p=" + base64.b64encode(bytes(64)),
        b"\xff",
    ],
)
def test_a_malformed_final_message_is_refused(message: bytes):
    reason_of(server(), ScramClient().first, message)


def test_unknown_extensions_are_ignored_and_signed():
    one = server()
    client = ScramClient()
    client.bare += ",ext=1,tokenauth=true"
    one.step(client.final(one.step(client.first)))
    assert one.principal == user("alice")


@given(st.binary(max_size=80), st.binary(max_size=80))
def test_no_bytes_log_in_or_break_anything(first: bytes, final: bytes):
    for message in (first, ScramClient().first, b"n,,n=alice,r=" + first):
        one = server()
        with suppress(AuthenticationError):
            one.step(message)
        with pytest.raises(AuthenticationError):
            one.step(final)
        assert one.principal is None


@given(st.text(min_size=1, max_size=30).filter(lambda name: "\0" not in name))
def test_any_name_comes_through_its_escapes(name: str):
    seen: list[str] = []
    one = ScramServer(SHA_256, find=seen.append, nonce="server", decoy_key=b"k")
    one.first(ScramClient(name).first)
    assert seen == [name] == [one.user]


def test_a_password_is_known_by_its_credential():
    stored = USERS["alice"][SHA_512]
    assert is_password(PASSWORD, stored, SHA_512)
    assert not is_password(b"Pencil", stored, SHA_512)
    assert not is_password(b"", stored, SHA_512)


def test_a_client_may_send_the_password_salted():
    salted = hashlib.pbkdf2_hmac("sha256", PASSWORD, SALT, 4096)
    assert credential_of_salted(salted, SALT, 4096, SHA_256) == USERS["alice"][SHA_256]


def test_a_credential_shows_nothing():
    stored = USERS["alice"][SHA_256]
    assert repr(stored) == str(stored) == "ScramCredential(…)"
    assert repr(stored.salt) not in repr([stored])


def test_mechanisms_have_the_names_of_kafka():
    assert [each.sasl_name for each in ScramMechanism] == ["SCRAM-SHA-256", "SCRAM-SHA-512"]
    assert [each.hash_bytes for each in ScramMechanism] == [32, 64]


@pytest.mark.parametrize("now", [None, make_credential(b"another", SALT, 4096, SHA_256)])
def test_a_user_that_was_deleted_or_changed_during_the_exchange_is_refused(
    now: ScramCredential | None,
) -> None:
    found: ScramCredential | None = USERS["alice"][SHA_256]
    exchange = ScramServer(SHA_256, find=lambda _: found, nonce="server", decoy_key=b"secret")
    client = ScramClient()
    reply = exchange.first(client.first)
    found = now
    with pytest.raises(AuthenticationError):
        exchange.final(client.final(reply))
    assert exchange.principal is None
