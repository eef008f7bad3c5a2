"""A cluster service that is told what to answer, behind the real HTTP listener on a real loop."""

import asyncio
import json
import secrets
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import uvloop
from open_sessions import broker_with, entrance_to

from moldau.api.play import PlayService
from moldau.control.join_service import JoinService
from moldau.edge.http.limits import HttpLimits
from moldau.edge.http.listener import HttpListener, listener_for
from moldau.log.secret_file import ClusterSecret
from moldau.metadata.security import JoinToken
from moldau.model.ids import BrokerId
from moldau.model.play import Playground
from moldau.model.topology import (
    Endpoint,
    JoinReply,
    JoinRequest,
    ProvenJoinRequest,
    Topology,
    TopologyBroker,
    TopologyPartition,
    TopologyTopic,
)
from moldau.net.tls.contexts import TlsContexts
from moldau.security.join_proof import NONCE_BYTES, Transcript, prove_secret
from moldau.server.clock import SystemClock
from moldau.testing.waiting import wait_seconds_max

T = TypeVar("T")

JOIN = JoinRequest(
    incarnation="directory-1",
    process="process-1",
    kafka=Endpoint("127.0.0.1", 9093),
    raft=Endpoint("127.0.0.1", 19093),
    http=Endpoint("127.0.0.1", 8081),
)
SECRET = bytes(range(32))
"""Of the fake cluster."""


def proven(challenge: bytes, request: bytes, secret: bytes = SECRET) -> ProvenJoinRequest:
    """The request of a broker that knows this secret."""
    transcript = Transcript("", secrets.token_bytes(NONCE_BYTES), challenge, request)
    return ProvenJoinRequest(
        request=request,
        challenge=challenge,
        nonce=transcript.nonce,
        proof=prove_secret(secret, transcript),
    )


def topic(name: str, *partitions: TopologyPartition) -> TopologyTopic:
    return TopologyTopic(name=name, id="00" * 16, partitions=partitions)


def partition(number: int, leader: int = 1, **fields: Any) -> TopologyPartition:
    lies: dict[str, Any] = {"replicas": (1,), "in_sync": (1,), **fields}
    return TopologyPartition(partition=number, leader=leader, leader_epoch=3, **lies)


def topology(*topics: TopologyTopic) -> Topology:
    one = TopologyBroker(
        id=1,
        kafka=Endpoint("127.0.0.1", 9092),
        raft=Endpoint("127.0.0.1", 19092),
        http=None,
        alive=True,
        epoch=1,
        leaders=1,
        replicas=1,
        is_controller=True,
        is_me=True,
    )
    return Topology(
        cluster_id="c",
        version=7,
        controller=1,
        answered_by=1,
        brokers=(one,),
        topics=topics,
        voters=(1,),
    )


class FakeCluster:
    """Says what it was told to say, and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[object] = []
        self.decided: list[object] = []
        self.failure: BaseException | None = None
        self.hold: asyncio.Event | None = None
        self.reasons: list[str] = []
        self.shown = topology(topic("a", partition(0)), topic("b.c", partition(0)))
        self.image = b"\x00\xff" * 10
        self.queried_image = b""
        """For those who only look."""
        self.tokens: dict[str, JoinToken] = {}
        self.tokens_used: list[str] = []
        self.secret_file = ""

    async def _answer(self, *asked: object) -> None:
        self.asked.append(asked if len(asked) > 1 else asked[0])
        if self.hold is not None:
            await self.hold.wait()
        if self.failure is not None:
            raise self.failure
        self.decided.append(asked)

    async def join(self, request: JoinRequest, join_token_id: str = "") -> JoinReply:
        image = self.image
        if request.is_query:
            image = self.queried_image or image
        else:
            await self._answer(request)
            self.tokens_used.append(join_token_id)
        return JoinReply(
            cluster_id="c", broker_id=2, epoch=4, image=image, voters=(1,), learners=(2,)
        )

    async def drain(self, broker_id: int) -> None:
        await self._answer("drain", broker_id)

    async def keep(self, broker_id: int) -> None:
        await self._answer("keep", broker_id)

    def topology(self) -> Topology:
        if self.failure is not None:
            raise self.failure
        return self.shown

    def health(self) -> list[str]:
        return self.reasons

    def readiness(self) -> list[str]:
        return self.health()


class Served:
    """A listener that runs in a thread of its own."""

    def __init__(self, loop: asyncio.AbstractEventLoop, cluster: FakeCluster) -> None:
        self.loop = loop
        self.cluster = cluster
        self.listener: HttpListener
        self.port = 0

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def run(self, work: Callable[[], Awaitable[T]]) -> T:
        """On the listener's loop, waited for here."""

        async def start() -> T:
            return await work()

        return asyncio.run_coroutine_threadsafe(start(), self.loop).result(wait_seconds_max())

    def ask(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: dict[str, str] | None = None,
    ) -> tuple[int, dict[str, str], Any]:
        """Status, headers, and the JSON of the reply."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=wait_seconds_max())
        try:
            sent = {"content-type": "application/json"} if body is not None else {}
            connection.request(method, path, body=body, headers={**sent, **(headers or {})})
            response = connection.getresponse()
            raw = response.read()
            names = {name.lower(): value for name, value in response.getheaders()}
            if raw:
                kinds = ("application/json", "application/problem+json")
                assert names["content-type"] in kinds[: 1 + (response.status >= 400)]
            return response.status, names, json.loads(raw) if raw else None
        finally:
            connection.close()

    def connect(self, source: str = "127.0.0.1") -> socket.socket:
        return socket.create_connection(
            ("127.0.0.1", self.port), timeout=wait_seconds_max(), source_address=(source, 0)
        )


@contextmanager
def served(
    cluster: FakeCluster | None = None,
    limits: HttpLimits | None = None,
    tls: TlsContexts | None = None,
    console: Path | None = None,
    ground: Playground | None = None,
) -> Iterator[Served]:
    """A fake cluster behind a real listener."""
    loop = uvloop.new_event_loop()
    world = Served(loop, cluster or FakeCluster())
    broker = broker_with(
        broker_id=1,
        image=SimpleNamespace(cluster_id="c"),
        cluster=world.cluster,
        joins=JoinService(
            join=lambda request, token: world.cluster.join(request, token),
            tokens=lambda: world.cluster.tokens,
            secret=ClusterSecret(SECRET),
            clock=SystemClock(),
            random_bytes=secrets.token_bytes,
            local_secret_file=world.cluster.secret_file,
        ),
        fetch=SimpleNamespace(complete_all=lambda: None),
        play=PlayService(BrokerId(1), ground),
    )
    # The fake has no parts that count anything; /metrics is tested with a real broker.
    vitals: Any = SimpleNamespace()
    no_peers: Any = SimpleNamespace(queued_bytes=lambda peer: None)
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    async def start() -> None:
        world.listener = listener_for(
            entrance_to(broker),
            vitals,
            loop=loop,
            peers=no_peers,
            first_exchange=1,
            limits=limits or HttpLimits(),
            tls=tls,
            clock=SystemClock(),
            console=console,
        )
        _, world.port = world.listener.bind("127.0.0.1", 0)
        world.listener.start()

    world.run(start)
    try:
        yield world
    finally:
        world.run(lambda: world.listener.stop(0.0))
        loop.call_soon_threadsafe(loop.stop)
        thread.join(wait_seconds_max())
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()
