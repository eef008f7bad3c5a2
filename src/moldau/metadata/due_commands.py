"""Commands that the metadata leader submits in the background to reach the desired state.

The leader calls this after each change of the image and periodically, and submits the result. It
keeps no state between calls, so a new leader continues where the old one stopped.
"""

from collections.abc import Sequence

from moldau.metadata.broker_rules import replicas_on
from moldau.metadata.commands import Command, ReassignPartition, RemoveBroker, SpreadInternalTopics
from moldau.metadata.image import Image
from moldau.metadata.replica_rules import drain_moves, spread_internal_topics
from moldau.model.ids import BrokerId


def due_commands(
    image: Image, *, metadata_members: Sequence[BrokerId], moves_max: int
) -> list[Command]:
    """Commands due now. At most `moves_max` partitions are reassigned at a time for drains."""
    commands: list[Command] = []
    raised = SpreadInternalTopics()
    if spread_internal_topics(raised, image):
        commands.append(raised)
    in_progress = sum(
        partition.moving for topic in image.topics.values() for partition in topic.partitions
    )
    moves: list[ReassignPartition] = drain_moves(image, moves_max - in_progress)
    commands += moves
    commands += [
        RemoveBroker(broker_id=broker.id, metadata_members=metadata_members)
        for broker in image.brokers.values()
        if not broker.active
        and broker.id not in metadata_members
        and not replicas_on(image, broker.id)
    ]
    return commands
