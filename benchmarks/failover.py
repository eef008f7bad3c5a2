"""One death of a leader: kill it, and try until each of its partitions takes a message."""

from __future__ import annotations

import select
import socket
import struct
import time

from benchmarks.clients import frames
from benchmarks.clients.pump import connect
from benchmarks.harness import BenchmarkError
from moldau.testing.cluster import ClusterBroker

TRY_EVERY_S = 0.01
SECONDS_MAX = 60.0


class _Prober:
    """One partition on one broker: asks, and asks again a moment after a refusal."""

    def __init__(self, port: int, topic: str, partition: int) -> None:
        self.partition = partition
        self.socket = connect(port)
        batch = frames.record_batch([b"m" * 100])
        self._request = frames.produce(topic, partition, batch, acks=-1)
        self._error_at = frames.produce_error_at(topic)
        self._received = b""
        self.ask_at = 0.0
        self._is_asking = False

    def ask(self, now: float) -> None:
        if not self._is_asking and now >= self.ask_at:
            self._is_asking = True
            self.socket.sendall(self._request)

    def receive(self, now: float) -> bool:
        """Whether the message was taken."""
        data = self.socket.recv(65_536)
        if not data:
            raise BenchmarkError("a broker that should live closed a connection")
        self._received += data
        if len(self._received) < 4:
            return False
        (length,) = struct.unpack_from(">i", self._received)
        if len(self._received) < 4 + length:
            return False
        error = self._received[self._error_at : self._error_at + 2]
        self._received = self._received[4 + length :]
        self._is_asking = False
        self.ask_at = now + TRY_EVERY_S
        return error == b"\0\0"


def seconds_until_writable(
    victim: ClusterBroker, survivors: list[int], topic: str, partitions: list[int]
) -> list[float]:
    """Kill the leader of `partitions`; how long each of them took nothing on the other brokers."""
    probers: dict[socket.socket, _Prober] = {}
    for partition in partitions:
        for port in survivors:
            prober = _Prober(port, topic, partition)
            probers[prober.socket] = prober
    missing = set(partitions)
    waits = []
    begun = time.perf_counter()
    victim.send_kill()
    try:
        while missing:
            now = time.perf_counter()
            if now - begun > SECONDS_MAX:
                raise BenchmarkError(f"{topic} {sorted(missing)}: no leader after {SECONDS_MAX} s")
            for prober in probers.values():
                if prober.partition in missing:
                    prober.ask(now)
            readable, _, _ = select.select(list(probers), [], [], TRY_EVERY_S / 2)
            for sock in readable:
                prober = probers[sock]
                now = time.perf_counter()
                if prober.receive(now) and prober.partition in missing:
                    missing.discard(prober.partition)
                    waits.append(now - begun)
    finally:
        for sock in probers:
            sock.close()
    return waits
