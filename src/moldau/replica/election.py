"""Owns the elections of many replicas at once: their votes share one write of the vote journal."""

from collections.abc import Iterable, Mapping
from typing import Protocol

from moldau.model.errors import DiskFullError
from moldau.model.ids import BrokerId, Epoch, PartitionIndex, TopicId
from moldau.raft.group import PersistVote, VotePersisted
from moldau.replica.replica import Replica


class Votes(Protocol):
    """The broker's durable votes, by group name."""

    def get(self, group: str) -> tuple[Epoch, BrokerId]: ...

    def record(self, votes: Mapping[str, tuple[Epoch, BrokerId]]) -> None: ...


def group_key(topic_id: TopicId, partition: PartitionIndex) -> str:
    """Name of a group in the vote journal; a recreated topic is another group."""
    return f"{topic_id.hex()}-{partition}"


def elect(replicas: Iterable[Replica], votes: Votes) -> dict[Replica, DiskFullError]:
    """Make this broker the leader of groups in which it is the only voter.

    Returns those that got no leader because the disk is full; they are to be closed, and opened
    again when there is room. Raises StorageError if the disk failed.
    """
    asked: dict[str, tuple[Replica, PersistVote]] = {}
    for replica in replicas:
        name = group_key(replica.topic_id, replica.partition.partition)
        for effect in replica.group.campaign(replica.log.last_epoch):
            if isinstance(effect, PersistVote):
                asked[name] = (replica, effect)
    failed: dict[Replica, DiskFullError] = {}
    try:
        votes.record({name: (vote.epoch, vote.voted_for) for name, (_, vote) in asked.items()})
    except DiskFullError as error:
        return {replica: error for replica, _ in asked.values()}
    for replica, vote in asked.values():
        try:
            replica.run(replica.group.step(VotePersisted(vote.epoch)), _no_second_vote)
        except DiskFullError as error:
            failed[replica] = error
    return failed


def _no_second_vote(vote: PersistVote) -> None:
    raise RuntimeError(f"a leader asked to vote again in epoch {vote.epoch}")
