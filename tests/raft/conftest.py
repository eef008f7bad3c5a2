"""One core over a log that is a list of epochs: storage effects are done, the others returned."""

import random
from collections.abc import Callable

import pytest

from moldau.model.ids import FIRST_LOG, NO_EPOCH, BrokerId, Epoch, LogId, RaftIndex
from moldau.raft import events as e
from moldau.raft.config import RaftConfig
from moldau.raft.core import RaftCore
from moldau.raft.membership import Members
from moldau.raft.messages import AppendRequest, EntryInfo, Message, VoteResponse


class ListLog:
    """Every entry has one index. `start` entries are deleted."""

    def __init__(self, epochs: list[int], initial: Members) -> None:
        self.epochs = [Epoch(epoch) for epoch in epochs]
        self.start_index = RaftIndex(0)
        self.flushed_index = RaftIndex(len(epochs))
        self.memberships: dict[RaftIndex, Members] = {}
        self._initial = initial

    @property
    def end_index(self) -> RaftIndex:
        return RaftIndex(len(self.epochs))

    @property
    def last_epoch(self) -> Epoch:
        return self.epochs[-1] if self.epochs else NO_EPOCH

    def epoch_of(self, index: RaftIndex) -> Epoch:
        return self.epochs[index]

    def boundary(self, index: RaftIndex) -> RaftIndex:
        return index

    def members(self, before: RaftIndex) -> tuple[RaftIndex, Members]:
        for index in sorted(self.memberships, reverse=True):
            if index < before:
                return index, self.memberships[index]
        return RaftIndex(-1), self._initial


class Node:
    """A core, its log and a clock."""

    def __init__(
        self, *, me: int, voters: tuple[int, ...], epochs: list[int], epoch: int, log_id: int
    ) -> None:
        members = Members(tuple(BrokerId(voter) for voter in voters))
        self.log = ListLog(epochs, members)
        self.now = 0
        self.core = RaftCore(
            me=BrokerId(me),
            log=self.log,
            config=RaftConfig(),
            chance=random.Random(1),
            now=0,
            epoch=Epoch(epoch),
            log_id=LogId(log_id),
        )

    def step(self, event: e.Event) -> list[e.Effect]:
        """Effects that are not storage; storage is done, but nothing is flushed by itself."""
        effects = self.core.step(self.now, event)
        left: list[e.Effect] = []
        for effect in effects:
            match effect:
                case e.AppendNoop(epoch):
                    self.log.epochs.append(epoch)
                case e.AppendMembership(epoch, members):
                    self.log.memberships[self.log.end_index] = members
                    self.log.epochs.append(epoch)
                case e.Truncate(end):
                    del self.log.epochs[end:]
                    self.log.flushed_index = min(self.log.flushed_index, end)
                case e.StoreEntries(start) if isinstance(event, e.Received):
                    message = event.message
                    if isinstance(message, AppendRequest):
                        self.log.epochs += [
                            entry.epoch for entry in message.entries if entry.start >= start
                        ]
                case e.ResetLog(start):
                    self.log.epochs = [Epoch(0)] * start
                    self.log.start_index = start
                case _:
                    left.append(effect)
        self.core.check_invariants()
        return left

    def receive(self, sender: int, message: Message) -> list[e.Effect]:
        return self.step(e.Received(BrokerId(sender), message))

    def sent(self, effects: list[e.Effect]) -> list[tuple[int, Message]]:
        """What goes to whom."""
        return [(effect.peer, effect.message) for effect in effects if isinstance(effect, e.Send)]

    def flush(self) -> list[e.Effect]:
        self.log.flushed_index = self.log.end_index
        return self.step(e.Flushed(self.log.end_index, self.core.truncations))

    def persist(self) -> list[e.Effect]:
        return self.step(e.VotePersisted(self.core.epoch, self.core.voted_for))

    def elect(self) -> list[e.Effect]:
        """Make it the leader: every other voter says yes."""
        self.step(e.CampaignRequested())
        others = [voter for voter in self.core.members.voters if voter != self.core.me]
        for voter in others:
            if self.core.role is e.Role.PRE_CANDIDATE:
                self.receive(voter, VoteResponse(Epoch(self.core.epoch + 1), True, True))
        effects = self.persist()
        for voter in others:
            if self.core.role is e.Role.CANDIDATE:
                effects = self.receive(voter, VoteResponse(self.core.epoch, True, False))
        assert self.core.is_leader
        return effects


def append(epoch: int, start: int, prev: int, epochs: list[int], commit: int = 0) -> AppendRequest:
    """An Append with entries of the given epochs."""
    entries = tuple(
        EntryInfo(RaftIndex(start + place), RaftIndex(start + place + 1), Epoch(number))
        for place, number in enumerate(epochs)
    )
    return AppendRequest(Epoch(epoch), RaftIndex(start), Epoch(prev), entries, RaftIndex(commit))


MakeNode = Callable[..., Node]


@pytest.fixture
def make_node() -> MakeNode:
    def make(
        *,
        me: int = 1,
        voters: tuple[int, ...] = (1, 2, 3),
        epochs: list[int] | None = None,
        epoch: int = -1,
        log_id: int = FIRST_LOG,
    ) -> Node:
        return Node(me=me, voters=voters, epochs=epochs or [], epoch=epoch, log_id=log_id)

    return make


@pytest.fixture
def make_append() -> Callable[..., AppendRequest]:
    return append
