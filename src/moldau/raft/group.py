"""Owns epoch, vote and commit of one Raft group: events in, effects out.

This version knows groups of one voter, which need no messages: the voter elects itself, and what
it has flushed is what a majority has flushed. The shape is that of the full protocol, so that the
driver in `replica` already runs effects in the right order:

- an epoch is used only after the vote for it is durable (a forgotten vote can elect two leaders);
- a leader first appends a no-op of its own epoch, and commits older entries only through it;
- commit follows *flushed* indexes, never appended ones.
"""

from dataclasses import dataclass
from typing import assert_never

from moldau.model.ids import BrokerId, Epoch, RaftIndex
from moldau.raft.errors import RaftError as RaftError


@dataclass(frozen=True, slots=True)
class VotePersisted:
    """The driver made the vote durable."""

    epoch: Epoch


@dataclass(frozen=True, slots=True)
class NoopAppended:
    """The driver appended the no-op; entries from `index` on are of the leader's epoch."""

    index: RaftIndex


Event = VotePersisted | NoopAppended


@dataclass(frozen=True, slots=True)
class PersistVote:
    """Make (epoch, voted_for) durable, then report VotePersisted."""

    epoch: Epoch
    voted_for: BrokerId


@dataclass(frozen=True, slots=True)
class AppendNoop:
    """Append a control entry of this epoch, then report NoopAppended."""

    epoch: Epoch


Effect = PersistVote | AppendNoop


class RaftGroup:
    """Consensus state of one group on one broker."""

    def __init__(
        self, *, broker: BrokerId, voters: frozenset[BrokerId], epoch: Epoch, commit: RaftIndex
    ) -> None:
        if voters != {broker}:
            raise RaftError(f"groups of one voter only, not {sorted(voters)} seen from {broker}")
        self._broker = broker
        self.voters = voters
        self.epoch = epoch
        self.is_leader = False
        self.commit = commit
        self._candidate_epoch: Epoch | None = None
        self._epoch_start: RaftIndex | None = None

    def campaign(self, last_epoch: Epoch) -> list[Effect]:
        """Stand for election in an epoch above every one seen in votes and in the log."""
        self.is_leader = False
        self._epoch_start = None
        self._candidate_epoch = Epoch(max(self.epoch, last_epoch, Epoch(-1)) + 1)
        return [PersistVote(self._candidate_epoch, self._broker)]

    def step(self, event: Event) -> list[Effect]:
        match event:
            case VotePersisted(epoch):
                return self._become_leader(epoch)
            case NoopAppended(index):
                if not self.is_leader:
                    raise RaftError("a no-op was appended without leadership")
                self._epoch_start = index
                return []
            case _:
                assert_never(event)

    def _become_leader(self, epoch: Epoch) -> list[Effect]:
        if epoch != self._candidate_epoch:
            raise RaftError(f"vote persisted for epoch {epoch}, not {self._candidate_epoch}")
        self._candidate_epoch = None
        self.epoch = epoch
        self.is_leader = True
        return [AppendNoop(epoch)]

    @property
    def has_committed_in_epoch(self) -> bool:
        """Whether the leader's own no-op is committed: all before it is then, too."""
        start = self._epoch_start
        return self.is_leader and start is not None and start < self.commit

    def flushed(self, index: RaftIndex) -> RaftIndex:
        """Entries below `index` are durable here; returns the commit index.

        Nothing commits before the leader's own no-op is flushed: an older epoch's entry that a
        majority holds can still be overwritten until then.
        """
        start = self._epoch_start
        if start is not None and start < index and self.commit < index:
            self.commit = index
        return self.commit
