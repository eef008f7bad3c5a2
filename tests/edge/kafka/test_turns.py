"""Requests with many names: no API handles all of them in one turn of the event loop.

Generated from the sample requests of all served APIs: each list in them is made long. What is
counted are calls of functions between two turns, not time.
"""

import asyncio
import sys
from collections.abc import Iterator
from copy import deepcopy
from types import FrameType
from typing import Any, cast

import pytest
from guarded_calls import ALICE
from handler_calls import Asked, FakeCluster, FakeConnection, broker_of, brokers, image, topic
from kafka_refusals import WALKS
from refusal_world import served_versions, world

from moldau.api.session import Sessions
from moldau.edge.kafka import large_requests
from moldau.edge.kafka.dispatcher import Dispatcher
from moldau.edge.kafka.handlers import fetch, produce
from moldau.edge.kafka.served_apis import APIS
from moldau.model.errors import PeerProtocolError
from moldau.net.connection import Connection
from moldau.wire.framing import frame_request
from moldau.wire.messages.metadata import MetadataRequest
from moldau.wire.registry import ApiKey
from moldau.wire.schema import Request, Response

NAMES = 250
CALLS_PER_NAME_MAX = 13
"""To make entries of a response takes up to twelve, in the oldest form of OffsetFetch; to check
rights, and refuse, takes more than that."""
EXAMPLES = {
    "string": "name",
    "i8": 1,
    "i16": 1,
    "i32": 1,
    "i64": 1,
    "f64": 1.0,
    "uuid": bytes(16),
    "bytes": b"",
    "bool": False,
}

Path = tuple[str, ...]


def lists_of(kind: Any, version: int, path: Path = ()) -> Iterator[Path]:
    """The lists of a request, by the fields that lead to them."""
    for name, field in kind.FIELDS.items():
        if field.kind == "array" and version in field.versions:
            yield (*path, name)
            if not isinstance(field.element, str):
                yield from lists_of(field.element, version, (*path, name))


def with_many(request: Request, path: Path) -> Request:
    """The same request with a long list; its elements have different names where they have any."""
    made: Any = deepcopy(request)
    part = made
    for step in path[:-1]:
        part = _elements(part, step)[0]
    found = _elements(part, path[-1])
    found[:] = [_renamed(found[0], number) for number in range(NAMES)]
    return cast("Request", made)


def _elements(part: Any, name: str) -> list[Any]:
    """The list of this name, which gets an element if it has none."""
    if not getattr(part, name):
        element = part.FIELDS[name].element
        made = EXAMPLES[element] if isinstance(element, str) else _example(element)
        setattr(part, name, [made])
    return cast("list[Any]", getattr(part, name))


def _example(kind: Any) -> Any:
    """With what a field must have, and nothing else."""
    required = {
        name: [] if field.kind == "array" else EXAMPLES[field.kind]
        for name, field in kind.FIELDS.items()
        if field.required
    }
    return kind(**required)


def _renamed(element: Any, number: int) -> Any:
    if isinstance(element, str):
        return f"{element}-{number}"
    if isinstance(element, int):
        return number
    made = deepcopy(element)
    for name, field in made.FIELDS.items():
        if field.kind == "string" and getattr(made, name) is not None:
            setattr(made, name, f"{getattr(made, name)}-{number}")
            break
    return made


CASES = [
    pytest.param(
        walk.request,
        path,
        version,
        id=f"{ApiKey(walk.request.API_KEY).name}-{number}-v{version}-{'.'.join(path)}",
    )
    for number, walk in enumerate(WALKS)
    if walk.request.API_KEY in APIS
    for version in served_versions(walk)
    for path in lists_of(walk.request, version)
]


class Calls:
    """Counts calls of functions between two turns of the event loop."""

    def __init__(self) -> None:
        self.most = self.all = self._now = 0

    def count(self, frame: FrameType, event: str, argument: object) -> None:
        self._now += event == "call"

    def count_builtins(self, frame: FrameType, event: str, argument: object) -> None:
        """Those too: all that an encoder calls are."""
        self._now += event in ("call", "c_call")
        self.all += event in ("call", "c_call")

    async def watch(self) -> None:
        while True:
            self.most, self._now = max(self.most, self._now), 0
            await asyncio.sleep(0)


async def most_calls_in_a_turn(request: Request, version: int) -> int:
    session = world().session(ALICE)
    calls = Calls()
    watching = asyncio.create_task(calls.watch())
    await asyncio.sleep(0)
    sys.setprofile(calls.count)
    try:
        asked = Asked(APIS[request.API_KEY], session, request, version)
        result = asked.result
        if not isinstance(result, Response) and result is not None:
            await result
        asked.deadlines.stop()
    except PeerProtocolError:
        # Refused as a whole: the connection is closed.
        pass
    finally:
        sys.setprofile(None)
        await asyncio.sleep(0)
        watching.cancel()
    return calls.most


@pytest.mark.parametrize(("request_", "path", "version"), CASES)
async def test_no_turn_handles_all_names(
    request_: Request, path: Path, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(large_requests, "_TURN_SECONDS_MAX", 0.0)
    monkeypatch.setattr(large_requests, "_CLOCK_INTERVAL", 1)
    for module in (large_requests, fetch, produce):
        monkeypatch.setattr(module, "NAMES_MAX", NAMES - 1)
    # Makes the codec, which is not what is counted.
    await most_calls_in_a_turn(request_, version)
    found = await most_calls_in_a_turn(with_many(request_, path), version)
    assert found <= CALLS_PER_NAME_MAX * NAMES


@pytest.mark.parametrize(("topics", "partitions"), [(100, 50), (1, 5000)])
@pytest.mark.parametrize("version", [1, 12])
async def test_no_turn_describes_and_encodes_all_topics_of_a_large_cluster(
    topics: int, partitions: int, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(large_requests, "_TURN_SECONDS_MAX", 0.0)
    known = [topic(f"t{number}", *[(1,)] * partitions) for number in range(topics)]
    sessions = Sessions(broker_of(FakeCluster(image(brokers(1), *known))))
    dispatcher = Dispatcher(sessions, APIS)
    connection = FakeConnection()
    chunks = frame_request(MetadataRequest(topics=None), version, 1, "test")
    frame = b"".join(bytes(cast("bytes", chunk)) for chunk in chunks)[4:]
    calls = Calls()
    # The first makes the codec, which is not what is counted.
    for count in (None, calls.count_builtins):
        watching = asyncio.create_task(calls.watch())
        await asyncio.sleep(0)
        sys.setprofile(count)
        try:
            dispatcher.on_frame(cast("Connection", connection), memoryview(frame))
            await asyncio.sleep(0)
            while dispatcher._tasks:
                await asyncio.sleep(0)
        finally:
            sys.setprofile(None)
            watching.cancel()
    first, second = connection.replies
    assert first == second
    assert len(second) > topics * partitions * 20
    assert calls.most < calls.all / 4
