"""TLS and SASL options of connections, with the names that Kafka clients use.

Files are read when the options are parsed, and their content travels with the options: a Spark task
needs no files of the driver, and a wrong file is reported before anything runs.
"""

import contextlib
import difflib
import functools
import os
import re
import ssl
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from moldau.client.errors import ClientError, InvalidArgumentError, UnreachableError
from moldau.client.sasl import READABLE, SASL_OPTIONS, Sasl, parse_sasl
from moldau.model.loopback import is_loopback, reaches_loopback

PROTOCOL: Final = "security.protocol"
PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
HOST_CHECK: Final = "ssl.endpoint.identification.algorithm"
OPTIONS: Final = (
    *(PROTOCOL, HOST_CHECK, "ssl.enabled.protocols", *SASL_OPTIONS),
    *("ssl.truststore.type", "ssl.truststore.location", "ssl.truststore.password"),
    *("ssl.keystore.type", "ssl.keystore.location", "ssl.keystore.password"),
    *("ssl.truststore.certificates", "ssl.keystore.certificate.chain", "ssl.keystore.key"),
    *("ssl.ca.location", "ssl.certificate.location", "ssl.key.location", "ssl.key.password"),
)
"""All that `parse_security` understands."""
_TLS_VERSIONS: Final = {
    "TLSV1.2": ssl.TLSVersion.TLSv1_2,
    "TLSV1.3": ssl.TLSVersion.TLSv1_3,
}
_JAVA_STORES: Final = (b"\xfe\xed\xfe\xed", b"\xce\xce\xce\xce")
_PEM: Final = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----(.*?)-----END \1-----", re.DOTALL)
_OTHER_HOST: Final = (62, 64)
"""OpenSSL's codes for a certificate of another host name or IP address."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """TLS options. The repr never shows the key."""

    prefix: str = ""
    """Prefix of option names in errors."""
    authorities: str = field(default="", repr=False)
    """Trusted certificates in PEM; empty: those that the system trusts."""
    chain: str = field(default="", repr=False)
    key: str = field(default="", repr=False)
    key_password: str = field(default="", repr=False)
    checks_host: bool = True
    version_first: ssl.TLSVersion = ssl.TLSVersion.TLSv1_2
    version_last: ssl.TLSVersion = ssl.TLSVersion.MAXIMUM_SUPPORTED

    def failure(self, error: OSError, address: str) -> ClientError:
        """The error for a failed handshake, with the option to change."""
        if isinstance(error, ssl.SSLCertVerificationError):
            reason = error.verify_message.rstrip(".").lower()
            if error.verify_code in _OTHER_HOST:
                return ClientError(
                    f"the certificate of {address} is for another host ({reason})",
                    hint="use a name in the certificate, or disable the check: option "
                    f"{self.prefix}{HOST_CHECK} with an empty value",
                )
            return ClientError(
                f"the certificate of {address} is not trusted ({reason})",
                hint="set its certificate authority: option "
                f"{self.prefix}ssl.truststore.certificates or {self.prefix}ssl.truststore.location",
            )
        reason = (getattr(error, "reason", None) or error.strerror or str(error)).lower()
        if "alert" in reason:
            return ClientError(
                f"{address} rejected the TLS handshake ({reason})",
                hint="does it require a certificate? see options "
                f"{self.prefix}ssl.keystore.location, "
                f"{self.prefix}ssl.keystore.certificate.chain and {self.prefix}ssl.keystore.key",
            )
        kind = UnreachableError if not isinstance(error, ssl.SSLError) else ClientError
        if isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError):
            # The broker may have just failed.
            kind = UnreachableError
        return kind(
            f"cannot encrypt the connection to {address} ({reason}): see option "
            f"{self.prefix}{PROTOCOL}",
            hint="does the broker accept TLS on that port?",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Security:
    """Security options of a client's connections; plain text by default. Sent to Spark tasks."""

    prefix: str = ""
    tls: Tls | None = None
    sasl: Sasl | None = None

    @property
    def authorization(self) -> str:
        """The header `authorization` of HTTP and gRPC; empty: none."""
        return "" if self.sasl is None else self.sasl.authorization

    def check_advertised(self, host: str, bootstrap: Iterable[str]) -> None:
        """Before a login at a broker that another one has named.

        A password or token that the user sends to this machine only, in plain text, stays on it,
        whatever address a broker advertises. Raises ClientError.
        """
        is_clear = self.tls is None and self.sasl is not None and self.sasl.mechanism in READABLE
        if is_clear and all(map(reaches_loopback, bootstrap)):
            check_may_send(host, self.prefix)


PLAIN_TEXT: Final = Security()


def check_may_send(host: str, prefix: str = "") -> None:
    """Before credentials are sent in plain text. Raises ClientError unless they stay here."""
    if not is_loopback(host):
        raise ClientError(
            f"will not send a password or token to {host} without TLS",
            hint=f"use TLS: see option {prefix}{PROTOCOL}, and https:// addresses",
        )


