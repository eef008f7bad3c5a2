"""TLS contexts from PEM files, for listeners and links: loaded again when the files change.

A bad new file changes nothing: what was loaded before stays in use, and the log says so. So does a
certificate while a new one is not valid yet. Open connections keep the certificate that they began
with.
"""

import logging
import os
import ssl
import stat
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from msgspec import Struct

from moldau.model import log_events as events
from moldau.model.errors import ConfigError
from moldau.model.secret import Secret
from moldau.net.tls.handshake_turns import HandshakeTurns
from moldau.net.tls.measured import MeasuredSslObject
from moldau.net.tls.own_certificate import OwnCertificate, is_address, read_certificate, written

log = logging.getLogger(__name__)

_CIPHERS: Final = "ECDHE+AESGCM:ECDHE+CHACHA20"
"""Of TLS 1.2: only authenticated ones with forward secrecy. Those of TLS 1.3 all are."""

_PEM_BYTES_MAX: Final = 1024 * 1024


class TlsFiles(Struct, frozen=True, kw_only=True):
    """The PEM files of one side of TLS."""

    cert_file: str
    key_file: str
    others: tuple[tuple[str, str], ...] = ()
    """More certificates with their keys: the name that a client asks for (SNI) selects one, the
    first is for all other names."""
    ca_file: str | None = None
    """Certificates that sign those of the other side."""
    key_password: Secret | None = None
    requires_client: bool = False
    """Whether clients must have a certificate (mTLS); needs `ca_file`."""

    @property
    def paths(self) -> tuple[str, ...]:
        pairs = [path for pair in self.pairs for path in pair]
        return (*pairs, self.ca_file) if self.ca_file else tuple(pairs)

    @property
    def pairs(self) -> tuple[tuple[str, str], ...]:
        return ((self.cert_file, self.key_file), *self.others)


class PeerCertificate(Struct, frozen=True, kw_only=True):
    """Who the other side is, as its certificate says; its signature was verified."""

    subject: str
    """The distinguished name as in RFC 4514: CN=alice,OU=sales,O=Example."""
    expires_at: float
    """Seconds since 1970."""


class _Loaded(NamedTuple):
    """What one reading of the files gave."""

    servers: list[tuple[OwnCertificate, ssl.SSLContext]]
    """By certificate, the first one for names that no other has."""
    client: ssl.SSLContext
    key: bytes
    """The first one."""
    chain: bytes
    authorities: bytes | None

    def server_for(self, host: str | None) -> tuple[OwnCertificate, ssl.SSLContext]:
        """What a client gets that connects to a host; it does not ask for an address."""
        if host and not is_address(host):
            for found in self.servers:
                if found[0].is_for(host):
                    return found
        return self.servers[0]


