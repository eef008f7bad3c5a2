"""Links between processes: a TCP proxy each, which delays, stalls, cuts and resets.

A Gate is one address with a link for each process that dials it: who dialled is found by the owner
of the socket, so that brokers which tell each other one address can be cut pair by pair.

Loopback only. A cut drops nothing of what a sender takes for sent: as on a real network, bytes
stay unacknowledged in buffers and connections do not end, until they heal or somebody gives up.
"""

import asyncio
import os
import random
import socket
import struct
import threading
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

_T = TypeVar("_T")
_CHUNK_BYTES_MAX = 64 * 1024
_QUEUE_CHUNKS_MAX = 64
_START_SECONDS_MAX = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """What a link does to the bytes."""

    delay_seconds: float = 0.0
    stall_chance: float = 0.0
    """Of each chunk: a lost packet holds up the stream until it is sent again."""
    stall_seconds: float = 0.2
    cut_forward: bool = False
    """From the one that dials to the one that listens."""
    cut_back: bool = False


@dataclass(slots=True)
class LinkCounters:
    """What a link did: the proof that its faults happened."""

    connections: int = 0
    refused: int = 0
    """Connections that came while the link was cut; they hang, as on a real network."""
    chunks: int = 0
    chunks_delayed: int = 0
    stalls: int = 0
    chunks_held: int = 0
    resets: int = 0


@dataclass(slots=True, eq=False)
class _Pair:
    """The two sides of one connection."""

    writers: list[asyncio.StreamWriter] = field(default_factory=list)
    tasks: list[asyncio.Task[None]] = field(default_factory=list)


