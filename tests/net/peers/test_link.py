"""Links and the listener for peers: who is let in, and what a link does with too much."""

import asyncio
import random
import secrets
import socket
import struct
from pathlib import Path

import pytest
from peer_handshake import answer_as_peer, framed, peer_secret
from peer_links import HELLO, ONE, TWO, Handler, called, linked, listening, run
from sliced import opened

from moldau.model.errors import PeerProtocolError
from moldau.model.ids import BrokerId
from moldau.model.slices import FileSlice
from moldau.net.peers import frames
from moldau.net.peers import listener as peer_listener
from moldau.net.peers.frames import FRAME_BYTES_MAX, FrameKind
from moldau.net.peers.handshake import (
    Hello,
)
from moldau.net.peers.limits import LinkLimits
from moldau.net.peers.secret import PeerSecret
from moldau.testing.ports import free_ports
from moldau.testing.waiting import until

pytestmark = pytest.mark.inprocess


def test_frames_arrive_in_order_whatever_they_are_made_of(tmp_path: Path) -> None:
    path = tmp_path / "segment"
    path.write_bytes(bytes(range(256)) * 4000)

    async def scenario() -> None:
        handler = Handler()
        async with listening(handler) as (_, port), linked(port) as (link, _):
            await until(lambda: link.is_connected, "the link is up")
            with opened(path) as file:
                assert link.send(FrameKind.RAFT, [b"a", bytearray(b"b"), memoryview(b"c")])
                assert link.send(
                    FrameKind.RAFT, [b"<", FileSlice(file, 256, 900_000), FileSlice(file, 0, 3)]
                )
                assert link.send(FrameKind.HEARTBEAT, [b""])
                await until(lambda: len(handler.frames) == 3, "all have arrived")
            assert handler.connected == [HELLO]
            assert handler.frames == [
                (1, FrameKind.RAFT, b"abc"),
                (1, FrameKind.RAFT, b"<" + path.read_bytes()[256:900_256] + b"\0\1\2"),
                (1, FrameKind.HEARTBEAT, b""),
            ]

    run(scenario)


@pytest.mark.parametrize(
    ("hello", "reason"),
    [
        (HELLO._replace(cluster_id="other"), "this broker belongs to cluster c, not other"),
        (HELLO._replace(target=BrokerId(3)), "this is broker 2, not 3"),
        (HELLO._replace(version=2), "unsupported protocol version 2; expected 3 to 4"),
        (HELLO._replace(version=9), "unsupported protocol version 9; expected 3 to 4"),
        (HELLO._replace(sender=TWO), "broker 2 cannot be a peer of broker 2"),
        (HELLO._replace(incarnation="dir9"), "broker 1 has directory dir1"),
    ],
)
def test_a_caller_that_does_not_belong_is_refused_with_the_reason(
    hello: Hello, reason: str
) -> None:
    def authorize(caller: Hello) -> str | None:
        return None if caller.incarnation == "dir1" else "broker 1 has directory dir1"

    async def scenario() -> None:
        handler = Handler()
        async with (
            listening(handler, authorize) as (listener, port),
            linked(port, hello) as (
                link,
                events,
            ),
        ):
            await until(lambda: listener.refused_total > 1, "it was refused twice")
            assert link.refusal == reason
            assert not link.is_connected
            assert not link.send(FrameKind.RAFT, [b"x"])
            assert (events.up, handler.connected, handler.frames) == (0, [], [])

    run(scenario)


def test_a_caller_of_the_next_release_is_let_in_and_speaks_our_version() -> None:
    async def scenario() -> None:
        handler = Handler()
        newer = HELLO._replace(version=4)
        async with listening(handler) as (_, port), linked(port, newer) as (link, _):
            await until(lambda: link.is_connected, "the link is up")

    run(scenario)