def parse_security(given: Mapping[str, str], prefix: str = "") -> Security:
    """Parse `security.*`, `ssl.*` and `sasl.*` options; `prefix` precedes their names in errors.

    A name that it does not know is refused: a typo would leave something unprotected. Raises
    InvalidArgumentError, without secrets.
    """
    for name in given:
        if name not in OPTIONS:
            close = difflib.get_close_matches(str(name).lower(), OPTIONS, n=1)
            meant = f": did you mean {prefix}{close[0]}?" if close else ""
            raise InvalidArgumentError(
                f"unknown security option {prefix}{name}{meant}",
                hint=f"known options: {', '.join(prefix + known for known in sorted(OPTIONS))}",
            )
    protocol = (given.get(PROTOCOL) or PROTOCOLS[0]).upper()
    if protocol not in PROTOCOLS:
        raise InvalidArgumentError(
            f"option {prefix}{PROTOCOL} must be one of {', '.join(PROTOCOLS)}, not {protocol!r}"
        )
    return Security(
        prefix=prefix,
        tls=_parse_tls(given, prefix) if protocol.endswith("SSL") else None,
        sasl=parse_sasl(given, prefix) if protocol.startswith("SASL") else None,
    )


@functools.lru_cache(maxsize=16)
def tls_context(tls: Tls) -> ssl.SSLContext:
    """Created once per process. Raises InvalidArgumentError."""
    try:
        context = ssl.create_default_context(cadata=tls.authorities or None)
    except ssl.SSLError as error:
        raise InvalidArgumentError(
            f"option {tls.prefix}ssl.truststore.certificates contains no readable certificate "
            f"({error.reason})"
        ) from None
    # Python 3.13 refuses authorities without key identifiers; brokers and librdkafka accept them.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    context.check_hostname = tls.checks_host
    context.minimum_version, context.maximum_version = tls.version_first, tls.version_last
    if tls.chain:
        with _private_file(tls.key + tls.chain) as path:
            try:
                context.load_cert_chain(path, password=lambda: tls.key_password)
            except (ssl.SSLError, ValueError):
                raise InvalidArgumentError(
                    f"options {tls.prefix}ssl.keystore…: the key cannot be read, or does not match "
                    "the certificate",
                    hint=f"is the key encrypted? see option {tls.prefix}ssl.key.password",
                ) from None
    return context


def _file_in_memory() -> int | None:
    """None: this system has none, or keeps processes from using them."""
    try:
        descriptor = os.memfd_create("moldau")
    except (AttributeError, OSError):
        return None
    if os.path.exists(f"/proc/self/fd/{descriptor}"):
        return descriptor
    os.close(descriptor)
    return None


@contextlib.contextmanager
def _private_file(text: str) -> Iterator[str]:
    """OpenSSL reads keys from files only: the path of one that no other user can open."""
    if (descriptor := _file_in_memory()) is not None:
        # Without a name: nothing remains of it, however the process ends.
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            yield f"/proc/self/fd/{descriptor}"
        return
    with tempfile.NamedTemporaryFile("w", suffix=".pem") as named:
        named.write(text)
        named.flush()
        yield named.name


def plain_key(tls: Tls) -> str:
    """The key, decrypted. Raises InvalidArgumentError."""
    if "ENCRYPTED" not in tls.key:
        return tls.key
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
        load_pem_private_key,
    )

    try:
        key = load_pem_private_key(tls.key.encode(), tls.key_password.encode() or None)
    except (ValueError, TypeError):
        raise InvalidArgumentError(
            f"option {tls.prefix}ssl.key.password is missing or wrong"
        ) from None
    plain: bytes = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return plain.decode()


def _parse_tls(given: Mapping[str, str], prefix: str) -> Tls:
    algorithm = given.get(HOST_CHECK, "https").lower()
    if algorithm not in ("https", "", "none"):
        raise InvalidArgumentError(
            f"option {prefix}{HOST_CHECK} must be https, or empty to disable it, not {algorithm!r}"
        )
    for which in ("truststore", "keystore"):
        kind = given.get(f"ssl.{which}.type", "PEM").upper()
        if kind not in ("PEM", "PKCS12", "JKS"):
            raise InvalidArgumentError(
                f"option {prefix}ssl.{which}.type must be PEM or PKCS12, not {kind}"
            )
    trusted = _trusted(given, prefix)
    own = _own(given, prefix)
    first, last = _versions(given, prefix)
    tls = Tls(
        prefix=prefix,
        authorities="".join(trusted.certificates),
        chain="".join(own.certificates),
        key=own.key,
        key_password=given.get("ssl.key.password", ""),
        checks_host=algorithm == "https",
        version_first=first,
        version_last=last,
    )
    if bool(tls.chain) != bool(tls.key):
        missing = "key" if tls.chain else "certificate"
        raise InvalidArgumentError(
            f"options {prefix}ssl.keystore… contain no {missing}",
            hint=f"see {prefix}ssl.keystore.certificate.chain and {prefix}ssl.keystore.key",
        )
    tls_context(tls)
    return tls


