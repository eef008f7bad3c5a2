"""A small HTTP server that gives a token for a password, and the topology for the token."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgspec

from moldau.model.topology import Topology
from moldau.testing.waiting import wait_seconds_max


class LoginServer(ThreadingHTTPServer):
    """Knows one user; notes every request."""

    def __init__(self, context: Any = None, *, user: str, password: str, token: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.user, self.password, self.token = user, password, token
        self.expires_at_ms = 0
        self.refusal = "Authentication failed: wrong user or password"
        self.topology: Topology | None = None
        self.calls: list[tuple[str, str | None]] = []
        """Path and credentials of each request."""
        if context is not None:
            self.socket = context.wrap_socket(self.socket, server_side=True)

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A failed handshake is what some tests are about."""


class _Handler(BaseHTTPRequestHandler):
    server: LoginServer

    def do_GET(self) -> None:
        given = self.headers["authorization"]
        self.server.calls.append((self.path, given))
        if not given:
            self._reply(401, {})
        elif self.path == "/readyz":
            self._reply(200, {"ready": True, "reasons": []})
        elif given == f"Bearer {self.server.token}" and self.server.topology is not None:
            self._reply(200, msgspec.to_builtins(self.server.topology))
        else:
            reply = {"error": "CLUSTER_AUTHORIZATION_FAILED", "detail": "not allowed", "hint": ""}
            self._reply(403, reply)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.calls.append((self.path, self.headers["authorization"]))
        if body != {"user": self.server.user, "password": self.server.password}:
            error = "SASL_AUTHENTICATION_FAILED"
            self._reply(401, {"error": error, "detail": self.server.refusal, "hint": "send Basic"})
        else:
            expires = self.server.expires_at_ms
            self._reply(200, {"token": self.server.token, "expires_at_ms": expires})

    def _reply(self, status: int, body: Any) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *arguments: Any) -> None:
        pass


@contextmanager
def login_server(
    context: Any = None, *, user: str = "ann", password: str, token: str = "t0ken"
) -> Iterator[LoginServer]:
    server = LoginServer(context, user=user, password=password, token=token)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join(wait_seconds_max())
