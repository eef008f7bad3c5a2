"""The certificates of a broker's listeners. Their files are loaded again when they change."""

import asyncio
import time
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
from moldau.server.ports import reachable_host

_POLL_SECONDS: Final = 1.0
_SOON_DAYS: Final = 30
_HOSTS_SHOWN: Final = 8


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

    def warnings(self, now_ms: int) -> list[str]:
        """Keys that others can read, and certificates that clients refuse, or will soon."""
        keys = [each for one in self._contexts.values() for each in one.key_warnings]
        found = [*dict.fromkeys(keys), *map(str, self.name_troubles())]
        now = now_ms / 1000
        for one in self._certificates():
            days = int((one.expires_at - now) // 86_400)
            when = one.trouble(now) or (f"expires in {days} days" if days < _SOON_DAYS else "")
            if when:
                found.append(
                    f"the certificate {one.file} {when}: replace the file, without a restart"
                )
        return found

    def name_troubles(self) -> list["NameTrouble"]:
        """Certificates without the host that is advertised to clients."""
        found: dict[tuple[str, str], NameTrouble] = {}
        for listener in listeners_of(self._config):
            try:
                contexts = self.of(listener)
            except ConfigError:
                continue
            if contexts is not None:
                trouble = _name_trouble(listener, contexts)
                if trouble is not None:
                    found.setdefault((trouble.file, trouble.host), trouble)
        return list(found.values())

    async def run(self) -> None:
        """Load files that have changed, until cancelled."""
        while self._contexts:
            await asyncio.sleep(_POLL_SECONDS)
            # In a thread: the files may be on a disk that does not respond.
            await asyncio.to_thread(self.reload)

    def reload(self) -> None:
        for contexts in self._contexts.values():
            contexts.reload()


class NameTrouble(NamedTuple):
    """A certificate, and a host that it should have."""

    file: str
    host: str
    detail: str
    hint: str

    def __str__(self) -> str:
        return f"the certificate {self.file} {self.detail}; {self.hint}"


def _name_trouble(listener: ListenerConfig, contexts: TlsContexts) -> NameTrouble | None:
    address = listener.advertised or listener.address
    host = reachable_host(address.host)
    # gRPC has the first certificate only.
    is_grpc = listener.protocol is ListenerProtocol.GRPC
    found = contexts.certificates[0] if is_grpc else contexts.certificate_for(host)
    if found.is_for(host):
        return None
    section, dot, _ = listener.setting.rpartition(".addr")
    setting = f"{section}.advertised" if dot else f"advertised of {listener.setting}"
    has = sorted(found.names) + sorted(found.addresses)
    shown = ", ".join(has[:_HOSTS_SHOWN]) + (", …" if len(has) > _HOSTS_SHOWN else "")
    return NameTrouble(
        file=found.file,
        host=host,
        detail=f"is not for {host}, which {listener.setting} advertises: clients refuse it",
        hint=f"use one for this host (for a try: moldau certs dev NEW_DIR --host {host}), "
        f"or set {setting} to a host in it: {shown or 'it has none'}",
    )


class CertificateState(NamedTuple):
    """What is known of the files of a listener, for an operator."""

    file: str
    expires_at: float | None = None
    """In seconds since 1970."""
    refused: str = ""
    """Why clients refuse it now."""
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
    found = contexts.certificates[0]
    refused = found.trouble(time.time())
    return CertificateState(files.cert_file, found.expires_at, refused, exposed)
