"""Owns what the metadata leader does unasked: the commands that bring the cluster nearer its wish.

The leader asks after each change of the image and now and then, submits what it gets, and asks
again. Nothing is remembered between two calls, so a new leader goes on where the old one ended.
"""

from collections.abc import Sequence

from moldau.metadata.broker_rules import replicas_on
from moldau.metadata.commands import (
    Command,
    ReassignPartition,
    RemoveBroker,
    SpreadInternalTopics,
)
from moldau.metadata.image import Image
from moldau.metadata.replica_rules import drain_moves, spread_internal_topics
from moldau.model.ids import BrokerId


def due_commands(
    image: Image, *, metadata_members: Sequence[BrokerId], moves_max: int
) -> list[Command]:
    """What is due. At most `moves_max` partitions are on the move for brokers that leave."""
    commands: list[Command] = []
    raised = SpreadInternalTopics()
    if spread_internal_topics(raised, image):
        commands.append(raised)
    under_way = sum(
        partition.moving for topic in image.topics.values() for partition in topic.partitions
    )
    moves: list[ReassignPartition] = drain_moves(image, moves_max - under_way)
    commands += moves
    commands += [
        RemoveBroker(broker_id=broker.id, metadata_members=metadata_members)
        for broker in image.brokers.values()
        if not broker.active
        and broker.id not in metadata_members
        and not replicas_on(image, broker.id)
    ]
    return commands
