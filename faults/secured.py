"""A secured run: mTLS between brokers, SCRAM over TLS for clients, ACLs with the least rights.

Certificates, users and rules are made with the commands that an operator uses.
"""

import json
import secrets
import socket
import ssl
import subprocess
import sys
from pathlib import Path
from typing import Final

from faults.login import SECURITY_VARIABLE
from faults.namespaces import address_of
from faults.network import NUMBER_MAX
from faults.nodes import Node, NodeError
from faults.record import ROOT, TOPIC

OPERATOR: Final = "operator"
"""Creates topics, moves partitions, elects leaders."""
WORKLOAD: Final = "workload"
MECHANISM: Final = "SCRAM-SHA-256"
RIGHTS: Final = (
    ("read,write", "--topic", TOPIC, "--prefix"),
    ("read", "--group", f"{TOPIC}-", "--prefix"),
    ("read", "--group", "workers", "--group", "ordered-workers"),
    # Who defines a queue answers for its dead letters, whose topic does not exist yet.
    ("read,write,create", "--topic", "workers.dead"),
    ("write", "--transactional-id", "p", "--transactional-id", "k", "--prefix"),
)
"""Of the workload, as words of `moldau acl add`."""
_CALL_SECONDS_MAX: Final = 120.0


class Secured:
    """Files of one run in a folder of its own, and who is who."""

    def __init__(self, home: Path) -> None:
        home.mkdir(mode=0o700)
        self._home = home
        self._certificates = home / "certs"
        self._authorities = self._certificates / "ca.pem"
        # Brokers on loopback, and those in namespaces.
        hosts = [address_of(index) for index in range(1, NUMBER_MAX + 1)]
        words = [word for host in hosts for word in ("--host", host)]
        _moldau([], "certs", "dev", str(self._certificates), *words)
        for user in (OPERATOR, WORKLOAD):
            self._write_login(user)
        self._context = ssl.create_default_context(cafile=str(self._authorities))
        self._is_admitted = False

    def _write_login(self, user: str) -> None:
        password = secrets.token_urlsafe(18)
        properties = {
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(self._authorities),
            "sasl.mechanism": MECHANISM,
            "sasl.username": user,
            "sasl.password": password,
        }
        for path, text in (
            (self._password_file(user), password),
            (self._home / f"{user}.json", json.dumps(properties)),
        ):
            path.touch(mode=0o600)
            path.write_text(text)

    def _password_file(self, user: str) -> Path:
        return self._home / f"{user}.password"

    @property
    def settings(self) -> dict[str, str]:
        """Of every broker."""
        return {
            "SECURITY__INSECURE": "false",
            "SECURITY__CERT_FILE": str(self._certificates / "broker.pem"),
            "SECURITY__KEY_FILE": str(self._certificates / "broker.key"),
            "SECURITY__CLIENT_CA_FILE": str(self._authorities),
            "RAFT__SECURITY": "mtls",
            "KAFKA__SECURITY": "tls",
            "KAFKA__SASL_MECHANISMS": MECHANISM,
            "HTTP__SECURITY": "tls",
            "HTTP__AUTHENTICATION": "users",
            "GRPC__SECURITY": "tls",
            "GRPC__AUTHENTICATION": "users",
        }

    def as_user(self, user: str) -> list[str]:
        """What to put before a command, so that it logs in as this user."""
        return [
            "env",
            f"{SECURITY_VARIABLE}={self._home / user}.json",
            f"MOLDAU_USER={user}",
            f"MOLDAU_PASSWORD_FILE={self._password_file(user)}",
            f"MOLDAU_CAFILE={self._authorities}",
        ]

    def wrap(self, connection: socket.socket, host: str) -> ssl.SSLSocket:
        """A connection of the harness to a broker, with TLS."""
        return self._context.wrap_socket(connection, server_hostname=host)

    def admit(self, place: list[str], node: Node) -> None:
        """Once: make the users and their rights, through one broker."""
        if self._is_admitted:
            return
        trust = ["env", f"MOLDAU_CAFILE={self._authorities}"]
        local = ["-b", node.advertised, "--data-dir", str(node.data_dir)]
        for user in (OPERATOR, WORKLOAD):
            file = ["--new-password-file", str(self._password_file(user))]
            _moldau([*place, *trust], "user", "add", user, *file, *local)
        _moldau([*place, *trust], "role", "grant", "admin", f"User:{OPERATOR}", *local)
        for operations, *resources in RIGHTS:
            who = (f"User:{WORKLOAD}", operations)
            _moldau([*place, *trust], "acl", "add", *who, *resources, *local)
        self._expect_refused([*place, *self.as_user(WORKLOAD)], "-b", node.advertised)
        self._is_admitted = True

    def _expect_refused(self, prefix: list[str], *address: str) -> None:
        """Rights are checked: otherwise the run shows nothing. Raises NodeError."""
        done = _run(prefix, "topic", "create", "not-ours", *address)
        if done.returncode == 0 or "Not authorized" not in done.stderr:
            raise NodeError(f"the workload's user may create topics: {done.stdout}{done.stderr}")


def _moldau(prefix: list[str], *words: str) -> None:
    """A command of an operator. Raises NodeError if it fails."""
    done = _run(prefix, *words)
    if done.returncode != 0:
        raise NodeError(f"moldau {' '.join(words)}:\n{done.stderr}")


def _run(prefix: list[str], *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*prefix, sys.executable, "-m", "moldau", *words],
        capture_output=True,
        text=True,
        timeout=_CALL_SECONDS_MAX,
        check=False,
        cwd=ROOT,
    )
