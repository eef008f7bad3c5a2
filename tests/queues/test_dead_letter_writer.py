"""Dead letters: what they say, what is tried again, and what must not hold up a queue."""

import asyncio
import logging
from functools import partial
from typing import Any

import pytest
from memory_log import MemoryLog
from msgspec.structs import replace
from queue_world import QueueWorld, values_of

from moldau.data import stored_batches
from moldau.data.commit import trim_replica
from moldau.data.stored_batches import bytes_of
from moldau.leases.commands import Nack
from moldau.log.interface import LogRead
from moldau.model.ids import Offset
from moldau.model.queue_headers import (
    DEAD_AT_HEADER,
    DEAD_ATTEMPTS_HEADER,
    DEAD_GROUP_HEADER,
    DEAD_KEYLESS_HEADER,
    DEAD_OFFSET_HEADER,
    DEAD_PARTITION_HEADER,
    DEAD_REASON_HEADER,
    DEAD_TOPIC_HEADER,
    DEAD_TRUNCATED_HEADER,
    EARLIER_DEATH_HEADER,
)
from moldau.records.record import Headers, Record, read_records
from moldau.testing.waiting import until


async def kill(world: QueueWorld, count: int = 10, reason: str = "bad") -> None:
    """Take so many messages and send them back."""
    taken = await world.take(count)
    tokens = [delivery.token for delivery in taken]
    await world.host.settle(world.group, "w", tokens, partial(Nack, delay_ms=0, reason=reason))


def dead(world: QueueWorld) -> list[Record]:
    return world.stored("g.dead") if "g.dead" in world.topics else []


async def is_settled(world: QueueWorld, floor: int) -> None:
    """Until everything below is."""
    seen = -1
    async with asyncio.timeout(20):
        while seen != floor:
            await asyncio.sleep(0.001)
            topic = world.topics["t"]
            seen = (await world.host.stats(world.group, topic, topic.partitions[0].index)).floor


async def test_a_poison_message_ends_in_the_dead_letter_topic_with_what_it_was() -> None:
    world = await QueueWorld.make(attempts_max=3)
    before = ("moldau-dead-group", "moldau-only-group", "moldau-deliver-at")
    values = (b"old", b"g", b"1")
    headers: Headers = [("h", b"1"), *zip(before, values, strict=True)]
    await world.send(b"poison", key=b"k", headers=headers)
    for _ in range(3):
        await kill(world)
    assert await world.take() == []
    await is_settled(world, 1)
    (letter,) = dead(world)
    assert (letter.key, letter.value) == (b"k", b"poison")
    assert letter.headers == [
        ("h", b"1"),
        (DEAD_REASON_HEADER, b"bad"),
        (DEAD_ATTEMPTS_HEADER, b"3"),
        (DEAD_GROUP_HEADER, b"g"),
        (DEAD_TOPIC_HEADER, b"t"),
        (DEAD_PARTITION_HEADER, b"0"),
        (DEAD_OFFSET_HEADER, b"0"),
        (DEAD_AT_HEADER, str(world.clock.wall).encode()),
    ]


async def test_a_lease_that_ends_for_the_last_time_makes_a_dead_letter_without_a_request() -> None:
    world = await QueueWorld.make(attempts_max=1, visibility_ms=100)
    await world.send(b"a")
    await world.take()
    world.pass_time(100)
    await until(lambda: values_of_dead(world) == [b"a"], "they are dead letters")


def values_of_dead(world: QueueWorld) -> list[bytes | None]:
    return [record.value for record in dead(world)]


async def test_a_key_goes_where_producers_send_it_and_the_others_are_spread() -> None:
    world = await QueueWorld.make(attempts_max=1)
    await world.create("g.dead", 4)
    for _ in range(4):
        await world.send(b"x", key=b"k")
    await world.send(*[b"y"] * 8)
    await kill(world, 12)
    await is_settled(world, 12)
    by_partition = [
        [record.value for batch in log.batches(Offset(0)) for record in read_records(batch)]
        for (name, _), log in sorted(world.logs.items())
        if name == "g.dead"
    ]
    assert sorted(values.count(b"x") for values in by_partition) == [0, 0, 0, 4]
    assert [values.count(b"y") for values in by_partition] == [2, 2, 2, 2]


async def test_what_cannot_be_written_is_tried_again_and_written_once() -> None:
    world = await QueueWorld.make(attempts_max=1)
    await world.send(b"a", b"b")
    world.append_failures = 3
    await kill(world)
    await is_settled(world, 2)
    assert (values_of_dead(world), world.append_failures) == ([b"a", b"b"], 0)


async def test_a_burial_that_fails_is_tried_again_and_nothing_written_twice() -> None:
    world = await QueueWorld.make(attempts_max=1)
    await world.create("g.dead", 1)
    await world.send(b"a")
    world.append_failures = 1
    await kill(world)
    world.ledger.fails_before = 2
    await is_settled(world, 1)
    assert values_of_dead(world) == [b"a"]


async def test_a_new_leader_moves_what_is_owed() -> None:
    world = await QueueWorld.make(attempts_max=1)
    await world.send(b"a")
    world.append_failures = 1_000_000
    await kill(world)
    await world.change_leader()
    world.append_failures = 0
    await is_settled(world, 1)
    assert values_of_dead(world) == [b"a"]


