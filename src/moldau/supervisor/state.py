"""cluster.json: the brokers of a cluster on one machine, and their processes.

Ids, ports, directories and settings outlive the processes, so that a restarted cluster is the same
one. The file is replaced atomically.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from moldau.client.processes import ProcessKey, is_running
from moldau.model.exit_codes import ExitCode
from moldau.supervisor.errors import SupervisorError

FILE_NAME = "cluster.json"
HOST = "127.0.0.1"
DEFAULT_DIR = "./.moldau-cluster"
_LOCK_NAME = "cluster.lock"
_FORMAT = 1


class Ports(msgspec.Struct, frozen=True):
    """The ports of one broker, or those of the first one; 0: any free one."""

    kafka: int
    raft: int
    http: int
    grpc: int = 0
    """0 in files from before gRPC; see `ports.complete_ports`."""


class Member(msgspec.Struct, kw_only=True):
    """One broker of the cluster."""

    id: int
    ports: Ports
    directory: str
    """Relative to the cluster's directory."""
    joined: bool = False
    """It has joined the cluster: its data directory knows the other brokers."""
    state: str = "stopped"
    reason: str = ""
    """Why it is down, unless a user stopped it."""
    pid: int | None = None
    started: str | None = None

    @property
    def process(self) -> ProcessKey | None:
        if self.pid is None or self.started is None:
            return None
        return ProcessKey(self.pid, self.started)

    @property
    def kafka(self) -> str:
        return f"{HOST}:{self.ports.kafka}"

    @property
    def raft(self) -> str:
        return f"{HOST}:{self.ports.raft}"

    @property
    def http(self) -> str:
        return f"{HOST}:{self.ports.http}"

    @property
    def grpc(self) -> str:
        return f"{HOST}:{self.ports.grpc}"


class ClusterState(msgspec.Struct, kw_only=True):
    """Everything in cluster.json."""

    format: int = _FORMAT
    cluster_id: str = ""
    """Empty until the first broker has bootstrapped the cluster."""
    ports: Ports
    """Of broker 1; broker n uses each port + n - 1."""
    replication_factor: int
    """Default for new topics."""
    settings: list[tuple[str, str]] = []
    """Values of --set, for every broker."""
    next_id: int
    """Ids are never reused."""
    play: bool = True
    """Whether clients of the brokers may make faults; see `model.play`."""
    control: str = ""
    """The path of the supervisor's Unix socket."""
    supervisor_pid: int | None = None
    supervisor_started: str | None = None
    brokers: list[Member]

    def member(self, broker_id: int) -> Member:
        """Raises SupervisorError for an unknown id."""
        for member in self.brokers:
            if member.id == broker_id:
                return member
        numbers = ", ".join(str(member.id) for member in self.brokers)
        raise SupervisorError(
            f"there is no broker {broker_id} in this cluster",
            hint=f"brokers: {numbers}",
            code=ExitCode.NOT_FOUND,
        )

    @property
    def bootstrap(self) -> str:
        return ",".join(member.kafka for member in self.brokers)


def load_state(directory: Path) -> ClusterState | None:
    """The stored state; None if there is none. Raises SupervisorError if it is corrupt."""
    path = directory / FILE_NAME
    try:
        text = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        state = msgspec.json.decode(text, type=ClusterState)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise SupervisorError(
            f"{path} is corrupt: {error}",
            hint="restore the file; the brokers' data directories are not affected",
            code=ExitCode.STORAGE,
        ) from error
    if state.format != _FORMAT:
        raise SupervisorError(
            f"{path} has format {state.format}; this version of moldau reads format {_FORMAT}",
            hint="use the version of moldau that wrote it, or a newer one",
            code=ExitCode.STORAGE,
        )
    return state


def need_state(directory: Path) -> ClusterState:
    """As `load_state`, but raises SupervisorError if there is no cluster."""
    state = load_state(directory)
    if state is None:
        raise SupervisorError(
            f"there is no cluster in {directory}",
            hint="start one: moldau cluster start · use another directory: --data-dir DIR",
            code=ExitCode.NOT_FOUND,
        )
    return state


def save_state(directory: Path, state: ClusterState) -> None:
    """Replace the file atomically."""
    path = directory / FILE_NAME
    new = path.with_suffix(".json.new")
    with open(new, "wb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(state), indent=2) + b"\n")
        file.flush()
        os.fsync(file.fileno())
    os.replace(new, path)


def orphaned_brokers(state: ClusterState) -> list[Member]:
    """Brokers that run although their supervisor does not."""
    return [member for member in state.brokers if is_running(member.process)]


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Lock the directory for one supervisor. Raises SupervisorError if another one holds it.

    The system releases the lock when the process ends.
    """
    with open(directory / _LOCK_NAME, "ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            where = "" if str(directory) == DEFAULT_DIR else f" --data-dir {directory}"
            raise SupervisorError(
                f"the cluster in {directory} is already running",
                hint=f"inspect it: moldau cluster status{where} "
                f"· stop it: moldau cluster stop{where}",
            ) from error
        yield


def is_locked(directory: Path) -> bool:
    """True while a supervisor runs."""
    try:
        with open(directory / _LOCK_NAME, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False