def test_a_peer_that_does_not_have_the_new_secret_yet_gets_the_earlier_one_proved() -> None:
    async def scenario() -> None:
        handler = Handler()
        both = PeerSecret(b"new", secrets.token_bytes, peer_secret())
        async with listening(handler) as (listener, port), linked(port, secret=both) as (link, _):
            await until(lambda: link.is_connected, "the link is up")
            assert (listener.refused_total, handler.connected) == (1, [HELLO])

    run(scenario)


@pytest.mark.parametrize(
    "data", [framed(b"\x63unknown kind"), struct.pack(">I", FRAME_BYTES_MAX + 1)]
)
def test_bytes_that_are_no_frame_close_the_connection(data: bytes) -> None:
    async def scenario() -> None:
        handler = Handler()
        async with listening(handler) as (listener, port):
            async with called(port) as (reader, writer):
                writer.write(data)
                assert await reader.read() == b""
            assert handler.frames == []
            await until(lambda: listener.peers == [], "nobody is connected")

    run(scenario)


def test_a_frame_that_its_reader_refuses_closes_the_connection_and_the_link_comes_back() -> None:
    async def scenario() -> None:
        handler = Handler()
        async with listening(handler) as (_, port), linked(port) as (link, events):
            await until(lambda: link.is_connected, "the link is up")
            handler.error = PeerProtocolError("nonsense")
            link.send(FrameKind.RAFT, [b"x"])
            await until(lambda: len(events.lost) == 1, "the link is lost")
            handler.error = None
            await until(lambda: events.up == 2, "the link is up again")
            assert link.send(FrameKind.RAFT, [b"y"])
            await until(lambda: [frame[2] for frame in handler.frames] == [b"y"], "it has arrived")
            assert handler.gone == [1]

    run(scenario)


def test_of_two_connections_of_a_peer_the_later_counts() -> None:
    async def scenario() -> None:
        handler = Handler()
        # The first does not come back: it would take the place of the second in turn.
        once = LinkLimits(retry_seconds_min=3600, retry_seconds_max=3600)
        async with (
            listening(handler) as (listener, port),
            linked(port, limits=once) as (first, events),
        ):
            await until(lambda: first.is_connected, "the first is up")
            async with linked(port) as (second, _):
                await until(lambda: second.is_connected, "the second is up")
                await until(lambda: len(events.lost) == 1, "the link is lost")
                first.stop()
                assert handler.gone == [1]
                assert listener.peers == [1]

    run(scenario)


def test_a_peer_that_is_away_is_dialled_until_it_is_there_and_again_after_it_was_gone() -> None:
    async def scenario() -> None:
        (port,) = free_ports(1)
        async with linked(port) as (link, events):
            await until(lambda: link._attempts > 2, "it was dialled in vain")
            assert not link.is_connected
            assert events.nobody > 1
            for times in (1, 2):
                async with listening(Handler(), port=port):
                    await until(lambda times=times: events.up == times, "the link is up")
                    assert link.is_connected
                await until(lambda times=times: len(events.lost) == times, "it is lost")
                assert not link.has_room
                assert link.queued_bytes == 0

    run(scenario)


def test_waiting_times_grow_up_to_a_bound_and_differ() -> None:
    async def scenario() -> None:
        limits = LinkLimits(retry_seconds_min=1, retry_seconds_max=8)
        async with linked(1, limits=limits) as (link, _):
            delays = []
            for attempt in range(1, 9):
                link._attempts = attempt
                delays.append(link._next_delay())
            longest = [1, 2, 4, 8, 8, 8, 8, 8]
            assert all(
                most / 2 <= delay <= most for delay, most in zip(delays, longest, strict=True)
            )
            assert len(set(delays)) == 8

    run(scenario)


