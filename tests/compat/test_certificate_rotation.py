"""A broker gets new certificates while unmodified clients send and read: they do not notice."""

import contextlib
import socket
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from threading import Event

import pytest
from listeners_world import MTLS, ListenersWorld, listeners_world
from sasl_clients import CLIENTS, SaslClient

from moldau.testing.waiting import wait_until

pytestmark = [pytest.mark.compat, pytest.mark.system]

WAYS = ("SCRAM-SHA-512", MTLS)


class Stream:
    """A producer and a consumer of one client, each in a thread, until `stop` is set."""

    def __init__(
        self, world: ListenersWorld, client: SaslClient, way: str, threads: ThreadPoolExecutor
    ) -> None:
        self.received: list[bytes] = []
        self._stop = Event()
        topic = world.create_topic(f"a-{client.name}-{way}")
        place = (world.bootstrap(way), world.credentials(way), topic)
        self._sent = threads.submit(client.produce_until, *place, self._is_stopped)
        self._read: Future[list[bytes]] = threads.submit(
            client.consume_until, *place, topic, self._has_all
        )

    def _is_stopped(self) -> bool:
        # Not as fast as it can: all clients share the cores, and this lasts for seconds.
        return self._stop.wait(0.005)

    def _has_all(self, received: list[bytes]) -> bool:
        self.received = received
        return self._sent.done() and len(received) >= len(self._sent.result())

    @property
    def failure(self) -> BaseException | None:
        for future in (self._sent, self._read):
            if future.done() and (error := future.exception()) is not None:
                return error
        return None

    def stop(self) -> None:
        self._stop.set()

    def result(self) -> tuple[list[bytes], list[bytes]]:
        return self._sent.result(), self._read.result()


@contextlib.contextmanager
def streams(world: ListenersWorld) -> Iterator[list[Stream]]:
    with ThreadPoolExecutor(2 * len(CLIENTS) * len(WAYS)) as threads:
        started: list[Stream] = []
        try:
            for new_client in CLIENTS.values():
                for way in WAYS:
                    started.append(Stream(world, new_client(), way, threads))
            yield started
        finally:
            for stream in started:
                stream.stop()


def wait_for_more(running: list[Stream], when: str) -> None:
    before = [len(stream.received) for stream in running]

    def have_all_more() -> bool:
        for stream in running:
            if (error := stream.failure) is not None:
                raise error
        return all(
            len(stream.received) > count + 20 for stream, count in zip(running, before, strict=True)
        )

    wait_until(
        have_all_more, f"messages {when}", describe=lambda: [len(each.received) for each in running]
    )


class Broker:
    """What the broker shows to those who look at it."""

    def __init__(self, world: ListenersWorld) -> None:
        self._world = world
        self._looks = 0

    def certificate(self, way: str) -> bytes:
        tls = self._world.credentials(way).tls
        assert tls is not None
        host, port = self._world.bootstrap(way).split(":")
        self._looks += 1
        with (
            socket.create_connection((host, int(port))) as raw,
            tls.context().wrap_socket(raw, server_hostname=host) as connection,
        ):
            found = connection.getpeercert(binary_form=True)
        assert found is not None
        return found

    def shows_another(self, way: str, certificate: bytes) -> bool:
        return self.certificate(way) != certificate

    def connections(self) -> float:
        """Accepted so far, without our own."""
        return self._world.metric("moldau_kafka_connections_accepted_total") - self._looks


@pytest.mark.safety
def test_certificates_are_rotated_in_mid_stream_without_a_lost_message_or_connection(
    tmp_path: Path,
) -> None:
    with listeners_world(tmp_path) as world:
        broker = Broker(world)
        with streams(world) as running:
            wait_for_more(running, "before")
            connections = broker.connections()
            for _ in range(2):
                old = {way: broker.certificate(way) for way in WAYS}
                world.tls.renew()
                for way, seen in old.items():
                    wait_until(partial(broker.shows_another, way, seen), f"a new one for {way}")
                wait_for_more(running, "after")
            assert broker.connections() == connections
        for stream in running:
            sent, received = stream.result()
            assert received == sent
        assert world.metric("moldau_kafka_connections_failed_total") == 0


def test_a_certificate_that_cannot_be_used_changes_nothing(tmp_path: Path) -> None:
    with listeners_world(tmp_path) as world:
        broker = Broker(world)
        expiry = f'moldau_certificate_expiry_seconds{{file="{world.tls.cert_file}"}}'
        assert world.metric(expiry) > 3600
        old = {way: broker.certificate(way) for way in WAYS}
        world.tls.install("garbage", "garbage")
        wait_until(lambda: "the old one stays" in world.broker.output, "a log line")
        assert {way: broker.certificate(way) for way in WAYS} == old
        host, port = world.bootstrap(MTLS).split(":")
        with contextlib.closing(socket.create_connection((host, int(port)))) as raw:
            raw.sendall(b"\0\0\0\4abcd")
            assert raw.recv(1) == b""
        wait_until(lambda: "does not use TLS" in world.broker.output, "a log line")