def _versions(given: Mapping[str, str], prefix: str) -> tuple[ssl.TLSVersion, ssl.TLSVersion]:
    name = "ssl.enabled.protocols"
    names = [text.strip().upper() for text in given.get(name, "").split(",") if text.strip()]
    known = sorted(_TLS_VERSIONS[text] for text in names if text in _TLS_VERSIONS)
    if not names:
        return ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.MAXIMUM_SUPPORTED
    if not known:
        raise InvalidArgumentError(f"option {prefix}{name} must name TLSv1.2 or TLSv1.3")
    return known[0], known[-1]


class _Store(NamedTuple):
    """Certificates and key of a file or an option, in PEM."""

    certificates: tuple[str, ...] = ()
    key: str = ""


def _trusted(given: Mapping[str, str], prefix: str) -> _Store:
    for name in ("ssl.truststore.certificates", "ssl.truststore.location", "ssl.ca.location"):
        found = _store(given, name, "ssl.truststore.password", prefix)
        if found is not None:
            if not found.certificates:
                raise InvalidArgumentError(f"option {prefix}{name} contains no certificate")
            return found
    return _Store()


def _own(given: Mapping[str, str], prefix: str) -> _Store:
    whole = _store(given, "ssl.keystore.location", "ssl.keystore.password", prefix)
    if whole is not None:
        return whole
    result = _Store()
    for name in (
        *("ssl.keystore.certificate.chain", "ssl.certificate.location"),
        *("ssl.keystore.key", "ssl.key.location"),
    ):
        found = _store(given, name, "ssl.key.password", prefix)
        if found is not None:
            result = _Store(
                result.certificates or found.certificates,
                result.key or found.key,
            )
    return result


def _store(given: Mapping[str, str], name: str, password: str, prefix: str) -> _Store | None:
    """The content of an option or of the file it names; None if it is not set."""
    value = given.get(name)
    if not value:
        return None
    if not name.endswith(".location"):
        return _from_pem(value, f"{prefix}{name}")
    try:
        data = Path(value).read_bytes()
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise InvalidArgumentError(
            f"option {prefix}{name}: cannot read {value} ({reason})"
        ) from None
    if data.startswith(_JAVA_STORES):
        store = name.split(".")[1]
        raise InvalidArgumentError(
            f"option {prefix}{name}: {value} is a Java key store (JKS), which only Java can read",
            hint=f"convert it: keytool -importkeystore -srckeystore {value} -destkeystore "
            f"{Path(value).stem}.p12 -deststoretype PKCS12, and set {prefix}ssl.{store}.type to "
            "PKCS12",
        )
    if b"-----BEGIN" in data:
        return _from_pem(data.decode("utf-8", "replace"), f"{prefix}{name}")
    return _from_pkcs12(data, given.get(password, ""), f"{prefix}{name}", f"{prefix}{password}")


def _from_pem(text: str, option: str) -> _Store:
    certificates, key = [], ""
    for kind, body in _PEM.findall(text):
        if ":" not in body:
            # In options it is often a single line, which Java can read and OpenSSL cannot.
            letters = "".join(body.split())
            lines = [letters[at : at + 64] for at in range(0, len(letters), 64)]
            body = "\n" + "\n".join(lines) + "\n"
        block = f"-----BEGIN {kind}-----{body}-----END {kind}-----\n"
        if kind.endswith("PRIVATE KEY"):
            key = key or block
        elif kind.endswith("CERTIFICATE"):
            certificates.append(block)
    if not certificates and not key:
        raise InvalidArgumentError(
            f"option {option} contains neither a certificate nor a key in PEM"
        )
    return _Store(tuple(certificates), key)


def _from_pkcs12(data: bytes, password: str, option: str, password_option: str) -> _Store:
    try:
        from cryptography.hazmat.primitives.serialization import (
            Encoding,
            NoEncryption,
            PrivateFormat,
            pkcs12,
        )
    except ImportError:
        raise InvalidArgumentError(
            f"option {option}: reading PKCS12 needs the package cryptography",
            hint="pip install cryptography, or use PEM",
        ) from None
    try:
        found = pkcs12.load_pkcs12(data, password.encode() or None)
    except ValueError:
        raise InvalidArgumentError(
            f"option {option} is neither PEM nor PKCS12, or {password_option} is wrong"
        ) from None
    own = [] if found.cert is None else [found.cert]
    certificates = [
        each.certificate.public_bytes(Encoding.PEM).decode()
        for each in [*own, *found.additional_certs]
    ]
    key = ""
    if found.key is not None:
        key = found.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    return _Store(tuple(certificates), key)
