"""Owns cluster.json: what a cluster on one machine consists of, and who runs it just now.

The plan (numbers, ports, directories, settings) outlives its processes, so that a cluster that is
started again is the same one. The file is replaced in one step and never half-written.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from moldau.cli.errors import CommandError, ExitCode
from moldau.client.processes import ProcessKey, is_running

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
    """0 for a broker: of a cluster that was made before there was gRPC."""


class Member(msgspec.Struct, kw_only=True):
    """One broker of the cluster."""

    id: int
    ports: Ports
    directory: str
    """Below the cluster's directory."""
    joined: bool = False
    """Its data directory belongs to the cluster: it starts without being let in."""
    state: str = "stopped"
    reason: str = ""
    """Why it is down, if it was not asked for."""
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
    """Empty until the first broker has founded it."""
    ports: Ports
    """Those of broker 1; the n-th has each + n - 1."""
    replication_factor: int
    """Of topics that are created without one."""
    settings: list[tuple[str, str]] = []
    """What --set said, for every broker."""
    next_id: int
    """Numbers are never given out twice."""
    control: str = ""
    """The socket on which the supervisor takes requests."""
    supervisor_pid: int | None = None
    supervisor_started: str | None = None
    brokers: list[Member]

    @property
    def supervisor(self) -> ProcessKey | None:
        if self.supervisor_pid is None or self.supervisor_started is None:
            return None
        return ProcessKey(self.supervisor_pid, self.supervisor_started)

    def member(self, broker_id: int) -> Member:
        """Raises CommandError if there is none of that number."""
        for member in self.brokers:
            if member.id == broker_id:
                return member
        numbers = ", ".join(str(member.id) for member in self.brokers)
        raise CommandError(
            f"there is no broker {broker_id} in this cluster",
            hint=f"its brokers: {numbers}",
            code=ExitCode.NOT_FOUND,
        )

    @property
    def bootstrap(self) -> str:
        return ",".join(member.kafka for member in self.brokers)


def state_path(directory: Path) -> Path:
    return directory / FILE_NAME


def load_state(directory: Path) -> ClusterState | None:
    """What was written last; None if there is no cluster. Raises CommandError if it is damaged."""
    path = state_path(directory)
    try:
        text = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        state = msgspec.json.decode(text, type=ClusterState)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CommandError(
            f"{path} is damaged: {error}",
            hint="restore it; the brokers' data lies beside it, untouched",
            code=ExitCode.STORAGE,
        ) from error
    if state.format != _FORMAT:
        raise CommandError(
            f"{path} has format {state.format}, this version knows {_FORMAT}",
            hint="use the version of moldau that wrote it, or a newer one",
            code=ExitCode.STORAGE,
        )
    return state


def need_state(directory: Path) -> ClusterState:
    """As `load_state`, for commands that need a cluster."""
    state = load_state(directory)
    if state is None:
        raise CommandError(
            f"there is no cluster in {directory}",
            hint="start one: moldau cluster start · another directory: --data-dir DIR",
            code=ExitCode.NOT_FOUND,
        )
    return state


def save_state(directory: Path, state: ClusterState) -> None:
    """Replace the file in one step."""
    path = state_path(directory)
    new = path.with_suffix(".json.new")
    with open(new, "wb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(state), indent=2) + b"\n")
        file.flush()
        os.fsync(file.fileno())
    os.replace(new, path)


def orphaned_brokers(state: ClusterState) -> list[Member]:
    """Brokers that run; without a supervisor nobody looks after them."""
    return [member for member in state.brokers if is_running(member.process)]


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Hold the cluster: one supervisor at a time. Raises CommandError if there is one.

    The lock goes with the process that holds it, however that ends.
    """
    with open(directory / _LOCK_NAME, "ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise already_running(directory) from error
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


def already_running(directory: Path) -> CommandError:
    where = "" if str(directory) == DEFAULT_DIR else f" --data-dir {directory}"
    return CommandError(
        f"the cluster in {directory} is running already",
        hint=f"look at it: moldau cluster status{where} · stop it: moldau cluster stop{where}",
    )
