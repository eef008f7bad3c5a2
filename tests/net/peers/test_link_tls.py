"""Links between brokers over TLS, with certificates of both sides."""

import asyncio
import random
from pathlib import Path

import pytest
from peer_handshake import peer_secret
from peer_links import HELLO, Handler, linked, listening, run
from secure_front import identity
from sliced import opened
from tls_world import TlsWorld

from moldau.model.slices import FileSlice
from moldau.net.peers.frames import FrameKind
from moldau.net.peers.limits import LinkLimits
from moldau.testing.waiting import until

pytestmark = pytest.mark.inprocess

OFTEN = LinkLimits(retry_seconds_min=0.001, retry_seconds_max=0.001)


@pytest.fixture
def world(tmp_path: Path) -> TlsWorld:
    return TlsWorld(tmp_path)


def test_frames_of_memory_and_files_arrive_in_order(world: TlsWorld, tmp_path: Path) -> None:
    path = tmp_path / "segment"
    path.write_bytes(random.Random(1).randbytes(7_000_000))
    tls = world.contexts(mtls=True)

    async def scenario() -> None:
        handler = Handler()
        async with (
            listening(handler, tls=tls) as (listener, port),
            linked(port, tls=tls) as (link, events),
        ):
            await until(lambda: link.is_connected, "the link is up")
            memory = random.Random(2).randbytes(3_000_000)
            with opened(path) as file:
                assert link.send(FrameKind.RAFT, [b"<", memory, FileSlice(file, 5, 6_000_000)])
                assert link.send(FrameKind.HEARTBEAT, [b"beat"])
                await until(lambda: len(handler.frames) == 2, "all have arrived")
            bodies = {kind: body for _, kind, body in handler.frames}
            assert bodies[FrameKind.HEARTBEAT] == b"beat"
            assert bodies[FrameKind.RAFT] == b"<" + memory + path.read_bytes()[5:6_000_005]
            assert (handler.connected, listener.peers) == ([HELLO], [1])
        await until(lambda: handler.gone == [1], "its end is seen")
        assert events.up == 1

    run(scenario)


def test_a_link_comes_back_with_a_new_certificate(world: TlsWorld) -> None:
    tls = world.contexts(mtls=True)

    async def scenario() -> None:
        handler = Handler()
        async with (
            listening(handler, tls=tls) as (listener, port),
            linked(port, tls=tls) as (link, events),
        ):
            await until(lambda: link.is_connected, "the link is up")
            world.renew()
            assert tls.reload()
            # An open connection is kept; the next one uses the new files.
            assert link.is_connected
            link.reset("for the test")
            await until(lambda: events.up == 2, "the link is up again")
            assert listener.peers == [1]

    run(scenario)


@pytest.mark.parametrize(
    "wrong", ["no certificate", "another authority", "another host", "plain text"]
)
def test_a_link_that_is_not_trusted_or_does_not_trust_stays_down(
    world: TlsWorld, tmp_path: Path, wrong: str, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "other"
    folder.mkdir()
    listens, dials = world.contexts(mtls=True), world.contexts(mtls=True)
    match wrong:
        case "another authority":
            dials = TlsWorld(folder).contexts(mtls=True)
        case "another host":
            world.renew(hosts=("elsewhere.example",))
            listens = world.contexts(mtls=True)
        case "no certificate":
            # Signed by itself: as good as none.
            own = identity("intruder")
            world.install(own.pem, own.key_pem)
            dials = world.contexts(mtls=True)
            world.renew()
            listens = world.contexts(mtls=True)

    async def scenario() -> None:
        handler = Handler()
        async with (
            listening(handler, tls=listens) as (listener, port),
            linked(port, limits=OFTEN, tls=None if wrong == "plain text" else dials) as (
                link,
                events,
            ),
        ):
            await until(lambda: link._attempts > 5, "it tried often")
            assert (link.is_connected, events.up) == (False, 0)
            assert (handler.connected, listener.peers) == ([], [])

    run(scenario)
    assert caplog.text.count("no TLS with broker 2") <= 2


def test_a_certificate_does_not_replace_the_secret(world: TlsWorld) -> None:
    tls = world.contexts(mtls=True)

    async def scenario() -> None:
        handler = Handler()
        async with (
            listening(handler, tls=tls) as (listener, port),
            linked(port, limits=OFTEN, tls=tls, secret=peer_secret(b"other")) as (link, _),
        ):
            await until(lambda: listener.refused_total > 2, "it was refused")
            assert not link.is_connected
            assert handler.connected == []
            await asyncio.sleep(0)

    run(scenario)
