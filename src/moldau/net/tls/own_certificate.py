"""What the certificate of this side says: when it is valid, and for which hosts."""

import ipaddress
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from msgspec import Struct

from moldau.model.errors import ConfigError

if TYPE_CHECKING:
    from cryptography import x509


class OwnCertificate(Struct, frozen=True, kw_only=True):
    """The certificate in a PEM file; times are in seconds since 1970."""

    file: str
    begins_at: float
    expires_at: float
    names: frozenset[str]
    """Host names, in small letters; some begin with a wildcard."""
    addresses: frozenset[str]

    def trouble(self, now: float) -> str:
        """Why clients refuse it now; empty if they do not."""
        if now < self.begins_at:
            return f"is not valid before {written(self.begins_at)}"
        if now >= self.expires_at:
            return f"expired on {written(self.expires_at)}"
        return ""

    def is_for(self, host: str) -> bool:
        """Whether it has the address, the host name, or a wildcard for its first label."""
        if is_address(host):
            return str(ipaddress.ip_address(host)) in self.addresses
        name = host.lower().removesuffix(".")
        _, dot, domain = name.partition(".")
        return name in self.names or (bool(dot) and f"*.{domain}" in self.names)


def is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def written(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M} UTC"


def read_certificate(file: str, pem: bytes) -> OwnCertificate:
    """The first certificate of a PEM file. Raises ConfigError."""
    # Imported here: brokers without TLS do not pay for it.
    from cryptography import x509

    try:
        found = x509.load_pem_x509_certificates(pem)[0]
    except ValueError:
        raise ConfigError(f"{file} contains no certificate in PEM form") from None
    names, addresses = _hosts(found)
    return OwnCertificate(
        file=file,
        begins_at=found.not_valid_before_utc.timestamp(),
        expires_at=found.not_valid_after_utc.timestamp(),
        names=names,
        addresses=addresses,
    )


def _hosts(certificate: "x509.Certificate") -> tuple[frozenset[str], frozenset[str]]:
    from cryptography import x509

    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, x509.DuplicateExtension, ValueError):
        return frozenset(), frozenset()
    names = found.get_values_for_type(x509.DNSName)
    addresses = found.get_values_for_type(x509.IPAddress)
    return frozenset(str(one).lower() for one in names), frozenset(map(str, addresses))
