"""What arrived and was not fetched is given back when it is old, and not before."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from moldau.client.queue import poller as polling
from moldau.client.queue.poller import KEEP_SECONDS_MAX, Poller, _Arrived
from moldau.model.delivery_tokens import TokenKind
from moldau.proto.v1 import queue_pb2 as pb


@pytest.fixture(autouse=True)
def _time_of_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(monotonic=lambda: asyncio.get_running_loop().time())
    monkeypatch.setattr(polling, "time", clock)


def arrived(kind: TokenKind, name: bytes, age: float) -> _Arrived:
    message = pb.Message(token=bytes([kind]) + name)
    return _Arrived(message, asyncio.get_running_loop().time() - age)


async def given_back(*messages: _Arrived, wait: float = 0.0) -> list[bytes]:
    """The tokens that a poller gives back of what it holds."""
    back: list[bytes] = []

    async def give_back(tokens: list[bytes]) -> None:
        back.extend(tokens)

    nobody: Any = None
    poller = Poller(nobody, "g", "c", targets=list, give_back=give_back)
    poller._arrived.extend(messages)
    poller._keep_for_next_poll()
    await asyncio.sleep(wait)
    before = list(back)
    await poller.close()
    assert poller.is_idle
    return before if wait else back


async def test_only_what_is_old_is_given_back() -> None:
    old = arrived(TokenKind.QUEUE, b"old", KEEP_SECONDS_MAX + 1)
    new = arrived(TokenKind.QUEUE, b"new", 0)
    assert await given_back(old, new, wait=KEEP_SECONDS_MAX - 0.1) == [b"\x02old"]


async def test_the_end_gives_back_all() -> None:
    new = arrived(TokenKind.QUEUE, b"new", 0)
    assert await given_back(new) == [b"\x02new"]


async def test_messages_of_ordered_groups_are_dropped_since_the_broker_repeats_them() -> None:
    ordered = arrived(TokenKind.ORDERED, b"old", KEEP_SECONDS_MAX + 1)
    queued = arrived(TokenKind.QUEUE, b"old", KEEP_SECONDS_MAX + 1)
    assert await given_back(ordered, queued, wait=0.2) == [b"\x02old"]
