"""Streams that are kept for the next call, and for how long."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from moldau.client.queue import send_streams
from moldau.client.queue.send_stream import SendOutcome, SendStream
from moldau.client.queue.send_streams import SendStreams
from moldau.proto.v1 import queue_pb2 as pb


class Call:
    """A stream of gRPC that is over once it is cancelled."""

    def __init__(self) -> None:
        self.is_over = False

    def cancel(self) -> None:
        self.is_over = True

    def done(self) -> bool:
        return self.is_over


class FakeChannels:
    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.lost: set[str] = set()

    def is_connected(self, address: str) -> bool:
        return address not in self.lost

    def stream(self, address: str, method: object) -> Call:
        self.calls.append(Call())
        return self.calls[-1]


@pytest.fixture
def channels() -> FakeChannels:
    return FakeChannels()


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Sets the time of the streams."""
    now = 0.0
    monkeypatch.setattr("time.monotonic", lambda: now)

    def advance(seconds: float) -> None:
        nonlocal now
        now += seconds

    return advance


def opened(channels: FakeChannels) -> SendStreams:
    return SendStreams(cast(Any, channels))


async def used(streams: SendStreams, address: str = "a:1") -> SendStream:
    """After a call that sent all that it had."""
    stream = streams.take(address)
    stream.begin(SendOutcome("t"), acks=pb.ACKS_ALL, seconds_max=1.0, in_flight_max=2)
    await stream.finish()
    return stream


async def test_a_stream_serves_the_next_call_to_its_address(channels: FakeChannels) -> None:
    streams = opened(channels)
    first = await used(streams)
    streams.give_back(first)
    assert await used(streams) is first
    # It is in use now; and another broker needs a stream of its own.
    assert await used(streams) is not first
    streams.give_back(first)
    assert await used(streams, "b:2") is not first
    streams.close()


async def test_a_stream_that_ended_meanwhile_is_not_used_again(channels: FakeChannels) -> None:
    streams = opened(channels)
    first = await used(streams)
    streams.give_back(first)
    channels.calls[0].cancel()
    assert await used(streams) is not first
    streams.close()


async def test_a_stream_to_a_broker_that_is_gone_is_not_used_again(channels: FakeChannels) -> None:
    """The call itself learns of it later: what it sends then would be in doubt."""
    streams = opened(channels)
    first = await used(streams)
    streams.give_back(first)
    channels.lost.add(first.address)
    assert await used(streams) is not first
    assert channels.calls[0].is_over
    streams.close()


async def test_a_stream_that_waits_for_responses_is_not_kept(channels: FakeChannels) -> None:
    streams = opened(channels)
    stream = streams.take("a:1")
    stream.begin(SendOutcome("t"), acks=pb.ACKS_ALL, seconds_max=1.0, in_flight_max=2)
    await asyncio.sleep(0)
    streams.give_back(stream)
    assert channels.calls[0].is_over
    assert await used(streams) is not stream
    streams.close()


@pytest.mark.parametrize("what", ["idle", "age"])
async def test_old_streams_are_closed(
    channels: FakeChannels, clock: Callable[[float], None], what: str
) -> None:
    streams = opened(channels)
    stream = await used(streams)
    if what == "age":
        clock(send_streams.AGE_SECONDS_MAX + 1)
        await stream.finish()
    streams.give_back(stream)
    if what == "idle":
        clock(send_streams.IDLE_SECONDS_MAX + 1)
    assert await used(streams) is not stream
    assert channels.calls[0].is_over
    streams.close()


async def test_a_timer_closes_what_nobody_takes_again(
    channels: FakeChannels, clock: Callable[[float], None]
) -> None:
    streams = opened(channels)
    streams.give_back(await used(streams))
    clock(send_streams.IDLE_SECONDS_MAX + 1)
    streams._close_old()
    assert channels.calls[0].is_over
    assert streams._timer is None


async def test_only_some_are_kept_and_none_after_the_end(channels: FakeChannels) -> None:
    streams = opened(channels)
    taken = [await used(streams) for _ in range(send_streams.IDLE_PER_ADDRESS_MAX + 2)]
    for stream in taken:
        streams.give_back(stream)
    assert sum(call.is_over for call in channels.calls) == 2
    late = streams.take("a:1").begin(
        SendOutcome("t"), acks=pb.ACKS_ALL, seconds_max=1.0, in_flight_max=2
    )
    await late.finish()
    streams.close()
    assert sum(call.is_over for call in channels.calls) == len(taken) - 1
    streams.give_back(late)
    assert all(call.is_over for call in channels.calls)