class Link:
    """One proxy. Made by Proxies; its methods may be called from any thread."""

    def __init__(self, proxies: "Proxies", target: tuple[str, int], seed: int) -> None:
        self._proxies = proxies
        self.target = target
        self.host, self.port = "127.0.0.1", 0
        self.counters = LinkCounters()
        self._rng = random.Random(seed)
        self._conditions = Conditions()
        self._changed = asyncio.Event()
        self._pairs: set[asyncio.Task[None]] = set()
        self._open: set[_Pair] = set()
        self._server: asyncio.Server | None = None

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def conditions(self) -> Conditions:
        return self._conditions

    def set(self, **changes: Any) -> None:
        """Change some of the conditions, for open connections too."""
        self._proxies.run(self._set(replace(self._conditions, **changes)))

    def cut(self, *, forward: bool = True, back: bool = True) -> None:
        self.set(cut_forward=forward, cut_back=back)

    def heal(self) -> None:
        self._proxies.run(self._set(Conditions()))

    def reset(self) -> int:
        """End all connections with a RST; returns how many."""
        return self._proxies.run(self._reset())

    async def _set(self, conditions: Conditions) -> None:
        self._conditions = conditions
        self._changed.set()
        self._changed = asyncio.Event()

    async def _reset(self) -> int:
        pairs = list(self._open)
        for pair in pairs:
            for writer in pair.writers:
                _reset_on_close(writer)
            for task in pair.tasks:
                task.cancel()
        self.counters.resets += len(pairs)
        return len(pairs)

    async def listen(self) -> None:
        self._server = await asyncio.start_server(self.serve, self.host, self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        await self._reset()
        for task in list(self._pairs):
            task.cancel()
        await asyncio.gather(*self._pairs, return_exceptions=True)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry one connection until an end of it is gone."""
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a connection is served by a task")
        self._pairs.add(task)
        pair = _Pair(writers=[writer])
        self._open.add(pair)
        self.counters.connections += 1
        try:
            if self._conditions.cut_forward or self._conditions.cut_back:
                self.counters.refused += 1
                await self._wait_for_heal("cut_forward")
                await self._wait_for_heal("cut_back")
            far_reader, far_writer = await asyncio.open_connection(*self.target)
            pair.writers.append(far_writer)
            pair.tasks = [
                asyncio.ensure_future(self._carry(reader, far_writer, "cut_forward")),
                asyncio.ensure_future(self._carry(far_reader, writer, "cut_back")),
            ]
            await asyncio.gather(*pair.tasks)
        except (OSError, asyncio.CancelledError):
            # Whatever ended one side ends the other: that is all a proxy can tell.
            pass
        finally:
            for running in pair.tasks:
                running.cancel()
            for each in pair.writers:
                each.transport.abort()
            self._open.discard(pair)
            self._pairs.discard(task)

    async def _wait_for_heal(self, cut: str) -> None:
        while getattr(self._conditions, cut):
            await self._changed.wait()

    async def _carry(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, cut: str
    ) -> None:
        """Chunks come out in order, each when it is due: a delay does not limit the rate."""
        queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_QUEUE_CHUNKS_MAX)
        sender = asyncio.ensure_future(self._send(queue, writer, cut))
        try:
            loop, due = asyncio.get_running_loop(), 0.0
            while data := await reader.read(_CHUNK_BYTES_MAX):
                conditions = self._conditions
                wait = conditions.delay_seconds
                self.counters.chunks += 1
                if conditions.delay_seconds:
                    self.counters.chunks_delayed += 1
                if conditions.stall_chance and self._rng.random() < conditions.stall_chance:
                    self.counters.stalls += 1
                    wait += conditions.stall_seconds
                due = max(due, loop.time() + wait)
                await queue.put((due, data))
            await queue.put((due, b""))
            await sender
        finally:
            sender.cancel()

    async def _send(
        self, queue: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter, cut: str
    ) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due, data = await queue.get()
            if (wait := due - loop.time()) > 0:
                await asyncio.sleep(wait)
            if getattr(self._conditions, cut):
                self.counters.chunks_held += 1
                await self._wait_for_heal(cut)
            if not data:
                writer.write_eof()
                return
            writer.write(data)
            await writer.drain()


class Gate:
    """One address before a process, with a link for each of the others that dial it."""

    def __init__(
        self, proxies: "Proxies", links: Mapping[int, Link], pids: Callable[[], Mapping[int, int]]
    ) -> None:
        """`pids`: of the processes that have a link, by their number."""
        self._proxies = proxies
        self._pids = pids
        self.links = links
        self.unknown_peers = 0
        """Connections of nobody who has a link; they are closed."""
        self.host, self.port = "127.0.0.1", 0
        self._server: asyncio.Server | None = None

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    async def listen(self) -> None:
        self._server = await asyncio.start_server(self._accept, self.host, self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = self.links.get(socket_owner(writer.get_extra_info("peername")[1], self._pids()))
        if link is None:
            self.unknown_peers += 1
            writer.transport.abort()
        else:
            await link.serve(reader, writer)


def socket_owner(port: int, pids: Mapping[int, int]) -> int:
    """Which of some processes of this machine dialled from that port of loopback; -1: none."""
    local = f"0100007F:{port:04X}"
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[1] == local:
            wanted = f"socket:[{fields[9]}]"
            for number, pid in pids.items():
                if _has_open(pid, wanted):
                    return number
    return -1


def _has_open(pid: int, wanted: str) -> bool:
    try:
        for descriptor in os.scandir(f"/proc/{pid}/fd"):
            try:
                if os.readlink(descriptor.path) == wanted:
                    return True
            except OSError:
                continue
    except OSError:
        return False
    return False


def _reset_on_close(writer: asyncio.StreamWriter) -> None:
    found = writer.get_extra_info("socket")
    # It may have been closed just now, from the other side.
    if found is not None and found.fileno() >= 0:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


class Proxies:
    """All links of a run, on an event loop in a thread of their own."""

    def __init__(self, seed: int = 0) -> None:
        self._seed = seed
        self._links: list[Link] = []
        self._gates: list[Gate] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxies", daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, _T]) -> _T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(_START_SECONDS_MAX)

    def link(self, target: tuple[str, int]) -> Link:
        """A new link to that address, listening on a free port."""
        link = Link(self, target, self._seed + len(self._links))
        self.run(link.listen())
        self._links.append(link)
        return link

    def gate(
        self,
        target: tuple[str, int],
        callers: list[int],
        pids: Callable[[], Mapping[int, int]],
    ) -> Gate:
        """One new address for `target`, with a link for each of the callers."""
        links = {}
        for caller in callers:
            links[caller] = Link(self, target, self._seed + len(self._links))
            self._links.append(links[caller])
        gate = Gate(self, links, pids)
        self.run(gate.listen())
        self._gates.append(gate)
        return gate

    def close(self) -> None:
        for gate in self._gates:
            self.run(gate.close())
        for link in self._links:
            self.run(link.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_START_SECONDS_MAX)
        self._loop.close()
