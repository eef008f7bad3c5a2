"""Who is charged, what for, and who has to wait."""

import ast
import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from guarded_calls import ALICE, GuardedWorld, outcome

import moldau.edge
from harness.virtual_loop import run_virtually
from moldau.api.entrance import Entrance
from moldau.api.quotas import CLIENT_ID, ON_STEP, Quotas, bytes_of, charged, timed
from moldau.api.session import Session
from moldau.data.record_reader import ReadPage
from moldau.metadata.security_rules import QUOTA_NAME_LENGTH_MAX
from moldau.model.errors import ErrorCode, QuotaExceededError, RefusedError
from moldau.model.ids import Offset, PartitionIndex, TimestampMs
from moldau.queues.types import Delivery, PollOptions, PollResult
from moldau.records.record import Record
from moldau.security.principal import LOCAL_ADMIN, Principal, user
from moldau.security.quotas import QuotaEntity, QuotaKey
from moldau.testing.replicas import ManualClock

RATE = 100.0
RECORD = Record(
    Offset(0), TimestampMs(0), b"k" * 100, b"v" * 150, [("name", b"x" * 46), ("none", None)]
)
RECORD_BYTES = 304


def quotas_of(name: str = "alice", **rates: float) -> dict[QuotaEntity, dict[str, float]]:
    return {QuotaEntity(name, None): {QuotaKey[key]: rate for key, rate in rates.items()}}


def test_a_broker_without_quotas_charges_nobody():
    quotas = Quotas(ManualClock())
    assert quotas.active is None
    assert quotas.meter(ALICE, "app") is None


def test_quotas_hold_from_the_image_that_has_them_to_the_one_that_has_not():
    quotas = Quotas(ManualClock())
    quotas.replace(quotas_of(PRODUCE=RATE))
    meter = quotas.meter(ALICE, None)
    assert meter is not None
    assert meter.take(QuotaKey.PRODUCE, 3 * RATE) == pytest.approx(2)
    assert meter.take(QuotaKey.FETCH, 10**9) == 0
    assert quotas.meter(user("bob"), None) is None
    quotas.replace({})
    assert quotas.active is None
    assert quotas.meter(ALICE, None) is None


def test_the_local_administrator_has_no_quota():
    quotas = Quotas(ManualClock())
    quotas.replace(quotas_of("", REQUEST=0.001))
    assert quotas.meter(LOCAL_ADMIN, None) is None
    assert quotas.meter(ALICE, None) is not None


def test_bytes_of_records_are_those_of_keys_values_and_headers():
    assert bytes_of([RECORD, RECORD]) == 2 * RECORD_BYTES
    assert bytes_of([Record(Offset(0), TimestampMs(0), None, None, [])]) == 0


def test_a_long_client_id_takes_no_memory_and_has_the_quota_of_no_other():
    name = "n" * QUOTA_NAME_LENGTH_MAX
    quotas = Quotas(ManualClock())
    quotas.replace(
        {QuotaEntity(None, name): {QuotaKey.PRODUCE: 7.0}, QuotaEntity(None, ""): {"x": 1.0}}
    )
    assert quotas.active is not None
    for number in range(10):
        assert quotas.meter(ALICE, name + f"{number}" + "x" * 32_000) is None
    exact = quotas.meter(ALICE, name)
    assert exact is not None
    assert exact.rate(QuotaKey.PRODUCE) == 7.0
    assert max(len(client_id) for _, client_id in quotas.active._clients) <= 256


# ---- the services that clients of HTTP and gRPC use


def world_with(**rates: float) -> GuardedWorld:
    world = GuardedWorld()
    world.sessions.quotas.replace(quotas_of("root", **rates))
    world.services["appends"].answers["append"] = SimpleNamespace(error=ErrorCode.NONE)
    world.services["replicas"].answers["message_bytes_max"] = 10**6
    world.services["queues"].answers["poll"] = PollResult(
        deliveries=[Delivery("orders", PartitionIndex(0), RECORD, b"", 1, TimestampMs(0))]
    )
    world.services["queues"].answers["peek"] = [SimpleNamespace(record=RECORD)]
    created = SimpleNamespace(partitions=range(300))
    world.services["topics"].answers.update(create=created, ensure=created)
    return world


