"""Asks the leaders of a queue's partitions, of which some are other brokers, and some are gone."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from handler_calls import topic
from msgspec.structs import replace

from moldau.metadata.leaders import NO_LEADER, Leader
from moldau.metadata.queue_groups import QueueGroup, QueueSettings
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import BrokerId, Epoch, Offset, TimestampMs
from moldau.model.queue_limits import ATTEMPTS_MAX
from moldau.net.peers.methods import PeerMethod
from moldau.queues import admin_handlers
from moldau.queues.admin import DeadLetterPosition, LeaderRefusal, PurgeResult, QueueAdmin
from moldau.queues.admin_messages import (
    DeadLettersFound,
    DeadLettersWanted,
    InFlight,
    PartitionReport,
    Purged,
    PurgeReport,
    RedriveReport,
    RedriveRow,
    SentRecord,
)
from moldau.queues.types import ConnectOptions, ErrorReason, QueueRefusedError
from moldau.records.record import Record

GROUP = QueueGroup(name="g", topics=("t",), settings=QueueSettings(dead_letter_topic="g.dead"))
TOPICS = {
    "t": topic("t", (1,), (2,), (3,)),
    "g.dead": topic("g.dead", (1,), (2,)),
    "u": topic("u", (1,)),
}


def report(partition: int, ready: int = 1, **more: Any) -> PartitionReport:
    fields: dict[str, Any] = {
        "leased": 0,
        "delayed": 0,
        "dead": 0,
        "redeliveries": 0,
        "acked_up_to": 0,
        "end": 0,
        "oldest_ready_ms": None,
    }
    return PartitionReport(partition=partition, ready=ready, **{**fields, **more})


class AdminWorld:
    """Broker 1 asks; partition n of each topic is led by broker n + 1."""

    def __init__(self) -> None:
        self.groups = {"g": GROUP}
        self.topics = dict(TOPICS)
        self.later: dict[str, Any] = {}
        self.leaderless: set[tuple[str, int]] = set()
        self.gone: dict[int, ErrorCode] = {}
        self.asked: list[tuple[int, str, Any]] = []
        self.defined: list[ConnectOptions] = []
        self.refusal: QueueRefusedError | None = None
        self.replies: dict[str, Callable[[Any], Any]] = {
            "show": lambda wanted: [report(index) for index in wanted.partitions]
        }
        self.admin = QueueAdmin(
            me=BrokerId(1),
            clock=cast(Any, SimpleNamespace(monotonic=lambda: 0.0)),
            metadata=cast(Any, self),
            leader_of=self._leader_of,
            handlers=cast(Any, self),
            caller=cast(Any, self),
            define=self._define,
        )

    @property
    def image(self) -> Any:
        return SimpleNamespace(topic=self.topics.get, queue_groups=self.groups)

    async def fresh(self) -> Any:
        self.topics.update(self.later)
        return self.image

    def _leader_of(self, topic: Any, index: int) -> Leader:
        if (topic.name, index) in self.leaderless:
            return NO_LEADER
        return Leader(BrokerId(index + 1), Epoch(1))

    async def _define(self, options: ConnectOptions) -> QueueGroup:
        self.defined.append(options)
        if self.refusal is not None:
            raise self.refusal
        return GROUP

    async def call(self, peer: int, method: int, payload: bytes, seconds: float) -> bytes:
        if peer in self.gone:
            raise RefusedError(self.gone[peer])
        name = PeerMethod(method).name.removeprefix("QUEUE_").lower()
        kinds = {"show": "_show", "dead_letters": "_read", "redrive": "_redrive", "purge": "_purge"}
        wanted = getattr(admin_handlers, kinds[name])(payload)
        return msgspec.msgpack.encode(self._reply(peer, name, wanted))

    def _reply(self, broker: int, name: str, wanted: Any) -> Any:
        self.asked.append((broker, name, wanted))
        return self.replies[name](wanted)

    async def show(self, wanted: Any) -> Any:
        return self._reply(1, "show", wanted)

    async def dead_letters(self, wanted: Any) -> Any:
        return self._reply(1, "dead_letters", wanted)

    async def redrive(self, wanted: Any) -> Any:
        return self._reply(1, "redrive", wanted)

    async def purge(self, wanted: Any) -> Any:
        return self._reply(1, "purge", wanted)


async def refusal(call: Any) -> RefusedError:
    with pytest.raises(RefusedError) as caught:
        await call
    return caught.value


async def test_all_leaders_are_asked_and_those_that_are_silent_are_named() -> None:
    world = AdminWorld()
    lease = InFlight(0, 7, "me", 1, 500)
    world.replies["show"] = lambda wanted: [
        report(index, leased=1, in_flight=[lease._replace(partition=index)])
        for index in wanted.partitions
    ]
    view = await world.admin.show("g", "t")
    assert [leader for leader, _ in view.partitions] == [1, 2, 3]
    assert [each.partition for each in view.in_flight] == [0, 1, 2]
    assert {(wanted.topic, wanted.has_leases) for _, _, wanted in world.asked} == {
        ("t", True),
        ("g.dead", False),
    }
    # Ready and leased, in two partitions.
    assert (view.dead_letters, view.silent) == (4, [])
    world.gone = {3: ErrorCode.REQUEST_TIMED_OUT}
    world.leaderless = {("g.dead", 1)}
    view = await world.admin.show("g", "t")
    assert [found is None for _, found in view.partitions] == [False, False, True]
    assert (view.dead_letters, view.silent) == (None, [-1, 3])


async def test_a_queue_that_does_not_exist_is_refused() -> None:
    world = AdminWorld()
    assert (await refusal(world.admin.show("h", "t"))).code is ErrorCode.GROUP_ID_NOT_FOUND
    for name in ("u", "none"):
        error = await refusal(world.admin.show("g", name))
        assert error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_a_refusal_that_is_no_outage_is_passed_on() -> None:
    world = AdminWorld()
    world.gone = {2: ErrorCode.POLICY_VIOLATION}
    assert (await refusal(world.admin.show("g", "t"))).code is ErrorCode.POLICY_VIOLATION


REFUSED = LeaderRefusal(2, [1], "POLICY_VIOLATION")
UNREADY = LeaderRefusal(1, [0], "it loads")


async def test_what_others_did_is_reported_with_the_refusal_of_one() -> None:
    world = AdminWorld()
    world.gone = {2: ErrorCode.POLICY_VIOLATION}
    world.replies["redrive"] = lambda _: RedriveReport(redriven=7, refusals={"it loads": [0]})
    done = await world.admin.redrive(
        "g", "t", [DeadLetterPosition(0, 1), DeadLetterPosition(1, 2)], "t", validate_only=False
    )
    assert (done.report.redriven, done.report.is_complete, done.silent) == (7, False, [])
    assert done.refused == [UNREADY, REFUSED]
    every = await world.admin.redrive("g", "t", None, "t", validate_only=False)
    assert (every.report.redriven, every.left, every.refused) == (7, None, [UNREADY, REFUSED])
    removed = await world.admin.purge("g", "t", Purged.DEAD)
    assert (removed.purged, removed.is_complete) == (7, False)
    assert removed.refused == [UNREADY, REFUSED]
    world.replies["purge"] = lambda _: PurgeReport(purged=3, is_complete=True)
    removed = await world.admin.purge("g", "t", Purged.READY)
    assert (removed.purged, removed.is_complete, removed.refused) == (6, False, [REFUSED])


async def test_a_refusal_by_all_is_raised() -> None:
    world = AdminWorld()
    world.gone = {2: ErrorCode.POLICY_VIOLATION}
    wanted = [DeadLetterPosition(1, 2)]
    error = await refusal(world.admin.redrive("g", "t", wanted, "t", validate_only=False))
    assert error.code is ErrorCode.POLICY_VIOLATION


async def test_a_target_that_another_broker_has_just_created_is_found() -> None:
    world = AdminWorld()
    world.replies["redrive"] = lambda _: RedriveReport(redriven=1)
    world.later["new"] = topic("new", (1,))
    done = await world.admin.redrive("g", "t", None, "new", validate_only=False)
    assert (done.report.redriven, done.target) == (2, "new")


def letters(wanted: DeadLettersWanted) -> DeadLettersFound:
    """Each partition has the offsets 0 to 2."""
    offsets = range(wanted.position, min(3, wanted.position + wanted.count_max))
    records = [SentRecord.of(Record(Offset(at), TimestampMs(0), None, b"v", [])) for at in offsets]
    following = max(wanted.position, offsets.stop)
    return DeadLettersFound(records=records, next=following, is_end=following == 3)


async def test_dead_letters_come_in_pages_over_all_partitions() -> None:
    world = AdminWorld()
    world.replies["dead_letters"] = letters
    places, after, pages = [], DeadLetterPosition(0, -1), 0
    while True:
        page = await world.admin.dead_letters("g", "t", after, 2)
        places += [(index, record.offset) for index, record in page.records]
        pages += 1
        if page.next is None:
            break
        after = page.next
    assert places == [(index, offset) for index in (0, 1) for offset in range(3)]
    assert pages in (3, 4)


async def test_a_silent_leader_of_dead_letters_hides_no_others() -> None:
    world = AdminWorld()
    world.replies["dead_letters"] = letters
    world.leaderless = {("g.dead", 0)}
    page = await world.admin.dead_letters("g", "t", DeadLetterPosition(0, -1), 10)
    assert [index for index, _ in page.records] == [1, 1, 1]
    assert page.silent == [-1]
    del world.topics["g.dead"]
    page = await world.admin.dead_letters("g", "t", DeadLetterPosition(0, -1), 10)
    assert (page.records, page.next) == ([], None)


async def test_a_redrive_defines_its_group_and_sums_what_leaders_did() -> None:
    world = AdminWorld()
    world.replies["redrive"] = lambda order: RedriveReport(
        redriven=2, failed=1, rows=[RedriveRow(index, 5) for index, _ in order.partitions]
    )
    done = await world.admin.redrive("g", "t", None, "t", validate_only=False)
    assert (done.report.redriven, done.report.failed, done.report.is_complete) == (4, 2, True)
    assert [row.partition for row in done.report.rows] == [0, 1]
    assert (done.left, done.target, done.silent) == (2, "t", [])
    (options,) = world.defined
    assert (options.group, options.topics) == ("g.redrive", ("g.dead",))
    assert (options.attempts_max, options.dead_letter_topic) == (ATTEMPTS_MAX, "g.dead.redrive")
    world.gone = {2: ErrorCode.NETWORK_EXCEPTION}
    world.groups["g.redrive"] = replace(GROUP, name="g.redrive", topics=("g.dead",))
    done = await world.admin.redrive("g", "t", None, "t", validate_only=False)
    assert (done.report.redriven, done.report.is_complete, done.silent) == (2, False, [2])
    assert (world.defined[-1].dead_letter_topic, done.left) == (None, None)


async def test_named_letters_go_to_their_leaders_and_a_preview_defines_nothing() -> None:
    world = AdminWorld()
    world.replies["redrive"] = lambda _: RedriveReport()
    wanted = [DeadLetterPosition(1, 4), DeadLetterPosition(1, 9)]
    await world.admin.redrive("g", "t", wanted, "u", validate_only=True)
    assert world.defined == []
    (order,) = [order for _, name, order in world.asked if name == "redrive"]
    assert (order.partitions, order.target, order.validate_only) == ([(1, [4, 9])], "u", True)


async def test_what_is_left_is_of_what_was_asked_for() -> None:
    world = AdminWorld()
    world.replies["redrive"] = lambda _: RedriveReport(redriven=1)
    seen = await world.admin.redrive("g", "t", None, "t", validate_only=True)
    assert (seen.report.redriven, seen.left) == (2, 0)
    world.gone = {2: ErrorCode.NETWORK_EXCEPTION}
    wanted = [DeadLetterPosition(0, 4), DeadLetterPosition(1, 9)]
    done = await world.admin.redrive("g", "t", wanted, "t", validate_only=False)
    assert (done.report.redriven, done.left, done.silent) == (1, 1, [2])


@pytest.mark.parametrize(
    ("records", "target", "code"),
    [
        (None, "none", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (None, "g.dead", ErrorCode.INVALID_REQUEST),
        ([DeadLetterPosition(2, 0)], "t", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ],
)
async def test_what_cannot_be_redriven_is_refused(records: Any, target: str, code: Any) -> None:
    world = AdminWorld()
    error = await refusal(world.admin.redrive("g", "t", records, target, validate_only=True))
    assert error.code is code
    assert world.asked == []


async def test_without_a_dead_letter_topic_there_is_nothing_to_redrive() -> None:
    world = AdminWorld()
    del world.topics["g.dead"]
    done = await world.admin.redrive("g", "t", None, "t", validate_only=False)
    assert (done.report.redriven, done.left) == (0, 0)
    named = world.admin.redrive("g", "t", [DeadLetterPosition(0, 0)], "t", validate_only=False)
    assert (await refusal(named)).code is ErrorCode.RESOURCE_NOT_FOUND
    assert await world.admin.purge("g", "t", Purged.DEAD) == PurgeResult(purged=0, is_complete=True)


async def test_a_group_that_cannot_be_defined_is_a_refusal_with_a_code() -> None:
    world = AdminWorld()
    world.refusal = QueueRefusedError(ErrorReason.OTHER_MODE)
    error = await refusal(world.admin.redrive("g", "t", None, "t", validate_only=False))
    assert error.code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


async def test_a_purge_sums_what_leaders_removed() -> None:
    world = AdminWorld()
    world.replies["purge"] = lambda _: PurgeReport(purged=3, is_complete=True)
    assert await world.admin.purge("g", "t", Purged.READY) == PurgeResult(
        purged=9, is_complete=True
    )


async def test_a_purge_of_dead_letters_names_the_queue_and_leaves_the_topic() -> None:
    world = AdminWorld()
    # Another group may have its dead letters in the same topic.
    world.groups["h"] = replace(GROUP, name="h")
    world.replies["redrive"] = lambda _: RedriveReport(redriven=3)
    world.gone = {2: ErrorCode.NETWORK_EXCEPTION}
    assert await world.admin.purge("g", "t", Purged.DEAD) == PurgeResult(
        purged=3, is_complete=False, silent=[2]
    )
    ((_, name, order),) = world.asked
    assert (name, order.group, order.topic, order.target) == ("redrive", "g", "t", None)
    assert [options.group for options in world.defined] == ["g.redrive"]
