"""Properties of TLS: certificates and keys in every form that people have, and what is wrong."""

import os
import pickle
import ssl
import tempfile
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

pytest.importorskip("cryptography", reason="certificates are made with it")

from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    pkcs12,
)
from secure_front import identity

from moldau.client.errors import ClientError, InvalidArgumentError
from moldau.client.security import Security, Tls, parse_security, tls_context

CA = identity("authority")
OWN = identity("client", signer=CA)
ENCRYPTED = OWN.private_key.private_bytes(
    Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"opens")
).decode()


def tls_of(**properties: str) -> Tls:
    named = {name.replace("__", "."): value for name, value in properties.items()}
    found = parse_security({"security.protocol": "SSL"} | named, "kafka.")
    assert found.tls is not None
    return found.tls


def trusted(tls: Tls) -> list[str]:
    found: list[Any] = tls_context(tls).get_ca_certs()
    return [dict(pair[0] for pair in each["subject"])["commonName"] for each in found]


@pytest.mark.parametrize("text", [CA.pem, CA.pem.replace("\n", " "), "# ours\n" + CA.pem + CA.pem])
def test_authorities_stand_in_an_option(text: str) -> None:
    assert trusted(tls_of(ssl__truststore__certificates=text)) == ["authority"]


@pytest.mark.parametrize("name", ["ssl__truststore__location", "ssl__ca__location"])
def test_authorities_stand_in_a_file(name: str, tmp_path: Path) -> None:
    file = tmp_path / "ca.pem"
    file.write_text(CA.pem)
    assert trusted(tls_of(**{name: str(file)})) == ["authority"]


def test_without_authorities_those_of_the_system_are_trusted() -> None:
    assert tls_of().authorities == ""
    assert tls_context(tls_of()).verify_mode is ssl.CERT_REQUIRED


def test_stores_in_pkcs12_are_read(tmp_path: Path) -> None:
    store, trust = tmp_path / "own.p12", tmp_path / "trust.p12"
    closed = BestAvailableEncryption(b"opens")
    store.write_bytes(
        pkcs12.serialize_key_and_certificates(
            b"me", OWN.private_key, OWN.certificate, [CA.certificate], closed
        )
    )
    trust.write_bytes(pkcs12.serialize_java_truststore(
        [pkcs12.PKCS12Certificate(CA.certificate, b"ca")], closed
    ))  # fmt: skip
    found = tls_of(
        ssl__keystore__type="PKCS12",
        ssl__keystore__location=str(store),
        ssl__keystore__password="opens",
        ssl__truststore__location=str(trust),
        ssl__truststore__password="opens",
    )
    assert trusted(found) == ["authority"]
    assert found.chain == OWN.pem + CA.pem
    with pytest.raises(InvalidArgumentError, match=r"or kafka\.ssl\.truststore\.password is wrong"):
        tls_of(ssl__truststore__location=str(trust), ssl__truststore__password="shut")


def test_a_store_of_java_is_refused_with_the_command_that_converts_it(tmp_path: Path) -> None:
    file = tmp_path / "trust.jks"
    file.write_bytes(b"\xfe\xed\xfe\xed\0\0\0\2")
    with pytest.raises(InvalidArgumentError, match=r"option kafka\.ssl\.truststore\.loc") as caught:
        tls_of(ssl__truststore__type="JKS", ssl__truststore__location=str(file))
    assert f"keytool -importkeystore -srckeystore {file}" in caught.value.hint
    assert "kafka.ssl.truststore.type" in caught.value.hint


@pytest.mark.parametrize("password", ["", "wrong"])
def test_an_encrypted_key_needs_its_password(password: str) -> None:
    options = {"ssl__keystore__certificate__chain": OWN.pem, "ssl__keystore__key": ENCRYPTED}
    tls_of(**options, ssl__key__password="opens")
    with pytest.raises(InvalidArgumentError, match="the key cannot be read") as caught:
        tls_of(**options, ssl__key__password=password)
    assert "kafka.ssl.key.password" in caught.value.hint


