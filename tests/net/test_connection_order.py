"""Connections: which requests wait for the answers to those before them."""

import asyncio

import pytest
from connections import Recorder, framed, listening, read_frame, settled

from moldau.net.connection import NONE_OVERLAP, Connection
from moldau.net.replies import DeferredReply
from moldau.testing.waiting import until

pytestmark = pytest.mark.inprocess


async def test_frames_wait_for_the_answers_before_them_unless_they_may_overlap() -> None:
    waiting: list[DeferredReply] = []

    def answer(connection: Connection, frame: bytes) -> None:
        connection.overlaps = 7 if frame.startswith(b"\0\7") else NONE_OVERLAP
        waiting.append(connection.defer())

    handler = Recorder(answer)
    frames = [b"\0\7a", b"\0\7b", b"\0\1c", b"\0\7d"]
    async with listening(handler) as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"".join(map(framed, frames)))
        await until(lambda: len(handler.frames) == 2, "two overlap")
        await settled()
        assert handler.frames == frames[:2]
        waiting[1].complete([framed(b"2")])
        await settled()
        assert handler.frames == frames[:2], "the first is unanswered"
        waiting[0].complete([framed(b"1")])
        await until(lambda: handler.frames == frames[:3], "the third is alone")
        await settled()
        assert handler.frames == frames[:3], "what it leads to counts for the next"
        waiting[2].complete([framed(b"3")])
        await until(lambda: handler.frames == frames, "the last has its turn")
        waiting[3].complete([framed(b"4")])
        assert [await read_frame(reader) for _ in frames] == [b"1", b"2", b"3", b"4"]
        writer.close()


async def test_a_handler_that_holds_back_a_response_learns_of_the_next_frame() -> None:
    heard: list[int] = []

    def answer(connection: Connection, frame: bytes) -> None:
        if frame.startswith(b"\0\1"):
            connection.overlaps = NONE_OVERLAP
            reply = connection.defer()

            def end(kind: int) -> None:
                heard.append(kind)
                reply.complete([framed(b"ended")])

            connection.on_next = end
        else:
            connection.on_next = None
            connection.reply([framed(b"next")])

    async with listening(Recorder(answer)) as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(framed(b"\0\1") + framed(b"\0\3"))
        assert [await read_frame(reader), await read_frame(reader)] == [b"ended", b"next"]
        assert heard == [3]
        writer.close()
