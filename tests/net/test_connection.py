"""Connections: framing, order of replies, backpressure, bounds. Real sockets on loopback."""

import asyncio
import contextlib
import logging
import os
import socket
import struct
import time
import tracemalloc
import zlib
from pathlib import Path

import pytest
import uvloop
from connections import Recorder, echo, echoed, framed, listening, read_frame, settled
from sliced import opened

from moldau.model.errors import PeerProtocolError
from moldau.model.slices import Chunk, FileSlice
from moldau.net.budget import ByteBudget
from moldau.net.connection import Connection
from moldau.net.replies import DeferredReply
from moldau.testing.replicas import ManualClock
from moldau.testing.waiting import until, wait_seconds_max

pytestmark = pytest.mark.inprocess


async def test_frames_that_arrive_byte_by_byte_are_put_together() -> None:
    handler = Recorder(echo)
    async with listening(handler) as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for byte in framed(b"hello") + framed(b"world"):
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(0)
        assert [await read_frame(reader), await read_frame(reader)] == [b"hello", b"world"]
        writer.close()


async def test_a_frame_larger_than_the_shared_buffer_arrives_whole() -> None:
    handler = Recorder(echo)
    body = os.urandom(900_000)
    async with listening(handler) as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(framed(body) + framed(b"next"))
        assert await read_frame(reader) == body
        assert await read_frame(reader) == b"next"
        writer.close()


async def test_many_frames_of_many_sizes_in_one_stream_keep_their_content() -> None:
    handler = Recorder(echo)
    bodies = [os.urandom(1 + (i * 7919) % 70_000) for i in range(150)]
    async with listening(handler) as (_, port):
        await echoed(*await asyncio.open_connection("127.0.0.1", port), bodies)


async def test_replies_leave_in_the_order_of_requests() -> None:
    deferred: list[DeferredReply] = []

    def answer(connection: Connection, frame: bytes) -> None:
        if frame == b"slow":
            deferred.append(connection.defer())
        else:
            echo(connection, frame)

    async with listening(Recorder(answer)) as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(framed(b"slow") + framed(b"quick") + framed(b"slow") + framed(b"last"))
        await until(lambda: len(deferred) == 2, "both were asked")
        deferred[1].complete([framed(b"second")])
        await settled()
        deferred[0].complete([framed(b"first")])
        got = [await read_frame(reader) for _ in range(4)]
        assert got == [b"first", b"quick", b"second", b"last"]
        writer.close()


