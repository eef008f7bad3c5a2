"""What leaders tell of queues and dead letters, and what they remove."""

from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from queue_world import QueueWorld, ack
from redrive_world import RedriveWorld, dead

from moldau.metadata.image import Topic
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import BrokerId
from moldau.model.queue_headers import DEAD_TRUNCATED_HEADER
from moldau.queues import admin_handlers
from moldau.queues.admin_handlers import QueueAdminHandlers, as_refused
from moldau.queues.admin_messages import (
    DeadLettersFound,
    DeadLettersWanted,
    PurgeOrder,
    PurgeReport,
    QueuePartitions,
    RedriveOrder,
    RedriveReport,
)
from moldau.queues.types import ErrorReason, QueueRefusedError

ME = BrokerId(1)


class HandlerWorld:
    def __init__(self, world: QueueWorld) -> None:
        self.world = world
        self.fresh_calls = 0
        self.later: dict[str, Topic] = {}
        self.names = iter(map(str, range(1_000)))
        self.handlers = QueueAdminHandlers(
            me=ME,
            loop=world.loop,
            clock=world.clock,
            metadata=cast(Any, self),
            host=world.host,
            appends=cast(Any, world.appends),
            new_name=lambda: next(self.names),
        )

    @property
    def image(self) -> Any:
        return SimpleNamespace(topic=self.world.topics.get, queue_groups=self.world.groups)

    async def fresh(self) -> Any:
        self.fresh_calls += 1
        self.world.topics.update(self.later)
        return self.image

    def of(self, topic: str, *partitions: int, group: str = "g", **more: Any) -> QueuePartitions:
        return QueuePartitions(
            group=group,
            topic=topic,
            topic_id=self.world.topics[topic].topic_id,
            partitions=list(partitions),
            **more,
        )

    async def letters(
        self, position: int = 0, count: int = 100, bytes_max: int = 1_000_000
    ) -> DeadLettersFound:
        return await self.handlers.dead_letters(
            DeadLettersWanted(
                group="g",
                topic="t",
                dead_topic="g.dead",
                dead_topic_id=self.world.topics["g.dead"].topic_id,
                partition=0,
                position=position,
                count_max=count,
                bytes_max=bytes_max,
            )
        )

    def redrive_order(
        self, partitions: list[tuple[int, list[int] | None]], target: str | None = "t"
    ) -> RedriveOrder:
        return RedriveOrder(
            group="g",
            topic="t",
            dead_topic="g.dead",
            dead_topic_id=self.world.topics["g.dead"].topic_id,
            partitions=partitions,
            target=target,
            validate_only=False,
            count_max=100,
            seconds_max=5.0,
        )

    def order(self, topic: Topic, **more: Any) -> PurgeOrder:
        fields: dict[str, Any] = {"partitions": [0], "seconds_max": 5.0, **more}
        return PurgeOrder(group="g", topic=topic.name, topic_id=topic.topic_id, **fields)


async def test_a_report_counts_and_names_the_leases() -> None:
    world = await QueueWorld.make(partitions=2)
    made = HandlerWorld(world)
    await world.send(b"a", b"b", b"c", b"d")
    world.pass_time(70)
    taken = await world.take(2, member="me", visibility_ms=5_000)
    await ack(world, taken[:1], "me")
    reports = await made.handlers.show(made.of("t", 0, 1, 7, has_leases=True))
    first, second = sorted(reports, key=lambda one: one.partition)
    assert (first.ready, first.leased, first.dead, first.acked_up_to, first.end) == (2, 1, 0, 1, 4)
    assert first.oldest_ready_ms == 70
    assert [tuple(one) for one in first.in_flight] == [(0, 1, "me", 1, 5_000)]
    assert (second.ready, second.oldest_ready_ms) == (0, None)
    world.pass_time(6_000)
    await world.take(1, member="me")
    (again,) = await made.handlers.show(made.of("t", 0))
    assert (again.redeliveries, again.in_flight) == (1, [])