class TlsContexts:
    """The contexts of one set of files. `reload` loads them again if they have changed."""

    def __init__(
        self,
        files: TlsFiles,
        turns: HandshakeTurns | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        """Raises ConfigError."""
        self.files = files
        self._now = now
        self.turns = turns
        """Of all listeners of a broker; None: a listener has its own."""
        self._seen = _fingerprint(files)
        self._failed: object = None
        self._loaded = self._load()
        self.loaded_total = 1

    @property
    def server(self) -> ssl.SSLContext:
        """For the next connection of a listener of our own."""
        return self._loaded.servers[0][1]

    @property
    def client(self) -> ssl.SSLContext:
        """For the next connection to another broker: verifies it by `ca_file`, and has the
        certificate of this side."""
        return self._loaded.client

    @property
    def expires_at(self) -> float:
        """When the first certificate expires, in seconds since 1970."""
        return self._loaded.servers[0][0].expires_at

    @property
    def certificates(self) -> list[OwnCertificate]:
        return [one for one, _ in self._loaded.servers]

    def certificate_for(self, host: str) -> OwnCertificate:
        """The one that a client gets that connects to a host name or an address."""
        return self._loaded.server_for(host)[0]

    def _select(self, connection: ssl.SSLObject, name: str | None, given: ssl.SSLContext) -> None:
        connection.context = self._loaded.server_for(name)[1]

    def _load(self) -> _Loaded:
        """Raises ConfigError."""
        files = self.files
        servers = []
        for cert_file, key_file in files.pairs:
            certificate = read_certificate(cert_file, _read(cert_file))
            context = _server_context(files, cert_file, key_file)
            if files.others:
                context.sni_callback = self._select
            servers.append((certificate, context))
        client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        _harden(client)
        _add_files(client, files, files.cert_file, files.key_file)
        authorities = _read(files.ca_file) if files.ca_file else None
        key, chain = _read(files.key_file), _read(files.cert_file)
        return _Loaded(servers, client, key, chain, authorities)

    def _check_dates(self, loaded: _Loaded) -> None:
        """Raises ConfigError for a certificate that clients refuse, in place of one that they
        accept."""
        now = self._now()
        for old, (new, _) in zip(self.certificates, loaded.servers, strict=True):
            trouble = new.trouble(now)
            if trouble and not old.trouble(now):
                raise ConfigError(f"{new.file} {trouble}")

    @property
    def key_warnings(self) -> list[str]:
        return [
            f"other users can read the private key {key_file}; protect it: chmod 600 {key_file}"
            for _, key_file in self.files.pairs
            if is_key_exposed(key_file)
        ]

    def pem(self) -> tuple[bytes, bytes, bytes | None]:
        """Key, certificates and CA, for servers with a TLS library of their own (gRPC). The key
        has no password any more. Raises ConfigError."""
        loaded, key = self._loaded, self._loaded.key
        if self.files.key_password is not None:
            key = _without_password(key, self.files)
        return key, loaded.chain, loaded.authorities

    def reload(self) -> bool:
        """Load the files again if they have changed; False if they stay as they were."""
        try:
            now = _fingerprint(self.files)
            if now == self._seen:
                return False
            loaded = self._load()
            self._check_dates(loaded)
            if _fingerprint(self.files) != now:
                # Written while they were read: the next call gets all of them.
                return False
        except ConfigError as error:
            if str(error) != self._failed:
                self._failed = str(error)
                log.error(
                    "new certificate not used, the old one stays: %s",
                    error,
                    extra=events.CERTIFICATE_NOT_LOADED(),
                )
            return False
        self._seen, self._failed = now, None
        self._loaded = loaded
        self.loaded_total += 1
        for one in self.certificates:
            log.info("loaded %s, which is valid until %s", one.file, written(one.expires_at))
            if trouble := one.trouble(self._now()):
                log.warning(
                    "clients refuse the certificate %s: it %s",
                    one.file,
                    trouble,
                    extra=events.CERTIFICATE_REFUSED(file=str(one.file)),
                )
        for warning in self.key_warnings:
            log.warning(warning, extra=events.CERTIFICATE_EXPIRES())
        return True


def peer_certificate(connection: ssl.SSLObject) -> PeerCertificate | None:
    """The certificate of the other side; None if it has sent none.

    Raises ValueError: OpenSSL accepts some that cannot be parsed.
    """
    encoded = connection.getpeercert(binary_form=True)
    return None if encoded is None else parse_certificate(encoded)


def parse_certificate(encoded: bytes) -> PeerCertificate:
    """Of DER. Raises ValueError."""
    from cryptography import x509

    try:
        certificate = x509.load_der_x509_certificate(encoded)
    except x509.InvalidVersion as error:
        raise ValueError(str(error)) from error
    return PeerCertificate(
        subject=certificate.subject.rfc4514_string(),
        expires_at=certificate.not_valid_after_utc.timestamp(),
    )


def is_key_exposed(path: str) -> bool:
    """Whether users other than its owner and this process can read a private key.

    A key of another user that this process reads by its group is given to it so: by an
    administrator as 0640 root:moldau, or by Kubernetes, where fsGroup makes 0400 into 0440.
    """
    try:
        state = os.stat(path)
    except OSError:
        return False
    if state.st_mode & stat.S_IROTH:
        return True
    is_given_by_group = state.st_uid != os.geteuid() and state.st_gid in _own_groups()
    return bool(state.st_mode & stat.S_IRGRP) and not is_given_by_group


def _own_groups() -> set[int]:
    return {os.getegid(), *os.getgroups()}


def _fingerprint(files: TlsFiles) -> tuple[tuple[int, ...], ...]:
    """Changes with the files. Raises ConfigError."""
    found = []
    for path in files.paths:
        try:
            # Follows links: Kubernetes replaces the target of a link, not the file.
            state = os.stat(path)
        except OSError as error:
            raise ConfigError(f"cannot read {path}: {error.strerror}") from None
        found.append((state.st_mtime_ns, state.st_ino, state.st_dev, state.st_size))
    return tuple(found)


def _server_context(files: TlsFiles, cert_file: str, key_file: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.sslobject_class = MeasuredSslObject
    _harden(context)
    # A resumed session would outlive the expiry, or the removal, of a client's certificate.
    context.options |= ssl.OP_NO_TICKET | ssl.OP_CIPHER_SERVER_PREFERENCE
    context.num_tickets = 0
    _add_files(context, files, cert_file, key_file)
    if files.requires_client:
        if files.ca_file is None:
            raise ConfigError("client certificates are required, but there is no client CA file")
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _harden(context: ssl.SSLContext) -> None:
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(_CIPHERS)
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION


def _add_files(context: ssl.SSLContext, files: TlsFiles, cert_file: str, key_file: str) -> None:
    password = files.key_password
    # Without this OpenSSL would ask for the password on the terminal.
    reveal = password.reveal() if password is not None else ""
    try:
        context.load_cert_chain(cert_file, key_file, lambda: reveal)
    except ssl.SSLError as error:
        raise _unusable(cert_file, key_file, error) from None
    except OSError as error:
        place = key_file if os.access(cert_file, os.R_OK) else cert_file
        raise ConfigError(f"cannot read {place}: {error.strerror}") from None
    if files.ca_file is not None:
        try:
            context.load_verify_locations(files.ca_file)
        except ssl.SSLError:
            raise ConfigError(f"{files.ca_file} contains no certificate in PEM form") from None
        except OSError as error:
            raise ConfigError(f"cannot read {files.ca_file}: {error.strerror}") from None


def _unusable(cert_file: str, key_file: str, error: ssl.SSLError) -> ConfigError:
    if error.reason == "KEY_VALUES_MISMATCH":
        return ConfigError(f"{key_file} is not the key of the certificate {cert_file}")
    problem = ConfigError(f"cannot use {cert_file} with the key {key_file}")
    problem.hint = "both must be PEM files; has the key a password? set security.key_password"
    return problem


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as stream:
            return stream.read(_PEM_BYTES_MAX)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None


def _without_password(key: bytes, files: TlsFiles) -> bytes:
    from cryptography.hazmat.primitives import serialization

    password = files.key_password
    secret = password.reveal().encode() if password is not None else None
    try:
        found = serialization.load_pem_private_key(key, secret)
    except (ValueError, TypeError):
        raise ConfigError(f"cannot decrypt {files.key_file}: wrong password?") from None
    return bytes(
        found.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
