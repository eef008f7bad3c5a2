"""The simulated network: streams of bytes between hosts, with everything that happens to them.

A connection keeps the order of its bytes, as TCP does; connections do not wait for each other. What
is on its way when a path is cut is kept and sent again when it heals, until the sender gives up. A
host that is off answers nobody; one that is on says that nobody listens, or that it knows no such
connection. So each side learns of a broken connection at a time of its own, or never.
"""

import errno
import os
import random
import socket
import struct
import zlib
from asyncio import Handle
from collections import deque
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, Final, Protocol, Self

from msgspec import Struct

from moldau.net.sockets import Sockets
from sim.scheduler import Scheduler

Address = tuple[str, int]
_Piece = tuple[bytes | None, bool]
"""Bytes on their way, or None for the end; True: a reset."""

_GIVES_UP_SECONDS: Final = 120.0
"""As long as a kernel sends again what nobody acknowledges, unless the socket says otherwise."""
_FIRST_FREE_PORT: Final = 40_000


class Rates(Struct, frozen=True, kw_only=True):
    """What the network is like."""

    delay_seconds: float = 0.000_3
    jitter_seconds: float = 0.000_3
    slow_share: float = 0.0
    """Of all pieces, so many take up to `slow_seconds` longer."""
    slow_seconds: float = 0.2
    window_bytes: int = 256 * 1024
    """On its way or unread, in one direction of a connection."""


