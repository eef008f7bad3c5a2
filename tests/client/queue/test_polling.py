"""What arrived and was not fetched is given back when it is old, and not before."""

import asyncio
import time
from typing import Any

from moldau.client.queue.polling import HOLD_SECONDS_MAX, Poller, _Arrived
from moldau.model.tickets import TicketKind
from moldau.proto.v1 import queue_pb2 as pb


def arrived(kind: TicketKind, name: bytes, age: float) -> _Arrived:
    message = pb.Message(token=bytes([kind]) + name)
    return _Arrived(message, time.monotonic() - age)


def given_back(*messages: _Arrived, wait: float = 0.0) -> list[bytes]:
    """The tokens that a poller gives back of what it holds."""

    async def hold() -> list[bytes]:
        back: list[bytes] = []

        async def give_back(tokens: list[bytes]) -> None:
            back.extend(tokens)

        nobody: Any = None
        poller = Poller(nobody, "g", "c", targets=list, give_back=give_back)
        poller._arrived.extend(messages)
        poller._hold()
        await asyncio.sleep(wait)
        before = list(back)
        await poller.close()
        assert poller.is_idle
        return before if wait else back

    return asyncio.run(hold())


def test_only_what_is_old_is_given_back() -> None:
    old = arrived(TicketKind.QUEUE, b"old", HOLD_SECONDS_MAX + 1)
    # In an hour: no machine is as slow as that.
    new = arrived(TicketKind.QUEUE, b"new", -3600)
    assert given_back(old, new, wait=0.2) == [b"\x02old"]


def test_the_end_gives_back_all() -> None:
    new = arrived(TicketKind.QUEUE, b"new", 0)
    assert given_back(new) == [b"\x02new"]


def test_messages_of_ordered_groups_are_dropped_since_the_broker_repeats_them() -> None:
    ordered = arrived(TicketKind.ORDERED, b"old", HOLD_SECONDS_MAX + 1)
    queued = arrived(TicketKind.QUEUE, b"old", HOLD_SECONDS_MAX + 1)
    assert given_back(ordered, queued, wait=0.2) == [b"\x02old"]
