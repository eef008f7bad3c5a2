"""The listener: nothing is loaded before somebody comes, and nobody holds it up."""

import asyncio
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from http_cluster import FakeCluster, Served, served
from moldau.edge.http.limits import HttpLimits
from moldau.edge.http.listener import HttpListener
from moldau.edge.http.node.link import NodeListener
from moldau.model.errors import ConfigError
from moldau.testing.ports import free_ports
from moldau.testing.waiting import wait_seconds_max, wait_until

pytestmark = pytest.mark.system

REQUEST = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n"


def no_app() -> Any:
    """Of a listener that is never asked."""


def read_reply(sock: socket.socket) -> bytes:
    """One reply with a Content-Length; what is empty was closed."""
    data = b""
    while b"\r\n\r\n" not in data:
        piece = sock.recv(65536)
        if not piece:
            return data
        data += piece
    head, _, body = data.partition(b"\r\n\r\n")
    length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
    while len(body) < length:
        piece = sock.recv(65536)
        if not piece:
            break
        body += piece
    return head + b"\r\n\r\n" + body


def is_closed(sock: socket.socket) -> bool:
    """Waits for the other side to close; anything that still came is thrown away."""
    try:
        while sock.recv(65536):
            pass
    except ConnectionResetError:
        pass
    return True


def test_the_web_server_is_not_imported_with_the_broker():
    code = (
        "import sys, moldau.server.broker, moldau.edge.http.listener\n"
        "print(sorted({'starlette', 'uvicorn', 'h11', 'anyio'} & set(sys.modules)))"
    )
    printed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, timeout=wait_seconds_max()
    )
    assert printed.stdout == b"[]\n", printed.stderr


def test_it_is_loaded_by_the_first_connection_which_gets_its_answer():
    with served() as world:
        assert world.listener._server is None
        status, _, body = world.ask("GET", "/healthz")
        assert (status, body) == (200, {"status": "ok"})
        assert world.listener._server is not None


def test_connections_that_come_while_it_loads_are_all_answered():
    with served() as world:
        early = [world.connect() for _ in range(20)]
        for sock in early:
            sock.sendall(REQUEST)
        for sock in early:
            assert read_reply(sock).startswith(b"HTTP/1.1 200")
            sock.close()


def test_a_taken_port_is_reported_and_a_bound_one_is_closed_until_the_start():
    async def scene() -> None:
        loop = asyncio.get_running_loop()
        first = HttpListener(loop=loop, make_app=no_app)
        host, port = first.bind("127.0.0.1", free_ports(1)[0])
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((host, port), timeout=wait_seconds_max())
        first.start()
        second = HttpListener(loop=loop, make_app=no_app)
        with pytest.raises(OSError, match="in use"):
            second.bind(host, port)
        await first.stop(1.0)
        # Free again at once.
        second.bind(host, port)
        second.start()
        await second.stop(1.0)

    asyncio.run(scene())


def test_a_socket_of_the_node_that_cannot_be_made_fails_the_start(tmp_path):
    path = tmp_path / "node.sock"
    path.mkdir()

    async def scene() -> None:
        listener = HttpListener(loop=asyncio.get_running_loop(), make_app=no_app)
        listener.for_node = NodeListener(path, listener.app)
        address = listener.bind("127.0.0.1", 0)
        with pytest.raises(ConfigError, match=f"cannot listen on {re.escape(str(path))}") as failed:
            listener.start()
        assert failed.value.hint
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address, timeout=wait_seconds_max())
        await listener.stop(1.0)

    asyncio.run(scene())
    assert path.is_dir()


@pytest.mark.parametrize("turns", [0, 1, 2, 5])
def test_the_socket_of_the_node_is_there_from_the_start_to_the_stop(tmp_path, turns):
    path = tmp_path / "node.sock"

    async def scene() -> None:
        listener = HttpListener(loop=asyncio.get_running_loop(), make_app=no_app)
        listener.for_node = NodeListener(path, listener.app)
        listener.bind("127.0.0.1", 0)
        listener.start()
        assert path.is_socket()
        for _ in range(turns):
            await asyncio.sleep(0)
        await listener.stop(1.0)
        assert not path.exists()

    asyncio.run(scene())


