"""Requests with many names: no API handles all of them in one turn of the event loop.

Generated from the sample requests of all served APIs: each list in them is made long. What is
counted are calls of functions between two turns, not time.

A request without names may get all that a broker has: those have a table of their own.
"""

import asyncio
import sys
from collections.abc import Callable, Iterator
from copy import deepcopy
from functools import partial
from types import FrameType, SimpleNamespace
from typing import Any, cast

import pytest
from guarded_calls import ALICE
from handler_calls import (
    Asked,
    FakeCluster,
    FakeConnection,
    broker_of,
    brokers,
    image,
    service,
    topic,
)
from kafka_refusals import WALKS
from refusal_world import served_versions, world

from moldau.api.broker import Broker
from moldau.api.session import Sessions
from moldau.edge.kafka import large_requests
from moldau.edge.kafka.dispatcher import Dispatcher
from moldau.edge.kafka.handlers import fetch, produce
from moldau.edge.kafka.served_apis import APIS
from moldau.groups.results import CommittedOffset, FetchOffsetsResult, GroupState, ListedGroup
from moldau.model.errors import ErrorCode, PeerProtocolError
from moldau.model.ids import Offset, PartitionIndex, ProducerId, TimestampMs, TopicPartition
from moldau.net.connection import Connection
from moldau.transactions.results import ListedTransaction
from moldau.wire.framing import frame_request
from moldau.wire.messages.describe_log_dirs import DescribeLogDirsRequest
from moldau.wire.messages.list_groups import ListGroupsRequest
from moldau.wire.messages.list_transactions import ListTransactionsRequest
from moldau.wire.messages.metadata import MetadataRequest
from moldau.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
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


# ---- requests that name nothing: the answer is all that the broker has


def of_topics(topics: int, partitions: int) -> Broker:
    known = [topic(f"t{number}", *[(1,)] * partitions) for number in range(topics)]
    return broker_of(FakeCluster(image(brokers(1), *known)))


def of_replicas() -> Broker:
    replicas = [
        SimpleNamespace(partition=each, size_bytes=100, high_watermark=7, end_offset=8)
        for each in PARTITIONS
    ]
    disk: dict[str, Any] = {
        "disk_total_bytes": lambda: 100,
        "disk_free_bytes": lambda: 50,
        "data_dir": "/data",
    }
    return broker_of(FakeCluster(image(brokers(1))), replicas=replicas, **disk)


def of_offsets() -> Broker:
    at = CommittedOffset(offset=Offset(7), commit_timestamp=TimestampMs(0))
    offsets = dict.fromkeys(PARTITIONS, at)

    async def fetch_offsets(*_: object, **__: object) -> FetchOffsetsResult:
        return FetchOffsetsResult(error=ErrorCode.NONE, offsets=offsets)

    known = [topic(f"t{number}", *[(1,)] * 50) for number in range(100)]
    found = service(fetch_offsets=fetch_offsets)
    return broker_of(FakeCluster(image(brokers(1), *known)), groups=found)


def of_groups() -> Broker:
    listed = [
        ListedGroup(group_id=f"g{number}", protocol_type="consumer", state=GroupState.EMPTY)
        for number in range(ALL)
    ]
    found = service(list_groups=lambda *_: (ErrorCode.NONE, listed))
    return broker_of(FakeCluster(image(brokers(1))), groups=found)


def of_transactions() -> Broker:
    listed = [
        ListedTransaction(transactional_id=f"t{number}", producer_id=ProducerId(1), state="Ongoing")
        for number in range(ALL)
    ]
    found = service(list_transactions=lambda *_: (ErrorCode.NONE, listed))
    return broker_of(FakeCluster(image(brokers(1))), transactions=found)


ALL = 5000
PARTITIONS = [
    TopicPartition(f"t{number}", PartitionIndex(index))
    for number in range(100)
    for index in range(50)
]
OF_GROUP = OffsetFetchRequestGroup(group_id="g", topics=None)
ALL_CASES: list[tuple[Request, list[int], Callable[[], Broker]]] = [
    (MetadataRequest(topics=None), [1, 12], partial(of_topics, 100, 50)),
    (MetadataRequest(topics=None), [1, 12], partial(of_topics, 1, ALL)),
    (DescribeLogDirsRequest(topics=None), [1, 4], of_replicas),
    (OffsetFetchRequest(group_id="g", topics=None), [2, 7], of_offsets),
    (OffsetFetchRequest(groups=[OF_GROUP]), [8, 10], of_offsets),
    (ListGroupsRequest(), [0, 5], of_groups),
    (ListTransactionsRequest(state_filters=[], producer_id_filters=[]), [0, 1], of_transactions),
]
FEW = {
    ApiKey.CREATE_PARTITIONS: "null: the broker chooses the replicas of the partitions",
    ApiKey.DESCRIBE_CONFIGS: "null: all settings, of which there is a fixed number",
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: "null: the reassignment is cancelled",
    ApiKey.CONSUMER_GROUP_HEARTBEAT: "null: the same as before",
    ApiKey.LIST_PARTITION_REASSIGNMENTS: "only those in progress, which an administrator started",
    ApiKey.ELECT_LEADERS: "only partitions without their preferred leader, in `run_each`",
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: "as many users as administrators create",
}
"""Requests with a list that may be null, which is not answered with all that the broker has."""


def test_every_request_for_all_is_tried() -> None:
    nullable = {
        key
        for key, api in APIS.items()
        if any(
            has_null(api.request, version)
            for version in range(api.versions[0], api.versions[1] + 1)
        )
    }
    tried = {request.API_KEY for request, *_ in ALL_CASES}
    assert nullable <= tried | FEW.keys()
    assert not tried & FEW.keys()


def has_null(kind: Any, version: int) -> bool:
    """Whether one of its lists may be null."""
    return any(
        field.kind == "array"
        and version in field.versions
        and (
            version in field.nullable
            or (not isinstance(field.element, str) and has_null(field.element, version))
        )
        for field in kind.FIELDS.values()
    )


@pytest.mark.parametrize(
    ("request_", "version", "made"),
    [
        pytest.param(request, version, made, id=f"{number}-{type(request).__name__}-v{version}")
        for number, (request, versions, made) in enumerate(ALL_CASES)
        for version in versions
    ],
)
async def test_no_turn_describes_and_encodes_all(
    request_: Request, version: int, made: Callable[[], Broker], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(large_requests, "_TURN_SECONDS_MAX", 0.0)
    dispatcher = Dispatcher(Sessions(made()), APIS)
    connection = FakeConnection()
    chunks = frame_request(request_, version, 1, "test")
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
    assert len(second) > ALL * 10
    assert calls.most < calls.all / 4
