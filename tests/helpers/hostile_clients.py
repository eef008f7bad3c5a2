"""Clients that want to hurt a broker, each in a thread, bounded in number and time.

They come from another address than well-behaved clients. Each does the same again and again until
it is stopped; what the broker does to it, such as to close its connections, is no error.
"""

import random
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Final, cast

from moldau.testing.broker import Broker
from moldau.testing.waiting import wait_seconds_max, wait_until
from moldau.wire.framing import frame_request
from moldau.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from moldau.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from moldau.wire.messages.sasl_authenticate import SaslAuthenticateRequest
from moldau.wire.messages.sasl_handshake import SaslHandshakeRequest
from moldau.wire.schema import Request

_ATTEMPTS_MAX: Final = 100_000
_HELD_MAX: Final = 300
_PAUSE_SECONDS: Final = 0.002
_NAMES: Final = 20_000
_TOO_MANY_NAMES: Final = 300_000


class Target:
    """A broker with TLS and PLAIN, and one user."""

    def __init__(
        self, broker: Broker, trusted: ssl.SSLContext, user: str, password: str, topic: str
    ) -> None:
        self.broker = broker
        self._trusted = trusted
        self.user = user
        self.password = password
        self.topic = topic
        self.address = "127.0.0.2"
        """Where attackers come from."""

    def connect(self) -> socket.socket:
        return socket.create_connection(
            (self.broker.host, self.broker.port),
            wait_seconds_max(),
            source_address=(self.address, 0),
        )

    def encrypt(self, raw: socket.socket) -> ssl.SSLSocket:
        return self._trusted.wrap_socket(raw, server_hostname="localhost")

    def hello(self) -> bytes:
        """The first message of a TLS handshake."""
        sent = ssl.MemoryBIO()
        tls = self._trusted.wrap_bio(ssl.MemoryBIO(), sent, server_hostname="localhost")
        try:
            tls.do_handshake()
        except ssl.SSLWantReadError:
            return sent.read()
        raise AssertionError

    def login(self, password: str | None = None) -> ssl.SSLSocket:
        """Raises OSError if the broker closes the connection."""
        sock = self.encrypt(self.connect())
        sock.sendall(framed(SaslHandshakeRequest(mechanism="PLAIN"), 1))
        read_frame(sock)
        message = f"\0{self.user}\0{password or self.password}".encode()
        sock.sendall(framed(SaslAuthenticateRequest(auth_bytes=message), 2))
        read_frame(sock)
        return sock


