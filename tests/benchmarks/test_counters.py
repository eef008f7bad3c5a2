import struct

import pytest

from benchmarks.clients import amqp
from benchmarks.clients.nats import MarkerCounter
from benchmarks.clients.pump import AckCounter, LoadError
from benchmarks.clients.rabbitmq import ConfirmCounter
from benchmarks.clients.redis import BulkReplyCounter, command


def feed_in_steps(counter: AckCounter, stream: bytes, step: int) -> int:
    return sum(
        counter.feed(memoryview(stream[at : at + step])) for at in range(0, len(stream), step)
    )


@pytest.mark.parametrize("step", [1, 2, 5, 13, 10_000])
def test_nats_acknowledgements_are_counted_wherever_the_stream_is_cut(step: int) -> None:
    stream = b'MSG _I.a 1 26\r\n{"stream":"S0", "seq":104}\r\n' * 50
    assert feed_in_steps(MarkerCounter(b'"seq":', b'"error"'), stream, step) == 50


def test_a_nats_error_ends_the_load() -> None:
    with pytest.raises(LoadError, match="no space"):
        MarkerCounter(b'"seq":', b'"error"').feed(memoryview(b'{"error":{"text":"no space"}}'))


@pytest.mark.parametrize("step", [1, 3, 14, 10_000])
def test_redis_replies_are_counted_wherever_the_stream_is_cut(step: int) -> None:
    assert feed_in_steps(BulkReplyCounter(), b"$15\r\n1700000000000-1\r\n" * 40, step) == 40


def test_a_redis_error_among_replies_ends_the_load() -> None:
    with pytest.raises(LoadError, match="MISCONF"):
        BulkReplyCounter().feed(memoryview(b"$3\r\n1-1\r\n-MISCONF no disk\r\n"))


def test_redis_commands_carry_the_length_of_each_word() -> None:
    assert command(b"XADD", b"s:0") == b"*2\r\n$4\r\nXADD\r\n$3\r\ns:0\r\n"


def confirm(count: int) -> bytes:
    body = struct.pack(">HHBi", 3, 1, 0, count) + bytes(8 * count)
    return struct.pack(">I", len(body)) + body


@pytest.mark.parametrize("step", [1, 9, 64, 10_000])
def test_rabbitmq_confirms_are_counted_wherever_the_stream_is_cut(step: int) -> None:
    stream = confirm(3) + confirm(1) + confirm(100)
    assert feed_in_steps(ConfirmCounter(), stream, step) == 104


def amqp_ack(tag: int, *, multiple: bool) -> bytes:
    payload = struct.pack(">HHQB", 60, 80, tag, multiple)
    return struct.pack(">BHI", 1, 1, len(payload)) + payload + b"\xce"


@pytest.mark.parametrize("step", [1, 11, 10_000])
def test_amqp_confirms_of_one_and_of_many_count_each_message_once(step: int) -> None:
    stream = (
        amqp_ack(2, multiple=False)
        + amqp_ack(5, multiple=False)
        + amqp_ack(4, multiple=True)
        + amqp_ack(7, multiple=True)
        + amqp_ack(8, multiple=False)
    )
    assert feed_in_steps(amqp.ConfirmCounter(), stream, step) == 8


def test_an_amqp_refusal_ends_the_load() -> None:
    payload = struct.pack(">HHQB", 60, 120, 1, 0)
    frame = struct.pack(">BHI", 1, 1, len(payload)) + payload + b"\xce"
    with pytest.raises(LoadError, match="120"):
        amqp.ConfirmCounter().feed(memoryview(frame))