def store(session: Session) -> Awaitable[Any]:
    topic = session.topics.get("orders")
    return session.appends.store(topic, [RECORD], [0], acks=1, timeout_seconds=1)


METERED: dict[str, tuple[str, Callable[[Session], Any]]] = {
    "appends.store": ("PRODUCE", store),
    "fetch.read_page": ("FETCH", lambda session: session.fetch.read_page("orders", 0, 0, limit=9)),
    "queues.poll": (
        "FETCH",
        lambda session: session.queues.poll(PollOptions(group="g", consumer="c")),
    ),
    "queues.peek": ("FETCH", lambda session: session.queues.peek("g", "orders", count_max=1)),
    "topics.create": ("MUTATION", lambda session: session.topics.create("new")),
    "topics.ensure": ("MUTATION", lambda session: session.topics.ensure("new")),
    "topics.add_partitions": (
        "MUTATION",
        lambda session: session.topics.add_partitions("orders", 302, None, validate_only=False),
    ),
}


CHARGED = {name.partition(".")[2] for name in METERED if name.startswith("fetch.")}


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """When a page was read; each has one record."""
    times: list[float] = []

    async def one_record(*args: object, **kwargs: object) -> ReadPage:
        times.append(asyncio.get_running_loop().time())
        return ReadPage(
            records=[RECORD],
            next_offset=1,
            start_offset=0,
            end_offset=1,
            bytes_decoded=RECORD_BYTES,
        )

    monkeypatch.setattr("moldau.api.guarded.records.read_page", one_record)
    return times


def _calls(world: GuardedWorld) -> list[str]:
    """Without those that only find out about rights."""
    return [name for name in world.touched if name != "queues.topics_of"]


@pytest.mark.parametrize("use_case", METERED)
def test_a_client_is_served_once_and_refused_until_it_has_paid(use_case, reads):
    kind, call = METERED[use_case]
    world = world_with(**{kind: RATE})
    session = world.session(Principal("User", "root"))
    first = outcome(call, session)
    assert not isinstance(first, RefusedError), first
    before = _calls(world)
    second = outcome(call, session)
    assert isinstance(second, QuotaExceededError)
    # Three seconds of the quota were taken, and one of them is free.
    assert second.retry_seconds == pytest.approx(2, abs=0.1)
    assert second.code is ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert _calls(world) == before
    assert world.sessions.quotas.throttled[QuotaKey[kind]] == 1
    assert world.sessions.quotas.throttled_seconds[QuotaKey[kind]] == second.retry_seconds


@pytest.mark.parametrize("use_case", METERED)
def test_a_client_without_a_quota_of_this_kind_is_not_refused(use_case, reads):
    kind, call = METERED[use_case]
    others = {key.name: 1.0 for key in QuotaKey if key.name != kind}
    session = world_with(**others).session(Principal("User", "root"))
    for _ in range(3):
        assert not isinstance(outcome(call, session), RefusedError)


BY_THE_DISPATCHER = {"produce", "transactional_produce", "fetch"}
"""Services that Kafka requests use, which are charged by their bytes on the wire."""


def test_no_other_protocol_uses_what_only_the_kafka_server_charges():
    edge = Path(moldau.edge.__file__).parent
    found = []
    for path in sorted(edge.rglob("*.py")):
        if path.is_relative_to(edge / "kafka"):
            continue
        nodes = list(ast.walk(ast.parse(path.read_text())))
        charged = {
            node.value for node in nodes if isinstance(node, ast.Attribute) and node.attr in CHARGED
        }
        found += [
            f"{path.name}:{node.lineno}"
            for node in nodes
            if isinstance(node, ast.Attribute)
            and node.attr in BY_THE_DISPATCHER
            and node not in charged
        ]
    assert found == []


def test_a_topic_that_exists_is_no_change():
    session = world_with(MUTATION=1e-3).session(Principal("User", "root"))
    for _ in range(3):
        assert not isinstance(outcome(lambda s: s.topics.ensure("orders"), session), RefusedError)
        checked = outcome(lambda s: s.topics.create("new", validate_only=True), session)
        assert not isinstance(checked, RefusedError)


