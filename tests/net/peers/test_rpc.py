"""Questions between brokers: answered, refused, given up, and never too many at once."""

import asyncio
from typing import Any

import pytest

from harness.virtual_loop import run_virtually
from moldau.model.errors import ErrorCode, PeerProtocolError, RefusedError
from moldau.model.ids import BrokerId
from moldau.net.peers.frames import FrameKind
from moldau.net.peers.methods import PeerMethod
from moldau.net.peers.rpc import NotSentError, PeerRpc
from moldau.testing.waiting import until

ONE, TWO = BrokerId(1), BrokerId(2)


class Wire:
    """Two brokers' questions, without sockets."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.is_up = True
        self.one = PeerRpc(
            loop=loop, send=lambda *frame: self._carry(self.two, ONE, *frame), first_id=1
        )
        self.two = PeerRpc(
            loop=loop, send=lambda *frame: self._carry(self.one, TWO, *frame), first_id=1
        )

    def _carry(
        self, to: PeerRpc, sender: BrokerId, _: BrokerId, kind: FrameKind, chunks: list[Any]
    ) -> bool:
        if self.is_up:
            body = memoryview(b"".join(chunks))
            asyncio.get_running_loop().call_soon(to.on_frame, sender, kind, body)
        return self.is_up


def test_requests_succeed_or_are_refused_with_the_code_of_the_peer() -> None:
    async def scenario() -> None:
        wire = Wire()

        async def reverse(sender: BrokerId, payload: bytes) -> bytes:
            if not payload:
                raise RefusedError(ErrorCode.NOT_CONTROLLER, f"go away, {sender}")
            await asyncio.sleep(0.001 * payload[0])
            return payload[::-1]

        wire.two.serve(7, reverse)
        questions = [wire.one.call(TWO, 7, bytes([9 - i, i]), 10) for i in range(9)]
        assert await asyncio.gather(*questions) == [bytes([i, 9 - i]) for i in range(9)]
        with pytest.raises(RefusedError, match="go away, 1") as refused:
            await wire.one.call(TWO, 7, b"", 10)
        assert refused.value.code is ErrorCode.NOT_CONTROLLER
        with pytest.raises(RefusedError, match="method 8"):
            await wire.one.call(TWO, 8, b"", 10)

    run_virtually(scenario())


def test_a_request_ends_at_its_timeout_or_when_the_link_is_lost() -> None:
    async def scenario() -> None:
        wire = Wire()

        async def never(sender: BrokerId, payload: bytes) -> bytes:
            await asyncio.sleep(3600)
            return b""

        wire.two.serve(1, never)
        with pytest.raises(RefusedError) as refused:
            await wire.one.call(TWO, 1, b"", 0.01)
        assert refused.value.code is ErrorCode.REQUEST_TIMED_OUT
        asking = asyncio.ensure_future(wire.one.call(TWO, 1, b"", 10))
        await asyncio.sleep(0)
        wire.one.peer_lost(TWO)
        with pytest.raises(RefusedError) as refused:
            await asking
        assert refused.value.code is ErrorCode.NETWORK_EXCEPTION
        # It may have been heard. What never left has not, and whoever asks can tell.
        assert not isinstance(refused.value, NotSentError)
        wire.is_up = False
        with pytest.raises(NotSentError, match="not connected"):
            await wire.one.call(TWO, 1, b"", 10)
        wire.two.stop()
        await asyncio.sleep(0)

    run_virtually(scenario())


def test_a_late_response_is_not_taken_for_that_to_a_later_request() -> None:
    async def scenario() -> None:
        wire = Wire()

        async def echo(sender: BrokerId, payload: bytes) -> bytes:
            await asyncio.sleep(payload[0])
            return payload

        wire.two.serve(1, echo)
        with pytest.raises(RefusedError, match="timed out"):
            await wire.one.call(TWO, 1, bytes([3]), 2)
        # The first response arrives a second later, while the second request waits.
        assert await wire.one.call(TWO, 1, bytes([5]), 10) == bytes([5])

    run_virtually(scenario())


def test_a_peer_with_too_many_requests_at_once_is_refused() -> None:
    async def scenario() -> None:
        wire = Wire()
        gate = asyncio.Event()

        async def wait(sender: BrokerId, payload: bytes) -> bytes:
            await gate.wait()
            return b"ok"

        wire.two.serve(1, wait)
        asking = [asyncio.ensure_future(wire.one.call(TWO, 1, b"", 30)) for _ in range(100)]
        await until(lambda: sum(one.done() for one in asking) == 36, "the rest is refused")
        gate.set()
        results = await asyncio.gather(*asking, return_exceptions=True)
        assert results.count(b"ok") == 64
        refused = [result for result in results if isinstance(result, RefusedError)]
        assert len(refused) == 36
        assert {error.code for error in refused} == {ErrorCode.THROTTLING_QUOTA_EXCEEDED}

    run_virtually(scenario())


def test_requests_that_limit_themselves_take_no_place_of_others() -> None:
    async def scenario() -> None:
        wire = Wire()
        gate = asyncio.Event()

        async def wait(sender: BrokerId, payload: bytes) -> bytes:
            await gate.wait()
            return b"ok"

        wire.two.serve(1, wait, limits_itself=True)
        wire.two.serve(2, wait)
        asking = [asyncio.ensure_future(wire.one.call(TWO, 1, b"", 30)) for _ in range(100)]
        others = [asyncio.ensure_future(wire.one.call(TWO, 2, b"", 30)) for _ in range(64)]
        await asyncio.sleep(1)
        assert not any(one.done() for one in asking + others)
        gate.set()
        assert set(await asyncio.gather(*asking, *others)) == {b"ok"}

    run_virtually(scenario())


def test_slow_requests_for_operators_take_no_place_of_what_the_cluster_lives_on() -> None:
    async def scenario() -> None:
        wire = Wire()
        gate = asyncio.Event()

        async def wait(sender: BrokerId, payload: bytes) -> bytes:
            await gate.wait()
            return b"ok"

        async def submit(sender: BrokerId, payload: bytes) -> bytes:
            return b"done"

        slow = (PeerMethod.GROUP_LAGS, PeerMethod.DELETE_RECORDS, PeerMethod.QUEUE_REDRIVE)
        for method in slow:
            wire.two.serve(method, wait)
        wire.two.serve(PeerMethod.SUBMIT_COMMAND, submit)
        asking = [
            asyncio.ensure_future(wire.one.call(TWO, slow[number % 3], b"", 30))
            for number in range(100)
        ]
        await until(lambda: sum(one.done() for one in asking) == 36, "the rest is refused")
        assert await wire.one.call(TWO, PeerMethod.SUBMIT_COMMAND, b"", 1) == b"done"
        gate.set()
        results = await asyncio.gather(*asking, return_exceptions=True)
        assert results.count(b"ok") == 64

    run_virtually(scenario())


def test_requests_for_operators_leave_the_caller_places_of_its_own() -> None:
    async def scenario() -> None:
        wire = Wire()

        async def never(sender: BrokerId, payload: bytes) -> bytes:
            await asyncio.Event().wait()
            return b""

        for method in (PeerMethod.RELAY_NEXT, PeerMethod.SUBMIT_COMMAND):
            wire.two.serve(method, never, limits_itself=True)
        asking = [
            asyncio.ensure_future(wire.one.call(TWO, PeerMethod.RELAY_NEXT, b"", 30))
            for _ in range(600)
        ]
        await until(lambda: sum(one.done() for one in asking) == 88, "the rest is refused")
        with pytest.raises(NotSentError, match="limit of 512"):
            await wire.one.call(TWO, PeerMethod.RELAY_NEXT, b"", 1)
        with pytest.raises(RefusedError, match="timed out"):
            await wire.one.call(TWO, PeerMethod.SUBMIT_COMMAND, b"", 1)
        wire.one.stop()
        wire.two.stop()
        await asyncio.gather(*asking, return_exceptions=True)

    run_virtually(scenario())


def test_requests_that_end_early_are_refused_as_a_breach_of_the_protocol() -> None:
    async def scenario() -> None:
        wire = Wire()
        for kind in (FrameKind.REQUEST, FrameKind.REPLY, FrameKind.FAILURE):
            with pytest.raises(PeerProtocolError):
                wire.one.on_frame(TWO, kind, memoryview(b"\0\0\0"))

    run_virtually(scenario())