def test_key_and_certificate_stand_in_files(tmp_path: Path) -> None:
    both, certificate, key = tmp_path / "both", tmp_path / "certificate", tmp_path / "key"
    both.write_text(OWN.key_pem + OWN.pem)
    certificate.write_text(OWN.pem)
    key.write_text(OWN.key_pem)
    one = tls_of(ssl__keystore__type="PEM", ssl__keystore__location=str(both))
    assert one == tls_of(ssl__certificate__location=str(certificate), ssl__key__location=str(key))
    assert one.chain == OWN.pem


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"security__protocol": "TLS"}, r"kafka\.security\.protocol must be one of PLAINTEXT, SSL"),
        ({"ssl__truststore__location": "/no/such"}, r"truststore\.location: cannot read /no/such"),
        ({"ssl__truststore__location": "/"}, r"truststore\.location: cannot read / "),
        ({"ssl__truststore__certificates": "x"}, r"ssl\.truststore\.certificates contains nei"),
        ({"ssl__truststore__certificates": OWN.key_pem}, r"certificates contains no cert"),
        (
            {"ssl__truststore__certificates": CA.pem.replace("MII", "A")},
            r"kafka\.ssl\.truststore\.certificates contains no readable certificate",
        ),
        ({"ssl__keystore__key": OWN.key_pem}, r"kafka\.ssl\.keystore… contain no certificate"),
        ({"ssl__certificate__location": "/no/such"}, r"kafka\.ssl\.certificate\.location: cannot"),
        ({"ssl__keystore__certificate__chain": OWN.pem}, r"kafka\.ssl\.keystore… contain no key"),
        (
            {"ssl__keystore__certificate__chain": CA.pem, "ssl__keystore__key": OWN.key_pem},
            "does not match the certificate",
        ),
        ({"ssl__truststore__type": "BKS"}, r"kafka\.ssl\.truststore\.type must be PEM or PKCS12"),
        ({"ssl__endpoint__identification__algorithm": "ldaps"}, "must be https, or empty"),
        ({"ssl__enabled__protocols": "SSLv3"}, r"kafka\.ssl\.enabled\.protocols must name TLS"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_by_the_name_of_the_option(
    options: dict[str, str], message: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        tls_of(**options)


def test_versions_of_tls_are_those_that_are_enabled() -> None:
    context = tls_context(tls_of(ssl__enabled__protocols="TLSv1.1,TLSv1.2"))
    assert context.minimum_version == context.maximum_version == ssl.TLSVersion.TLSv1_2
    assert tls_context(tls_of()).minimum_version == ssl.TLSVersion.TLSv1_2


def test_names_are_checked_unless_the_option_is_empty() -> None:
    assert tls_context(tls_of()).check_hostname
    assert not tls_context(tls_of(ssl__endpoint__identification__algorithm="")).check_hostname


def test_it_travels_to_tasks_and_its_text_shows_no_key() -> None:
    found = parse_security(
        {
            "security.protocol": "SASL_SSL",
            "ssl.keystore.certificate.chain": OWN.pem,
            "ssl.keystore.key": ENCRYPTED,
            "ssl.key.password": "opens",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "ann",
            "sasl.password": "secret",
        }
    )
    assert pickle.loads(pickle.dumps(found)) == found
    assert not any(word in repr(found) for word in ("opens", "secret", "BEGIN"))


def test_plain_text_is_the_default() -> None:
    assert parse_security({}) == Security()
    assert parse_security({"security.protocol": "plaintext"}, "kafka.") == Security(prefix="kafka.")


def test_a_key_is_in_no_directory_while_it_is_loaded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tls = tls_of(ssl__keystore__certificate__chain=OWN.pem, ssl__keystore__key=OWN.key_pem)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    seen: list[tuple[str, list[str]]] = []
    load = ssl.SSLContext.load_cert_chain

    def spy(self: ssl.SSLContext, path: str, **options: Any) -> None:
        seen.append((path, os.listdir(tmp_path)))
        # A file in memory has no name, by which other users could open it.
        assert path.startswith("/proc/self/fd/") or not os.stat(path).st_mode & 0o077
        load(self, path, **options)

    monkeypatch.setattr(ssl.SSLContext, "load_cert_chain", spy)
    tls_context.__wrapped__(tls)
    ((path, listed),) = seen
    assert (path.startswith("/proc/self/fd/"), listed) == (True, [])
    # Systems without files in memory, or where a process may not use them.
    refuse = Mock(side_effect=PermissionError)
    monkeypatch.setattr(os, "memfd_create", refuse)
    tls_context.__wrapped__(tls)
    refuse.assert_called_once()
    assert seen[1][0] == str(tmp_path / seen[1][1][0])
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
@pytest.mark.parametrize("protocol", ["SASL_PLAINTEXT", "SASL_SSL"])
def test_a_password_for_this_machine_is_not_sent_to_others_in_plain_text(
    mechanism: str, protocol: str
) -> None:
    login = {"sasl.mechanism": mechanism, "sasl.username": "ann", "sasl.password": "secret"}
    security = parse_security({"security.protocol": protocol, **login})
    here, there = ["localhost", "::1"], ["127.0.0.1", "queue.example"]
    security.check_advertised("127.0.0.1", here)
    # Who names another machine has decided.
    security.check_advertised("other.example", there)
    if mechanism == "PLAIN" and protocol == "SASL_PLAINTEXT":
        with pytest.raises(ClientError, match="will not send a password or token to other"):
            security.check_advertised("other.example", here)
    else:
        security.check_advertised("other.example", here)
