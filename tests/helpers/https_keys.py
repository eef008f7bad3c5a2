"""Owns an identity provider for tests: an https server with a CA of its own, and signed tokens."""

import contextlib
import json
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from secure_front import identity, server_context

ISSUER = "https://issuer.example"
AUDIENCE = "moldau"


class IdentityProvider:
    """Serves its public keys at `url`; `mode` makes it misbehave."""

    def __init__(self, folder: Path) -> None:
        self.authority = identity("authority")
        self.ca_file = folder / "idp-ca.pem"
        self.ca_file.write_text(self.authority.pem)
        self.requests = 0
        self.mode = "keys"
        self.redirect_to = ""
        self._keys: dict[str, Any] = {}
        self.add_key("key-1")
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                provider.requests += 1
                provider.answer(self)

            def log_message(self, format: str, *arguments: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            def handle_error(self, request: Any, client_address: Any) -> None:
                """Clients that do not like the certificate are expected."""

        self._server = Server(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        server = identity("localhost", hosts=("127.0.0.1",), signer=self.authority)
        context = server_context(server, folder)
        self._server.socket = context.wrap_socket(
            self._server.socket, server_side=True, do_handshake_on_connect=False
        )
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self._server.server_address[1]}/keys"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # -- keys

    def add_key(self, key_id: str, *, curve: bool = False) -> None:
        self._keys[key_id] = (
            ec.generate_private_key(ec.SECP256R1())
            if curve
            else rsa.generate_private_key(public_exponent=65537, key_size=2048)
        )

    def remove_key(self, key_id: str) -> None:
        del self._keys[key_id]

    def key_set(self) -> dict[str, Any]:
        found = []
        for key_id, key in self._keys.items():
            is_curve = isinstance(key, ec.EllipticCurvePrivateKey)
            algorithm: Any = jwt.algorithms.ECAlgorithm if is_curve else jwt.algorithms.RSAAlgorithm
            public = json.loads(algorithm.to_jwk(key.public_key()))
            found.append(
                {**public, "kid": key_id, "use": "sig", "alg": "ES256" if is_curve else "RS256"}
            )
        return {"keys": found}

    def token(
        self,
        user: str,
        *,
        key_id: str = "key-1",
        seconds: float = 300,
        key: Any = None,
        algorithm: str | None = None,
        **claims: Any,
    ) -> str:
        """A token of this provider, or of somebody who says so (`key`, `algorithm`)."""
        key = self._keys[key_id] if key is None else key
        if algorithm is None:
            algorithm = "ES256" if isinstance(key, ec.EllipticCurvePrivateKey) else "RS256"
        now = time.time()
        told = {"sub": user, "iss": ISSUER, "aud": AUDIENCE, "iat": now, "exp": now + seconds}
        told |= claims
        told = {name: value for name, value in told.items() if value is not None}
        return jwt.encode(told, key, algorithm=algorithm, headers={"kid": key_id})

    def public_pem(self, key_id: str = "key-1") -> bytes:
        from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

        public = self._keys[key_id].public_key()
        return bytes(public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))

    # -- answers

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        body = json.dumps(self.key_set()).encode()
        status = 200
        match self.mode:
            case "down":
                status, body = 503, b"later"
            case "redirect":
                request.send_response(302)
                request.send_header("Location", self.redirect_to)
                request.end_headers()
                return
            case "huge":
                body = b'{"keys": ["' + b"x" * (1 << 20) + b'"]}'
            case "text":
                body = b"<html>"
            case "hangs":
                # Until the client gives up.
                request.connection.settimeout(60)
                with contextlib.suppress(OSError):
                    request.connection.recv(1)
                return
        request.send_response(status)
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        with contextlib.suppress(OSError):
            request.wfile.write(body)


def unused_https_url() -> str:
    """An address that nobody listens at."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    return f"https://127.0.0.1:{port}/keys"
