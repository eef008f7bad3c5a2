"""A damaged replica begins anew where the others can spare it, and nowhere else."""

from collections.abc import Callable

import pytest
from partitions_world import OTHER, THIRD, World, creation

from moldau.metadata.image import Topic
from moldau.model.errors import CorruptionError, DiskFullError, MoldauError, StorageError
from moldau.model.ids import FIRST_LOG, BrokerId, PartitionIndex, TopicId
from moldau.raft.errors import RaftError
from moldau.service.repair import Repair

pytestmark = pytest.mark.inprocess

ME = BrokerId(1)
DAMAGE = CorruptionError("a bad batch")


class Damaged:
    """Partitions of which some are offline, and where their logs went."""

    def __init__(self, replicas: list[int], error: MoldauError = DAMAGE, count: int = 1) -> None:
        self.world = World(brokers=3)
        self.world.submit(creation(assignments=dict.fromkeys(range(count), replicas)))
        for index in range(count):
            self.world.partitions.take_offline(self.world.hosted(index), error)
        self.aside: list[int] = []
        self.is_led = True
        self.repair = Repair(
            partitions=self.world.partitions,
            me=ME,
            set_aside=self._set_aside,
            has_leader=self._has_leader,
        )

    def _set_aside(self, name: str, topic_id: TopicId, index: PartitionIndex) -> str:
        self.aside.append(index)
        return "strays/t"

    def _has_leader(self, topic: Topic, index: PartitionIndex) -> bool:
        return self.is_led

    def stop(self) -> None:
        self.world.driver.stop()
        self.world.flusher.stop()


@pytest.mark.parametrize("error", [DAMAGE, RaftError("the leader contradicts what is committed")])
async def test_one_of_three_begins_anew_with_a_log_that_has_no_vote(error: MoldauError) -> None:
    damaged = Damaged([ME, OTHER, THIRD], error)
    assert list(damaged.world.partitions.offline) == [("t", 0)]
    damaged.repair.step()
    assert damaged.aside == [0]
    assert not damaged.world.partitions.offline
    replica = damaged.world.replica(0)
    assert replica.log.log_id != FIRST_LOG
    assert not replica.group.core.is_voter
    damaged.stop()


def without_a_leader(damaged: Damaged) -> None:
    damaged.is_led = False


@pytest.mark.parametrize(
    ("replicas", "error", "change"),
    [
        pytest.param([ME], DAMAGE, None, id="the only replica"),
        pytest.param([ME, OTHER], DAMAGE, None, id="one of two, which are a majority together"),
        pytest.param([ME, OTHER, THIRD], DAMAGE, without_a_leader, id="nobody leads"),
        pytest.param([ME, OTHER, THIRD], DiskFullError("no room"), None, id="a full disk"),
    ],
)
async def test_others_stay_offline(
    replicas: list[int], error: MoldauError, change: Callable[[Damaged], None] | None
) -> None:
    damaged = Damaged(replicas, error)
    if change is not None:
        change(damaged)
    damaged.repair.step()
    assert (damaged.aside, list(damaged.world.partitions.offline)) == ([], [("t", 0)])
    damaged.stop()


async def test_one_at_a_time() -> None:
    damaged = Damaged([ME, OTHER, THIRD], count=3)
    for offline in (2, 1, 0, 0):
        damaged.repair.step()
        assert len(damaged.world.partitions.offline) == offline
    assert sorted(damaged.aside) == [0, 1, 2]
    damaged.stop()


async def test_a_log_that_cannot_be_set_aside_stays_where_it_is(
    caplog: pytest.LogCaptureFixture,
) -> None:
    damaged = Damaged([ME, OTHER, THIRD])

    def refuse(name: str, topic_id: TopicId, index: PartitionIndex) -> str:
        raise StorageError("t-0 could not be moved")

    damaged.repair._set_aside = refuse
    damaged.repair.step()
    assert list(damaged.world.partitions.offline) == [("t", 0)]
    assert "t-0 stays offline: t-0 could not be moved" in caplog.text
    damaged.stop()