@pytest.mark.parametrize("size", [0, -1, 2**20 + 1, 2**31 - 1])
async def test_an_impossible_length_closes_the_connection_before_anything_is_allocated(
    size: int,
) -> None:
    handler = Recorder(echo)
    budget = ByteBudget(1 << 24)
    async with listening(handler, request_bytes_max=2**20, budget=budget) as (listener, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(struct.pack(">i", size) + b"x" * 10)
        assert await asyncio.wait_for(reader.read(), wait_seconds_max()) == b""
        assert handler.frames == []
        assert budget.used == 0
        assert listener.connection_count == 0
        writer.close()


async def test_a_protocol_error_closes_only_that_connection() -> None:
    def answer(connection: Connection, frame: bytes) -> None:
        if frame == b"bad":
            raise PeerProtocolError("nonsense")
        echo(connection, frame)

    async with listening(Recorder(answer)) as (_, port):
        good_reader, good_writer = await asyncio.open_connection("127.0.0.1", port)
        bad_reader, bad_writer = await asyncio.open_connection("127.0.0.1", port)
        bad_writer.write(framed(b"bad"))
        assert await asyncio.wait_for(bad_reader.read(), wait_seconds_max()) == b""
        good_writer.write(framed(b"still here"))
        assert await read_frame(good_reader) == b"still here"
        good_writer.close()
        bad_writer.close()


async def test_garbage_does_not_fill_the_log(caplog) -> None:
    caplog.set_level(logging.WARNING)
    async with listening(Recorder(echo), connections_max=100, connections_per_address_max=100) as (
        listener,
        port,
    ):
        for number in range(50):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(struct.pack(">i", -1 - number))
            assert await asyncio.wait_for(reader.read(), wait_seconds_max()) == b""
            writer.close()
        assert listener.failures.failures_total == 50
    assert 0 < len(caplog.records) <= 10


async def test_refused_connections_do_not_fill_the_log(caplog) -> None:
    caplog.set_level(logging.WARNING)
    clock = ManualClock()
    async with listening(Recorder(echo), connections_max=1, clock=clock) as (listener, port):
        _reader, writer = await asyncio.open_connection("127.0.0.1", port)
        await until(lambda: listener.connection_count == 1, "the only connection")
        for number in range(1, 52):
            clock.steady = 0.0 if number < 51 else 11.0
            with contextlib.closing(socket.create_connection(("127.0.0.1", port))):
                refused = number
                await until(lambda: listener.refused_total == refused, "one more refusal")  # noqa: B023
        writer.close()
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 2
    assert lines[1].endswith("limit of 1 connections reached (49 more lines were left out)")


async def test_what_was_asked_before_a_protocol_error_is_answered() -> None:
    def answer(connection: Connection, frame: bytes) -> None:
        if frame == b"bad":
            raise PeerProtocolError("bad")
        echo(connection, frame)

    async with listening(Recorder(answer)) as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(framed(b"good") + framed(b"bad") + framed(b"never read"))
        assert await asyncio.wait_for(reader.read(), wait_seconds_max()) == framed(b"good")
        writer.close()


@pytest.mark.parametrize("paused", [False, True])
def test_a_connection_that_was_reset_is_closed_even_if_the_loop_does_not_tell(
    monkeypatch: pytest.MonkeyPatch, paused: bool
) -> None:
    monkeypatch.setattr("moldau.net.listener._REAP_SECONDS", 0.02)

    async def reset_many() -> None:
        abandoned: list[bool] = []

        def answer(connection: Connection, frame: bytes) -> None:
            connection.defer().on_abandoned = lambda: abandoned.append(True)

        handler = Recorder(answer)
        async with listening(handler, inflight_requests_max=1 if paused else 100) as (_, port):
            for _ in range(5):
                sock = socket.create_connection(("127.0.0.1", port))
                sock.sendall(framed(b"give"))
                # A close without lingering is a reset, on the heels of the data.
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                sock.close()
                await asyncio.sleep(0)
            await until(lambda: handler.closed == 5, "all are closed")
            assert len(abandoned) == len(handler.frames)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(reset_many())


async def test_reading_pauses_while_too_many_requests_are_unanswered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # No turn is over because the machine stood still.
    monkeypatch.setattr("moldau.net.connection._TURN_SECONDS_MAX", wait_seconds_max())
    deferred: list[DeferredReply] = []

    def answer(connection: Connection, frame: bytes) -> None:
        deferred.append(connection.defer())

    handler = Recorder(answer)
    async with listening(handler, inflight_requests_max=4) as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"".join(framed(b"%d" % i) for i in range(20)))
        await until(lambda: len(handler.frames) == 4, "four were asked")
        await settled()
        assert len(handler.frames) == 4
        for done in range(20):
            await until(lambda done=done: len(deferred) > done, "the next was asked")
            deferred[done].complete([framed(b"r%d" % done)])
            assert await read_frame(reader) == b"r%d" % done
            assert len(handler.frames) <= done + 5
        assert handler.frames == [b"%d" % i for i in range(20)]
        writer.close()


async def test_a_client_that_does_not_read_stops_being_read() -> None:
    handled = 0

    def answer(connection: Connection, frame: bytes) -> None:
        nonlocal handled
        handled += 1
        connection.reply([bytes(64 * 1024)])

    async with listening(Recorder(answer), outgoing_bytes_max=256 * 1024) as (_, port):
        sock = socket.create_connection(("127.0.0.1", port))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
        sock.sendall(b"".join(framed(b"give") for _ in range(2000)))
        before = -1
        while not 0 < handled == before:
            before = handled
            await settled()
        # What the kernel buffers is beyond our control; 2000 replies would be 128 MB.
        assert handled < 500
        sock.setblocking(False)
        loop = asyncio.get_running_loop()
        received = 0
        while received < 2000 * 64 * 1024:
            received += len(
                await asyncio.wait_for(loop.sock_recv(sock, 1 << 20), wait_seconds_max())
            )
        assert handled == 2000
        sock.close()


