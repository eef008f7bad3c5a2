"""A damaged replica begins anew where the others can spare it, and nowhere else."""

import pytest
from partitions_world import OTHER, THIRD, World, creation

from moldau.data.replica_repair import ReplicaRepair
from moldau.metadata.image import Topic
from moldau.model.errors import CorruptionError, DiskFullError, MoldauError, StorageError
from moldau.model.ids import FIRST_LOG, BrokerId, PartitionIndex, TopicId
from moldau.raft.errors import RaftError

pytestmark = pytest.mark.inprocess

ME = BrokerId(1)
DAMAGE = CorruptionError("a bad batch")


class Damaged:
    """Partitions of which some are offline, and where their logs went."""

    def __init__(self, error: MoldauError = DAMAGE, count: int = 1, flush: str = "always") -> None:
        self.world = World(brokers=3)
        replicas = [ME, OTHER, THIRD]
        self.world.submit(
            creation(
                assignments=dict.fromkeys(range(count), replicas),
                configs={"moldau.flush": flush},
            )
        )
        for index in range(count):
            self.world.partitions.take_offline(self.world.hosted(index), error)
        self.aside: list[int] = []
        self.can_lose = True
        self.asked: list[int] = []
        self.repair = ReplicaRepair(
            partitions=self.world.partitions,
            set_aside=self._set_aside,
            may_rebuild=self._may_begin_anew,
        )

    def _set_aside(self, name: str, topic_id: TopicId, index: PartitionIndex) -> str:
        self.aside.append(index)
        return "strays/t"

    async def _may_begin_anew(self, topic: Topic, index: PartitionIndex) -> bool:
        self.asked.append(index)
        return self.can_lose

    def stop(self) -> None:
        self.world.driver.stop()
        self.world.flusher.stop()


CONTRADICTED = RaftError("the leader contradicts what is committed")


@pytest.mark.parametrize(("error", "flush"), [(DAMAGE, "always"), (CONTRADICTED, "interval")])
async def test_one_that_can_be_spared_is_rebuilt_with_a_log_that_has_no_vote(
    error: MoldauError, flush: str
) -> None:
    damaged = Damaged(error, flush=flush)
    assert list(damaged.world.partitions.offline) == [("t", 0)]
    await damaged.repair.step()
    assert (damaged.aside, damaged.asked) == ([0], [0])
    assert not damaged.world.partitions.offline
    replica = damaged.world.replica(0)
    assert replica.log.log_id != FIRST_LOG
    assert not replica.group.core.is_voter
    damaged.stop()


@pytest.mark.parametrize(
    ("error", "can_lose"),
    [
        pytest.param(DAMAGE, False, id="its leader cannot spare it"),
        pytest.param(DiskFullError("no room"), True, id="a full disk"),
        pytest.param(CONTRADICTED, True, id="a contradiction where all is flushed"),
    ],
)
async def test_others_stay_offline(error: MoldauError, can_lose: bool) -> None:
    damaged = Damaged(error)
    damaged.can_lose = can_lose
    await damaged.repair.step()
    assert (damaged.aside, list(damaged.world.partitions.offline)) == ([], [("t", 0)])
    damaged.stop()


async def test_one_at_a_time() -> None:
    damaged = Damaged(count=3)
    for offline in (2, 1, 0, 0):
        await damaged.repair.step()
        assert len(damaged.world.partitions.offline) == offline
    assert sorted(damaged.aside) == [0, 1, 2]
    damaged.stop()


async def test_a_log_that_cannot_be_set_aside_stays_where_it_is(
    caplog: pytest.LogCaptureFixture,
) -> None:
    damaged = Damaged()

    def refuse(name: str, topic_id: TopicId, index: PartitionIndex) -> str:
        raise StorageError("t-0 could not be moved")

    damaged.repair._set_aside = refuse
    await damaged.repair.step()
    assert list(damaged.world.partitions.offline) == [("t", 0)]
    assert (
        "t-0 stays offline: cannot move its corrupt log aside: t-0 could not be moved"
        in caplog.text
    )
    damaged.stop()
