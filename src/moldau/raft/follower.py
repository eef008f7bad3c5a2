"""What a follower does with its leader's messages: match, truncate, store, acknowledge.

A follower skips entries that it has. It truncates only at the first entry whose epoch differs from
the leader's, never below the commit and never because a message is short or old: messages may
arrive late and twice. It acknowledges what is on its disk, not what is only written.
"""

from collections.abc import Callable

from moldau.model.ids import BrokerId, Epoch, RaftIndex
from moldau.raft.errors import RaftError
from moldau.raft.events import ResetLog, Role, StoreEntries, Truncate
from moldau.raft.membership import NO_BROKER
from moldau.raft.messages import (
    AppendRequest,
    AppendResponse,
    EntryInfo,
    InstallSnapshot,
    RaftHeartbeat,
    RaftHeartbeatResponse,
)
from moldau.raft.state import RaftState


class Follower:
    """Replicates a leader's log. `become_follower` takes an epoch and its leader."""

    __slots__ = ("_become_follower", "_state", "before_reset")

    def __init__(
        self, state: RaftState, become_follower: Callable[[Epoch, BrokerId], None]
    ) -> None:
        self._state = state
        self._become_follower = become_follower
        self.before_reset = (RaftIndex(0), RaftIndex(0), RaftIndex(0))
        """The last snapshot that replaced the log: its start, and commit and verified before."""

    def _follow(self, sender: BrokerId) -> None:
        """The sender of this message is the leader of the current epoch."""
        state = self._state
        if state.leader == sender and state.role is Role.FOLLOWER:
            state.last_contact_at = state.now
            return
        if state.is_leader or state.leader not in (NO_BROKER, sender):
            raise RaftError(f"brokers {state.leader} and {sender} both lead epoch {state.epoch}")
        self._become_follower(state.epoch, sender)

    # ---- entries

    def on_append(self, sender: BrokerId, message: AppendRequest) -> None:
        self._follow(sender)
        state = self._state
        index = message.start
        # Up to the commit all logs are equal: nothing to compare, and perhaps already deleted.
        if index > state.commit and (
            index > state.end or state.epoch_before(index) != message.prev_epoch
        ):
            self._reject(sender, message)
            return
        entries = message.entries
        end = entries[-1].end if entries else index
        stored = self._store(index, entries) if entries else False
        state.verified = max(state.verified, end, state.commit)
        self._learn_commit(message.commit)
        if not stored:
            self._acknowledge(force=True)

    def _reject(self, sender: BrokerId, message: AppendRequest) -> None:
        """Report where the logs may still match: the end of an epoch that the leader can have."""
        state = self._state
        limit = min(message.start, state.end)
        index = max(state.end_of_epoch(message.prev_epoch, limit), state.commit)
        state.send(
            sender,
            AppendResponse(
                epoch=state.epoch,
                is_accepted=False,
                rejected_start=message.start,
                matched=index,
                flushed=RaftIndex(0),
                hint_epoch=state.epoch_before(index),
                log_id=state.log_id,
            ),
        )

    def _store(self, index: RaftIndex, entries: tuple[EntryInfo, ...]) -> bool:
        """Store the entries that are new; returns whether there are any."""
        state = self._state
        new = 0 if index == state.end else self._first_new(entries)
        if new == len(entries):
            return False
        first = entries[new].start
        if first < state.end:
            self._truncate(first)
        state.emit(StoreEntries(first))
        last = entries[-1]
        state.end = last.end
        state.last_epoch = last.epoch
        for entry in entries[new:]:
            if entry.members is not None:
                state.set_members(entry.start, entry.members)
        return True

    def _first_new(self, entries: tuple[EntryInfo, ...]) -> int:
        """Position of the first entry that is not in this log."""
        state = self._state
        for position, entry in enumerate(entries):
            if entry.end <= state.commit:
                continue
            if entry.start >= state.end or state.log.epoch_of(entry.start) != entry.epoch:
                return position
        return len(entries)

    def _truncate(self, index: RaftIndex) -> None:
        state = self._state
        if index < state.commit or index < state.verified:
            raise RaftError(
                f"the leader of epoch {state.epoch} contradicts entry {index}: committed are all "
                f"below {state.commit}, matched with it all below {state.verified}"
            )
        last_epoch = state.epoch_before(index)
        if state.members_index >= index:
            state.set_members(*state.log.members(index))
        state.emit(Truncate(index))
        state.truncations += 1
        state.end = index
        state.last_epoch = last_epoch
        state.flushed = min(state.flushed, index)

    # ---- acknowledgements

    def _learn_commit(self, commit: RaftIndex) -> None:
        """The leader's commit; here it counts up to where the logs are known to match."""
        state = self._state
        commit = min(commit, state.verified)
        if commit > state.commit:
            state.advance_commit(commit)

    def on_flushed(self) -> None:
        if self._state.leader != NO_BROKER and self._state.role is Role.FOLLOWER:
            self._acknowledge(force=False)

    def _acknowledge(self, *, force: bool) -> None:
        """Report to the leader what is stored; without `force` only if it is more than before."""
        state = self._state
        matched = state.verified
        flushed = min(matched, state.flushed)
        if not force and flushed <= state.acked:
            return
        state.acked = flushed
        state.send(
            state.leader,
            AppendResponse(
                epoch=state.epoch,
                is_accepted=True,
                rejected_start=matched,
                matched=matched,
                flushed=flushed,
                hint_epoch=state.epoch,
                log_id=state.log_id,
            ),
        )

    # ---- other messages of a leader

    def on_heartbeat(self, sender: BrokerId, message: RaftHeartbeat) -> None:
        self._follow(sender)
        self._learn_commit(message.commit)
        state = self._state
        state.send(sender, RaftHeartbeatResponse(state.epoch, message.round, state.log_id))

    def on_leader_alive(self, leader: BrokerId, epoch: Epoch, commit: RaftIndex) -> None:
        """As a heartbeat of the group, but sent once for all groups of a broker."""
        state = self._state
        if epoch == state.epoch and leader == state.leader and state.role is Role.FOLLOWER:
            state.last_contact_at = state.now
            self._learn_commit(commit)

    def on_peer_exited(self, peer: BrokerId) -> None:
        """Treat an exited leader as one without contact for the shortest election timeout: others
        may get votes, and the random rest of the timeout keeps the followers apart."""
        state = self._state
        if peer == state.leader and state.role is Role.FOLLOWER:
            latest = state.now - state.config.election_ms_min
            state.last_contact_at = min(state.last_contact_at, latest)

    def on_snapshot(self, sender: BrokerId, message: InstallSnapshot) -> None:
        self._follow(sender)
        state = self._state
        index = message.start
        if index > state.commit:
            if index <= state.end and state.epoch_before(index) == message.last_epoch:
                state.verified = max(state.verified, index)
                state.advance_commit(index)
            else:
                self._reset(message)
        state.verified = max(state.verified, state.commit)
        self._acknowledge(force=True)

    def _reset(self, message: InstallSnapshot) -> None:
        """Drop the log: all entries below the snapshot are committed on other brokers."""
        state = self._state
        self.before_reset = (message.start, state.commit, state.verified)
        state.emit(ResetLog(message.start))
        state.truncations += 1
        state.end = state.flushed = message.start
        state.last_epoch = message.last_epoch
        state.verified = message.start
        state.set_members(RaftIndex(-1), message.members)
        state.advance_commit(message.start)
