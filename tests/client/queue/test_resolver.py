"""The view is the newest that anybody tells, and stays when nobody does."""

import asyncio
import itertools
import time
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from grpc import aio

from moldau.client.errors import (
    ClientError,
    InvalidArgumentError,
    TimedOutError,
    UnavailableError,
    UnreachableError,
)
from moldau.client.queue import resolver as resolver_module
from moldau.client.queue.resolver import Resolver, grpc_seeds
from moldau.client.retry import CONNECT_RETRY_SECONDS_MAX
from moldau.proto.trailers import REASON_TRAILER
from moldau.proto.v1 import queue_pb2 as pb

pytestmark = pytest.mark.inprocess


class Told:
    """In place of channels: what each address answers; None is silence."""

    def __init__(self, **answers: pb.TopologyResponse | None) -> None:
        self.answers = {f"{name}:1": answer for name, answer in answers.items()}
        self.asked: list[str] = []
        self.kept: set[str] = set()
        self.connected: set[str] = set()

    async def call(self, address: str, *_: Any, **__: Any) -> pb.TopologyResponse:
        self.asked.append(address)
        answer = self.answers.get(address)
        if answer is None:
            raise aio.AioRpcError(
                grpc.StatusCode.UNAVAILABLE,
                aio.Metadata(),
                aio.Metadata(),
                details="failed to connect to all addresses; last error: refused",
            )
        return answer

    def is_connected(self, address: str) -> bool:
        return address in self.connected

    def keep_only(self, addresses: set[str]) -> None:
        self.kept = addresses


def topology(version: int, *brokers: str, cluster: str = "c") -> pb.TopologyResponse:
    answer = pb.TopologyResponse(cluster_id=cluster, version=version)
    for number, name in enumerate(brokers, 1):
        answer.brokers.add(id=number, grpc_address=f"{name}:1", is_alive=True)
    return answer


def resolver(told: Any, *seeds: str) -> Resolver:
    return Resolver([f"{seed}:1" for seed in seeds], told)


def test_one_seed_that_answers_leads_to_all_brokers() -> None:
    async def work() -> None:
        told = Told(b=topology(1, "b", "c"))
        own = resolver(told, "a", "b")
        await own.refresh()
        assert own.view.alive_addresses == ["b:1", "c:1"]
        assert own.has_response
        assert told.kept == {"a:1", "b:1", "c:1"}

    asyncio.run(work())


def test_an_older_answer_is_not_believed_while_there_is_a_newer_one() -> None:
    async def work() -> None:
        told = Told(a=topology(5, "a", "b"), b=topology(4, "b"))
        own = resolver(told, "a")
        for _ in range(4):
            await own.refresh()
            assert own.view.version == 5
        told.answers["a:1"] = None
        await own.refresh()
        assert own.view.version == 4, "the only answer there is"

    asyncio.run(work())


def test_brokers_are_asked_in_turn() -> None:
    async def work() -> None:
        told = Told(a=topology(1, "a", "b"), b=topology(1, "a", "b"))
        own = resolver(told, "a")
        for _ in range(5):
            await own.refresh()
        assert {*told.asked} == {"a:1", "b:1"}

    asyncio.run(work())


def test_the_view_stays_without_a_response() -> None:
    async def work() -> None:
        told = Told(a=topology(1, "a"))
        own = resolver(told, "a")
        await own.refresh()
        told.answers.clear()
        await own.refresh()
        assert own.view.alive_addresses == ["a:1"]
        assert not own.has_response
        assert list(own.failures) == ["a:1"]
        told.answers["a:1"] = topology(0, "a", "d", cluster="another")
        await own.refresh()
        assert own.view.alive_addresses == ["a:1", "d:1"]

    asyncio.run(work())


def test_many_callers_at_once_share_one_request() -> None:
    async def work() -> None:
        told = Told(a=topology(1, "a"))
        own = resolver(told, "a")
        await asyncio.gather(*(own.refresh() for _ in range(50)))
        assert told.asked == ["a:1"]

    asyncio.run(work())


def test_a_start_without_anybody_is_unreachable() -> None:
    async def work() -> None:
        with pytest.raises(UnreachableError, match="a:1"):
            await resolver(Told(), "a").start(0.1)

    asyncio.run(work())


