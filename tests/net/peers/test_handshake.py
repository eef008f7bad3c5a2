"""The handshake between brokers: what counts as a proof, and for whom."""

import random
import secrets
from collections.abc import Callable

import pytest

from moldau.model.errors import PeerProtocolError
from moldau.model.ids import BrokerId
from moldau.net.peers.handshake import (
    CallerHandshake,
    Hello,
    HelloResponse,
    ListenerHandshake,
    UnprovenPeerError,
    decode_hello,
    decode_hello_response,
    encode_hello,
    encode_hello_response,
)
from moldau.net.peers.secret import PROOF_BYTES, Label, PeerSecret

SECRET = b"s" * 32
HELLO = Hello("c", BrokerId(1), "dir1", BrokerId(2), 7)


def knowing(secret: bytes = SECRET) -> PeerSecret:
    return PeerSecret(secret, secrets.token_bytes)


def shaken(hello: Hello = HELLO) -> tuple[CallerHandshake, ListenerHandshake, list[bytes]]:
    """A whole handshake, and its messages but for the response."""
    caller, listener = CallerHandshake(knowing(), hello), ListenerHandshake(knowing())
    challenge = listener.challenge(caller.hello)
    proof = caller.prove(challenge)
    assert listener.check(proof) == hello
    return caller, listener, [caller.hello, challenge, proof]


def test_both_sides_know_each_other_in_the_end() -> None:
    for reason in ("", "no such broker"):
        caller, listener, _ = shaken()
        assert caller.read_response(listener.response(reason)) == HelloResponse(reason)


def test_while_the_secret_is_changed_a_listener_accepts_the_earlier_one() -> None:
    both = PeerSecret(b"new", secrets.token_bytes, knowing())
    for caller_secret in (knowing(b"new"), knowing()):
        caller, listener = CallerHandshake(caller_secret, HELLO), ListenerHandshake(both)
        # All of it with the one that the caller has.
        assert listener.check(caller.prove(listener.challenge(caller.hello))) == HELLO
        assert caller.read_response(listener.response("")) == HelloResponse("")
    with pytest.raises(UnprovenPeerError):
        ListenerHandshake(both).challenge(CallerHandshake(knowing(b"other"), HELLO).hello)


def test_a_listener_says_nothing_to_a_caller_with_another_secret() -> None:
    stranger = CallerHandshake(knowing(b"other"), HELLO)
    with pytest.raises(UnprovenPeerError):
        ListenerHandshake(knowing()).challenge(stranger.hello)


def test_a_caller_says_nothing_more_to_a_listener_with_another_secret() -> None:
    caller = CallerHandshake(knowing(), HELLO)
    true = ListenerHandshake(knowing())
    true.challenge(caller.hello)
    # One that does not check the hello, so as to get on.
    false = ListenerHandshake(knowing(b"other"))
    false._said = [caller.hello]
    own = CallerHandshake(knowing(b"other"), HELLO)
    for challenge in (false.challenge(own.hello), secrets.token_bytes(70), b""):
        with pytest.raises(UnprovenPeerError):
            caller.prove(challenge)


def test_a_hello_that_is_sent_again_gets_a_challenge_that_its_sender_cannot_answer() -> None:
    _, _, (hello, challenge, proof) = shaken()
    again = ListenerHandshake(knowing())
    assert again.challenge(hello) != challenge
    with pytest.raises(UnprovenPeerError):
        again.check(proof)


def test_a_challenge_that_is_sent_again_is_refused() -> None:
    _, _, (_, challenge, _) = shaken()
    with pytest.raises(UnprovenPeerError):
        CallerHandshake(knowing(), HELLO).prove(challenge)


def test_what_one_side_said_does_not_count_as_said_by_the_other() -> None:
    """Reflection: a stranger lets a broker answer its own questions."""
    caller, listener, (hello, challenge, proof) = shaken()
    response = listener.response("")
    for message in (hello, challenge, proof, response):
        if message is not challenge:
            with pytest.raises(UnprovenPeerError):
                CallerHandshake(knowing(), HELLO).prove(message)
        if message is not hello:
            with pytest.raises(PeerProtocolError):
                ListenerHandshake(knowing()).challenge(message)
        if message is not response:
            with pytest.raises(UnprovenPeerError):
                caller.read_response(message)
    # A broker that is called with its own challenge, as if that were the caller's message.
    own = CallerHandshake(knowing(), HELLO)
    with pytest.raises(UnprovenPeerError):
        own.prove(own.hello)