def test_a_node_that_is_not_served_although_bound_is_said(tmp_path, caplog):
    class Broken(NodeListener):
        async def start(self) -> None:
            raise RuntimeError("no server")

    async def scene() -> None:
        listener = HttpListener(loop=asyncio.get_running_loop(), make_app=no_app)
        listener.for_node = Broken(tmp_path / "node.sock", listener.app)
        listener.bind("127.0.0.1", 0)
        listener.start()
        while "cannot ask this one" not in caplog.text:
            await asyncio.sleep(0)
        await listener.stop(1.0)

    asyncio.run(asyncio.wait_for(scene(), wait_seconds_max()))


def test_an_app_that_cannot_be_made_costs_the_listener_and_not_the_loop(caplog):
    def broken():
        raise RuntimeError("no app")

    async def scene() -> None:
        loop = asyncio.get_running_loop()
        listener = HttpListener(loop=loop, make_app=broken)
        host, port = listener.bind("127.0.0.1", 0)
        listener.start()
        reader, writer = await asyncio.open_connection(host, port)
        with pytest.raises(ConnectionResetError):
            await reader.readexactly(1)
        writer.close()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(host, port)
        await listener.stop(1.0)

    asyncio.run(scene())
    assert "HTTP listener stopped" in caplog.text


def test_signals_stay_the_brokers():
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    async def scene() -> dict[signal.Signals, Any]:
        async def app(scope, receive, send):
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b""})

        listener = HttpListener(loop=asyncio.get_running_loop(), make_app=lambda: app)
        host, port = listener.bind("127.0.0.1", 0)
        listener.start()
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(REQUEST)
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        during = {number: signal.getsignal(number) for number in before}
        writer.close()
        await listener.stop(1.0)
        return during

    # Without a runner, which handles SIGINT itself.
    loop = asyncio.new_event_loop()
    try:
        assert loop.run_until_complete(scene()) == before
    finally:
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()


def test_several_requests_share_a_connection():
    with served() as world, world.connect() as sock:
        for _ in range(3):
            sock.sendall(REQUEST)
            assert read_reply(sock).startswith(b"HTTP/1.1 200")


LEAVE = (
    b"POST /api/v1/cluster/leave HTTP/1.1\r\nhost: localhost\r\n"
    b'content-type: application/json\r\ncontent-length: 13\r\n\r\n{"broker": 1}'
)


def is_served(world: Served, source: str = "127.0.0.1") -> bool:
    """A newcomer."""
    with world.connect(source) as sock:
        sock.sendall(REQUEST)
        return read_reply(sock).startswith(b"HTTP/1.1 200")


@contextmanager
def being_answered(world: Served, count: int) -> Iterator[list[socket.socket]]:
    """Connections of 127.0.0.1 whose replies are held back until the end."""
    world.cluster.hold = asyncio.Event()
    held = [world.connect() for _ in range(count)]
    for sock in held:
        sock.sendall(LEAVE)
    wait_until(lambda: len(world.cluster.asked) == count, "all requests have come")
    yield held
    world.loop.call_soon_threadsafe(world.cluster.hold.set)
    for sock in held:
        assert read_reply(sock).startswith(b"HTTP/1.1 202")


def test_no_newcomer_takes_the_place_of_a_request_that_is_being_answered(monkeypatch):
    monkeypatch.setattr("moldau.api.metadata_changes.DECIDED_SECONDS_MAX", 600)
    with served(limits=HttpLimits(connections_max=2)) as world:
        with being_answered(world, 2) as held:
            for source in ("127.0.0.1", "127.0.0.2"):
                with world.connect(source) as third:
                    reply = read_reply(third)
                    assert reply.startswith(b"HTTP/1.1 503")
                    assert b"content-type: application/problem+json" in reply
                    assert b"retry-after: 1" in reply
                    assert is_closed(third)
        # Now they wait for their next request, and make room.
        assert is_served(world, "127.0.0.2")
        assert is_closed(held[0])


