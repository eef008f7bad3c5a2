"""What a commit costs where fetches are parked: others wait for it. Reads are counted, not time."""

from collections.abc import Sequence

from fetch_world import World
from memory_log import MemoryLog

from moldau.data.fetch import PartitionFetch, PartitionFetchResult
from moldau.log.interface import LogConfig
from moldau.model.flush import FlushPolicy
from moldau.testing.waiting import until

NEVER_ENOUGH = 1 << 23
PARTITIONS = 200
FETCHES = 10


class Looks(list[PartitionFetch]):
    """All that the fetch service of a world reads."""

    def __init__(self, world: World) -> None:
        read = world.service.read

        def noting(
            requests: Sequence[PartitionFetch], bytes_max: int, *, stops_when_full: bool = False
        ) -> tuple[list[PartitionFetchResult], int, bool]:
            self.extend(requests)
            return read(requests, bytes_max, stops_when_full=stops_when_full)

        world.service.read = noting  # type: ignore[method-assign]


async def test_a_commit_costs_each_fetch_one_look_however_much_it_names() -> None:
    world = await World.make()
    for index in range(2, PARTITIONS):
        await world.open(index, MemoryLog(LogConfig(flush=FlushPolicy.NEVER)))
    for _ in range(FETCHES):
        wanted = [(index, 0) for index in range(PARTITIONS)]
        assert world.fetch(*wanted, bytes_min=NEVER_ENOUGH) is not None
    looks = Looks(world)
    for index in (0, 7, 0, 0, 150):
        looks.clear()
        await world.append(index)
        assert [look.partition for look in looks] == [index] * FETCHES
    assert world.answers == []
    world.service.complete_all()


async def test_a_look_is_at_what_is_new() -> None:
    world = await World.make()
    size = await world.append(0)
    world.fetch((0, 0), (1, 0), bytes_min=3 * size + 1)
    looks = Looks(world)
    for _ in range(2):
        await world.append(0)
    assert [look.offset for look in looks] == [1, 2]
    await world.append(0)
    assert world.sizes == [[4 * size, 0]]


async def test_a_partition_with_all_that_it_may_send_is_not_looked_at_again() -> None:
    world = await World.make()
    size = await world.append(0)
    world.fetch((0, 0), (1, 0), bytes_min=NEVER_ENOUGH, partition_bytes_max=2 * size)
    await world.append(0)
    looks = Looks(world)
    for _ in range(3):
        await world.append(0)
    assert looks == []
    await world.append(1)
    assert [look.partition for look in looks] == [1]
    # Not even a byte is wanted of each: the first batch is sent all the same.
    world.fetch((1, 1), bytes_min=2, partition_bytes_max=0)
    await world.append(1)
    assert world.sizes == [[size]]
    world.service.complete_all()


async def test_an_open_transaction_costs_one_look_at_one_partition() -> None:
    world = await World.make()
    world.begin(0)
    await until(lambda: world.replicas["t", 0].high_watermark == 1, "it is committed")
    world.fetch((0, 0), (1, 0), reads_committed=True)
    looks = Looks(world)
    for _ in range(5):
        await world.append(0)
    assert [look.partition for look in looks] == [0] * 5
    await world.append(1)
    assert [result.size > 0 for result in world.answers[0]] == [False, True]


async def test_enough_that_does_not_fit_in_one_answer_is_not_waited_for_again() -> None:
    world = await World.make()
    size = await world.append(0)
    room = 2 * size - 1
    assert world.fetch((0, 0), (1, 0), bytes_min=room, bytes_max=room) is not None
    await world.append(1)
    assert world.sizes == [[size, 0]]