def test_no_bit_of_a_message_can_be_changed() -> None:
    rng = random.Random(1)
    receivers: list[Callable[[list[bytes], bytes], object]] = [
        lambda _, message: ListenerHandshake(knowing()).challenge(message),
        lambda _, message: CallerHandshake(knowing(), HELLO).prove(message),
    ]
    for number, receive in enumerate(receivers):
        _, _, messages = shaken()
        for position in range(len(messages[number])):
            changed = bytearray(messages[number])
            changed[position] ^= 1 << rng.randrange(8)
            with pytest.raises(PeerProtocolError):
                receive(messages, bytes(changed))
    for position in range(PROOF_BYTES):
        listener = ListenerHandshake(knowing())
        caller = CallerHandshake(knowing(), HELLO)
        proof = bytearray(caller.prove(listener.challenge(caller.hello)))
        proof[position] ^= 1
        with pytest.raises(UnprovenPeerError):
            listener.check(bytes(proof))
    caller, listener, _ = shaken()
    refused = listener.response("removed")
    for position in range(len(refused)):
        changed = bytearray(refused)
        changed[position] ^= 1
        with pytest.raises(UnprovenPeerError):
            caller.read_response(bytes(changed))


@pytest.mark.parametrize(
    "other",
    [
        HELLO._replace(cluster_id="d"),
        HELLO._replace(sender=BrokerId(3)),
        HELLO._replace(target=BrokerId(3)),
        HELLO._replace(epoch=8),
        HELLO._replace(incarnation="dir2"),
        HELLO._replace(version=4),
    ],
    ids=lambda hello: f"{hello}",
)
def test_a_proof_is_for_one_hello(other: Hello) -> None:
    caller, listener = CallerHandshake(knowing(), other), ListenerHandshake(knowing())
    proof = CallerHandshake.prove(caller, listener.challenge(caller.hello))
    mixed = ListenerHandshake(knowing())
    mixed.challenge(CallerHandshake(knowing(), HELLO).hello)
    mixed._said[1] = listener._said[1]
    with pytest.raises(UnprovenPeerError):
        mixed.check(proof)


def test_a_proof_without_a_hello_is_refused() -> None:
    with pytest.raises(PeerProtocolError):
        ListenerHandshake(knowing()).check(b"x" * PROOF_BYTES)


def test_a_broker_of_a_later_version_gets_the_reason() -> None:
    later = HELLO._replace(version=99)
    caller, listener, _ = shaken(later)
    assert caller.read_response(listener.response("too new")).reason == "too new"


def test_a_hello_too_short_for_its_nonce_is_refused_though_it_is_proven() -> None:
    secret = knowing()
    with pytest.raises(PeerProtocolError):
        ListenerHandshake(knowing()).challenge(b"abc" + secret.prove(Label.HELLO, b"abc"))


def test_messages_survive_the_way_and_what_is_cut_is_refused() -> None:
    hello = Hello("cluster", BrokerId(5), "dir", BrokerId(0x7FFFFFFF), 1 << 40)
    data = encode_hello(hello)
    assert decode_hello(memoryview(data)) == hello
    for cut in range(len(data)):
        with pytest.raises(PeerProtocolError):
            decode_hello(memoryview(data[:cut]))
    for answer in (HelloResponse(""), HelloResponse("no such broker")):
        data = encode_hello_response(answer)
        assert decode_hello_response(data) == answer
        for cut in range(len(data)):
            with pytest.raises(PeerProtocolError):
                decode_hello_response(data[:cut])


def test_the_secret_shows_nowhere() -> None:
    secret = knowing()
    assert SECRET.hex() not in repr(secret)
    assert repr(SECRET) not in repr(secret)
