"""What a broker says of its replicas after a majority was lost, and what it does when told to."""

import pytest
from partitions_world import OTHER, THIRD, TOPIC_ID, World, creation

from moldau.data.forced_replicas import ForcedReplicas
from moldau.metadata.commands import RemoveLostBrokers
from moldau.metadata.image import Image
from moldau.model.errors import CorruptionError, RefusedError
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

    async def fresh() -> Image:
        return world.image

    return world, ForcedReplicas(
        me=ME, partitions=world.partitions, driver=world.driver, fresh_image=fresh
    )


async def test_the_replica_becomes_the_only_voter() -> None:
    world, forced = lost_majority()
    await forced.make_only_voter(TOPIC_ID, FIRST, FORCED)
    assert world.replica().members.voters == (ME,)
    world.stop()


async def test_a_log_that_cannot_be_opened_again_is_not_called_recovered() -> None:
    world, forced = lost_majority()
    world.log_failures[0] = CorruptionError("a bad batch")
    with pytest.raises(RefusedError, match="a bad batch"):
        await forced.make_only_voter(TOPIC_ID, FIRST, FORCED)
    assert [*world.partitions.offline] == [("t", 0)]
    world.stop()