def test_one_address_cannot_take_all_connections(monkeypatch):
    monkeypatch.setattr("moldau.api.metadata_changes.DECIDED_SECONDS_MAX", 600)
    with served(limits=HttpLimits(connections_max=8, connections_per_address_max=2)) as world:
        with being_answered(world, 2):
            with world.connect() as third:
                assert read_reply(third).startswith(b"HTTP/1.1 503")
            assert is_served(world, "127.0.0.2")
        assert is_served(world)


@pytest.mark.parametrize(
    "sent",
    [b"", b"GET /heal", LEAVE[:-1], REQUEST, REQUEST + b"GET /heal"],
    ids=["nothing", "half a head", "half a body", "one request", "one and a half"],
)
@pytest.mark.parametrize("newcomer", ["127.0.0.2", "127.0.0.4"])
def test_who_only_holds_connections_makes_room_for_newcomers(sent, newcomer):
    """Two addresses that said half of a request, or one, kept out everyone else."""
    limits = HttpLimits(connections_max=6, connections_per_address_max=4, request_seconds_max=600)
    with served(limits=limits) as world:
        held = [world.connect(f"127.0.0.{2 + number // 4}") for number in range(6)]
        for sock in held:
            sock.sendall(sent)
            if sent.startswith(REQUEST):
                assert read_reply(sock).startswith(b"HTTP/1.1 200")
        wait_until(lambda: world.run(lambda: open_connections(world)) == 6, "all are open")
        with world.connect(newcomer) as sock:
            for _ in range(2):
                sock.sendall(REQUEST)
                assert read_reply(sock).startswith(b"HTTP/1.1 200")
            # The oldest of the address that has most.
            assert is_closed(held[0])
            assert world.run(lambda: open_connections(world)) == 6


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET /heal",
        b"POST /api/v1/cluster/leave HTTP/1.1\r\nhost: localhost\r\n"
        b"content-type: application/json\r\n"
        b"content-length: 100\r\n\r\n{",
    ],
    ids=["nothing", "half a head", "half a body"],
)
def test_who_does_not_finish_a_request_is_hung_up_on(sent):
    with served(limits=HttpLimits(request_seconds_max=0.2)) as world, world.connect() as sock:
        sock.sendall(sent)
        assert is_closed(sock)


def test_half_a_request_that_was_sent_ahead_gets_no_more_time_than_another():
    """The first reply ended the watch over what came with its request."""
    limits = HttpLimits(request_seconds_max=2.0, keep_alive_seconds_max=600)
    with served(limits=limits) as world, world.connect() as sock:
        sock.sendall(
            REQUEST + b"POST /api/v1/cluster/leave HTTP/1.1\r\nhost: localhost\r\n"
            b"content-type: application/json\r\ncontent-length: 100\r\n\r\n{"
        )
        assert read_reply(sock).startswith(b"HTTP/1.1 200")
        assert is_closed(sock)


def test_requests_that_were_sent_ahead_are_answered_in_their_order():
    with served() as world, world.connect() as sock:
        paths = (b"/healthz", b"/nope", b"/healthz")
        sock.sendall(
            b"".join(b"GET %b HTTP/1.1\r\nhost: localhost\r\n\r\n" % path for path in paths)
        )
        data = b""
        while data.count(b"HTTP/1.1 ") < 3:
            data += sock.recv(65536)
        statuses = [part[:3] for part in data.split(b"HTTP/1.1 ")[1:]]
        assert statuses == [b"200", b"404", b"200"]


def test_an_old_client_gets_its_answer_and_the_end_of_the_connection():
    with served() as world, world.connect() as sock:
        sock.sendall(b"GET /healthz HTTP/1.0\r\nhost: localhost\r\n\r\n")
        assert read_reply(sock).endswith(b'{"status":"ok"}')
        assert is_closed(sock)