async def test_a_reply_names_so_many_leases_of_all_its_partitions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However many partitions are busy, it has to fit into a message between brokers."""
    monkeypatch.setattr(admin_handlers, "IN_FLIGHT_MAX", 5)
    world = await QueueWorld.make(partitions=3)
    made = HandlerWorld(world)
    for partition in range(3):
        await world.send(b"a", b"b", b"c", partition=partition)
    await world.take(9, partitions=[0, 1, 2])
    reports = await made.handlers.show(made.of("t", 0, 1, 2, has_leases=True))
    assert [one.leased for one in reports] == [3, 3, 3]
    assert sum(len(one.in_flight) for one in reports) == 5


async def test_without_the_group_that_redrives_everything_is_left() -> None:
    made = await RedriveWorld.make(3)
    handled = HandlerWorld(made.world)
    del made.world.groups["g.redrive"]
    wanted = handled.of("g.dead", 0, group="g.redrive", or_log=True)
    (report,) = await handled.handlers.show(wanted)
    assert (report.ready, report.leased) == (3, 0)
    with pytest.raises(RefusedError, match="No queue group"):
        await handled.handlers.show(handled.of("g.dead", 0, group="g.redrive"))
    assert handled.fresh_calls == 1


async def test_dead_letters_of_the_queue_come_in_pages_without_those_that_were_redriven() -> None:
    made = await RedriveWorld.make(4)
    await made.bury(b"other", dead(9, topic="u"))
    handled = HandlerWorld(made.world)
    await made.redrive([1])
    page = await handled.letters(count=2)
    assert ([one.offset for one in page.records], page.next, page.is_end) == ([0, 2], 3, False)
    rest = await handled.letters(3)
    assert ([one.record.value for one in rest.records], rest.is_end) == ([b"3"], True)
    small = await handled.letters(bytes_max=1)
    assert ([one.offset for one in small.records], small.is_end) == ([0], False)


async def test_header_names_that_are_no_text_survive_the_way() -> None:
    made = await RedriveWorld.make()
    await made.bury(b"a", [*dead(0), ("\udcff", b"x")])
    handled = HandlerWorld(made.world)
    sent = msgspec.msgpack.encode(await handled.letters())
    (record,) = msgspec.msgpack.decode(sent, type=DeadLettersFound).records
    assert record.record.headers[-1] == ("\udcff", b"x")


async def test_an_order_to_redrive_is_carried_out_by_the_leader() -> None:
    made = await RedriveWorld.make(2)
    handled = HandlerWorld(made.world)
    order = handled.redrive_order([(0, [1]), (7, [3])])
    reply = await handled.handlers.on_redrive(BrokerId(2), msgspec.msgpack.encode(order))
    report = msgspec.msgpack.decode(reply, type=RedriveReport)
    assert (report.redriven, report.failed, report.is_complete) == (1, 1, False)
    assert list(report.refusals.values()) == [[7]]
    gone = msgspec.structs.replace(order, target="none")
    with pytest.raises(RefusedError, match="does not exist"):
        await handled.handlers.redrive(gone)
    other = msgspec.structs.replace(order, dead_topic_id=b"x")
    with pytest.raises(RefusedError, match="was deleted"):
        await handled.handlers.redrive(other)


async def test_an_order_without_a_target_removes_the_dead_letters_of_one_topic() -> None:
    made = await RedriveWorld.make(3)
    handled = HandlerWorld(made.world)
    await made.redrive([0])
    await made.bury(b"other topic", dead(9, topic="u"))
    await made.bury(b"cut", [*dead(5), (DEAD_TRUNCATED_HEADER, b"value")])
    await made.bury(b"2", dead(2))
    order = handled.redrive_order([(0, None), (7, None)], target=None)
    reply = await handled.handlers.on_redrive(BrokerId(2), msgspec.msgpack.encode(order))
    report = msgspec.msgpack.decode(reply, type=RedriveReport)
    assert (report.redriven, report.failed, report.is_complete) == (4, 0, False)
    assert made.sent == [b"0"]
    assert (await made.redrive()).redriven == 0
    assert (await made.redrive(topic="u", target="t")).redriven == 1


async def test_a_purge_acks_ready_messages() -> None:
    world = await QueueWorld.make()
    handled = HandlerWorld(world)
    await world.send(*(str(number).encode() for number in range(700)))
    later = str(world.clock.wall + 60_000).encode()
    await world.send(b"later", headers=[("moldau-deliver-at", later)])
    (taken,) = await world.take(1)
    order = msgspec.msgpack.encode(handled.order(world.topics["t"]))
    reply = await handled.handlers.on_purge(BrokerId(2), order)
    ready = msgspec.msgpack.decode(reply, type=PurgeReport)
    assert ready == PurgeReport(purged=699, is_complete=True)
    (left,) = await handled.handlers.show(handled.of("t", 0))
    assert (left.ready, left.leased, left.delayed) == (0, 1, 1)
    await ack(world, [taken])


async def test_a_purge_without_time_says_that_there_is_more() -> None:
    world = await QueueWorld.make()
    handled = HandlerWorld(world)
    await world.send(b"a")
    order = handled.order(world.topics["t"], seconds_max=0.0)
    assert await handled.handlers.purge(order) == PurgeReport(purged=0, is_complete=False)


async def test_a_refusal_in_the_middle_keeps_what_was_done() -> None:
    made = await RedriveWorld.make(2)
    handled = HandlerWorld(made.world)
    found = handled.handlers._scan

    async def scan(group: str, topic: Topic, index: int, **more: Any) -> Any:
        if index == 1:
            raise RefusedError(ErrorCode.GROUP_ID_NOT_FOUND, "it was deleted")
        return await found(group, topic, index, **more)

    handled.handlers._scan = scan  # type: ignore[method-assign]
    order = handled.redrive_order([(0, None), (1, None)])
    report = await handled.handlers.redrive(order)
    assert (report.redriven, report.is_complete) == (2, False)
    assert report.refusals == {"it was deleted": [1]}


async def test_a_target_that_another_broker_has_just_created_is_found_by_the_leader() -> None:
    made = await RedriveWorld.make(1)
    handled = HandlerWorld(made.world)
    await made.world.create("new", 1)
    handled.later["new"] = made.world.topics.pop("new")
    report = await handled.handlers.redrive(handled.redrive_order([(0, None)], target="new"))
    assert (report.redriven, handled.fresh_calls) == (1, 1)


async def test_only_so_many_run_at_once() -> None:
    world = await QueueWorld.make()
    handled = HandlerWorld(world)
    handled.handlers._runs = 4
    with pytest.raises(RefusedError) as caught:
        await handled.handlers.purge(handled.order(world.topics["t"]))
    assert caught.value.code.is_unavailable


def test_refusals_of_queues_get_a_code() -> None:
    assert as_refused(QueueRefusedError(ErrorReason.UNKNOWN_GROUP)).code is (
        ErrorCode.GROUP_ID_NOT_FOUND
    )
    assert as_refused(QueueRefusedError(ErrorReason.BUSY)).code.is_unavailable
