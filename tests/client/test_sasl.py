"""SASL without a socket: the exchange of RFC 7677, and names and passwords as people write them."""

import secrets

import pytest

from moldau.api.authentication import TOO_MANY
from moldau.client.errors import ClientError, InvalidArgumentError
from moldau.client.sasl import Sasl, parse_sasl

NONCE = "rOprNGfwEbeRWgbNEkqO"
CHALLENGE = f"r={NONCE}%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"


@pytest.fixture(autouse=True)
def _one_nonce(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secrets, "token_urlsafe", lambda count: NONCE)


def scram() -> Sasl:
    return Sasl(mechanism="SCRAM-SHA-256", username="user", password="pencil")


def test_scram_says_what_rfc_7677_says() -> None:
    exchange = scram().exchange()
    assert next(exchange) == f"n,,n=user,r={NONCE}".encode()
    assert exchange.send(CHALLENGE.encode()) == (
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
        b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    with pytest.raises(StopIteration):
        exchange.send(b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=")


@pytest.mark.parametrize(
    ("challenge", "message"),
    [
        (CHALLENGE.replace(NONCE, "x" * 20), "has another nonce"),
        (f"r={NONCE},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096", "has another nonce"),
        (CHALLENGE.replace("4096", "4095"), "requests 4095 iterations"),
        (CHALLENGE.replace("4096", "2000000000"), "requests 2000000000 iterations"),
        (CHALLENGE.replace("4096", "x"), "is not a SCRAM message"),
        ("e=unknown-user", "is not a SCRAM message"),
        ("", "is not a SCRAM message"),
    ],
)
def test_a_challenge_that_cannot_be_right_is_refused(challenge: str, message: str) -> None:
    exchange = scram().exchange()
    next(exchange)
    with pytest.raises(ClientError, match=message):
        exchange.send(challenge.encode())


@pytest.mark.parametrize("answer", ["v=AAAA", "e=other-error", ""])
def test_a_broker_has_to_prove_that_it_knows_the_password(answer: str) -> None:
    exchange = scram().exchange()
    next(exchange)
    exchange.send(CHALLENGE.encode())
    with pytest.raises(ClientError, match="did not prove"):
        exchange.send(answer.encode())


def test_plain_is_name_and_password() -> None:
    exchange = Sasl(mechanism="PLAIN", username="ann", password="ü").exchange()
    assert list(exchange) == ["\0ann\0ü".encode()]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (f'{PLAIN} required username="ann" password="x";', ("ann", "x")),
        (f"  {PLAIN}\n required\n username='ann'\n password='x y'\n ; ", ("ann", "x y")),
        (f"{PLAIN} required username=ann password=x;", ("ann", "x")),
        (rf'{PLAIN} REQUIRED password="a\"b\\c;=" username="$Connection";',
         ("$Connection", 'a"b\\c;=')),
        (f'kafkashaded.{PLAIN} required username="ann" password="" serviceName=k;', ("ann", "")),
    ],
)  # fmt: skip
def test_a_login_is_read_as_people_write_it(text: str, wanted: tuple[str, str]) -> None:
    found = parse_sasl({"sasl.mechanism": "plain", "sasl.jaas.config": text})
    assert (found.username, found.password) == wanted


def test_names_of_librdkafka_will_do() -> None:
    given = {"sasl.mechanisms": "SCRAM-SHA-512", "sasl.username": "u", "sasl.password": "p"}
    wanted = Sasl(mechanism="SCRAM-SHA-512", username="u", password="p", prefix="kafka.")
    assert parse_sasl(given, "kafka.") == wanted


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, r"kafka\.sasl\.mechanism is GSSAPI, the default, which is not supported"),
        ({"sasl.mechanism": "GSSAPI"}, r"kafka\.sasl\.mechanism is GSSAPI"),
        ({"sasl.mechanism": "OAUTHBEARER"}, r"kafka\.sasl\.oauthbearer\.token is missing"),
        ({"sasl.mechanism": "PLAIN"}, r"kafka\.sasl\.jaas\.config is missing"),
        ({"sasl.mechanism": "PLAIN", "sasl.username": "u"}, "needs a name and a password"),
        (
            {"sasl.mechanism": "PLAIN", "sasl.jaas.config": f'{SCRAM} required password="sec";'},
            r"kafka\.sasl\.jaas\.config names the login module .*ScramLoginModule",
        ),
        (
            {"sasl.mechanism": "PLAIN", "sasl.jaas.config": f'{PLAIN} required password="sec";'},
            "lacks username or password",
        ),
        (
            {"sasl.mechanism": "PLAIN", "sasl.jaas.config": f'{PLAIN} required password="sec"'},
            r"kafka\.sasl\.jaas\.config cannot be parsed",
        ),
        (
            {"sasl.mechanism": "PLAIN", "sasl.jaas.config": f'{PLAIN} required "sec";'},
            r"kafka\.sasl\.jaas\.config cannot be parsed",
        ),
        (
            {
                "sasl.mechanism": "SCRAM-SHA-256",
                "sasl.jaas.config": f'{SCRAM} required username="a" password="sec" '
                'tokenauth="true";',
            },
            "delegation tokens are not supported",
        ),
    ],
)
def test_what_is_wrong_is_reported_without_the_password(
    given: dict[str, str], message: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=message) as caught:
        parse_sasl(given, "kafka.")
    assert "sec" not in f"{caught.value} {caught.value.hint}".replace("security", "")


def test_the_text_of_a_login_shows_no_password() -> None:
    assert "pencil" not in repr(scram())


def test_a_login_that_must_wait_is_not_a_wrong_password() -> None:
    sasl = Sasl(mechanism="SCRAM-SHA-256", username="ann", password="right", prefix="kafka.")
    error = sasl.refused("b1:9092", TOO_MANY)
    assert "too many failed logins of this user from this address" in str(error)
    assert "wait" in error.hint
    assert "check name and password" not in error.hint
    wrong = sasl.refused("b1:9092", None)
    assert "option kafka.sasl.jaas.config" in wrong.hint
