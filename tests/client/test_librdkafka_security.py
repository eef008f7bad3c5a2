"""Security options of Java clients, in the names that librdkafka knows."""

from pathlib import Path

import pytest

pytest.importorskip("cryptography", reason="certificates are made with it")

from confluent_kafka.admin import AdminClient
from secure_front import identity

from moldau.client.errors import InvalidArgumentError
from moldau.client.kafka.consumer_config import ConsumerConfig
from moldau.client.kafka.librdkafka_settings import admin_settings
from moldau.client.kafka.producer_config import AckMode, ProducerConfig
from moldau.client.librdkafka_security import FixedToken, for_librdkafka, librdkafka_names
from moldau.client.security import parse_security

SECRET = "pl4nted-s3cret"
CA = identity("authority")
OWN = identity("client", signer=CA)
JAAS = (
    "org.apache.kafka.common.security.scram.ScramLoginModule required "
    f'username="ann" password="{SECRET}";'
)
JAVA = {
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "SCRAM-SHA-512",
    "sasl.jaas.config": JAAS,
    "ssl.truststore.type": "PEM",
    "ssl.truststore.certificates": CA.pem,
    "ssl.keystore.certificate.chain": OWN.pem,
    "ssl.keystore.key": OWN.key_pem,
}


def test_names_of_java_clients_are_translated() -> None:
    found = for_librdkafka({**JAVA, "client.id": "mine"})
    assert found == {
        "client.id": "mine",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "ann",
        "sasl.password": SECRET,
        "ssl.endpoint.identification.algorithm": "https",
        "ssl.ca.pem": CA.pem,
        "ssl.certificate.pem": OWN.pem,
        "ssl.key.pem": OWN.key_pem,
    }


def test_a_typo_in_a_name_of_java_clients_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match=r"mean ssl\.truststore\.location"):
        for_librdkafka({"security.protocol": "SSL", "ssl.truststore.locaton": "ca.pem"})


def test_librdkafka_accepts_what_is_translated() -> None:
    # It checks names, and that the key belongs to the certificate.
    AdminClient(admin_settings("127.0.0.1:1", JAVA))


def test_names_of_librdkafka_pass_unchanged() -> None:
    given = {
        "security.protocol": "sasl_plaintext",
        "sasl.mechanism": "GSSAPI",
        "ssl.crl.location": "x",
    }
    assert for_librdkafka(given) == given


def test_a_host_check_is_disabled_in_the_words_of_librdkafka(tmp_path: Path) -> None:
    given = {**JAVA, "ssl.endpoint.identification.algorithm": ""}
    assert for_librdkafka(given)["ssl.endpoint.identification.algorithm"] == "none"


def test_a_token_is_passed_by_a_callback_that_does_not_show_it() -> None:
    given = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.token": SECRET,
    }
    found = for_librdkafka(given)
    assert "sasl.oauthbearer.token" not in found
    assert isinstance(found["oauth_cb"], FixedToken)
    assert SECRET not in repr(found)
    assert FixedToken(SECRET, now=lambda: 5.0)("") == (SECRET, 3605.0)


def test_plain_text_needs_no_properties() -> None:
    assert librdkafka_names(parse_security({})) == {}


@pytest.mark.parametrize("kind", [ProducerConfig, ConsumerConfig])
def test_configs_take_security_and_do_not_show_it(
    kind: type[ProducerConfig] | type[ConsumerConfig],
) -> None:
    config = kind(bootstrap_servers="b:1", security=JAVA, extra={"sasl.password": SECRET})
    assert SECRET not in repr(config)
    settings = (
        config.settings(AckMode.ALL) if isinstance(config, ProducerConfig) else config.settings()
    )
    assert (settings["sasl.username"], settings["sasl.password"]) == ("ann", SECRET)


def test_an_error_does_not_show_the_password() -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        for_librdkafka({**JAVA, "sasl.mechanism": "PLAIN"})
    assert SECRET not in f"{caught.value!r} {caught.value.hint}"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"ssl.ca.location": "nowhere.pem"}, r"ssl\.ca\.location: cannot read .*nowhere\.pem"),
        ({"ssl.ca.location": "own.key"}, r"ssl\.ca\.location contains no certificate"),
        ({"ssl.ca.location": "text"}, r"ssl\.ca\.location is neither PEM nor"),
        (
            {"ssl.certificate.location": "own.pem", "ssl.key.location": "other.key"},
            "does not match the certificate",
        ),
        (
            {"ssl.certificate.location": "own.pem", "ssl.key.location": "nowhere.key"},
            r"ssl\.key\.location: cannot read",
        ),
        ({"ssl.certificate.location": "own.pem"}, "contain no key"),
    ],
)
def test_wrong_files_are_reported_in_our_words(
    tmp_path: Path, given: dict[str, str], said: str
) -> None:
    (tmp_path / "own.pem").write_text(OWN.pem)
    (tmp_path / "own.key").write_text(OWN.key_pem)
    (tmp_path / "other.key").write_text(CA.key_pem)
    (tmp_path / "text").write_text("some text")
    files = {name: str(tmp_path / file) for name, file in given.items()}
    with pytest.raises(InvalidArgumentError, match=said) as caught:
        admin_settings("127.0.0.1:1", {"security.protocol": "ssl", **files})
    assert "routines" not in str(caught.value)
    # librdkafka does not read them either.
    assert admin_settings("127.0.0.1:1", {"security.protocol": "plaintext", **files})


def test_what_only_librdkafka_knows_is_left_to_it(tmp_path: Path) -> None:
    (tmp_path / "own.pem").write_text(OWN.pem)
    for given in (
        {"ssl.ca.location": "probe"},
        {"ssl.ca.location": str(tmp_path)},
        {"ssl.certificate.location": str(tmp_path / "own.pem"), "ssl.key.pem": OWN.key_pem},
    ):
        properties = {"security.protocol": "SSL", **given}
        assert for_librdkafka(properties) == properties
