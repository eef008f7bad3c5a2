"""Proofs to join with: of the cluster's secret and of a token, and the sealed reply."""

import secrets

import pytest

from moldau.security.join_proof import (
    NONCE_BYTES,
    SEAL_NONCE_BYTES,
    Transcript,
    UnsealError,
    hash_token,
    is_secret_proof,
    parse_token,
    prove_secret,
    prove_token,
    seal,
    secret_of_token,
    unseal,
)

SECRET = secrets.token_bytes(32)
TOKEN = parse_token("an-id_1." + secrets.token_urlsafe(24))
BY_SECRET = Transcript("", secrets.token_bytes(NONCE_BYTES), b"challenge", b'{"a":1}')
BY_TOKEN = BY_SECRET._replace(token_id=TOKEN.id)
OTHERS = [
    lambda t: t._replace(token_id="another"),
    lambda t: t._replace(nonce=secrets.token_bytes(NONCE_BYTES)),
    lambda t: t._replace(challenge=b"challengf"),
    lambda t: t._replace(request=b'{"a":2}'),
    # The same bytes, cut elsewhere.
    lambda t: t._replace(challenge=t.challenge + t.request[:1], request=t.request[1:]),
]


def test_the_secret_is_proven_by_who_knows_it_and_for_this_request_alone():
    proof = prove_secret(SECRET, BY_SECRET)
    assert is_secret_proof(SECRET, BY_SECRET, proof)
    assert not is_secret_proof(secrets.token_bytes(32), BY_SECRET, proof)
    for wrong in (b"", proof[:-1], bytes(32), SECRET):
        assert not is_secret_proof(SECRET, BY_SECRET, wrong)
    for other in OTHERS:
        assert not is_secret_proof(SECRET, other(BY_SECRET), proof)


def test_a_token_is_proven_to_who_has_but_its_hash_and_for_this_request_alone():
    stored = hash_token(TOKEN.secret)
    proof = prove_token(TOKEN.secret, BY_TOKEN)
    assert secret_of_token(stored, BY_TOKEN, proof) == TOKEN.secret
    assert TOKEN.secret not in proof
    for wrong in (b"", proof[:-1], proof + b"x", bytes(32), stored, TOKEN.secret):
        assert secret_of_token(stored, BY_TOKEN, wrong) is None
    for other in OTHERS:
        assert secret_of_token(stored, other(BY_TOKEN), proof) is None


def test_who_knows_the_stored_hash_cannot_join_with_it():
    stored = hash_token(TOKEN.secret)
    for guess in (stored, prove_token(stored, BY_TOKEN), prove_secret(stored, BY_TOKEN)):
        assert secret_of_token(stored, BY_TOKEN, guess) is None


def test_a_reply_is_read_by_who_knows_the_key_alone():
    nonce = secrets.token_bytes(SEAL_NONCE_BYTES)
    sealed = seal(SECRET, BY_SECRET, b"the metadata", nonce)
    assert b"metadata" not in sealed
    assert unseal(SECRET, BY_SECRET, sealed) == b"the metadata"
    changed = bytes([sealed[0] ^ 1]) + sealed[1:]
    for wrong in (b"", b"x", sealed[:-1], sealed + b"x", changed):
        with pytest.raises(UnsealError):
            unseal(SECRET, BY_SECRET, wrong)
    with pytest.raises(UnsealError):
        unseal(secrets.token_bytes(32), BY_SECRET, sealed)
    for other in OTHERS:
        with pytest.raises(UnsealError):
            unseal(SECRET, other(BY_SECRET), sealed)


@pytest.mark.parametrize("text", ["", "x", "a.b", ".", "id." + "x" * 31, "id." + "x" * 33, "ä.b"])
def test_a_text_that_is_no_token_is_refused_and_not_repeated(text):
    with pytest.raises(ValueError, match="not a join token") as caught:
        parse_token(text)
    assert len(text) < 3 or text not in str(caught.value)


def test_a_token_is_read_with_its_line_end_and_shows_no_secret():
    text = "id." + "s" * 32
    token = parse_token(f" {text}\n")
    assert (token.id, token.secret) == ("id", b"s" * 32)
    assert "ss" not in repr(token)