class Attack:
    """What a client does again and again; `attempts` counts it."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.attempts = 0
        self.is_over = threading.Event()
        self.held: list[socket.socket] = []

    def hold(self, sock: socket.socket) -> None:
        """Keep a connection open; of too many the oldest is closed."""
        self.held.append(sock)
        if len(self.held) > _HELD_MAX:
            self.held.pop(0).close()

    def repeat(self, once: Callable[["Attack"], None]) -> None:
        try:
            while not self.is_over.is_set() and self.attempts < _ATTEMPTS_MAX:
                try:
                    once(self)
                except OSError:
                    # Refused, or closed: it tries again.
                    self.is_over.wait(_PAUSE_SECONDS)
                self.attempts += 1
                self.is_over.wait(_PAUSE_SECONDS)
        finally:
            for sock in self.held:
                sock.close()


def half_open(attack: Attack) -> None:
    attack.hold(attack.target.connect())


def garbage(attack: Attack) -> None:
    with attack.target.connect() as sock:
        sock.sendall(random.randbytes(random.randrange(1, 2000)))


def garbage_in_tls(attack: Attack) -> None:
    with attack.target.encrypt(attack.target.connect()) as sock:
        sock.sendall(random.randbytes(random.randrange(1, 2000)))
        sock.recv(1000)


def plaintext(attack: Attack) -> None:
    with attack.target.connect() as sock:
        sock.sendall(framed(MetadataRequest(topics=None), 9))
        sock.recv(1000)


def dropped_handshakes(attack: Attack) -> None:
    with attack.target.connect() as sock:
        sock.sendall(attack.target.hello())


def unfinished_handshakes(attack: Attack) -> None:
    sock = attack.target.connect()
    sock.sendall(attack.target.hello())
    attack.hold(sock)


def wrong_passwords(attack: Attack) -> None:
    with attack.target.login(password="wrong"):
        pass


def huge_metadata(attack: Attack) -> None:
    with attack.target.login() as sock:
        while not attack.is_over.is_set():
            sock.sendall(_metadata(_NAMES))
            read_frame(sock)
            attack.attempts += 1


def too_huge_metadata(attack: Attack) -> None:
    with attack.target.login() as sock:
        sock.sendall(_metadata(_TOO_MANY_NAMES))
        read_frame(sock)


def slow_readers(attack: Attack) -> None:
    """They ask for megabytes again and again, and read a byte now and then."""
    sock = attack.target.login()
    attack.hold(sock)
    request = framed(_fetch(attack.target.topic), 12)
    sock.settimeout(0.2)
    for _ in range(20):
        sock.sendall(request)
    sock.recv(1)


def slow_writers(attack: Attack) -> None:
    """They announce much, and send a byte now and then."""
    sock = attack.target.login()
    attack.hold(sock)
    sock.sendall((50_000_000).to_bytes(4, "big"))
    for each in attack.held:
        each.sendall(b"x")


def announced_before_login(attack: Attack) -> None:
    """They have no password, and announce what they never send."""
    sock = attack.target.encrypt(attack.target.connect())
    attack.hold(sock)
    sock.sendall((65_536).to_bytes(4, "big") + b"x")


ATTACKS: Final[dict[Callable[[Attack], None], int]] = {
    half_open: 600,
    garbage: 300,
    garbage_in_tls: 50,
    plaintext: 300,
    dropped_handshakes: 300,
    unfinished_handshakes: 600,
    wrong_passwords: 5,
    huge_metadata: 3,
    too_huge_metadata: 3,
    slow_readers: 30,
    slow_writers: 50,
    announced_before_login: 120,
}
"""How often each is tried before a well-behaved client begins."""


@contextmanager
def attacked(target: Target, once: Callable[[Attack], None]) -> Iterator[Attack]:
    """The attack runs from before the block begins until it ends."""
    # Each from an address of its own: what one did does not count for the next.
    target.address = f"127.0.0.{2 + list(ATTACKS).index(once)}"
    attack = Attack(target)
    thread = threading.Thread(target=attack.repeat, args=(once,), daemon=True)
    thread.start()
    try:
        wait_until(lambda: attack.attempts >= ATTACKS[once], f"{once.__name__} has begun")
        yield attack
    finally:
        attack.is_over.set()
        thread.join(wait_seconds_max())
        assert not thread.is_alive()


def framed(request: Request, version: int) -> bytes:
    # SaslHandshake and SaslAuthenticate have few versions: their last one is meant.
    last = min(version, type(request).VERSIONS.last)
    return b"".join(cast("list[bytes]", frame_request(request, last, 1, "hostile")))


def read_frame(sock: socket.socket) -> bytes:
    """Raises ConnectionError at the end of the connection."""
    return _read(sock, int.from_bytes(_read(sock, 4), "big"))


def _read(sock: socket.socket, size: int) -> bytes:
    parts = []
    while size:
        part = sock.recv(min(size, 1 << 20))
        if not part:
            raise ConnectionError("closed by the broker")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


@lru_cache
def _metadata(names: int) -> bytes:
    topics = [MetadataRequestTopic(name=f"t{number}") for number in range(names)]
    return framed(MetadataRequest(topics=topics, allow_auto_topic_creation=False), 9)


def _fetch(topic: str) -> FetchRequest:
    wanted = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=50_000_000)
    return FetchRequest(
        max_wait_ms=0,
        min_bytes=1,
        max_bytes=50_000_000,
        topics=[FetchTopic(topic=topic, partitions=[wanted])],
    )
