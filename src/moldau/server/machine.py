"""A broker's access to its machine: clock, disk, sockets, threads, random numbers.

The simulator replaces it, and runs the same broker on simulated machines.
"""

import asyncio
import os
import random
import secrets
import socket
import uuid
from asyncio import AbstractEventLoop
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Protocol

from moldau.api.connections import ConnectionShown
from moldau.api.entrance import Entrance
from moldau.api.metric_sources import SlowLoopTurns
from moldau.client.cluster_client import ClusterClient
from moldau.client.security import PLAIN_TEXT, Security, Tls
from moldau.data.cleaner_process import CleanerProcess
from moldau.log.compaction.worker import WorkerCommand, WorkerReply
from moldau.log.datadir import DirectoryLock
from moldau.log.filesystem import Files
from moldau.log.kernel_sync import KernelSyncs, open_kernel_syncs
from moldau.log.os_filesystem import OsFiles
from moldau.log.slow_filesystem import SlowFiles
from moldau.model.clock import Clock
from moldau.model.log_levels import LogLevels
from moldau.model.topology import (
    Endpoint,
    JoinChallenge,
    ProvenJoinRequest,
    SealedJoinReply,
)
from moldau.net.sockets import OS_SOCKETS, Sockets
from moldau.net.tls.contexts import TlsContexts
from moldau.replica.flush_threads import FlushThreads, FlushWork, FlushWorkers
from moldau.replica.kernel_flushes import KernelFlushes
from moldau.server.admin_token import make_token, write_token
from moldau.server.clock import SystemClock
from moldau.server.loop_watch import LoopWatch
from moldau.server.node.process import NodeProcess, SharedAddress
from moldau.server.play_faults import PlayFaultsMaker

JOIN_TOKEN_VARIABLE: Final = "MOLDAU_JOIN_TOKEN"


class Lock(Protocol):
    """Prevents a second broker from using the same directory."""

    def release(self) -> None: ...


class LogCleaner(Protocol):
    """Compacts logs in another process."""

    async def run(self, command: WorkerCommand) -> WorkerReply:
        """Raises WorkerLostError."""
        ...

    async def close(self) -> None: ...


class LoopObserver(Protocol):
    """Measures slow turns of the event loop."""

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def numbers(self) -> SlowLoopTurns: ...


class GrpcServer(Protocol):
    """Serves the gRPC API."""

    def bind(self, host: str, port: int) -> tuple[str, int]: ...

    def share(self, address: Endpoint) -> None: ...

    def start(self) -> None: ...

    def open_connections(self, most: int, wall_ms: int) -> tuple[int, list[ConnectionShown]]:
        """See `ConnectionSource`."""
        ...

    async def stop(self, grace_seconds: float) -> None: ...


class MemberClient(Protocol):
    """The HTTP API of another broker."""

    async def join_challenge(self) -> JoinChallenge:
        """Raises ClientError."""
        ...

    async def join(self, request: ProvenJoinRequest) -> SealedJoinReply:
        """Raises ClientError."""
        ...


class HttpMemberClient:
    """One request at a time, each in a thread."""

    def __init__(
        self, address: Endpoint, seconds_max: float, tls: TlsContexts | None = None
    ) -> None:
        """With `tls`, the other broker must have a certificate of the same CA."""
        self._client = ClusterClient(
            [str(address)],
            call_seconds_max=seconds_max,
            security=PLAIN_TEXT if tls is None else _security(tls),
        )

    async def join_challenge(self) -> JoinChallenge:
        return await asyncio.to_thread(self._client.join_challenge)

    async def join(self, request: ProvenJoinRequest) -> SealedJoinReply:
        return await asyncio.to_thread(self._client.join, request)


def _security(tls: TlsContexts) -> Security:
    key, chain, authorities = tls.pem()
    return Security(
        tls=Tls(authorities=(authorities or b"").decode(), chain=chain.decode(), key=key.decode())
    )


class Machine:
    """The machine that this process runs on."""

    def __init__(self) -> None:
        self.clock: Clock = SystemClock()
        self.log_levels = LogLevels()
        self.sockets: Sockets = OS_SOCKETS
        self.rng = random.Random()
        self.play: PlayFaultsMaker | None = None
        """Only on a machine that somebody plays with."""
        self.node: NodeProcess | None = None
        """The node that this process is a part of; None: it is alone."""
        self.http_tls: TlsContexts | None = None
        """Of this broker's HTTP listener: those of the other brokers have the same."""

    @property
    def shared_addresses(self) -> Mapping[str, SharedAddress]:
        """At which all processes of the node accept, by the setting of the listener."""
        return {} if self.node is None else self.node.shared

    def new_uuid(self) -> uuid.UUID:
        return uuid.UUID(int=self.rng.getrandbits(128), version=4)

    def host_name(self) -> str:
        """By which brokers on the same machine know each other."""
        return socket.gethostname()

    def secret_bytes(self, count: int) -> bytes:
        """Random bytes that nobody can guess, for secrets and nonces."""
        return secrets.token_bytes(count)

    def admin_token(self, root: Path, cluster_secret: bytes) -> str | None:
        """The token of the local administrator, which it finds in the data directory; None if it
        cannot be written."""
        token = make_token(cluster_secret)
        return token if write_token(root, token) else None

    def join_token(self) -> str:
        """The token to join with in the environment of the process; empty if there is none."""
        return os.environ.get(JOIN_TOKEN_VARIABLE, "")

    def open_directory(self, root: Path) -> tuple[Files, Lock]:
        """Lock a data directory for this broker. Raises ConfigError."""
        lock = DirectoryLock(root)
        lock.acquire()
        files = OsFiles(root) if self.play is None else SlowFiles(str(root), self.play.delay)
        return files, lock

    def flush_workers(self, loop: AbstractEventLoop, threads_max: int) -> FlushWorkers | None:
        if not threads_max:
            return None
        threads = FlushThreads(threads_max)
        syncs: KernelSyncs[FlushWork] | None = open_kernel_syncs()
        return threads if syncs is None else KernelFlushes(loop, syncs, threads)

    def log_cleaner(self, root: Path) -> LogCleaner:
        return CleanerProcess(str(root))

    def watch_loop(self, loop: AbstractEventLoop) -> LoopObserver:
        return LoopWatch(loop)

    def grpc_server(
        self, loop: AbstractEventLoop, entrance: Entrance, tls: TlsContexts | None = None
    ) -> GrpcServer:
        # Imported here: with grpc.addr unset, its memory and time are saved.
        from moldau.edge.grpc.listener import GrpcListener

        return GrpcListener(entrance, loop=loop, tls=tls)

    def member(self, address: Endpoint, seconds_max: float) -> MemberClient:
        return HttpMemberClient(address, seconds_max, self.http_tls)
