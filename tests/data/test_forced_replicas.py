"""What a broker says of its replicas after a majority was lost, and what it does when told to."""

import pytest
from partitions_world import OTHER, THIRD, TOPIC_ID, World, creation

from moldau.data.forced_replicas import ForcedReplicas
from moldau.metadata.commands import ReassignPartition, RemoveLostBrokers
from moldau.metadata.image import EMPTY_IMAGE, Image
from moldau.model.errors import CorruptionError, DiskFullError, MoldauError, RefusedError
from moldau.model.ids import BrokerId, Epoch, PartitionIndex

pytestmark = pytest.mark.inprocess

ME = BrokerId(1)
FIRST = PartitionIndex(0)
FORCED = Epoch(100_000)


def lost_majority() -> tuple[World, ForcedReplicas]:
    """The brokers 2 and 3 are lost, with two of three replicas."""
    world = World(brokers=3)
    world.submit(creation(assignments={0: [ME, OTHER, THIRD]}))
    world.submit(RemoveLostBrokers(broker_ids=(OTHER, THIRD)))

    return world, forced_replicas(world)


def forced_replicas(world: World, announced: int = -1) -> ForcedReplicas:
    async def fresh() -> Image:
        return world.image

    return ForcedReplicas(
        me=ME,
        partitions=world.partitions,
        driver=world.driver,
        fresh_image=fresh,
        leader_epoch=lambda topic_id, index: Epoch(announced),
    )


async def test_the_replica_becomes_the_only_voter() -> None:
    world, forced = lost_majority()
    await forced.make_only_voter(TOPIC_ID, FIRST, FORCED, needs_voter=True)
    assert world.replica().members.voters == (ME,)
    world.stop()


async def test_a_log_that_cannot_be_opened_again_is_not_called_recovered() -> None:
    world, forced = lost_majority()
    world.log_failures[0] = CorruptionError("a bad batch")
    with pytest.raises(RefusedError, match="a bad batch"):
        await forced.make_only_voter(TOPIC_ID, FIRST, FORCED, needs_voter=True)
    assert [*world.partitions.offline] == [("t", 0)]
    world.stop()


@pytest.mark.parametrize(
    ("error", "may_pass"), [(DiskFullError("no room"), True), (CorruptionError("torn"), False)]
)
async def test_a_replica_without_room_may_be_a_good_one(error: MoldauError, may_pass: bool) -> None:
    world, forced = lost_majority()
    world.partitions.take_offline(world.hosted(0), error)
    (found,) = forced.survey(world.image, ((TOPIC_ID, FIRST),)).replicas
    assert (found.problem, found.may_pass) == (str(error), may_pass)
    world.stop()


async def test_a_replica_that_is_not_open_yet_may_be_a_good_one() -> None:
    world, forced = lost_majority()
    image = world.image
    await world.partitions.reconcile(EMPTY_IMAGE)
    (found,) = forced.survey(image, ((TOPIC_ID, FIRST),)).replicas
    assert found.may_pass
    world.stop()


async def test_the_epoch_of_a_leader_that_is_lost_is_known_also_without_its_log() -> None:
    # Nobody would follow a new leader of a lower one.
    world, _ = lost_majority()
    forced = forced_replicas(world, announced=100_004)
    (found,) = forced.survey(world.image, ((TOPIC_ID, FIRST),)).replicas
    assert found.known_epoch == 100_004
    (absent,) = forced.survey(world.image, ((bytes(16), FIRST),)).replicas
    assert absent.known_epoch == 100_004
    world.stop()


async def test_one_that_is_no_voter_remembers_a_leader_that_is_lost() -> None:
    world = World(brokers=4)
    world.submit(creation(assignments={0: [OTHER, THIRD, BrokerId(4)]}))
    world.submit(ReassignPartition(topic="t", partition=FIRST, replicas=[ME, OTHER, THIRD]))
    world.submit(RemoveLostBrokers(broker_ids=(OTHER, THIRD)))
    forced = forced_replicas(world)
    world.replica().group.core.leader = OTHER
    (found,) = forced.survey(world.image, ((TOPIC_ID, FIRST),)).replicas
    assert not found.is_voter
    with pytest.raises(RefusedError, match="not a voter"):
        await forced.make_only_voter(TOPIC_ID, FIRST, FORCED, needs_voter=True)
    await forced.make_only_voter(TOPIC_ID, FIRST, FORCED, needs_voter=False)
    assert world.replica().members.is_voter(ME, world.replica().log.log_id)
    assert world.replica().members.voters == (ME,)
    world.stop()
