"""Messages that may cut a log take turns; all others, and all of one group in their order, do not
suffer."""

import asyncio
from typing import Any

import pytest
from fakes import Fake
from raft_brokers import make_group, run

from moldau.model.ids import NO_EPOCH, BrokerId, Epoch, LogId, RaftIndex
from moldau.raft.events import Received
from moldau.raft.messages import AppendResponse
from moldau.replica import raft_receiver as module
from moldau.replica.peer_codec import encode_append, encode_batches_head, encode_message
from moldau.replica.peer_heartbeat import PeerHeartbeat
from moldau.replica.peer_send_queue import Peer
from moldau.replica.raft_group import RaftGroup
from moldau.replica.raft_receiver import RaftReceiver
from moldau.testing.logs import make_batch

pytestmark = pytest.mark.inprocess

ME, PEER = BrokerId(1), BrokerId(2)
ZERO = RaftIndex(0)
NONE: Any = None
"""Of what is not asked here."""


def append(group: RaftGroup, value: bytes, start: int = 2) -> bytes:
    batch = make_batch(start, value=value, epoch=1)
    body = encode_batches_head(len(batch)) + batch
    return encode_append(group.wire, Epoch(1), RaftIndex(start), NO_EPOCH, ZERO, len(body)) + body


def answer(group: RaftGroup) -> bytes:
    return encode_message(
        group.wire, AppendResponse(Epoch(1), True, ZERO, ZERO, ZERO, NO_EPOCH, LogId(0))
    )


class World(Fake):
    """Groups that have five entries; every Append below that is a cut."""

    def __init__(self, count: int) -> None:
        self.groups = [make_group(number) for number in range(count)]
        for group in self.groups:
            group.core.end = RaftIndex(5)
        self.truncations_total = 0
        self.heard: list[tuple[int, bytes]] = []
        self.by_wire = {group.wire: group for group in self.groups}
        self.receiver = RaftReceiver(
            loop=asyncio.get_running_loop(),
            now=lambda: 0,
            stepper=self,
            effects=self,
            heartbeats=self,
            flusher=NONE,
            peers={PEER: Peer(PEER, NONE, PeerHeartbeat(1, PEER))},
            groups=self.by_wire,
            append_bytes_max=1000,
        )

    def handle(self, group: RaftGroup, event: Received) -> None:
        assert group.current_envelope is not None
        parts: Any = group.current_envelope.parts
        told = bytes(parts[0].data[-20:]) if parts else b"answer"
        if parts and parts[0].start < 5:
            self.truncations_total += 1
        self.heard.append((group.key.partition, told))

    def confirm(self, *_: object) -> None:
        pass

    def take(self, *messages: bytes) -> None:
        """In one frame, whose memory is another's afterwards."""
        memory = bytearray(b"".join(messages))
        self.receiver.take(PEER, memoryview(memory))
        memory[:] = bytes(len(memory))


def test_one_log_is_cut_per_turn_and_what_cuts_none_does_not_wait() -> None:
    async def play() -> None:
        world = World(3)
        first, second, third = world.groups
        world.take(append(first, b"a"), append(second, b"b"), answer(third), append(third, b"c"))
        assert [number for number, _ in world.heard] == [0, 2]
        await asyncio.sleep(0)
        assert [number for number, _ in world.heard] == [0, 2, 1]
        await asyncio.sleep(0)
        assert [number for number, _ in world.heard] == [0, 2, 1, 2]
        assert world.truncations_total == 3
        # The next turn begins with nothing in hand.
        await asyncio.sleep(0)
        world.take(append(first, b"d"))
        assert world.truncations_total == 4

    run(play())


def test_messages_of_a_group_stay_in_order_with_bytes_of_their_own() -> None:
    async def play() -> None:
        world = World(2)
        first, second = world.groups
        world.take(append(first, b"a"), append(second, b"one"))
        world.take(append(second, b"two", start=5), answer(second))
        assert len(world.heard) == 1
        await asyncio.sleep(0)
        told = [told for number, told in world.heard if number == 1]
        assert b"one" in told[0]
        assert b"two" in told[1]
        assert told[2] == b"answer"

    run(play())


def test_a_group_that_was_removed_by_then_gets_nothing() -> None:
    async def play() -> None:
        world = World(2)
        world.take(append(world.groups[0], b"a"), append(world.groups[1], b"b"))
        del world.by_wire[world.groups[1].wire]
        await asyncio.sleep(0)
        assert len(world.heard) == 1
        assert world.receiver.unknown_total == 1

    run(play())


def test_what_is_too_much_to_be_held_counts_as_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    async def play() -> None:
        world = World(4)
        one = append(world.groups[1], bytes(1000))
        monkeypatch.setattr(module, "_DEFERRED_BYTES_MAX", 2 * len(one))
        world.take(*(append(group, bytes(1000)) for group in world.groups))
        for _ in range(5):
            await asyncio.sleep(0)
        assert [number for number, _ in world.heard] == [0, 1, 2]

    run(play())
