"""Makes a local CA, and certificates that it signs, for development and tests."""

import ipaddress
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from moldau.cli.errors import CommandError

_CA_DAYS = 10 * 365
_CLOCK_SKEW = timedelta(hours=1)
"""Certificates are valid from a little earlier, for machines whose clock is behind."""
_PRIVATE, _PUBLIC = 0o600, 0o644


class Signer(NamedTuple):
    """A CA."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey


class CertificateFolder:
    """Certificates and keys in a directory: NAME.pem and NAME.key. Never overwrites a file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.made: list[str] = []
        """Names whose certificate was made."""
        self.kept: list[str] = []
        """Names whose certificate was there."""

    def authority(self) -> Signer:
        """The CA in the directory; a new one if there is none. Raises CommandError."""
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self._exists("ca"):
            self.kept.append("ca")
            return self._load("ca")
        key = ec.generate_private_key(ec.SECP256R1())
        name = _name("Moldau development CA")
        usage = _usage(signs_certificates=True)
        certificate = (
            _builder(name, name, key, _CA_DAYS)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
            .sign(key, hashes.SHA256())
        )
        self._write("ca", certificate, key)
        return Signer(certificate, key)

    def broker(self, name: str, signer: Signer, hosts: list[str], days: int) -> None:
        """For TLS of listeners; as brokers also connect to each other, for clients too."""
        both = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        self._leaf(name, signer, days, both, hosts)

    def client(self, name: str, signer: Signer, days: int) -> None:
        self._leaf(name, signer, days, [ExtendedKeyUsageOID.CLIENT_AUTH], [])

    def _leaf(
        self,
        name: str,
        signer: Signer,
        days: int,
        purposes: list[x509.ObjectIdentifier],
        hosts: list[str],
    ) -> None:
        if self._exists(name):
            self.kept.append(name)
            return
        key = ec.generate_private_key(ec.SECP256R1())
        builder = (
            _builder(_name(name), signer.certificate.subject, key, days)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.key.public_key()),
                critical=False,
            )
        )
        if hosts:
            names = x509.SubjectAlternativeName([_general_name(host) for host in hosts])
            builder = builder.add_extension(names, critical=False)
        self._write(name, builder.sign(signer.key, hashes.SHA256()), key)

    def _exists(self, name: str) -> bool:
        """Whether both files are there. Raises CommandError if only one is."""
        found = [(self.path / f"{name}.{end}").exists() for end in ("pem", "key")]
        if any(found) and not all(found):
            raise CommandError(
                f"{self.path} has only one of {name}.pem and {name}.key",
                hint="restore the other, or delete it to get new ones",
            )
        return all(found)

    def _load(self, name: str) -> Signer:
        try:
            certificate = x509.load_pem_x509_certificate((self.path / f"{name}.pem").read_bytes())
            key = serialization.load_pem_private_key((self.path / f"{name}.key").read_bytes(), None)
        except (ValueError, TypeError):
            raise CommandError(f"cannot read {name}.pem and {name}.key in {self.path}") from None
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise CommandError(
                f"{self.path / name}.key was not made by this command",
                hint="use another directory",
            )
        return Signer(certificate, key)

    def _write(
        self, name: str, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey
    ) -> None:
        private = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        _create(self.path / f"{name}.key", private, _PRIVATE)
        _create(
            self.path / f"{name}.pem",
            certificate.public_bytes(serialization.Encoding.PEM),
            _PUBLIC,
        )
        self.made.append(name)


def _create(path: Path, data: bytes, mode: int) -> None:
    """Raises FileExistsError rather than overwrite, also if it appears in the meantime."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    with open(descriptor, "wb") as stream:
        stream.write(data)


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCK_SKEW)
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
