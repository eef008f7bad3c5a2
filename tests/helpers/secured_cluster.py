"""Three brokers with mTLS between them, users that log in by SCRAM over TLS, and ACLs."""

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tls_world import TlsWorld

from moldau.cli.main import run
from moldau.testing.cluster import Cluster

MECHANISM = "SCRAM-SHA-512"
ADMIN, ADMIN_PASSWORD = "root", "planted-password-of-root"


class SecuredCluster:
    """A cluster, and the commands of its administrator."""

    def __init__(self, cluster: Cluster, world: TlsWorld) -> None:
        self.cluster = cluster
        self.world = world
        self.bootstrap = cluster.bootstrap

    def run(self, *words: str) -> None:
        """A `moldau` command of the administrator."""
        login = ("--user", ADMIN, "--password-file", str(self._password_file(ADMIN)))
        self._moldau(*words, "-b", self.bootstrap, *login)

    def paste(self, line: str) -> None:
        """A line of a page, which is a `moldau` command."""
        program, *words = shlex.split(line, comments=True)
        assert program == "moldau"
        self.run(*words)

    def add_administrator(self) -> None:
        first = self.cluster.brokers[1]
        local = ("-b", first.bootstrap, "--data-dir", str(first.data_dir))
        file = self._password_file(ADMIN)
        file.write_text(ADMIN_PASSWORD)
        self._moldau("user", "add", ADMIN, "--new-password-file", str(file), *local)
        self._moldau("role", "grant", "admin", f"User:{ADMIN}", *local)

    def add_user(self, user: str, password: str) -> None:
        file = self._password_file(user)
        file.write_text(password)
        self.run("user", "add", user, "--new-password-file", str(file))

    def _password_file(self, user: str) -> Path:
        return self.world.folder / f"{user}.password"

    def _moldau(self, *words: str) -> None:
        # In this process: a Python of its own for each takes longer than the command.
        code = run([*words, "--cafile", str(self.world.ca_file)])
        assert code == 0, f"moldau {' '.join(words)}: exit code {code}"

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
        # Internal topics have fifty partitions by default, which takes a while to create.
        "GROUP__OFFSETS_PARTITIONS": "2",
        "TRANSACTION__STATE_PARTITIONS": "2",
    }
    with Cluster(brokers, settings=settings) as cluster:
        secured = SecuredCluster(cluster, world)
        secured.add_administrator()
        yield secured
