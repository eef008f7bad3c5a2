"""A redrive on the leader: what it sends, what it leaves, and what a crash costs."""

import pytest
from msgspec.structs import replace
from redrive_world import READER, RedriveWorld, dead

from moldau.leases.config import QueueConfig
from moldau.metadata.queue_groups import QueueGroup
from moldau.model.ids import PartitionIndex
from moldau.model.queue_headers import (
    DEAD_KEYLESS_HEADER,
    DEAD_TRUNCATED_HEADER,
    EARLIER_DEATH_HEADER,
    ONLY_GROUP_HEADER,
)
from moldau.queues import queue_partition
from moldau.queues.admin_messages import RedriveRow

DIED = (EARLIER_DEATH_HEADER, b"at= attempts= topic=t reason=")


async def test_all_are_sent_as_they_were_and_only_once() -> None:
    made = await RedriveWorld.make(3)
    report = await made.redrive()
    assert (report.redriven, report.failed, report.is_complete) == (3, 0, True)
    assert report.rows == [RedriveRow(0, number, "", 0, number) for number in range(3)]
    assert made.sent == [b"0", b"1", b"2"]
    record = made.world.stored("t")[0]
    assert record.headers == [("color", b"red"), DIED, (ONLY_GROUP_HEADER, b"g")]
    assert record.timestamp == made.world.clock.wall_ms()
    again = await made.redrive()
    assert (again.redriven, again.failed, again.is_complete) == (0, 0, True)
    await made.bury(b"late", dead(9))
    assert (await made.redrive()).redriven == 1


async def test_those_that_are_named_are_sent_and_all_sends_the_others() -> None:
    made = await RedriveWorld.make(250)
    report = await made.redrive([240, 3])
    assert sorted(row.offset for row in report.rows) == [3, 240]
    assert report.redriven == 2
    refused = await made.redrive([3, 240, 241, 999])
    assert (refused.redriven, refused.failed) == (1, 3)
    assert {row.offset for row in refused.rows if row.error} == {3, 240, 999}
    rest = await made.redrive()
    assert rest.redriven == 247
    assert sorted(int(value or b"") for value in made.sent) == list(range(250))


async def test_what_was_redriven_stays_so_under_another_leader() -> None:
    made = await RedriveWorld.make(5)
    await made.redrive([1, 2])
    await made.world.change_leader()
    assert (await made.redrive()).redriven == 3
    assert sorted(value or b"" for value in made.sent) == [b"0", b"1", b"2", b"3", b"4"]


async def test_a_crash_between_sending_and_settling_costs_one_step_of_doubles_and_no_loss() -> None:
    made = await RedriveWorld.make(150)
    await made.redrive(is_crashing=True)
    assert len(made.sent) == 100
    # While the lease lasts, nobody else sends what that broker may still have settled.
    soon = await made.redrive()
    assert soon.redriven == 50
    made.world.pass_time(61_000)
    late = await made.redrive()
    assert late.redriven == 100
    assert {int(value or b"") for value in made.sent} == set(range(150))
    assert len(made.sent) == 250
    assert (await made.redrive()).redriven == 0


async def test_only_what_was_stored_counts_and_the_rest_is_there_for_the_next_time() -> None:
    made = await RedriveWorld.make(2)
    made.world.append_failures = 1
    report = await made.redrive()
    assert (report.redriven, report.failed) == (0, 2)
    assert all("too few" in row.error for row in report.rows)
    assert made.sent == []
    assert (await made.redrive()).redriven == 2


async def test_a_message_that_the_target_refuses_holds_up_no_other() -> None:
    made = await RedriveWorld.make()
    await made.bury(b"small", dead(0))
    await made.bury(b"x" * 2_000, dead(1))
    made.world.message_bytes_max = 1_000
    report = await made.redrive()
    assert (report.redriven, report.failed) == (1, 1)
    assert made.sent == [b"small"]


async def test_a_message_that_only_fits_without_its_earlier_deaths_is_sent_without_them() -> None:
    made = await RedriveWorld.make()
    await made.bury(b"x" * 500, [*dead(0), *[(EARLIER_DEATH_HEADER, b"y" * 100)] * 9])
    await made.bury(b"small", dead(1))
    made.world.message_bytes_max = 1_000
    report = await made.redrive()
    assert (report.redriven, report.failed) == (2, 0)
    deaths = {
        one.value: len([name for name, _ in one.headers if name == EARLIER_DEATH_HEADER])
        for one in made.world.stored("t")
    }
    assert deaths == {b"x" * 500: 0, b"small": 1}


