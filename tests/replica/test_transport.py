"""How a broker introduces itself to its peers, and who of them is let in."""

import asyncio
import random
import secrets
from collections.abc import Callable
from unittest.mock import Mock

import pytest

from moldau.model.errors import RefusedError
from moldau.model.ids import BrokerId
from moldau.net.peers.cuts import LinkCuts
from moldau.net.peers.handshake import Hello
from moldau.net.peers.limits import LinkLimits
from moldau.net.peers.secret import PeerSecret
from moldau.replica.transport import Transport, TransportHandler
from moldau.server.clock import SystemClock
from moldau.testing.waiting import until

pytestmark = pytest.mark.inprocess

ONE, TWO = BrokerId(1), BrokerId(2)


def make(
    me: BrokerId,
    epoch: int,
    authorize: Callable[[Hello], str | None] = lambda _: None,
    cuts: LinkCuts | None = None,
) -> Transport:
    transport = Transport(
        loop=asyncio.get_running_loop(),
        clock=SystemClock(),
        rng=random.Random(me),
        cluster_id="c",
        me=me,
        incarnation=f"dir{me}",
        secret=PeerSecret(b"secret", secrets.token_bytes),
        epoch=epoch,
        authorize=authorize,
        # Whoever is refused waits for ever, unless something happens.
        limits=LinkLimits(
            refused_seconds_min=3600,
            retry_seconds_max=3600 if cuts is None else 0.05,
            unacknowledged_ms_max=10_000 if cuts is None else 500,
        ),
        cuts=cuts,
    )
    transport.attach(Mock(spec=TransportHandler))
    return transport


def test_a_new_registration_is_sent_at_once_to_peers_that_refused_the_old_one() -> None:
    epochs: list[int] = []
    known = 2

    def authorize(hello: Hello) -> str | None:
        epochs.append(hello.epoch)
        return None if hello.epoch >= known else "out of date"

    async def scenario() -> None:
        nonlocal known
        one, two = make(ONE, 1), make(TWO, 1, authorize)
        address = two.bind("127.0.0.1", 0)
        two.start()
        try:
            link = one.add_peer(TWO, address)
            await until(lambda: link.refusal == "out of date", "it is refused")
            one.set_epoch(2)
            await until(lambda: link.is_connected, "the second attempt succeeds")
            assert (epochs, one.epoch) == ([1, 2], 2)
            two.recheck()
            await asyncio.sleep(0.02)
            assert link.is_connected
            known = 3
            two.recheck()
            await until(lambda: link.refusal == "out of date", "the old registration ends")
            assert two.listener.peers == []
            assert not link.is_connected
        finally:
            one.close()
            two.close()

    asyncio.run(scenario())


def test_a_peer_that_connects_is_dialled_without_waiting() -> None:
    async def scenario() -> None:
        one, two = make(ONE, 1), make(TWO, 1)
        address = one.bind("127.0.0.1", 0)
        one.start()
        other = two.bind("127.0.0.1", 0)
        try:
            link = one.add_peer(TWO, other)
            # Nobody accepts there yet; the next attempt would be in an hour.
            link._attempts = 20
            await asyncio.sleep(0.05)
            two.start()
            back = two.add_peer(ONE, address)
            await until(lambda: back.is_connected and link.is_connected, "both links are up")
        finally:
            one.close()
            two.close()

    asyncio.run(scenario())


@pytest.mark.safety
def test_a_late_reply_to_the_previous_process_is_not_taken_for_another() -> None:
    async def scenario() -> None:
        release = asyncio.Event()

        async def echo(sender: BrokerId, payload: bytes) -> bytes:
            await release.wait()
            return payload

        two = make(TWO, 1)
        two.rpc.serve(1, echo)
        address = two.bind("127.0.0.1", 0)
        two.start()
        one = make(ONE, 1)
        links = [one.add_peer(TWO, address), two.add_peer(ONE, one.bind("127.0.0.1", 0))]
        one.start()
        await until(lambda: all(link.is_connected for link in links), "they are connected")
        before = asyncio.ensure_future(one.rpc.call(TWO, 1, b"before", 10))
        await until(lambda: bool(two.rpc._working), "it is being handled")
        next_process = make(ONE, 1)
        # The reply to the old process comes over the link to the new one.
        one.rpc, old = next_process.rpc, one.rpc
        next_process.rpc._send = old._send
        after = asyncio.ensure_future(one.rpc.call(TWO, 1, b"after", 10))
        await until(lambda: len(two.rpc._working) == 2, "both are being handled")
        release.set()
        try:
            assert await after == b"after"
        finally:
            before.cancel()
            one.close()
            two.close()

    asyncio.run(scenario())


def test_nothing_passes_a_cut_link_until_it_is_mended() -> None:
    async def scenario() -> None:
        cuts = LinkCuts()
        one, two = make(ONE, 1, cuts=cuts), make(TWO, 1)
        address, back = two.bind("127.0.0.1", 0), one.bind("127.0.0.1", 0)
        for each in (one, two):
            each.rpc.serve(7, _echo)
            each.start()
        try:
            link = one.add_peer(TWO, address)
            other = two.add_peer(ONE, back)
            await until(lambda: link.is_connected and other.is_connected, "both are connected")
            assert await one.call(TWO, 7, b"x", 60) == b"x"
            cuts.set({TWO})
            # As with lost packets: what is sent seems to be sent, and nobody answers.
            for caller, peer in ((one, TWO), (two, ONE)):
                with pytest.raises(RefusedError, match="timed out"):
                    await caller.call(peer, 7, b"lost", 0.05)
            assert link.is_connected
            # The system would wait for acknowledgements no longer.
            await until(lambda: not link.is_connected, "the silent connection ends")
            await asyncio.sleep(0.1)
            assert not link.is_connected
            before = one.listener.accepted_total
            cuts.set(set())
            await until(lambda: one.listener.accepted_total > before, "the peer connects again")
            await until(lambda: link.is_connected and other.is_connected, "both are connected")
            assert await one.call(TWO, 7, b"y", 60) == b"y"
        finally:
            one.close()
            two.close()

    asyncio.run(scenario())


async def _echo(sender: BrokerId, payload: bytes) -> bytes:
    return payload


def test_a_mended_link_has_new_connections_in_both_directions() -> None:
    """Frames of the old ones are missing, also if the peer does not know of the cut."""

    async def scenario() -> None:
        cuts = LinkCuts()
        one, two = make(ONE, 1, cuts=cuts), make(TWO, 1)
        address, back = two.bind("127.0.0.1", 0), one.bind("127.0.0.1", 0)
        one.start()
        two.start()
        try:
            links = one.add_peer(TWO, address), two.add_peer(ONE, back)
            await until(lambda: all(each.is_connected for each in links), "both are connected")
            accepted = [each.listener.accepted_total for each in (one, two)]
            cuts.set({TWO})
            cuts.set(set())
            await until(
                lambda: all(
                    each.listener.accepted_total > before
                    for each, before in zip((one, two), accepted, strict=True)
                ),
                "both connect again",
            )
        finally:
            one.close()
            two.close()

    asyncio.run(scenario())