def test_partitions_of_a_deleted_topic_are_charged():
    session = world_with(MUTATION=0.1).session(Principal("User", "root"))
    assert not isinstance(outcome(lambda s: s.topics.delete(name="orders"), session), RefusedError)
    assert isinstance(outcome(lambda s: s.topics.create("new"), session), QuotaExceededError)


def test_partitions_are_charged_to_the_client_id_of_the_request():
    world = world_with()
    world.sessions.quotas.replace({QuotaEntity(None, "app"): {QuotaKey.MUTATION: 1.0}})
    session = world.session(Principal("User", "root"))
    token = CLIENT_ID.set("app")
    try:
        outcome(lambda s: s.topics.create("new"), session)
        assert isinstance(outcome(lambda s: s.topics.create("new"), session), QuotaExceededError)
    finally:
        CLIENT_ID.reset(token)
    assert not isinstance(outcome(lambda s: s.topics.create("new"), session), RefusedError)


# ---- the time of requests


async def test_the_time_of_each_step_is_passed_on():
    steps: list[float] = []

    async def work() -> str:
        await asyncio.sleep(0)
        await asyncio.sleep(0.001)
        return "done"

    assert await timed(work(), steps.append) == "done"
    assert len(steps) == 3
    assert all(step >= 0 for step in steps)


async def test_errors_pass_through_in_both_directions():
    steps: list[float] = []
    seen: list[str] = []

    async def work() -> None:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    async def run() -> None:
        await timed(work(), steps.append)

    task = asyncio.create_task(run())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (seen, len(steps)) == (["cancelled"], 2)

    async def fails() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await timed(fails(), steps.append)


async def test_the_time_of_tasks_of_a_request_is_charged_to_it_and_to_no_other():
    world = GuardedWorld()
    world.sessions.quotas.replace(quotas_of("ANONYMOUS", REQUEST=1e-6))
    visit = await Entrance(world.sessions).enter((), "192.0.2.1")

    async def part(name: str) -> str:
        await asyncio.sleep(0)
        return name

    async def work() -> list[str]:
        assert ON_STEP.get() is not None
        return await asyncio.gather(*(charged(part(name)) for name in "ab"))

    assert await visit.charged(work()) == ["a", "b"]
    # What follows in the same task, as on a kept connection, is not charged.
    assert ON_STEP.get() is None
    unchanged = part("c")
    assert charged(unchanged) is unchanged
    await unchanged


async def test_a_task_of_a_request_passes_on_each_of_its_steps():
    steps: list[float] = []
    before = ON_STEP.set(steps.append)
    try:

        async def part() -> None:
            await asyncio.sleep(0)

        await asyncio.create_task(charged(part()))
    finally:
        ON_STEP.reset(before)
    assert len(steps) == 2


async def test_a_client_over_its_time_is_not_let_in():
    world = GuardedWorld()
    entrance = Entrance(world.sessions)
    world.sessions.quotas.replace(quotas_of("ANONYMOUS", REQUEST=1e-6))

    async def work() -> None:
        sum(range(10_000))

    visit = await entrance.enter((), "192.0.2.1")
    await visit.charged(work())
    with pytest.raises(QuotaExceededError):
        await entrance.enter((), "192.0.2.1")
    # What is for everyone stays so.
    await entrance.enter((), "192.0.2.1", is_public=True)


@pytest.mark.parametrize(
    ("kind", "rate"), [("FETCH", RATE), ("REQUEST", 100.0)], ids=["bytes", "time"]
)
def test_a_stream_over_its_quota_waits_and_goes_on(kind, rate, reads, monkeypatch):
    world = world_with(**{kind: rate})
    clock = world.sessions.quotas._clock

    async def read_twice() -> None:
        began = asyncio.get_running_loop().time()
        monkeypatch.setattr(
            type(clock), "monotonic", lambda self: asyncio.get_running_loop().time() - began
        )
        session = world.session(Principal("User", "root"))
        for _ in range(2):
            await session.fetch.read_page("orders", 0, 0, limit=9, is_stream=True)
            if kind == "REQUEST":
                meter = session.meter()
                assert meter is not None
                meter.take(QuotaKey.REQUEST, RECORD_BYTES / RATE)

    run_virtually(read_twice())
    assert reads[1] - reads[0] == pytest.approx(RECORD_BYTES / RATE - 1, abs=0.01)