def test_a_large_frame_arrives_whole_and_heartbeats_overtake_it(tmp_path: Path) -> None:
    path = tmp_path / "segment"
    path.write_bytes(random.Random(1).randbytes(7_000_000))

    async def scenario() -> None:
        handler = Handler()
        async with listening(handler) as (_, port), linked(port) as (link, _):
            await until(lambda: link.is_connected, "the link is up")
            with opened(path) as file:
                memory = random.Random(2).randbytes(9_000_000)
                assert link.send(FrameKind.RAFT, [memory, b"x", FileSlice(file, 5, 6_000_000)])
                assert not link.send(FrameKind.RAFT, [b"too much waits"])
                assert link.send(FrameKind.HEARTBEAT, [b"1", b"st"])
                assert link.send(FrameKind.HEARTBEAT, [b"2nd"])
                await until(lambda: len(handler.frames) == 3, "all have arrived")
            (_, first, one), (_, second, two), (_, last, large) = handler.frames
            assert (first, second, last) == (2, 2, 1)
            assert (one, two) == (b"1st", b"2nd")
            assert large == memory + b"x" + path.read_bytes()[5:6_000_005]
            assert link.send(FrameKind.RAFT, [b"small"])
            await until(lambda: len(handler.frames) == 4, "the small one has arrived")
            assert handler.frames[3] == (1, FrameKind.RAFT, b"small")

    run(scenario)


def test_a_large_heartbeat_arrives_whole_and_no_later_one_overtakes_it() -> None:
    async def scenario() -> None:
        handler = Handler()
        async with listening(handler) as (_, port), linked(port) as (link, _):
            await until(lambda: link.is_connected, "the link is up")
            large = random.Random(2).randbytes(2_200_000)
            batch = random.Random(3).randbytes(2_200_000)
            sent = [
                (FrameKind.RAFT, batch),
                (FrameKind.HEARTBEAT, large),
                (FrameKind.HEARTBEAT, b"next"),
                (FrameKind.RAFT, b"small"),
            ]
            for kind, body in sent:
                assert link.send(kind, [body])
            await until(lambda: len(handler.frames) == 4, "all have arrived")
            assert [(kind, body) for _, kind, body in handler.frames] == sent
            # From now on they go ahead again.
            assert link.send(FrameKind.RAFT, [bytes(15_000_000)])
            assert link.send(FrameKind.HEARTBEAT, [b"last"])
            await until(lambda: len(handler.frames) == 6, "all have arrived")
            assert [kind for _, kind, _ in handler.frames[4:]] == [2, 1]

    run(scenario)