def test_sending_byte_by_byte_buys_no_time():
    limits = HttpLimits(request_seconds_max=0.5, keep_alive_seconds_max=600)
    with served(limits=limits) as world, world.connect() as sock:
        sock.settimeout(0.05)
        wait_until(lambda: is_hung_up_after_a_byte(sock), "the listener hangs up")


def is_hung_up_after_a_byte(sock: socket.socket) -> bool:
    try:
        sock.sendall(b"x")
        return not sock.recv(1)
    except TimeoutError:
        return False
    except ConnectionError:
        return True


def test_a_quiet_connection_is_closed_and_one_in_use_may_be_older_than_a_request():
    seconds = wait_seconds_max() / 30
    limits = HttpLimits(request_seconds_max=seconds, keep_alive_seconds_max=600)
    with served(limits=limits) as world, world.connect() as sock:
        for pause in (1.1 * seconds, 0.0):
            sock.sendall(REQUEST)
            assert read_reply(sock).startswith(b"HTTP/1.1 200")
            time.sleep(pause)
    half: Any = 0.5
    limits = HttpLimits(request_seconds_max=600, keep_alive_seconds_max=half)
    with served(limits=limits) as world, world.connect() as sock:
        sock.sendall(REQUEST)
        assert read_reply(sock).startswith(b"HTTP/1.1 200")
        assert is_closed(sock)


def test_a_slow_answer_is_no_slow_request(monkeypatch):
    monkeypatch.setattr("moldau.api.metadata_changes.DECIDED_SECONDS_MAX", 600)
    cluster = FakeCluster()
    seconds = wait_seconds_max() / 30
    limits = HttpLimits(request_seconds_max=seconds)
    with served(cluster, limits) as world, world.connect() as sock:
        cluster.hold = asyncio.Event()
        body = b'{"broker": 1}'
        sock.sendall(
            b"POST /api/v1/cluster/leave HTTP/1.1\r\nhost: localhost\r\n"
            b"content-type: application/json\r\n"
            b"content-length: %d\r\n\r\n" % len(body) + body
        )
        wait_until(lambda: cluster.asked, "the request has come")
        time.sleep(1.1 * seconds)
        world.loop.call_soon_threadsafe(cluster.hold.set)
        assert read_reply(sock).startswith(b"HTTP/1.1 202")


def test_who_does_not_read_a_large_reply_is_hung_up_on():
    cluster = FakeCluster()
    cluster.reasons = ["x" * 32 * 1024 * 1024]
    limits = HttpLimits(reply_stall_seconds_max=0.3, keep_alive_seconds_max=600)
    with served(cluster, limits) as world, world.connect() as sock:
        sock.sendall(b"GET /readyz HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert sock.recv(1)
        wait_until_no_connections(world)


def test_who_reads_a_large_reply_slowly_gets_all_of_it():
    cluster = FakeCluster()
    cluster.reasons = ["x" * 32 * 1024 * 1024]
    limits = HttpLimits(reply_stall_seconds_max=wait_seconds_max() / 12, keep_alive_seconds_max=1)
    with served(cluster, limits) as world, world.connect() as sock:
        sock.sendall(b"GET /readyz HTTP/1.1\r\nhost: localhost\r\n\r\n")
        left = 32 * 1024 * 1024
        while left > 0:
            # Pieces that are not there at once: the kernel keeps some megabytes for us.
            piece_end = left - 4 * 1024 * 1024
            while left > max(piece_end, 0):
                piece = sock.recv(65536)
                assert piece
                left -= len(piece)
            time.sleep(0.7)
        assert is_closed(sock)


def test_the_system_gives_up_on_clients_that_do_not_respond():
    """No packet comes from a machine that died, and too little is sent to fill a buffer."""
    limits = HttpLimits(reply_stall_seconds_max=7.5)
    with served(limits=limits) as world, world.connect() as sock:
        sock.sendall(REQUEST)
        read_reply(sock)

        async def timeout() -> int:
            server: Any = world.listener._server
            (connection,) = server.server_state.connections
            theirs: socket.socket = connection.transport.get_extra_info("socket")
            return theirs.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)

        assert world.run(timeout) == 7500


