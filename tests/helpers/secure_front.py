"""A front of a broker that speaks TLS and SASL: it checks who comes, then passes bytes on.

With certificates that are made for the test, and passwords that are checked as RFC 5802 says.
"""

import base64
import contextlib
import hashlib
import hmac
import os
import select
import socket
import ssl
import threading
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from chunks import joined
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from moldau.client.wire.connection import KafkaConnection
from moldau.testing.waiting import wait_seconds_max
from moldau.wire.framing import frame_response, read_request_header
from moldau.wire.messages.api_versions import ApiVersion, ApiVersionsResponse
from moldau.wire.messages.sasl_authenticate import SaslAuthenticateResponse
from moldau.wire.messages.sasl_handshake import SaslHandshakeResponse
from moldau.wire.registry import REQUESTS, ApiKey

HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
ITERATIONS = 4096


@dataclass(frozen=True)
class Identity:
    """A certificate with its key."""

    certificate: Any
    private_key: Any

    @property
    def pem(self) -> str:
        return str(self.certificate.public_bytes(Encoding.PEM), "ascii")

    @property
    def key_pem(self) -> str:
        key = self.private_key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        return str(key, "ascii")


def identity(
    name: str,
    *,
    hosts: tuple[str, ...] = (),
    signer: Identity | None = None,
    begins_in: timedelta = timedelta(days=-1),
    expires_in: timedelta = timedelta(days=1),
) -> Identity:
    """Of an authority, or of somebody that `signer` vouches for."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject if signer is None else signer.certificate.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + begins_in)
        .not_valid_after(now + expires_in)
        .add_extension(x509.BasicConstraints(ca=signer is None, path_length=None), critical=True)
    )
    # Clients in Python 3.13 and later want these.
    signer_key = (key if signer is None else signer.private_key).public_key()
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer_key)
    own = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    builder = builder.add_extension(issuer, critical=False).add_extension(own, critical=False)
    if signer is None:
        builder = builder.add_extension(_usage(), critical=True)
    if hosts:
        names = [
            x509.IPAddress(ip_address(host)) if host[0].isdigit() else x509.DNSName(host)
            for host in hosts
        ]
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    signed = builder.sign(key if signer is None else signer.private_key, hashes.SHA256())
    return Identity(signed, key)


def _usage() -> x509.KeyUsage:
    """Of an authority, which some tests also take for the certificate of a server."""
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )


def server_context(server: Identity, folder: Path, clients: Identity | None = None) -> Any:
    """With `clients`, only those come in whom it vouches for."""
    file = folder / "server.pem"
    file.write_text(server.pem + server.key_pem)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file)
    if clients is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cadata=clients.pem)
    return context


class SecureFront:
    """Listens on 127.0.0.1; `passwords` by user, none for TLS alone."""

    def __init__(
        self, tls: ssl.SSLContext | None = None, passwords: dict[str, str] | None = None
    ) -> None:
        self.target: tuple[str, int] | None = None
        self.mechanisms = ["PLAIN", *HASHES]
        self.lifetime_ms = 0
        self.forges_signatures = False
        self.logins: list[str] = []
        """Mechanism and user of those who came in."""
        self._tls, self._passwords = tls, passwords
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.host, self.port = self._listener.getsockname()
        self._stop_ours, self._stop_theirs = socket.socketpair()
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    @property
    def bootstrap(self) -> str:
        return f"{self.host}:{self.port}"

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._stop_ours.close()
        for thread in self._threads:
            thread.join(wait_seconds_max())
        self._stop_theirs.close()

    def _accept(self) -> None:
        while True:
            try:
                plain, _ = self._listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._serve, args=(plain,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, plain: socket.socket) -> None:
        plain.settimeout(10)
        with contextlib.suppress(OSError, EOFError), contextlib.ExitStack() as stack:
            stack.callback(plain.close)
            client = plain
            if self._tls is not None:
                client = stack.enter_context(self._tls.wrap_socket(plain, server_side=True))
            if self._passwords is not None and not self._let_in(client):
                return
            assert self.target is not None
            broker = stack.enter_context(socket.create_connection(self.target, 10))
            self._pass_on(client, broker)

    def _pass_on(self, client: Any, broker: socket.socket) -> None:
        while True:
            ready, _, _ = select.select([client, broker, self._stop_theirs], [], [])
            if self._stop_theirs in ready:
                return
            for source, sink in ((client, broker), (broker, client)):
                if source in ready:
                    data = source.recv(1 << 16)
                    if not data:
                        return
                    while getattr(source, "pending", int)():
                        data += source.recv(1 << 16)
                    sink.sendall(data)

    # -- SASL

    def _let_in(self, client: Any) -> bool:
        """Answer requests until somebody is logged in, or refused."""
        assert self.target is not None
        with KafkaConnection(*self.target) as asked:
            served = asked.served_versions() | {
                ApiKey.SASL_HANDSHAKE: (0, 1),
                ApiKey.SASL_AUTHENTICATE: (0, 2),
            }
        steps: Any = None
        while True:
            frame = memoryview(_exactly(client, int.from_bytes(_exactly(client, 4), "big")))
            header = read_request_header(frame)
            key, version = header.api_key, header.api_version
            request: Any = REQUESTS[key].decode(frame, version, header.body_position)
            done = False
            if key == ApiKey.API_VERSIONS:
                keys = [
                    ApiVersion(api_key=api, min_version=first, max_version=last)
                    for api, (first, last) in served.items()
                ]
                answer: Any = ApiVersionsResponse(api_keys=keys)
            elif key == ApiKey.SASL_HANDSHAKE:
                known = request.mechanism in self.mechanisms
                answer = SaslHandshakeResponse(
                    error_code=0 if known else 33, mechanisms=self.mechanisms
                )
                steps = self._login(request.mechanism)
                next(steps)
            else:
                assert key == ApiKey.SASL_AUTHENTICATE
                assert steps is not None
                try:
                    token, done = steps.send(bytes(request.auth_bytes))
                    answer = SaslAuthenticateResponse(
                        auth_bytes=token, session_lifetime_ms=self.lifetime_ms
                    )
                except PermissionError:
                    answer = SaslAuthenticateResponse(
                        error_code=58, error_message="Authentication failed", auth_bytes=b""
                    )
                    done = True
            body = answer.encode(version)
            client.sendall(joined(frame_response(key, version, header.correlation_id, body)))
            if done:
                return bool(answer.error_code == 0)

    def _login(self, mechanism: str) -> Any:
        """Yields answers, and whether that was the last. PermissionError: refused."""
        passwords = self._passwords or {}
        message = yield
        if mechanism == "PLAIN":
            _, user, password = message.decode().split("\0")
            if user not in passwords or passwords[user] != password:
                raise PermissionError
            self.logins.append(f"PLAIN {user}")
            yield b"", True
        if mechanism == "OAUTHBEARER":
            token = message.decode().removeprefix("n,,\1auth=Bearer ").rstrip("\1")
            users = [user for user, known in passwords.items() if known == token]
            if not users:
                raise PermissionError
            self.logins.append(f"OAUTHBEARER {users[0]}")
            yield b"", True
        kind = HASHES[mechanism]
        first = message.decode().removeprefix("n,,")
        told = dict(part.split("=", 1) for part in first.split(","))
        user = told["n"].replace("=2C", ",").replace("=3D", "=")
        salt = os.urandom(16)
        # Who is not known gets a challenge as well, and cannot answer it.
        password = passwords.get(user, base64.b64encode(os.urandom(16)).decode())
        salted = hashlib.pbkdf2_hmac(kind, password.encode(), salt, ITERATIONS)
        stored = hashlib.new(kind, hmac.digest(salted, b"Client Key", kind)).digest()
        nonce = told["r"] + base64.b64encode(os.urandom(12)).decode()
        challenge = f"r={nonce},s={base64.b64encode(salt).decode()},i={ITERATIONS}"
        message = (yield challenge.encode(), False).decode()
        final, _, proof = message.rpartition(",p=")
        signed = f"{first},{challenge},{final}".encode()
        signature = hmac.digest(stored, signed, kind)
        given = base64.b64decode(proof)
        key = bytes(a ^ b for a, b in zip(signature, given, strict=True))
        if f"r={nonce}" not in final or hashlib.new(kind, key).digest() != stored:
            raise PermissionError
        shown = hmac.digest(hmac.digest(salted, b"Server Key", kind), signed, kind)
        if self.forges_signatures:
            shown = os.urandom(len(shown))
        self.logins.append(f"{mechanism} {user}")
        yield b"v=" + base64.b64encode(shown), True


def _exactly(client: Any, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = client.recv(size - len(data))
        if not more:
            raise EOFError
        data += more
    return data
