"""Which links are cut, and who waits for their end."""

import asyncio

from harness.virtual_loop import run_virtually
from moldau.model.ids import BrokerId
from moldau.net.peers.cuts import LinkCuts

ONE, TWO = BrokerId(1), BrokerId(2)


def test_changes_are_reported_once() -> None:
    seen: list[tuple[str, BrokerId]] = []
    cuts = LinkCuts()
    cuts.on_cut = lambda peer: seen.append(("cut", peer))
    cuts.on_mended = lambda peer: seen.append(("mended", peer))
    cuts.set({ONE})
    cuts.set({ONE})
    cuts.set({TWO})
    cuts.set(set())
    assert seen == [("cut", ONE), ("mended", ONE), ("cut", TWO), ("mended", TWO)]


def test_a_dial_waits_until_the_link_is_mended() -> None:
    async def scenario() -> None:
        cuts = LinkCuts()
        await cuts.pass_to(ONE)
        cuts.set({ONE})
        waiting = asyncio.ensure_future(cuts.pass_to(ONE))
        await asyncio.sleep(100)
        assert not waiting.done()
        await cuts.pass_to(TWO)
        # Cut again before the dial has noticed.
        cuts.set(set())
        cuts.set({ONE})
        await asyncio.sleep(100)
        assert not waiting.done()
        cuts.set(set())
        await waiting

    run_virtually(scenario())


def test_a_link_that_is_mended_in_between_was_not_cut_all_the_time() -> None:
    async def scenario() -> None:
        cuts = LinkCuts()
        assert not await cuts.stays_cut(ONE, 10)
        cuts.set({ONE})
        watch = asyncio.ensure_future(cuts.stays_cut(ONE, 10))
        other = asyncio.ensure_future(cuts.stays_cut(ONE, 3))
        await asyncio.sleep(5)
        assert await other
        cuts.set(set())
        cuts.set({ONE})
        assert not await watch

    run_virtually(scenario())
