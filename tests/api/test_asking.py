"""Several brokers are asked at once: who replies, who refuses, and who sends nonsense."""

import asyncio
from typing import Any

import msgspec

from harness.virtual_loop import run_virtually
from moldau.api.asking import ask_each
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import BrokerId
from moldau.net.peers.methods import PeerMethod

ME = BrokerId(1)


class Peers:
    """Each takes a second; 3 refuses, and 4 sends what cannot be decoded."""

    async def call(self, peer: int, method: int, payload: bytes, seconds: float) -> bytes:
        assert (method, seconds) == (PeerMethod.TOPIC_STATS, 2.0)
        await asyncio.sleep(1)
        if peer == 3:
            raise RefusedError(ErrorCode.NETWORK_EXCEPTION, "no link")
        asked = msgspec.msgpack.decode(payload, type=str)
        return b"\xc1" if peer == 4 else msgspec.msgpack.encode(f"{asked} of {peer}")


def ask(asked: dict[BrokerId, str], here: Any) -> dict[BrokerId, str]:
    decode = msgspec.msgpack.Decoder(str).decode
    peers, method = Peers(), PeerMethod.TOPIC_STATS

    async def run() -> dict[BrokerId, str]:
        replies = ask_each(peers, method, asked, decode, 2.0, me=ME, here=here)
        return await asyncio.wait_for(replies, 1.5)

    return run_virtually(run())


def test_all_are_asked_at_once_and_those_without_a_reply_are_left_out() -> None:
    async def here(request: str) -> str:
        return f"{request} of mine"

    asked = {BrokerId(number): f"question {number}" for number in (1, 2, 3, 4, 5)}
    assert ask(asked, here) == {
        1: "question 1 of mine",
        2: "question 2 of 2",
        5: "question 5 of 5",
    }


def test_this_broker_may_refuse_too() -> None:
    async def here(request: str) -> str:
        raise RefusedError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, request)

    assert ask({ME: "one", BrokerId(2): "two"}, here) == {2: "two of 2"}
