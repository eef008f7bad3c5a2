"""A listener whose connections are all taken. Real sockets on loopback."""

import asyncio

import pytest
from connections import Recorder, echo, framed, listening, read_frame

from moldau.net.connection import Connection
from moldau.testing.waiting import until, wait_seconds_max

pytestmark = pytest.mark.inprocess

Client = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def connect(port: int, address: str = "127.0.0.1") -> Client:
    return await asyncio.open_connection("127.0.0.1", port, local_addr=(address, 0))


async def log_in(client: Client, name: bytes) -> None:
    client[1].write(framed(name))
    assert await read_frame(client[0]) == name


async def is_closed(client: Client) -> bool:
    return await asyncio.wait_for(client[0].read(), wait_seconds_max()) == b""


def answer(connection: Connection, frame: bytes) -> None:
    if frame.startswith(b"user"):
        connection.set_user(frame.decode())
    echo(connection, frame)


async def test_who_does_not_log_in_shuts_nobody_out() -> None:
    async with listening(
        Recorder(answer), connections_max=8, on_accepted=Connection.await_login
    ) as (listener, port):
        known = await connect(port, "127.0.0.2")
        await log_in(known, b"user known")
        idle = [await connect(port, "127.0.0.2") for _ in range(4)]
        also_idle = [await connect(port, "127.0.0.3") for _ in range(3)]
        await until(lambda: listener.connection_count == 8, "it is full")
        others = []
        for number in range(3):
            others.append(await connect(port))
            await log_in(others[-1], b"user %d" % number)
        # The oldest ones, of the address that had most.
        assert await is_closed(idle[0])
        assert await is_closed(idle[1])
        assert await is_closed(also_idle[0])
        await log_in(idle[2], b"user late")
        await log_in(known, b"still here")
        assert (listener.connection_count, listener.refused_total) == (8, 3)
        for _, writer in [known, *idle, *also_idle, *others]:
            writer.close()


async def test_users_are_not_closed_for_a_new_connection() -> None:
    async with listening(
        Recorder(answer), connections_max=3, on_accepted=Connection.await_login
    ) as (listener, port):
        users = [await connect(port) for _ in range(3)]
        for number, client in enumerate(users):
            await log_in(client, b"user %d" % number)
        refused = await connect(port, "127.0.0.2")
        assert await is_closed(refused)
        for client in users:
            await log_in(client, b"still here")
        assert (listener.connection_count, listener.refused_total) == (3, 1)
        for _, writer in [*users, refused]:
            writer.close()


async def test_an_address_with_too_many_connections_closes_none_of_others() -> None:
    async with listening(
        Recorder(answer),
        connections_max=3,
        connections_per_address_max=2,
        on_accepted=Connection.await_login,
    ) as (listener, port):
        greedy = [await connect(port, "127.0.0.2") for _ in range(2)]
        modest = await connect(port, "127.0.0.3")
        await until(lambda: listener.connection_count == 3, "it is full")
        refused = await connect(port, "127.0.0.2")
        assert await is_closed(refused)
        assert listener.connection_count == 3
        for _, writer in [*greedy, modest, refused]:
            writer.close()