async def test_a_client_that_asks_without_end_leaves_turns_to_others() -> None:
    order: list[bytes] = []

    def answer(connection: Connection, frame: bytes) -> None:
        order.append(frame)
        if frame == b"many":
            time.sleep(0.001)
        connection.reply([framed(b"ok")])

    async with listening(Recorder(answer)) as (_, port):
        greedy = socket.create_connection(("127.0.0.1", port))
        greedy.sendall(framed(b"many") * 400)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in range(2):
            writer.write(framed(b"ping"))
            assert await read_frame(reader) == b"ok"
        assert order.count(b"ping") == 2
        assert order.count(b"many") < 400
        await until(lambda: order.count(b"many") == 400, "all are handled")
        greedy.close()
        writer.close()


async def test_replies_that_wait_for_an_earlier_one_count_as_in_flight() -> None:
    first: list[DeferredReply] = []
    budget = ByteBudget(1 << 24)

    def answer(connection: Connection, frame: bytes) -> None:
        if frame == b"later":
            first.append(connection.defer())
        else:
            connection.reply([framed(bytes(10_000))])

    handler = Recorder(answer)
    async with listening(handler, inflight_bytes_max=100_000, budget=budget) as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(framed(b"later") + framed(b"now") * 50)
        await until(lambda: budget.used >= 100_000, "the bound is reached")
        await settled()
        assert len(handler.frames) <= 11
        assert budget.used >= 100_000
        first[0].complete([framed(b"done")])
        assert await read_frame(reader) == b"done"
        for _ in range(50):
            assert await read_frame(reader) == bytes(10_000)
        await until(lambda: budget.used == 0, "all is given back")
        writer.close()


async def test_file_slices_that_are_not_read_stop_the_reading(tmp_path: Path) -> None:
    path = tmp_path / "segment"
    path.write_bytes(bytes(1 << 20))
    with opened(path) as file:

        def answer(connection: Connection, frame: bytes) -> None:
            connection.reply([FileSlice(file, 0, 1 << 20)])

        handler = Recorder(answer)
        async with listening(handler, outgoing_bytes_max=1 << 20) as (_, port):
            sock = socket.create_connection(("127.0.0.1", port))
            sock.sendall(framed(b"give") * 500)
            await settled()
            assert len(handler.frames) < 100
            sock.setblocking(False)
            received = 0
            while received < 500 << 20:
                chunk = await asyncio.get_running_loop().sock_recv(sock, 1 << 20)
                assert chunk
                received += len(chunk)
            assert len(handler.frames) == 500
            sock.close()


@pytest.mark.parametrize("asks", [0, 2000])
async def test_a_client_that_neither_asks_nor_reads_is_closed_after_a_while(
    monkeypatch: pytest.MonkeyPatch, asks: int
) -> None:
    monkeypatch.setattr("moldau.net.listener._REAP_SECONDS", 0.02)
    budget = ByteBudget(1 << 24)

    def answer(connection: Connection, frame: bytes) -> None:
        connection.reply([bytes(64 * 1024)])

    handler = Recorder(answer)
    async with listening(handler, idle_seconds_max=0.3, budget=budget) as (_, port):
        sock = socket.create_connection(("127.0.0.1", port))
        sock.sendall(framed(b"give") * asks)
        await until(lambda: handler.closed == 1, "it is closed")
        assert budget.used == 0
        sock.close()