async def test_what_is_too_large_is_written_without_its_value(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = await QueueWorld.make(attempts_max=1)
    await world.send(b"small", bytes(2_000), key=b"k")
    world.message_bytes_max = 1_500
    await kill(world)
    await is_settled(world, 2)
    letters = {record.value: dict(record.headers) for record in dead(world)}
    assert set(letters) == {b"small", None}
    assert letters[None][DEAD_TRUNCATED_HEADER] == b"value"
    assert DEAD_TRUNCATED_HEADER not in letters[b"small"]
    assert "offset 1 of t-0" in caplog.text


async def test_what_is_too_large_with_its_earlier_deaths_is_written_without_them() -> None:
    world = await QueueWorld.make(attempts_max=1)
    await world.send(bytes(1_000), key=b"k", headers=[(EARLIER_DEATH_HEADER, bytes(500))])
    world.message_bytes_max = 1_500
    await kill(world)
    await is_settled(world, 1)
    (letter,) = dead(world)
    assert letter.value == bytes(1_000)
    names = {name for name, _ in letter.headers}
    assert not names & {DEAD_TRUNCATED_HEADER, EARLIER_DEATH_HEADER}


async def test_what_the_topic_never_takes_is_named_and_holds_nothing_up(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = await QueueWorld.make(attempts_max=1)
    await world.send(bytes(2_000), key=bytes(2_000))
    world.message_bytes_max = 100
    await kill(world)
    await is_settled(world, 1)
    assert dead(world) == []
    assert "lost" in caplog.text
    assert "offset 0 of t-0" in caplog.text


async def test_one_that_is_gone_before_it_could_be_moved_is_named_and_buried(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    world = await QueueWorld.make(attempts_max=1)
    await world.send(b"a")
    await world.send(b"b")
    await world.create("g.dead", 1)
    world.append_failures = 5
    await kill(world)
    await trim_replica(world.replicas["t", 0], Offset(1))
    await is_settled(world, 2)
    assert b"b" in values_of_dead(world)


async def test_an_unreadable_batch_leaves_a_dead_letter_that_names_its_offsets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stored_batches, "BATCH_RECORDS_MAX", 2)
    world = await QueueWorld.make()
    await world.send(b"a")
    await world.send(b"b", b"c", b"d")
    await world.send(b"e")
    assert values_of(await world.take() + await world.take()) == [b"a", b"e"]
    await until(lambda: len(dead(world)) == 1, "it is a dead letter")
    (letter,) = dead(world)
    headers = dict(letter.headers)
    assert (letter.key, letter.value) == (None, None)
    assert headers[DEAD_TRUNCATED_HEADER] == b"key, value, headers"
    assert headers[DEAD_OFFSET_HEADER] == b"1"
    assert headers[DEAD_ATTEMPTS_HEADER] == b"0"
    assert (headers[DEAD_REASON_HEADER] or b"").startswith(b"offsets 1 to 3 cannot be read")


async def test_a_compacted_topic_takes_letters_without_a_key_by_their_place() -> None:
    world = await QueueWorld.make(attempts_max=1)
    world.limits = replace(world.limits, dead_per_write_max=2)
    world.host = world.new_host()
    world.compacted.add("g.dead")
    await world.send(b"x", b"y", b"z")
    await world.send(b"a", b"b", key=b"k")
    await kill(world)
    await is_settled(world, 5)
    found = {record.value: record for record in world.stored("g.dead")}
    assert {value: record.key for value, record in found.items()} == {
        **dict.fromkeys((b"a", b"b"), b"k"),
        b"x": b"g/t-0/0",
        b"y": b"g/t-0/1",
        b"z": b"g/t-0/2",
    }
    assert (DEAD_KEYLESS_HEADER, b"") in found[b"x"].headers
    assert DEAD_KEYLESS_HEADER not in dict(found[b"a"].headers)


async def test_a_dead_message_that_is_damaged_takes_its_replica_offline() -> None:
    world = await QueueWorld.make(attempts_max=1)
    await world.send(b"a" * 100)
    world.append_failures = 5
    log = world.logs["t", 0]
    real = log.read

    def damaged(*arguments: Any) -> LogRead:
        read = real(*arguments)
        data = bytearray(bytes_of(read.data))
        data[-3] ^= 1
        return read._replace(data=bytes(data))

    taken = await world.take()
    log.read = damaged  # type: ignore[method-assign, assignment]
    world.host._queues[next(iter(world.host._queues))].reader.drop(Offset(0))
    tokens = [delivery.token for delivery in taken]
    await world.host.settle(world.group, "w", tokens, partial(Nack, delay_ms=0))
    await until(lambda: bool(world.offline), "the partition is offline")


async def test_the_topic_of_new_settings_is_used_at_once() -> None:
    world = await QueueWorld.make(attempts_max=1)
    await world.send(b"a")
    settings = replace(world.group.settings, dead_letter_topic="elsewhere")
    world.groups["g"] = replace(world.group, settings=settings)
    await kill(world)
    await is_settled(world, 1)
    assert [record.value for record in world.stored("elsewhere")] == [b"a"]


async def test_messages_that_compaction_took_are_passed() -> None:
    world = await QueueWorld.make(visibility_ms=100)
    await world.send(b"a")
    await world.send(b"b")
    await world.send(b"c")
    taken = await world.take()
    assert values_of(taken) == [b"a", b"b", b"c"]
    await world.change_leader()
    log = world.logs["t", 0]
    # As a compacted log is: the batch with offset 1 is no more.
    world.logs["t", 0] = _without(log, Offset(1))
    await world.change_leader()
    assert await world.take() == [], "their leases go on"
    world.pass_time(100)
    assert values_of(await world.take()) == [b"a", b"c"]
    assert await world.take() == []


def _without(log: MemoryLog, gone: Offset) -> MemoryLog:
    real = log.read

    def read(offset: Offset, bytes_max: int, end_offset: Offset) -> LogRead:
        return real(Offset(gone + 1) if offset == gone else offset, bytes_max, end_offset)

    log.read = read  # type: ignore[method-assign]
    return log
