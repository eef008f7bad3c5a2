"""Simulated connections: bytes in order, and everything that can happen to them."""

import asyncio
import random
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from sim.network import Network, Rates
from sim.process import ClientProcess
from sim.scheduler import Scheduler


class World:
    def __init__(self, **rates: Any) -> None:
        self.scheduler = Scheduler()
        self.network = Network(self.scheduler, random.Random(3), Rates(**rates))
        self.server = self.process("10.0.0.1")
        self.client = self.process("10.0.0.2")
        self.received = bytearray()
        self.ends: list[str] = []
        self.echoes = False

    def process(self, address: str) -> ClientProcess:
        return ClientProcess(address, address, self.scheduler, self.network, "7")

    async def serve(self) -> None:
        async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                while data := await reader.read(1000):
                    self.received += data
                    if self.echoes:
                        writer.write(data)
                self.ends.append("end")
            except ConnectionError as error:
                self.ends.append(type(error).__name__)
            writer.close()

        sock = self.server.loop.new_socket()
        sock.bind(("10.0.0.1", 9))
        await asyncio.start_server(take, sock=sock)

    def run(self, seconds: float, until: Callable[[], bool] = lambda: False) -> None:
        end = self.scheduler.now + seconds
        while not until() and (at := self.scheduler.next_at) is not None and at <= end:
            self.scheduler.step()

    def do(self, work: Coroutine[Any, Any, Any], seconds: float = 30.0) -> Any:
        task = self.client.loop.begin(work)
        self.run(seconds, task.done)
        return task.result()


@pytest.fixture
def world() -> Iterator[World]:
    world = World(window_bytes=5000)
    world.server.run(world.serve())
    world.run(0.1)
    yield world
    world.server.kill()
    world.client.kill()


async def fill(writer: asyncio.StreamWriter) -> None:
    writer.write(bytes(20_000))
    await asyncio.sleep(1)


def test_the_end_of_a_process_is_noticed_when_the_path_is_open_again(world: World) -> None:
    world.echoes = True
    reader, writer = world.do(connect())
    world.network.cut("10.0.0.1", "10.0.0.2")

    async def greet() -> None:
        writer.write(b"hello")
        await asyncio.sleep(1)

    world.do(greet())
    world.server.kill()
    world.run(1)
    world.network.join("10.0.0.1", "10.0.0.2")
    assert world.do(reader.read()) == b"hello"


def test_a_sender_that_waits_for_room_learns_that_the_other_side_lost_its_power(
    world: World,
) -> None:
    reader, writer = world.do(connect())
    world.server.loop.paused_until = 1e9
    world.do(fill(writer))
    assert writer.transport.get_write_buffer_size() > 0
    host = world.network.host("10.0.0.1")
    world.network.process_ended(host, is_power_cut=True)
    world.run(1)
    world.network.switched_on(host)
    with pytest.raises(ConnectionError):
        world.do(reader.read())


async def connect() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("10.0.0.1", 9)


def test_more_than_the_window_arrives_in_order(world: World) -> None:
    data = random.Random(1).randbytes(40_000)

    async def send() -> None:
        _, writer = await connect()
        writer.write(data)
        await writer.drain()
        writer.close()

    world.do(send())
    world.run(5)
    assert bytes(world.received) == data
    assert world.ends == ["end"]


def test_what_is_sent_again_comes_before_what_was_sent_later() -> None:
    # The first piece meets the cut, and the path is open again before the second one is there.
    world = World(delay_seconds=1.0, jitter_seconds=0.0)
    world.server.run(world.serve())
    world.run(0.1)
    _, writer = world.do(connect())
    network, scheduler = world.network, world.scheduler

    async def send(data: bytes) -> None:
        writer.write(data)

    def sends(data: bytes) -> Callable[[], None]:
        def start() -> None:
            world.client.run(send(data))

        return start

    world.do(send(b"first "))
    sent_at = scheduler.now
    scheduler.at(sent_at + 0.9, lambda: network.cut("10.0.0.2", "10.0.0.1"))
    scheduler.at(sent_at + 1.1, lambda: network.join("10.0.0.2", "10.0.0.1"))
    scheduler.at(sent_at + 0.5, sends(b"second "))
    scheduler.at(sent_at + 1.05, sends(b"third"))
    world.run(10)
    assert bytes(world.received) == b"first second third"
    world.server.kill()
    world.client.kill()


def test_a_port_without_a_listener_refuses_connections(world: World) -> None:
    with pytest.raises(ConnectionRefusedError):
        world.do(asyncio.open_connection("10.0.0.1", 10))


def test_a_host_without_power_does_not_respond(world: World) -> None:
    world.network.process_ended(world.server.host, is_power_cut=True)

    async def knock() -> None:
        async with asyncio.timeout(20):
            await connect()

    with pytest.raises(TimeoutError):
        world.do(knock())


def test_what_was_sent_over_a_cut_path_arrives_when_it_heals(world: World) -> None:
    _, writer = world.do(connect())
    world.network.cut("10.0.0.2", "10.0.0.1")
    world.client.loop.begin(_write(writer, b"late"))
    world.run(5)
    assert not world.received
    world.network.heal()
    world.run(1)
    assert bytes(world.received) == b"late"


def test_a_sender_gives_up_on_a_path_that_stays_cut(world: World) -> None:
    reader, writer = world.do(connect())
    world.network.cut("10.0.0.2", "10.0.0.1")
    world.client.loop.begin(_write(writer, b"lost"))
    with pytest.raises(TimeoutError):
        world.do(reader.read(1), 600)
    # The other side has heard nothing of it.
    assert world.ends == []


def test_a_killed_process_closes_its_connections(world: World) -> None:
    reader, _ = world.do(connect())
    world.server.kill()
    assert world.do(reader.read(1)) == b""


def test_one_side_may_learn_of_a_break_when_it_sends_next(world: World) -> None:
    reader, writer = world.do(connect())
    world.run(1)
    (sock,) = world.server.host.sockets.keys() - set(world.server.host.listening.values())
    sock.close()
    assert world.do(reader.read(1)) == b""
    world.client.loop.begin(_write(writer, b"x"))
    world.run(1)
    world.client.loop.begin(_write(writer, b"y"))
    world.run(1)
    assert writer.transport.is_closing()


async def _write(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(data)