class Host:
    """A machine on the network."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.is_on = True
        self.listening: dict[int, SimSocket] = {}
        self.bound: dict[int, list[SimSocket]] = {}
        self.sockets: dict[SimSocket, None] = {}
        """Of the process that runs there."""
        self.next_port = _FIRST_FREE_PORT


class SocketLoop(Protocol):
    """The event loop of the process that a socket belongs to: SimLoop."""

    spent: float

    def opened(self, sock: "SimSocket") -> None: ...
    def closed(self, sock: "SimSocket", number: int) -> None: ...
    def woken(self, sock: "SimSocket") -> None: ...
    def find_socket(self, fd: Any) -> "SimSocket | None": ...


class SimSocket(socket.socket):
    """One end of a connection, or somebody who listens. Has no descriptor of the system."""

    def __new__(cls, *_: object, **__: object) -> Self:
        return super().__new__(cls)

    def __init__(self, network: "Network", host: Host, loop: SocketLoop) -> None:
        self._network = network
        self._host = host
        self._loop = loop
        self._number = network.next_number()
        self.reader: Handle | None = None
        self.writer: Handle | None = None
        self._local: Address = (host.address, 0)
        self._remote: Address | None = None
        self.other: SimSocket | None = None
        self._backlog: deque[SimSocket] | None = None
        self._received = bytearray()
        self._has_end = False
        """The other side sends no more."""
        self._error = 0
        self._is_connecting = False
        self._is_closed = False
        self._sent_end = False
        self._arrives_at = 0.0
        """When the last piece that was sent is there."""
        self._unread = 0
        """Bytes sent that the other side has not read."""
        self._gives_up_seconds = _GIVES_UP_SECONDS
        self.under_way: deque[_Piece] = deque()
        """Sent, and not there yet."""
        self.held: list[_Piece] = []
        """Sent over a path that was cut."""
        self._held_since: float | None = None
        host.sockets[self] = None
        loop.opened(self)

    # ---- what the loop asks

    @property
    def is_readable(self) -> bool:
        return bool(self._received or self._has_end or self._error or self._backlog)

    @property
    def is_writable(self) -> bool:
        if self._error or self._sent_end:
            return True
        if self._is_connecting or self.other is None:
            return False
        return self._unread < self._network.rates.window_bytes

    # ---- as a socket of the standard library

    family = socket.AF_INET
    type = socket.SOCK_STREAM
    proto = socket.IPPROTO_TCP

    def __hash__(self) -> int:
        return self._number

    def __eq__(self, other: object) -> bool:
        return self is other

    def __repr__(self) -> str:
        return f"SimSocket({self._number} {self._local} {self._remote})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def fileno(self) -> int:
        return -1 if self._is_closed else self._number

    def gettimeout(self) -> float | None:
        return 0.0

    def setblocking(self, flag: bool, /) -> None:
        pass

    def settimeout(self, value: float | None, /) -> None:
        pass

    def getsockname(self) -> Any:
        return self._local

    def getpeername(self) -> Any:
        if self._remote is None:
            raise OSError(errno.ENOTCONN, os.strerror(errno.ENOTCONN))
        return self._remote

    def setsockopt(self, level: int, option: int, value: Any, length: Any = None, /) -> None:
        if (level, option) == (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT):
            self._gives_up_seconds = int(value) / 1000

    def getsockopt(self, level: int, option: int, length: Any = None, /) -> Any:
        if (level, option) == (socket.SOL_SOCKET, socket.SO_ERROR):
            found, self._error = self._error, 0
            if found:
                self._has_end = True
            return found
        # Round trips in virtual time are not the kernel's.
        return 0 if length is None else bytes(length)

    def bind(self, address: Any, /) -> None:
        self._network.bind(self, self._host, address)

    def listen(self, backlog: int = 100, /) -> None:
        port = self._local[1]
        if self._host.listening.get(port) is self:
            return
        if port in self._host.listening:
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
        self._backlog = deque()
        self._host.listening[port] = self

    def accept(self) -> tuple[socket.socket, Any]:
        if not self._backlog:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        accepted = self._backlog.popleft()
        return accepted, accepted._remote

    def connect(self, address: Any, /) -> None:
        self._is_connecting = True
        self._network.connect(self, self._host, (address[0], address[1]))
        raise BlockingIOError(errno.EINPROGRESS, os.strerror(errno.EINPROGRESS))

    def recv(self, size: int, flags: int = 0, /) -> bytes:
        self._check_received()
        taken = bytes(self._received[:size])
        self._took(len(taken))
        return taken

    def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0) -> int:
        self._check_received()
        with memoryview(buffer) as view:
            size = min(nbytes or len(view), len(self._received))
            view[:size] = self._received[:size]
        self._took(size)
        return size

    def _check_received(self) -> None:
        if self._is_closed:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        if not self._received:
            if self._error:
                raise self._failure()
            if not self._has_end:
                raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    def _took(self, size: int) -> None:
        if size:
            del self._received[:size]
            other = self.other
            if other is not None:
                other._unread -= size
                if other.writer is not None:
                    other._loop.woken(other)

    def _failure(self) -> OSError:
        found, self._error = self._error, 0
        self._has_end = True
        self._sent_end = True
        return OSError(found, os.strerror(found))

    def send(self, data: Any, flags: int = 0, /) -> int:
        return self.sendmsg([data])

    def sendmsg(
        self, buffers: Iterable[Any], ancdata: Any = (), flags: int = 0, address: Any = None, /
    ) -> int:
        if self._is_closed:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        if self._error:
            raise self._failure()
        if self._sent_end or self.other is None:
            raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))
        data = b"".join(buffers)
        room = self._network.rates.window_bytes - self._unread
        if room <= 0:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        if len(data) > room:
            data = data[:room]
        self._unread += len(data)
        self._network.send(self, data)
        return len(data)

    def shutdown(self, how: int, /) -> None:
        if how != socket.SHUT_RD and not self._sent_end and self.other is not None:
            self._sent_end = True
            self._network.send(self, None)

    def detach(self) -> int:
        raise OSError("a simulated socket is not handed on")

    def close(self) -> None:
        if self._is_closed:
            return
        number = self._number
        self._loop.closed(self, number)
        self._is_closed = True
        self._network.closed(self, self._host)

    # ---- what the network does

    def arrived(self, data: bytes | None, is_reset: bool) -> None:
        if self._is_closed:
            # Nobody knows this connection any more.
            if not is_reset and self.other is not None:
                self._network.refuse(self, self.other)
            return
        if is_reset:
            self.broke(errno.ECONNRESET)
            return
        if data is None:
            self._has_end = True
        else:
            self._received += data
        if self.reader is not None:
            self._loop.woken(self)

    def broke(self, number: int) -> None:
        """What was received and not read yet is lost with it, as with TCP."""
        if self._is_closed or self._error or self._is_broken:
            return
        self._error = number
        self._received.clear()
        self._is_connecting = False
        self._loop.woken(self)

    @property
    def _is_broken(self) -> bool:
        return self._sent_end and self._has_end and not self._received

    def goes(self, source: str, target: str) -> bool:
        """Whether it is the end at one of these hosts of a connection to the other."""
        other = self.other
        return other is not None and {self._host.address, other._host.address} == {source, target}

    def drop(self) -> None:
        """Both ends hear at once that it is broken; what was on its way is lost."""
        other = self.other
        self.broke(errno.ECONNRESET)
        if other is not None:
            other.broke(errno.ECONNRESET)

    def connected(self, other: "SimSocket") -> None:
        self.other = other
        self._is_connecting = False
        self._loop.woken(self)

    def offered(self, accepted: "SimSocket") -> bool:
        if self._backlog is None or self._is_closed:
            return False
        self._backlog.append(accepted)
        self._loop.woken(self)
        return True


class SimSockets(Sockets):
    """What a process on a host opens."""

    def __init__(self, network: "Network", host: Host, loop: SocketLoop) -> None:
        self._network = network
        self._host = host
        self._loop = loop

    def bound(self, host: str, port: int) -> socket.socket:
        sock = SimSocket(self._network, self._host, self._loop)
        sock.bind((host, port))
        return sock

    def unconnected(self, family: int, kind: int, protocol: int) -> socket.socket:
        return SimSocket(self._network, self._host, self._loop)

    def broken(self, descriptors: Iterable[int]) -> list[int]:
        return [
            number
            for number in descriptors
            if (sock := self._loop.find_socket(number)) is not None and sock._error
        ]


class Network:
    """All hosts and the paths between them."""

    def __init__(self, scheduler: Scheduler, rng: random.Random, rates: Rates) -> None:
        self._scheduler = scheduler
        self._rng = rng
        self.rates = rates
        self._hosts: dict[str, Host] = {}
        self._cuts: dict[tuple[str, str], None] = {}
        self._holding: dict[SimSocket, None] = {}
        self._numbers = 0
        self.pieces = 0
        self.sent = 0
        """A checksum of all that was sent, and when."""
        self.dated_ports: frozenset[int] = frozenset()
        """What is sent from there tells of the real time, and is not in the checksum."""

    def next_number(self) -> int:
        self._numbers += 1
        return self._numbers

    def host(self, address: str) -> Host:
        found = self._hosts.get(address)
        if found is None:
            found = self._hosts[address] = Host(address)
        return found

    # ---- sockets

    def bind(self, sock: SimSocket, host: Host, address: Address) -> None:
        name, port = address
        if name not in (host.address, "0.0.0.0"):
            raise OSError(errno.EADDRNOTAVAIL, os.strerror(errno.EADDRNOTAVAIL))
        if port == 0:
            host.next_port += 1
            port = host.next_port
        if port in host.listening:
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
        sock._local = (host.address, port)

    def connect(self, sock: SimSocket, host: Host, target: Address) -> None:
        host.next_port += 1
        sock._local, sock._remote = (host.address, host.next_port), target
        there = self._delay()
        self._scheduler.after(there, lambda: self._knock(sock, host, target))

    def _knock(self, sock: SimSocket, host: Host, target: Address) -> None:
        """The first packet arrives."""
        other_host = self._hosts.get(target[0])
        if sock._is_closed or other_host is None:
            return
        if (
            not other_host.is_on
            or (host.address, target[0]) in self._cuts
            or (target[0], host.address) in self._cuts
        ):
            # Sent again in a while, as long as somebody wants to.
            self._scheduler.after(1.0, lambda: self._knock(sock, host, target))
            return
        back = self._delay()
        listening = other_host.listening.get(target[1])
        if listening is None:
            self._scheduler.after(back, lambda: sock.broke(errno.ECONNREFUSED))
            return
        accepted = SimSocket(self, other_host, listening._loop)
        accepted._local, accepted._remote = target, sock._local
        accepted.other = sock
        listening.offered(accepted)
        self._scheduler.after(back, lambda: self._answered(sock, accepted))

    def _answered(self, sock: SimSocket, accepted: SimSocket) -> None:
        if sock._is_closed:
            accepted.broke(errno.ECONNRESET)
        elif accepted._is_closed:
            sock.broke(errno.ECONNRESET)
        else:
            sock.connected(accepted)

    def closed(self, sock: SimSocket, host: Host) -> None:
        host.sockets.pop(sock, None)
        port = sock._local[1]
        if host.listening.get(port) is sock:
            del host.listening[port]
            for waiting in sock._backlog or ():
                waiting.close()
        elif sock.other is not None and not sock._sent_end:
            sock._sent_end = True
            # What was received and is not read goes with a reset.
            self.send(sock, None, is_reset=bool(sock._received))

    def refuse(self, sock: SimSocket, other: SimSocket) -> None:
        """A piece came for a closed connection."""
        if self._is_open(sock, other):
            self._scheduler.after(self._delay(), lambda: other.broke(errno.ECONNRESET))

    # ---- pieces on their way

    def _delay(self) -> float:
        rates, rng = self.rates, self._rng
        delay = rates.delay_seconds + rng.random() * rates.jitter_seconds
        if rates.slow_share and rng.random() < rates.slow_share:
            delay += rng.random() * rates.slow_seconds
        return delay

    def send(self, sock: SimSocket, data: bytes | None, is_reset: bool = False) -> None:
        """None: the end."""
        self.pieces += 1
        self.sent = zlib.crc32(struct.pack(">d", self._scheduler.now), self.sent)
        if data is not None and sock._local[1] not in self.dated_ports:
            self.sent = zlib.crc32(data, self.sent)
        sock.under_way.append((data, is_reset))
        self._plan_arrival(sock)

    def _plan_arrival(self, sock: SimSocket) -> None:
        """The first piece that is under way then arrives: what is sent again comes before what
        was sent later."""
        sent_at = self._scheduler.now + sock._loop.spent
        time = max(sent_at + self._delay(), sock._arrives_at)
        sock._arrives_at = time
        self._scheduler.at(time, lambda: self._arrive(sock))

    def _arrive(self, sock: SimSocket) -> None:
        piece = sock.under_way.popleft()
        other = sock.other
        if other is None:
            return
        if sock.held or not self._is_open(sock, other):
            self._hold(sock, piece)
            return
        if not other._host.is_on or (other._is_closed and not self._is_open(other, sock)):
            # No response, or no notice that the connection is closed: it is sent again.
            self._hold(sock, piece)
            return
        other.arrived(*piece)

    def _is_open(self, sock: SimSocket, other: SimSocket) -> bool:
        return (sock._host.address, other._host.address) not in self._cuts

    def _hold(self, sock: SimSocket, piece: _Piece) -> None:
        sock.held.append(piece)
        if sock not in self._holding:
            self._holding[sock] = None
            sock._held_since = self._scheduler.now
            self._scheduler.after(sock._gives_up_seconds, lambda: self._give_up(sock))

    def _give_up(self, sock: SimSocket) -> None:
        since = sock._held_since
        if since is None or not sock.held:
            return
        left = since + sock._gives_up_seconds - self._scheduler.now
        if left > 1e-6:
            self._scheduler.after(left, lambda: self._give_up(sock))
            return
        self._forget_held(sock)
        sock.broke(errno.ETIMEDOUT)

    def _forget_held(self, sock: SimSocket) -> None:
        sock.held.clear()
        sock._held_since = None
        self._holding.pop(sock, None)

    def _send_held(self) -> None:
        """A path is open again, or a host on: what was held is sent once more."""
        for sock in list(self._holding):
            other = sock.other
            if other is None or not self._is_open(sock, other) or not other._host.is_on:
                continue
            if other._is_closed and not self._is_open(other, sock):
                continue
            held = list(sock.held)
            self._forget_held(sock)
            sock.under_way.extendleft(reversed(held))
            for _ in held:
                self._plan_arrival(sock)
        for sock in self.connections():
            other = sock.other
            if other is None or not other._is_closed or sock.is_writable:
                continue
            if other._host.is_on and self._is_open(sock, other):
                # Nothing is sent any more, but kernels ask whether there is room again.
                self.refuse(other, sock)

    # ---- faults

    def cut(self, source: str, target: str) -> None:
        self._cuts[source, target] = None

    def join(self, source: str, target: str) -> None:
        if self._cuts.pop((source, target), 0) is None:
            self._send_held()

    def heal(self) -> None:
        if self._cuts:
            self._cuts.clear()
            self._send_held()

    def break_some(self, sockets: Sequence[SimSocket], rng: random.Random) -> None:
        """Break connections in the middle of whatever they carry; one side may learn it later, or
        only when it sends the next time."""
        for sock in sockets:
            sock.broke(errno.ECONNRESET)
            other = sock.other
            if other is not None and rng.random() < 0.6:
                self._scheduler.after(rng.random() * 0.05, partial(other.broke, errno.ECONNRESET))

    def connections(self) -> list[SimSocket]:
        """All that stand, one end of each that is not closed."""
        return [
            sock
            for host in self._hosts.values()
            for sock in host.sockets
            if sock.other is not None and not sock._is_closed
        ]

    def process_ended(self, host: Host, *, is_power_cut: bool) -> None:
        """Its system closes what it had open; without power, nobody does."""
        if is_power_cut:
            host.is_on = False
        for sock in list(host.sockets):
            if is_power_cut:
                sock._is_closed = True
                self._forget_held(sock)
            else:
                sock.close()
        host.sockets.clear()
        host.listening.clear()

    def switched_on(self, host: Host) -> None:
        host.is_on = True
        self._send_held()
