"""Which dead letters a scan finds."""

from redrive_world import READER, RedriveWorld

from moldau.model.ids import Offset, PartitionIndex
from moldau.queues.dead_letter_scan import DeadLetterScan


def scan_of(made: RedriveWorld, *, has_queue: bool = True) -> DeadLetterScan:
    world = made.world
    queue = made.queue if has_queue else None
    return DeadLetterScan(world.loop, world.replicas["g.dead", 0], world.limits, queue)


async def test_without_a_queue_all_of_the_log_is_found() -> None:
    made = await RedriveWorld.make(3)
    page = await scan_of(made, has_queue=False).page(Offset(1), 1, 1_000)
    assert [each.message.record.offset for each in page.letters] == [1]
    assert (page.next, page.is_end) == (2, False)
    rest = await scan_of(made, has_queue=False).page(page.next, 10, 1_000)
    assert ([each.message.record.value for each in rest.letters], rest.is_end) == ([b"2"], True)


async def test_what_is_settled_is_left_out_and_what_is_leased_is_marked() -> None:
    made = await RedriveWorld.make(4)
    await made.redrive([0])
    there = [(made.world.topics["g.dead"], PartitionIndex(0))]
    await made.world.host.poll(READER, there, "cli", 1, 10_000, 0.0)
    found = []
    scan, position, is_end = scan_of(made), Offset(0), False
    while not is_end:
        page = await scan.page(position, 2, 1_000)
        found += [(each.message.record.offset, each.is_leased) for each in page.letters]
        position, is_end = page.next, page.is_end
    assert found == [(1, True), (2, False), (3, False)]
    made.world.pass_time(11_000)
    page = await scan.page(Offset(0), 1, 1_000)
    assert [each.is_leased for each in page.letters] == [False]


async def test_at_the_end_there_is_nothing() -> None:
    made = await RedriveWorld.make(1)
    for has_queue in (True, False):
        page = await scan_of(made, has_queue=has_queue).page(Offset(1), 10, 1_000)
        assert (page.letters, page.is_end) == ([], True)