async def test_a_client_that_waits_for_its_reply_is_not_idle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("moldau.net.listener._REAP_SECONDS", 0.01)
    waiting: list[DeferredReply] = []
    handler = Recorder(lambda connection, frame: waiting.append(connection.defer()))
    clock = ManualClock()
    async with listening(handler, idle_seconds_max=10, clock=clock) as (listener, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(framed(b"later"))
        await until(lambda: len(waiting) == 1, "it was asked")
        clock.steady += 20
        await settled()
        waiting[0].complete([framed(b"done")])
        # In the very moment in which it is answered, before the answer has left.
        assert listener._timer is not None
        listener._timer.cancel()
        listener._reap()
        assert await read_frame(reader) == b"done"
        clock.steady += 20
        await until(lambda: handler.closed == 1, "it is closed")
        writer.close()


async def test_the_budget_of_all_connections_pauses_reading_and_resumes() -> None:
    deferred: list[DeferredReply] = []
    budget = ByteBudget(10_000)

    def answer(connection: Connection, frame: bytes) -> None:
        deferred.append(connection.defer())

    handler = Recorder(answer)
    async with listening(handler, budget=budget) as (_, port):
        pairs = [await asyncio.open_connection("127.0.0.1", port) for _ in range(4)]
        for _, writer in pairs:
            for _ in range(5):
                writer.write(framed(bytes(4000)))
        await until(lambda: len(deferred) >= 3, "three were asked")
        await settled()
        assert len(deferred) < 10
        for answered in range(20):
            await until(lambda answered=answered: len(deferred) > answered, "the next was asked")
            deferred[answered].complete([framed(b"ok")])
        for reader, writer in pairs:
            for _ in range(5):
                assert await read_frame(reader) == b"ok"
            writer.close()
        await until(lambda: handler.closed == 4, "all are closed")
        assert budget.used == 0


async def test_large_frames_wait_for_room_in_the_budget_and_all_arrive() -> None:
    budget = ByteBudget(3 << 20)
    peak = 0

    def answer(connection: Connection, frame: bytes) -> None:
        connection.reply([framed(b"%d" % len(frame))])

    handler = Recorder(answer)
    body = bytes(1_500_000)
    async with listening(handler, request_bytes_max=1 << 21, budget=budget) as (_, port):
        pairs = [await asyncio.open_connection("127.0.0.1", port) for _ in range(8)]

        async def send(writer: asyncio.StreamWriter) -> None:
            frame = framed(body)
            for start in range(0, len(frame), 100_000):
                writer.write(frame[start : start + 100_000])
                await writer.drain()
                await asyncio.sleep(0.005)

        sending = [asyncio.create_task(send(writer)) for _, writer in pairs]
        while not all(task.done() for task in sending):
            peak = max(peak, budget.used)
            await asyncio.sleep(0.001)
        for reader, writer in pairs:
            assert await read_frame(reader) == b"1500000"
            writer.close()
        await until(lambda: handler.closed == 8, "all are closed")
    # One frame of 2 MiB may exceed the budget; the others keep only what had arrived.
    assert peak < (3 << 20) + (2 << 20) + 8 * (256 << 10)
    assert budget.used == 0


async def test_frames_that_get_their_memory_step_by_step_wait_for_the_budget_and_all_arrive() -> (
    None
):
    budget = ByteBudget(24 << 20)

    def answer(connection: Connection, frame: bytes) -> None:
        connection.reply([framed(b"%d" % zlib.crc32(frame))])

    handler = Recorder(answer)
    bodies = [os.urandom(1 << 20) * 10 + bytes([number]) for number in range(5)]
    async with listening(handler, request_bytes_max=1 << 24, budget=budget) as (_, port):
        pairs = [await asyncio.open_connection("127.0.0.1", port) for _ in bodies]

        async def send(writer: asyncio.StreamWriter, frame: bytes) -> None:
            for start in range(0, len(frame), 700_000):
                writer.write(frame[start : start + 700_000])
                await writer.drain()

        sending = [
            asyncio.create_task(send(writer, framed(body) + framed(b"next")))
            for (_, writer), body in zip(pairs, bodies, strict=True)
        ]
        for (reader, writer), body in zip(pairs, bodies, strict=True):
            assert await read_frame(reader) == b"%d" % zlib.crc32(body)
            assert await read_frame(reader) == b"%d" % zlib.crc32(b"next")
            writer.close()
        await asyncio.gather(*sending)
        await until(lambda: handler.closed == len(bodies), "all are closed")
    assert budget.used == 0


async def test_a_length_alone_costs_little_memory() -> None:
    handler = Recorder(echo)
    budget = ByteBudget(1 << 30)
    async with listening(handler, request_bytes_max=1 << 27, budget=budget) as (_, port):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        tracemalloc.start()
        try:
            writer.write(struct.pack(">i", 1 << 26) + b"not more")
            await until(lambda: budget.used > 0, "the start of the frame is counted")
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert budget.used <= 1 << 20
        assert peak < 4 << 20
        writer.close()


async def test_file_slices_are_sent_between_other_chunks(tmp_path: Path) -> None:
    content = os.urandom(300_000)
    path = tmp_path / "segment"
    path.write_bytes(content)
    with opened(path) as file:

        def answer(connection: Connection, frame: bytes) -> None:
            chunks: list[Chunk] = [
                struct.pack(">i", 4 + 200_000 + 3 + 100),
                b"head",
                FileSlice(file, 50_000, 200_000),
                b"mid",
                FileSlice(file, 10, 100),
            ]
            connection.reply(chunks)

        async with listening(Recorder(answer)) as (_, port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(framed(b"a") + framed(b"b"))
            expected = b"head" + content[50_000:250_000] + b"mid" + content[10:110]
            assert await read_frame(reader) == expected
            assert await read_frame(reader) == expected
            writer.close()


@pytest.mark.parametrize("size", [5_000, 50_000])
async def test_a_file_that_is_shorter_than_its_slice_closes_the_connection(
    tmp_path: Path, size: int
) -> None:
    path = tmp_path / "short"
    path.write_bytes(bytes(size // 2))
    with opened(path) as file:

        def answer(connection: Connection, frame: bytes) -> None:
            connection.reply([struct.pack(">i", size), FileSlice(file, 0, size)])

        async with listening(Recorder(answer)) as (_, port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(framed(b"a"))
            assert len(await asyncio.wait_for(reader.read(), wait_seconds_max())) <= size // 2 + 4
            writer.close()


async def test_connections_beyond_the_caps_are_refused() -> None:
    async with listening(Recorder(echo), connections_max=3, connections_per_address_max=2) as (
        listener,
        port,
    ):
        kept = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await asyncio.wait_for(reader.read(), wait_seconds_max()) == b""
        assert (listener.connection_count, listener.refused_total) == (2, 1)
        kept[0][1].close()
        await until(lambda: listener.connection_count == 1, "one is gone")
        again = await asyncio.open_connection("127.0.0.1", port)
        again[1].write(framed(b"welcome"))
        assert await read_frame(again[0]) == b"welcome"
        for _, writer in [*kept, again]:
            writer.close()


async def test_a_closed_connection_notifies_its_unanswered_requests() -> None:
    abandoned = []

    def answer(connection: Connection, frame: bytes) -> None:
        connection.defer().on_abandoned = lambda: abandoned.append(frame)

    handler = Recorder(answer)
    async with listening(handler) as (_, port):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(framed(b"one") + framed(b"two"))
        await until(lambda: len(handler.frames) == 2, "both were asked")
        writer.close()
        await until(lambda: abandoned == [b"one", b"two"], "both are told")


async def test_draining_answers_what_is_in_flight_and_then_closes() -> None:
    deferred: list[DeferredReply] = []

    def answer(connection: Connection, frame: bytes) -> None:
        deferred.append(connection.defer())

    async with listening(Recorder(answer)) as (listener, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        idle_reader, idle_writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(framed(b"work"))
        await until(lambda: len(deferred) == 1, "it was asked")
        listener.drain()
        assert await asyncio.wait_for(idle_reader.read(), wait_seconds_max()) == b""
        assert listener.connection_count == 1
        deferred[0].complete([framed(b"done")])
        assert await read_frame(reader) == b"done"
        assert await asyncio.wait_for(reader.read(), wait_seconds_max()) == b""
        assert listener.connection_count == 0
        writer.close()
        idle_writer.close()


async def test_an_internal_error_in_a_handler_closes_the_connection_and_not_the_listener() -> None:
    def answer(connection: Connection, frame: bytes) -> None:
        if frame == b"boom":
            raise ZeroDivisionError
        echo(connection, frame)

    loop = asyncio.get_running_loop()
    seen: list[object] = []
    loop.set_exception_handler(lambda _, context: seen.append(context["exception"]))
    async with listening(Recorder(answer)) as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(framed(b"boom"))
        assert await asyncio.wait_for(reader.read(), wait_seconds_max()) == b""
        writer.close()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(framed(b"fine"))
        assert await read_frame(reader) == b"fine"
        writer.close()
    assert [type(error) for error in seen] == [ZeroDivisionError]