def wait_until_no_connections(world: Served) -> None:
    wait_until(lambda: not world.run(lambda: open_connections(world)), "there are no connections")


async def open_connections(world: Served) -> int:
    engine = world.listener._server
    return 0 if engine is None else len(engine.server_state.connections)


def test_a_stop_lets_requests_finish_and_frees_the_port(monkeypatch):
    monkeypatch.setattr("moldau.api.metadata_changes.DECIDED_SECONDS_MAX", 600)
    cluster = FakeCluster()
    with served(cluster) as world, world.connect() as busy, world.connect() as idle:
        idle.sendall(REQUEST)
        read_reply(idle)
        cluster.hold = asyncio.Event()
        body = b'{"broker": 1}'
        busy.sendall(
            b"POST /api/v1/cluster/keep HTTP/1.1\r\nhost: localhost\r\n"
            b"content-type: application/json\r\n"
            b"content-length: %d\r\n\r\n" % len(body) + body
        )
        wait_until(lambda: cluster.asked, "the request has come")
        stopping = asyncio.run_coroutine_threadsafe(
            world.listener.stop(wait_seconds_max()), world.loop
        )
        assert is_closed(idle)
        with pytest.raises(ConnectionRefusedError):
            world.connect()
        assert not stopping.done()
        world.loop.call_soon_threadsafe(cluster.hold.set)
        assert read_reply(busy).startswith(b"HTTP/1.1 200")
        stopping.result(wait_seconds_max())


def test_a_stop_cuts_what_does_not_finish(monkeypatch):
    monkeypatch.setattr("moldau.api.metadata_changes.DECIDED_SECONDS_MAX", 600)
    cluster = FakeCluster()
    with served(cluster) as world, world.connect() as busy:
        cluster.hold = asyncio.Event()
        body = b'{"broker": 1}'
        busy.sendall(
            b"POST /api/v1/cluster/keep HTTP/1.1\r\nhost: localhost\r\n"
            b"content-type: application/json\r\n"
            b"content-length: %d\r\n\r\n" % len(body) + body
        )
        wait_until(lambda: cluster.asked, "the request has come")
        world.run(lambda: world.listener.stop(0.1))
        assert is_closed(busy)
        world.loop.call_soon_threadsafe(cluster.hold.set)


def test_a_stop_cuts_who_does_not_read():
    cluster = FakeCluster()
    cluster.reasons = ["x" * 32 * 1024 * 1024]
    with served(cluster) as world, world.connect() as sock:
        sock.sendall(b"GET /readyz HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert sock.recv(1)
        world.run(lambda: world.listener.stop(0.1))
        wait_until_no_connections(world)


def test_a_stop_before_anybody_came_is_quick_and_loads_nothing():
    with served() as world:
        world.run(lambda: world.listener.stop(10))
        assert world.listener._server is None
        with pytest.raises(ConnectionRefusedError):
            world.connect()


def test_a_stop_while_it_loads_waits_for_no_client():
    with served() as world, world.connect() as sock:
        world.run(lambda: world.listener.stop(10))
        assert is_closed(sock)


def test_a_relayed_request_loads_the_app_and_a_stop_ends_it():
    stopped: list[str] = []
    made: list[Any] = []

    def make() -> Any:
        made.append(object())
        return made[-1]

    async def scene() -> None:
        listener = HttpListener(
            loop=asyncio.get_running_loop(),
            make_app=make,
            on_stop=lambda: stopped.append("streams"),
        )
        listener.bind("127.0.0.1", 0)
        listener.start()
        found = await asyncio.gather(listener.app(), listener.app())
        assert [id(each) for each in found] == [id(made[0])] * 2
        await listener.stop(1.0)

    asyncio.run(scene())
    assert (len(made), stopped) == (1, ["streams"])
