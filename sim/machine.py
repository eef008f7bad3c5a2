"""A simulated machine, as a broker sees it: its clock, disk, sockets, threads and chance."""

import asyncio
import random
from asyncio import AbstractEventLoop
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import msgspec

from moldau.api.entrance import Entrance
from moldau.api.metric_sources import SlowLoopTurns
from moldau.client import http
from moldau.client.cluster_client import JOIN_CHALLENGE_PATH, JOIN_PATH, decode_response
from moldau.client.errors import TimedOutError, UnreachableError
from moldau.log.compaction.worker import WorkerCommand, WorkerReply, run_command
from moldau.log.filesystem import Files
from moldau.model.histogram import Histogram
from moldau.model.ids import TimestampMs
from moldau.model.log_levels import LogLevels
from moldau.model.topology import (
    Endpoint,
    JoinChallenge,
    ProvenJoinRequest,
    SealedJoinReply,
)
from moldau.net.tls.contexts import TlsContexts
from moldau.replica.flush_threads import FlushWork, FlushWorkers
from moldau.server.machine import GrpcServer, Lock, LogCleaner, LoopObserver, Machine, MemberClient
from sim.loop import SimLoop
from sim.network import SimSockets
from sim.scheduler import WALL_MS
from sim.simdisk import SimDisk


class SimClock:
    """Virtual time, and a wall clock that may be wrong by `skew_ms`."""

    def __init__(self, loop: SimLoop, skew_ms: int = 0) -> None:
        # The function itself, as the real clock has it.
        self.monotonic = loop.time
        self.skew_ms = skew_ms

    def wall_ms(self) -> TimestampMs:
        return TimestampMs(WALL_MS + self.skew_ms + int(self.monotonic() * 1000))


class _NoLock:
    def release(self) -> None:
        pass


class _NoWatch:
    def start(self) -> None:
        pass

    def stop(self) -> None:
        pass

    def numbers(self) -> SlowLoopTurns:
        return SlowLoopTurns(0, 0.0, 0.0, Histogram())


class SimWorkers:
    """The flush threads: each flush ends at a time of its own, and covers what was written
    before it began."""

    def __init__(self, loop: SimLoop, disk: SimDisk, flush_delay: Callable[[], float]) -> None:
        self._loop = loop
        self._disk = disk
        self._flush_delay = flush_delay
        self._begun: dict[int, tuple[FlushWork, int]] = {}
        self._numbers = 0

    def run(self, works: Sequence[FlushWork], running: int) -> None:
        for work in works:
            self._numbers += 1
            self._begun[self._numbers] = (work, self._disk.steps)
            self._loop.run_as_thread(self._flush_delay(), partial(self._finish, self._numbers))

    def _finish(self, number: int) -> None:
        begun = self._begun.pop(number, None)
        if begun is not None:
            run_command, step = begun
            with self._disk.as_begun(step):
                run_command()

    def stop(self) -> None:
        for number in list(self._begun):
            self._finish(number)


class SimCleaner:
    """The cleaner's process: it works at a later time."""

    def __init__(self, loop: SimLoop, files: Files) -> None:
        self._loop = loop
        self._files = files
        self._turn = asyncio.Lock()

    async def run(self, command: WorkerCommand) -> WorkerReply:
        async with self._turn:
            answer: WorkerReply = await self._loop.run_in_executor(
                None, run_command, self._files, command
            )
            return answer

    async def close(self) -> None:
        pass


class SimMember:
    """Another broker's HTTP, over the simulated network."""

    def __init__(self, address: Endpoint, seconds_max: float) -> None:
        self._address = address
        self._seconds_max = seconds_max

    async def join_challenge(self) -> JoinChallenge:
        answer = await self._ask("GET", JOIN_CHALLENGE_PATH, b"")
        return decode_response(answer, JoinChallenge, *self._address)

    async def join(self, request: ProvenJoinRequest) -> SealedJoinReply:
        answer = await self._ask("POST", JOIN_PATH, msgspec.json.encode(request))
        return decode_response(answer, SealedJoinReply, *self._address)

    async def _ask(self, method: str, path: str, body: bytes) -> http.HttpResponse:
        try:
            async with asyncio.timeout(self._seconds_max):
                return await ask_http(self._address, method, path, body)
        except TimeoutError:
            raise TimedOutError(f"no response from {self._address}") from None
        except (OSError, EOFError) as error:
            raise UnreachableError(f"cannot reach {self._address} ({error})") from None


async def ask_http(address: Endpoint, method: str, path: str, body: bytes) -> http.HttpResponse:
    """One request on a connection of its own. Raises OSError, EOFError."""
    reader, writer = await asyncio.open_connection(*address)
    try:
        writer.write(
            f"{method} {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n".encode()
            + body
        )
        await writer.drain()
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        status = int(head.split(" ", 2)[1])
        headers = dict(line.split(": ", 1) for line in head.split("\r\n")[1:] if ": " in line)
        if headers.get("transfer-encoding") == "chunked":
            content = await _read_chunks(reader)
        else:
            content = await reader.readexactly(int(headers.get("content-length", "0")))
        return http.HttpResponse(status, "json" in headers.get("content-type", ""), content)
    finally:
        writer.close()


async def _read_chunks(reader: asyncio.StreamReader) -> bytes:
    content = b""
    while size := int((await reader.readuntil(b"\r\n")).strip(), 16):
        content += await reader.readexactly(size)
        await reader.readline()
    return content


class SimMachine(Machine):
    """What one start of a broker gets."""

    def __init__(
        self,
        *,
        loop: SimLoop,
        disk: SimDisk,
        sockets: SimSockets,
        clock: SimClock,
        rng: random.Random,
        host_name: str,
        flush_delay: Callable[[], float],
        grpc_server: Callable[[AbstractEventLoop, Entrance], GrpcServer] | None = None,
    ) -> None:
        self.clock = self.sim_clock = clock
        self.sockets = sockets
        self.rng = rng
        self._loop = loop
        self._disk = disk
        self._host_name = host_name
        self._flush_delay = flush_delay
        self._grpc_server = grpc_server
        self.cleaner: SimCleaner | None = None
        self.log_levels = LogLevels()
        self.play = None
        self.node = None

    def host_name(self) -> str:
        return self._host_name

    def secret_bytes(self, count: int) -> bytes:
        return self.rng.randbytes(count)

    def admin_token(self, root: Path, cluster_secret: bytes) -> str | None:
        return None

    def join_token(self) -> str:
        return ""

    def open_directory(self, root: Path) -> tuple[Files, Lock]:
        return self._disk, _NoLock()

    def flush_workers(self, loop: AbstractEventLoop, threads_max: int) -> FlushWorkers | None:
        return SimWorkers(self._loop, self._disk, self._flush_delay)

    def log_cleaner(self, root: Path) -> LogCleaner:
        self.cleaner = SimCleaner(self._loop, self._disk)
        return self.cleaner

    def watch_loop(self, loop: AbstractEventLoop) -> LoopObserver:
        return _NoWatch()

    def grpc_server(
        self, loop: AbstractEventLoop, entrance: Entrance, tls: TlsContexts | None = None
    ) -> GrpcServer:
        assert self._grpc_server is not None
        return self._grpc_server(loop, entrance)

    def member(self, address: Endpoint, seconds_max: float) -> MemberClient:
        return SimMember(address, seconds_max)