@pytest.mark.parametrize("size", [0, 1, 9, 10, 11, 20, 21, 35])
def test_pieces_of_a_frame_make_up_the_frame(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "PIECE_BYTES_MAX", 10)
    body = bytes(range(size))
    for cut in range(size + 1):
        framed = frames.encode_frame(FrameKind.RAFT, [body[:cut], body[cut:]], size)
        data = b"".join(bytes(chunk) for chunk in framed if not isinstance(chunk, FileSlice))
        pieces = []
        while data:
            (length,) = struct.unpack_from(">I", data)
            pieces.append(data[4 : 4 + length])
            data = data[4 + length :]
        assert b"".join(piece[1:] for piece in pieces) == body
        assert [piece[0] for piece in pieces[:-1]] == [0x81] * (len(pieces) - 1)
        assert pieces[-1][0] == 1
        assert len(pieces) == max(1, -(-size // 10))


@pytest.mark.parametrize(
    "pieces",
    [
        [b"\x81a", b"\x83b"],
        [b"\x81a", b"\x03b"],
        [b"\x81" + bytes(60), b"\x81" + bytes(41)],
        [b"\xe3a"],
    ],
)
def test_pieces_that_do_not_fit_close_the_connection(
    pieces: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer_listener, "FRAME_BYTES_MAX", 100)

    async def scenario() -> None:
        handler = Handler()
        async with listening(handler) as (_, port):
            async with called(port) as (reader, writer):
                writer.write(b"".join(framed(piece) for piece in pieces))
                assert await reader.read() == b""
            assert handler.frames == []

    run(scenario)


def test_a_broker_that_is_not_known_yet_is_let_in_soon_after_it_is() -> None:
    known: set[int] = set()

    async def scenario() -> None:
        handler = Handler()
        async with (
            listening(
                handler, lambda hello: None if hello.epoch in known else "not registered"
            ) as (listener, port),
            linked(port, HELLO._replace(epoch=3)) as (link, events),
        ):
            link._attempts = 12
            await until(
                lambda: listener.refused_total > 1 and link._attempts == 0, "it was refused twice"
            )
            # However often it could not be reached before, it is tried again soon.
            assert link._next_delay() < 0.5
            known.add(3)
            await until(lambda: events.up == 1, "it is let in")
            assert [hello.epoch for hello in handler.connected] == [3]

    run(scenario)


def test_refusals_are_asked_about_ever_more_slowly_up_to_the_bound() -> None:
    async def scenario() -> None:
        async with linked(1) as (link, _):
            delays = []
            for refusals in (1, 5, 1000):
                link._refusals = refusals
                delays.append(link._next_delay())
            assert 0.1 <= delays[0] <= 0.2 < 2 * delays[1]
            assert 1 <= delays[2] <= 2

    run(scenario)


def test_a_link_that_waits_dials_at_once_when_its_peer_shows_itself() -> None:
    is_known = False

    async def scenario() -> None:
        nonlocal is_known
        limits = LinkLimits(refused_seconds_min=3600, retry_seconds_max=3600)
        async with (
            listening(Handler(), lambda _: None if is_known else "not yet") as (listener, port),
            linked(port, limits=limits) as (link, events),
        ):
            await until(lambda: link.refusal == "not yet", "it was refused")
            assert listener.refused_total == 1
            is_known = True
            await asyncio.sleep(0.02)
            assert not events.up
            link.set_hello(HELLO._replace(epoch=7))
            link.retry_now()
            await until(lambda: events.up == 1, "it is let in")

    run(scenario)


def test_peers_that_would_be_refused_by_now_are_disconnected_and_others_are_not() -> None:
    refused: set[int] = set()

    async def scenario() -> None:
        handler = Handler()
        three = HELLO._replace(sender=BrokerId(3))
        async with (
            listening(handler, lambda hello: "removed" if hello.sender in refused else None) as (
                listener,
                port,
            ),
            linked(port) as (_, one),
            linked(port, three) as (link, other),
        ):
            await until(lambda: (one.up, other.up) == (1, 1), "both links are up")
            listener.recheck()
            refused.add(3)
            listener.recheck()
            await until(lambda: link.refusal == "removed", "it is refused")
            assert listener.peers == [ONE]
            assert (one.lost, len(other.lost), handler.gone) == ([], 1, [3])

    run(scenario)


def test_a_peer_that_does_not_read_fills_the_queue_to_its_bound_and_no_further() -> None:
    limits = LinkLimits(queue_bytes_max=1 << 20)

    async def scenario() -> None:
        server = socket.create_server(("127.0.0.1", 0))
        server.setblocking(False)
        loop = asyncio.get_running_loop()
        async with linked(server.getsockname()[1], limits=limits) as (link, events):
            peer, _ = await loop.sock_accept(server)
            assert await answer_as_peer(peer, peer_secret()) == HELLO
            await until(lambda: link.is_connected, "the link is up")
            block = bytes(100_000)
            while link.has_room:
                assert link.send(FrameKind.RAFT, [block])
            assert link.queued_bytes >= 1 << 20
            # Small messages still go, up to a second bound; then they are dropped.
            while link.send(FrameKind.RAFT, [block]):
                pass
            assert link.queued_bytes <= (2 << 20) + 200_000
            assert events.room == 0
            received = 0
            while not events.room:
                received += len(await loop.sock_recv(peer, 1 << 20))
            assert link.has_room
            peer.close()
        server.close()

    run(scenario)
