"""The certificates of a broker's listeners. Their files are loaded again when they change."""

import asyncio
from collections.abc import Mapping
from typing import Final, NamedTuple

from msgspec.structs import replace

from moldau.model.errors import ConfigError
from moldau.net.tls.contexts import TlsContexts, TlsFiles, is_key_exposed
from moldau.net.tls.handshake_turns import HandshakeTurns
from moldau.net.tls.own_certificate import OwnCertificate
from moldau.server.config.listeners import listeners_for, listeners_of, split_files
from moldau.server.config.schema import ServerConfig
from moldau.server.config.security_schema import ListenerConfig, ListenerProtocol, ListenerSecurity

_POLL_SECONDS: Final = 1.0
_SOON_DAYS: Final = 30


def tls_files(config: ServerConfig, listener: ListenerConfig) -> TlsFiles | None:
    """The files of a listener; None if it has no TLS. Files of its own come first."""
    security = config.security
    cert_file = listener.cert_file or security.cert_file
    key_file = listener.key_file or security.key_file
    if not listener.uses_tls or cert_file is None or key_file is None:
        return None
    (first, key), *others = zip(split_files(cert_file), split_files(key_file), strict=True)
    return TlsFiles(
        cert_file=first,
        key_file=key,
        others=tuple(others),
        key_password=security.key_password,
        ca_file=listener.client_ca_file or security.client_ca_file,
        requires_client=listener.security is ListenerSecurity.MTLS,
    )


class Certificates:
    """The TLS contexts of all listeners."""

    def __init__(self, config: ServerConfig, turns: HandshakeTurns | None = None) -> None:
        self._config = config
        self._turns = turns
        self._contexts: dict[TlsFiles, TlsContexts] = {}

    def load(self) -> None:
        """Load the files of all listeners. Raises ConfigError."""
        for listener in listeners_of(self._config):
            self.of(listener)

    def of(self, listener: ListenerConfig) -> TlsContexts | None:
        """The contexts of a listener; None if it has no TLS. Raises ConfigError."""
        files = tls_files(self._config, listener)
        if files is None:
            return None
        found = self._contexts.get(files)
        if found is None:
            found = self._contexts[files] = TlsContexts(files, self._turns)
        return found

    def of_protocol(self, protocol: ListenerProtocol) -> TlsContexts | None:
        """Those of the only listener of a protocol. Raises ConfigError."""
        found = listeners_for(self._config, protocol)
        return self.of(found[0]) if found else None

    def expiries(self) -> Mapping[str, float]:
        """When each certificate expires, in seconds since 1970, by its file."""
        return {one.file: one.expires_at for one in self._certificates()}

    def _certificates(self) -> list[OwnCertificate]:
        found = [one for contexts in self._contexts.values() for one in contexts.certificates]
        return list({one.file: one for one in found}.values())

    def date_warnings(self, now_ms: int) -> list[str]:
        """Certificates that have expired, or will soon, or are not valid yet; for the log."""
        found, now = [], now_ms / 1000
        for one in self._certificates():
            days = int((one.expires_at - now) // 86_400)
            when = one.trouble(now) or (f"expires in {days} days" if days < _SOON_DAYS else "")
            if when:
                found.append(
                    f"the certificate {one.file} {when}: replace the file, without a restart"
                )
        return found

    async def run(self) -> None:
        """Load files that have changed, until cancelled."""
        while self._contexts:
            await asyncio.sleep(_POLL_SECONDS)
            # In a thread: the files may be on a disk that does not respond.
            await asyncio.to_thread(self.reload)

    def reload(self) -> None:
        for contexts in self._contexts.values():
            contexts.reload()


class CertificateState(NamedTuple):
    """What is known of the files of a listener, for an operator."""

    file: str
    certificate: OwnCertificate | None = None
    exposed_key: str = ""
    """The private key, if other users can read it."""
    problem: str = ""
    """Why the files cannot be used."""
    hint: str = ""


def certificate_states(config: ServerConfig) -> list[CertificateState]:
    """The certificates that the listeners of a broker would use; each file once."""
    found: dict[TlsFiles, CertificateState] = {}
    for listener in listeners_of(config):
        files = tls_files(config, listener)
        if files is not None and files not in found:
            for pair in files.pairs:
                one = replace(files, cert_file=pair[0], key_file=pair[1], others=())
                found[one] = _state(one)
    return list(found.values())


def _state(files: TlsFiles) -> CertificateState:
    try:
        contexts = TlsContexts(files)
    except ConfigError as error:
        return CertificateState(files.cert_file, problem=str(error), hint=error.hint)
    exposed = files.key_file if is_key_exposed(files.key_file) else ""
    return CertificateState(files.cert_file, contexts.certificates[0], exposed)
