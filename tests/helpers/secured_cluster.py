"""Three brokers with mTLS between them, users that log in by SCRAM over TLS, and ACLs."""

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tls_world import TlsWorld

from moldau.testing.cluster import Cluster
from moldau.testing.waiting import wait_seconds_max

MECHANISM = "SCRAM-SHA-512"
ADMIN, ADMIN_PASSWORD = "root", "planted-password-of-root"


class SecuredCluster:
    """A cluster, and the commands of its administrator."""

    def __init__(self, cluster: Cluster, world: TlsWorld) -> None:
        self.cluster = cluster
        self.world = world
        self.bootstrap = cluster.bootstrap

    def run(self, *words: str) -> str:
        """A `moldau` command of the administrator."""
        login = ("--user", ADMIN, "--password-file", str(self._password_file(ADMIN)))
        return self._moldau(*words, "-b", self.bootstrap, *login)

    def paste(self, text: str) -> None:
        """Lines of a page, each a `moldau` command."""
        for line in text.strip().splitlines():
            program, *words = shlex.split(line, comments=True)
            assert program == "moldau"
            self.run(*words)

    def add_administrator(self) -> None:
        first = self.cluster.brokers[1]
        local = ("-b", first.bootstrap, "--data-dir", str(first.data_dir))
        self._add_user(ADMIN, ADMIN_PASSWORD, *local)
        self._moldau("role", "grant", "admin", f"User:{ADMIN}", *local)

    def add_user(self, user: str, password: str) -> None:
        login = ("--user", ADMIN, "--password-file", str(self._password_file(ADMIN)))
        self._add_user(user, password, "-b", self.bootstrap, *login)

    def _add_user(self, user: str, password: str, *how: str) -> None:
        file = self._password_file(user)
        file.write_text(password)
        self._moldau("user", "add", user, "--new-password-file", str(file), *how)

    def _password_file(self, user: str) -> Path:
        return self.world.folder / f"{user}.password"

    def _moldau(self, *words: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "moldau", *words, "--cafile", str(self.world.ca_file)],
            capture_output=True,
            text=True,
            timeout=wait_seconds_max(),
            check=False,
            env={key: value for key, value in os.environ.items() if not key.startswith("MOLDAU_")},
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def login(self, user: str, password: str) -> dict[str, str]:
        """Properties of a Kafka client."""
        return {
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(self.world.ca_file),
            "sasl.mechanism": MECHANISM,
            "sasl.username": user,
            "sasl.password": password,
        }


@contextmanager
def secured_cluster(folder: Path, brokers: int = 3) -> Iterator[SecuredCluster]:
    world = TlsWorld(folder)
    settings = {
        "RAFT__SECURITY": "mtls",
        "KAFKA__SECURITY": "tls",
        "KAFKA__SASL_MECHANISMS": MECHANISM,
        "HTTP__AUTHENTICATION": "users",
        "GRPC__AUTHENTICATION": "users",
        "SECURITY__CERT_FILE": str(world.cert_file),
        "SECURITY__KEY_FILE": str(world.key_file),
        "SECURITY__CLIENT_CA_FILE": str(world.ca_file),
    }
    with Cluster(brokers, settings=settings) as cluster:
        secured = SecuredCluster(cluster, world)
        secured.add_administrator()
        yield secured
