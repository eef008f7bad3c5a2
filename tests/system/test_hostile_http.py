"""One client of HTTP cannot hurt the others: they are served while another attacks.

Nothing here is about time: the attack goes on until the well-behaved client has everything.
"""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

import pytest
from secured_broker import TOPIC, SecuredBroker, secured_broker

from moldau.security.acl import Acl, Operation, PatternType, Permission, ResourceType
from moldau.testing.waiting import wait_seconds_max, wait_until

pytestmark = pytest.mark.system

OWN: Final = "own"
"""The topic to which the attacker may write."""
ASKED: Final = 20
BODY_BYTES: Final = 4 * 1024 * 1024


@pytest.fixture(scope="module")
def secured() -> Iterator[SecuredBroker]:
    with secured_broker() as started:
        started.put_topic(OWN, "first")
        started.put_rules(
            Acl(
                ResourceType.TOPIC,
                OWN,
                PatternType.LITERAL,
                "User:powerless",
                "*",
                Operation.WRITE,
                Permission.ALLOW,
            )
        )
        yield started
        assert "Traceback" not in started.broker.output


class Attack:
    """Holds connections that say only half of something, and renews them one by one."""

    def __init__(
        self, secured: SecuredBroker, half: bytes, count: int, pause: float, hosts: list[str]
    ) -> None:
        broker, port = secured.broker.http_address.rsplit(":", 1)
        self._address = (broker, int(port))
        self._half = half
        self._count = count
        self._pause = pause
        self._hosts = hosts
        self._held: list[socket.socket] = []
        self.attempts = 0
        self.is_over = threading.Event()

    def run(self) -> None:
        try:
            while not self.is_over.is_set():
                if len(self._held) >= self._count:
                    self.is_over.wait(self._pause)
                    self._held.pop(0).close()
                # Refused, or closed: it tries again.
                with suppress(OSError):
                    self._hold_one(self._hosts[self.attempts % len(self._hosts)])
                self.attempts += 1
        finally:
            for sock in self._held:
                sock.close()

    def _hold_one(self, host: str) -> None:
        sock = socket.create_connection(self._address, wait_seconds_max(), source_address=(host, 0))
        self._held.append(sock)
        sock.sendall(self._half)


@contextmanager
def attacked(
    secured: SecuredBroker, half: bytes, *, count: int, pause: float, hosts: list[str]
) -> Iterator[Attack]:
    """`pause` is between two renewals, in seconds."""
    attack = Attack(secured, half, count, pause, hosts)
    thread = threading.Thread(target=attack.run, daemon=True)
    thread.start()
    try:
        wait_until(lambda: attack.attempts > count, "all are held")
        yield attack
    finally:
        attack.is_over.set()
        thread.join(wait_seconds_max())
        assert not thread.is_alive()


def statuses(attack: Attack, ask: Callable[[], int]) -> list[int]:
    """Of the well-behaved client, while the attack goes on."""
    found = []
    for _ in range(ASKED):
        before = attack.attempts
        found.append(ask())
        wait_until(lambda: attack.attempts > before, "the next attempt")  # noqa: B023
    return found


def head(secured: SecuredBroker, target: str, *lines: str) -> bytes:
    all_lines = [f"{target} HTTP/1.1", f"host: {secured.broker.http_address}", *lines]
    return "\r\n".join(all_lines).encode()


def test_half_sent_bodies_of_one_user_refuse_no_records_of_another(secured: SecuredBroker) -> None:
    half = head(
        secured,
        f"POST /api/v1/topics/{OWN}/records",
        f"authorization: {secured.authorization('powerless')['authorization']}",
        "content-type: application/json",
        f"content-length: {BODY_BYTES}\r\n\r\n",
    ) + b" " * (BODY_BYTES - 1)

    def store() -> int:
        records = {"records": [{"value": "x" * 1000}]}
        return secured.ask("admin", "POST", f"/api/v1/topics/{TOPIC}/records", records)[0]

    with attacked(secured, half, count=16, pause=0.2, hosts=["127.0.0.2"]) as attack:
        assert statuses(attack, store) == [200] * ASKED


def test_half_requests_from_two_addresses_keep_no_probe_out(secured: SecuredBroker) -> None:
    half = head(secured, "GET /healthz", "x: ")
    hosts = ["127.0.0.2", "127.0.0.3"]

    def probe() -> int:
        return secured.ask("nobody", "GET", "/healthz")[0]

    with attacked(secured, half, count=300, pause=0.005, hosts=hosts) as attack:
        assert statuses(attack, probe) == [200] * ASKED
