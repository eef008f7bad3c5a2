"""Known class: buffers that are reused across topics: bytes of one in an answer about another.

The broker reads all connections into shared and pooled buffers, and batches stay views of them
until they are stored. Every record says here which topic, writer and number it is of, in every
part of it; clients of all topics write and read at the same time, in requests of all sizes, some
of which are cut off in the middle.
"""

import json
import random
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path
from threading import Event
from typing import Final

import pytest
from chunks import joined
from secured_broker import ManyListeners
from tls_world import TlsWorld
from transaction_client import Client as TransactionalClient

from moldau.client.security import PLAIN_TEXT, Security, Tls
from moldau.records.compression import Codec
from moldau.testing.ports import free_ports
from moldau.testing.waiting import wait_seconds_max
from moldau.wire.framing import frame_request
from moldau.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from moldau.wire.messages.produce import ProduceResponse
from raw_client import RawClient, batch, produce_request, records

pytestmark = pytest.mark.system

ROUNDS: Final = 20
IN_FLIGHT: Final = 3
SIZES: Final = (20, 500, 5_000, 70_000, 300_000, 900_000)
"""Smaller than the shared buffer, larger, and of several classes of the pool."""
FETCH_BYTES: Final = 1 << 21


def content(topic: str, number: int, size: int) -> bytes:
    """Its topic can be read at any place of it."""
    mark = f"<{topic}:{number}>".encode()
    return (mark * (size // len(mark) + 1))[: max(size, len(mark))]


def is_of(value: bytes, topic: str) -> bool:
    mark = value[: value.index(b">") + 1]
    whole = (mark * (len(value) // len(mark) + 1))[: len(value)]
    return mark.startswith(f"<{topic}:".encode()) and value == whole


def answered(client: RawClient) -> ProduceResponse:
    found = client.receive()
    assert isinstance(found, ProduceResponse)
    return found


class World:
    """A broker with a listener in plain text and one with TLS."""

    def __init__(self, folder: Path) -> None:
        self.certificates = TlsWorld(folder)
        plain, secret = free_ports(2)
        self.ports = {"plaintext": plain, "tls": secret}
        listeners = [
            {"name": "inside", "protocol": "kafka", "address": f"127.0.0.1:{plain}"},
            {
                "name": "public",
                "protocol": "kafka",
                "address": f"127.0.0.1:{secret}",
                "security": "tls",
            },
        ]
        self.broker = ManyListeners(
            settings={
                "LISTENERS": json.dumps(listeners),
                "SECURITY__CERT_FILE": str(self.certificates.cert_file),
                "SECURITY__KEY_FILE": str(self.certificates.key_file),
            }
        )
        self.written: dict[str, int] = {}
        """By topic, how many records were acknowledged."""
        self.is_over = Event()

    def client(self, listener: str) -> RawClient:
        authorities = self.certificates.ca_file.read_text()
        tls = Security(tls=Tls(authorities=authorities))
        security = PLAIN_TEXT if listener == "plaintext" else tls
        return RawClient("127.0.0.1", self.ports[listener], security=security)

    # ---- clients, each in a thread of its own

    def write(self, topic: str, listener: str, seed: int) -> None:
        """Several requests in flight, of all sizes and codecs."""
        choose = random.Random(seed)
        with self.client(listener) as client:
            for number in range(ROUNDS):
                counts = []
                for part in range(IN_FLIGHT):
                    size = choose.choice(SIZES)
                    values = [content(topic, number * IN_FLIGHT + part, size)]
                    # A small one beside it: batches of several records.
                    values += [content(topic, number, 30)] * choose.randrange(3)
                    data = batch(values, codec=choose.choice(list(Codec)))
                    client.post(produce_request(topic, data), 9)
                    counts.append(len(values))
                for count in counts:
                    (found,) = answered(client).topics
                    assert (found.name, found.partitions[0].error_code) == (topic, 0)
                    self.written[topic] += count

    def write_in_transactions(self, topic: str, beside: str, listener: str) -> None:
        """The first batch of a transaction waits for its coordinator; what the same connection
        receives meanwhile goes to the buffer that it came in."""
        with self.client(listener) as client, self.client(listener) as other:
            producing = TransactionalClient(client, topic)
            for number in range(ROUNDS):
                producer = producing.init(f"{topic}-{number}")
                value = content(topic, number, SIZES[number % len(SIZES)])
                data = batch([content(beside, number, SIZES[-2])])
                other.post(produce_request(beside, data), 9)
                assert producing.produce(producer, value, version=12) == 0
                assert answered(other).topics[0].partitions[0].error_code == 0
                assert producing.end(producer).error_code == 0
                self.written[topic] += 1
                self.written[beside] += 1

    def write_by_http(self, topic: str) -> None:
        connection = HTTPConnection(self.broker.http_address, timeout=wait_seconds_max())
        path = f"/api/v1/topics/{topic}/records"
        try:
            for number in range(ROUNDS):
                value = content(topic, number, SIZES[number % 5]).decode()
                body = json.dumps({"records": [{"value": value}]})
                connection.request("POST", path, body, {"content-type": "application/json"})
                response = connection.getresponse()
                assert response.status == 200, response.read()
                response.read()
                self.written[topic] += 1
                connection.request("GET", f"{path}?offset={number}&limit=1")
                shown = json.loads(connection.getresponse().read())
                assert (shown["topic"], shown["records"][0]["value"]) == (topic, value)
        finally:
            connection.close()

    def read(self, topics: list[str], listener: str) -> int:
        """All topics in one request, again and again; how often there was something."""
        at = dict.fromkeys(topics, 0)
        count = 0
        with self.client(listener) as client:
            while not self.is_over.is_set():
                wanted = [
                    FetchTopic(
                        topic=topic,
                        partitions=[
                            FetchPartition(
                                partition=0, fetch_offset=offset, partition_max_bytes=FETCH_BYTES
                            )
                        ],
                    )
                    for topic, offset in at.items()
                ]
                request = FetchRequest(
                    max_wait_ms=50, min_bytes=1, max_bytes=4 * FETCH_BYTES, topics=wanted
                )
                for found in client.request(request, FetchResponse, 12).topics:
                    for record in records(found.partitions[0].records or b""):
                        # Markers of transactions have a key of four bytes, and no text.
                        if record.value and len(record.key or b"") != 4:
                            assert is_of(bytes(record.value), found.topic)
                            count += 1
                        at[found.topic] = record.offset + 1
        return count

    def cut_off(self, topic: str, listener: str, seed: int) -> None:
        """Begins requests that never end, so that their bytes are left in buffers of the pool."""
        choose = random.Random(seed)
        context = self.certificates.client()
        while not self.is_over.is_set():
            data = batch([content(topic, 0, choose.choice(SIZES[3:]))])
            frame = joined(frame_request(produce_request(topic, data), 9, 1, "test"))
            address = ("127.0.0.1", self.ports[listener])
            with socket.create_connection(address, wait_seconds_max()) as opened:
                client = opened
                if listener == "tls":
                    client = context.wrap_socket(opened, server_hostname="127.0.0.1")
                client.sendall(frame[: choose.randrange(10, len(frame) - 1)])
                client.close()

    def stored(self, topic: str) -> int:
        """How many records of clients the topic has; all of them are its own."""
        with self.client("plaintext") as client:
            found = [
                record
                for record in client.read_all(topic)
                if record.value and len(record.key or b"") != 4
            ]
        assert all(is_of(bytes(record.value or b""), topic) for record in found)
        return len(found)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    with made.broker:
        yield made


@pytest.mark.safety
def test_what_is_stored_and_shown_of_a_topic_is_of_this_topic(world: World):
    jobs: list[Callable[[], object]] = []
    topics = ["http"]
    for number, listener in enumerate(("plaintext", "tls")):
        own = [f"{listener}-{each}" for each in ("one", "two", "transactions", "beside")]
        topics += own
        for seed, topic in enumerate(own[:2]):
            jobs.append(_call(world.write, topic, listener, 10 * number + seed))
        jobs.append(_call(world.write_in_transactions, own[2], own[3], listener))
    jobs.append(_call(world.write_by_http, "http"))
    with world.client("plaintext") as client:
        for topic in (*topics, "cut"):
            client.create_well(topic)
            world.written[topic] = 0
    others = [_call(world.read, topics, listener) for listener in world.ports]
    cutters = [_call(world.cut_off, "cut", listener, 7) for listener in world.ports]
    with ThreadPoolExecutor(len(jobs) + len(others) + len(cutters)) as pool:
        reading = [pool.submit(each) for each in others]
        cutting = [pool.submit(each) for each in cutters]
        try:
            for done in [pool.submit(each) for each in jobs]:
                done.result()
        finally:
            world.is_over.set()
        assert all(each.result() for each in reading)
        for each in cutting:
            each.result()
    assert {topic: world.stored(topic) for topic in (*topics, "cut")} == world.written
    assert world.written["cut"] == 0


def _call(method: Callable[..., object], *arguments: object) -> Callable[[], object]:
    return lambda: method(*arguments)