async def test_letters_of_other_queues_stay_or_do_not_count() -> None:
    made = await RedriveWorld.make()
    await made.bury(b"other topic", dead(0, topic="u"))
    await made.bury(b"other group", dead(1, group="h"))
    await made.bury(b"no letter", [])
    await made.bury(b"cut", [*dead(2), (DEAD_TRUNCATED_HEADER, b"value")])
    await made.bury(b"mine", dead(3))
    await made.bury(b"mine", dead(3, moldau_dead_reason=b"written twice after a failover"))
    report = await made.redrive()
    assert made.sent == [b"mine"]
    assert (report.redriven, report.failed, report.duplicates) == (1, 1, 1)
    assert report.rows[0] == RedriveRow(0, 3, "it was cut: value is missing")
    # Its own state, which other groups do not have: of theirs, nothing is left here.
    named = await made.redrive([0, 1, 2, 3, 4])
    assert [row.error for row in named.rows] == [
        "it is of topic 'u'",
        "it was cut: value is missing",
        "there is no such dead letter, or it was redriven",
        "there is no such dead letter, or it was redriven",
        "there is no such dead letter, or it was redriven",
    ]


async def test_another_message_with_the_same_origin_is_sent() -> None:
    """Its topic was deleted and created again, or somebody made the headers up."""
    made = await RedriveWorld.make()
    await made.bury(b"made up", dead(3))
    await made.bury(b"paid", dead(3))
    await made.bury(b"paid", [*dead(3), ("shape", b"round")])
    await made.bury(b"paid", dead(3), key=b"k")
    report = await made.redrive()
    assert (report.redriven, report.duplicates) == (4, 0)
    assert made.sent == [b"made up", b"paid", b"paid", b"paid"]


async def test_a_key_that_was_made_up_is_dropped_and_another_topic_gets_it_for_all() -> None:
    made = await RedriveWorld.make()
    await made.world.create("u", 2)
    await made.bury(b"a", [*dead(0), (DEAD_KEYLESS_HEADER, b"")], key=b"made up")
    await made.bury(b"b", dead(1), key=b"k")
    report = await made.redrive(target="u")
    assert report.redriven == 2
    stored = sorted(made.world.stored("u"), key=lambda record: record.value or b"")
    assert [(record.key, record.headers) for record in stored] == [
        (None, [("color", b"red"), DIED]),
        (b"k", [("color", b"red"), DIED]),
    ]


async def test_a_preview_counts_and_sends_nothing() -> None:
    made = await RedriveWorld.make(3)
    await made.redrive([1])
    seen = await made.redrive(validate_only=True)
    assert (seen.redriven, seen.is_complete) == (2, True)
    assert [row.offset for row in seen.rows] == [0, 2]
    assert len(made.sent) == 1


async def test_a_request_ends_after_so_many_and_says_that_there_is_more() -> None:
    made = await RedriveWorld.make(120)
    report = await made.redrive(count_max=70)
    assert (report.redriven, report.is_complete) == (70, False)
    over = await made.redrive(seconds_max=0.0)
    assert (over.redriven, over.is_complete) == (0, False)
    named = await made.redrive([100], seconds_max=0.0)
    assert (named.failed, named.is_complete) == (1, False)
    assert (await made.redrive()).redriven == 50


async def test_letters_are_removed_each_once_and_a_redrive_finds_them_no_more() -> None:
    made = await RedriveWorld.make(250)
    await made.bury(b"other topic", dead(0, topic="u"))
    await made.redrive([7])
    removed = await made.redrive(target=None)
    assert (removed.redriven, removed.failed, removed.is_complete) == (249, 0, True)
    assert (await made.redrive()).redriven == 0
    assert made.sent == [b"7"]
    await made.world.change_leader()
    assert (await made.redrive(target=None)).redriven == 0
    assert (await made.redrive(topic="u")).redriven == 1


async def test_a_removal_says_what_is_in_its_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Repeating it does not help: letters of another topic have to go first."""
    config_of = queue_partition.config_of

    def narrow(group: QueueGroup) -> QueueConfig:
        return replace(config_of(group), open_max=4, leases_max=4)

    monkeypatch.setattr(queue_partition, "config_of", narrow)
    made = await RedriveWorld.make()
    for number in range(6):
        await made.bury(b"other topic", dead(number, topic="u"))
    await made.bury(b"mine", dead(9))
    blocked = await made.redrive(target=None)
    assert (blocked.redriven, blocked.failed) == (0, 1)
    (why,) = blocked.refusals
    assert "redrive or purge them first" in why
    while (await made.redrive(topic="u", target=None)).redriven:
        pass
    assert (await made.redrive(target=None)).redriven == 1


async def test_a_letter_that_another_request_has_is_not_sent() -> None:
    made = await RedriveWorld.make(2)
    await made.world.host.poll(
        READER, [(made.world.topics["g.dead"], PartitionIndex(0))], "cli", 1, None, 0.0
    )
    named = await made.redrive([0])
    assert [row.error for row in named.rows] == ["another request redrives it just now"]
    assert (await made.redrive()).redriven == 1
    assert made.sent == [b"1"]