def test_a_refused_second_address_of_a_name_does_not_hide_why_the_first_failed() -> None:
    class Twofold(Told):
        async def call(self, address: str, *_: Any, **__: Any) -> pb.TopologyResponse:
            self.asked.append(address)
            why = "Connection refused" if len(self.asked) > 1 else "Socket closed"
            raise aio.AioRpcError(
                grpc.StatusCode.UNAVAILABLE,
                aio.Metadata(),
                aio.Metadata(),
                details=f"failed to connect to all addresses; last error: {why}",
            )

    async def work() -> None:
        twofold = Twofold()
        with pytest.raises(UnreachableError, match="it closed the connection") as caught:
            await resolver(twofold, "a").start(1.0)
        assert len(twofold.asked) > 1
        assert "require TLS" in caught.value.hint

    asyncio.run(work())


@pytest.mark.parametrize(
    ("status", "connected", "seconds"),
    [
        (grpc.StatusCode.UNAVAILABLE, False, CONNECT_RETRY_SECONDS_MAX),
        (grpc.StatusCode.DEADLINE_EXCEEDED, False, 1.0),
        (grpc.StatusCode.DEADLINE_EXCEEDED, True, 1.5),
    ],
    ids=["refused", "no connection", "slow"],
)
def test_a_start_gives_up_by_the_connect_deadline_unless_a_broker_is_only_slow(
    monkeypatch: pytest.MonkeyPatch, status: grpc.StatusCode, connected: bool, seconds: float
) -> None:
    monkeypatch.setattr(resolver_module, "CONNECT_SECONDS_MAX", 1.0)

    class Failing(Told):
        async def call(self, address: str, *_: Any, **__: Any) -> pb.TopologyResponse:
            raise aio.AioRpcError(status, aio.Metadata(), aio.Metadata(), details="x")

    async def work() -> float:
        told = Failing()
        told.connected = {"a:1"} if connected else set()
        started_at = time.monotonic()
        with pytest.raises((UnreachableError, TimedOutError)):
            await resolver(told, "a").start(1.5)
        return time.monotonic() - started_at

    assert asyncio.run(work()) >= seconds


class Refused(Told):
    async def call(self, address: str, *_: Any, **__: Any) -> pb.TopologyResponse:
        self.asked.append(address)
        trailers = aio.Metadata((REASON_TRAILER, "UNAUTHENTICATED"))
        raise aio.AioRpcError(
            grpc.StatusCode.UNAUTHENTICATED, aio.Metadata(), trailers, details="wrong password"
        )


def test_a_refused_login_is_not_tried_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        refused, now = Refused(), [100.0]
        monkeypatch.setattr(resolver_module, "time", SimpleNamespace(monotonic=lambda: now[0]))
        own = resolver(refused, "a")
        tried_at = []
        while now[0] < 700:
            before = len(refused.asked)
            # As often as calls of clients fail.
            await own.refresh()
            if len(refused.asked) > before:
                tried_at.append(now[0])
            now[0] += 0.5
        pauses = [after - before for before, after in itertools.pairwise(tried_at)]
        assert pauses[:5] == [5, 10, 20, 40, 60]
        assert set(pauses[5:]) == {60}
        assert own.trouble == "a:1: wrong password"
        # A broker that only does not respond is asked each time.
        told = Told(a=None)
        own = resolver(told, "a")
        for _ in range(3):
            now[0] += 0.5
            await own.refresh()
        assert len(told.asked) == 3
        assert own.trouble == "a:1: connection refused"
        told.answers["a:1"] = topology(1, "a")
        now[0] += 0.5
        await own.refresh()
        assert own.trouble == ""

    asyncio.run(work())


def test_seeds_are_addresses() -> None:
    assert grpc_seeds(["a", "b:1,c:2", "http://d:8080", "[::1]:3"]) == [
        "a:8000",
        "b:1",
        "c:2",
        "[::1]:3",
    ]
    with pytest.raises(InvalidArgumentError, match="invalid broker address"):
        grpc_seeds(["a:99999"])


async def test_a_broker_that_starts_is_waited_for_also_over_http(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = 0

    class Starting:
        def __init__(self, addresses: object, **_: object) -> None:
            pass

        def topology(self) -> object:
            nonlocal calls
            calls += 1
            raise UnavailableError("the broker is starting", 14)

    monkeypatch.setattr(resolver_module, "ClusterClient", Starting)
    # Without the response, it would give up after this.
    monkeypatch.setattr(resolver_module, "CONNECT_RETRY_SECONDS_MAX", 0.0)
    waiting = Resolver(["http://a:8080"], Told())  # type: ignore[arg-type]
    with pytest.raises(ClientError):
        await waiting.start(0.5)
    assert calls > 1
