"""Linearizable reads (ReadIndex): a majority confirms that this broker still leads.

All reads that wait share one round of heartbeats. A read may be served from a state machine that
has applied everything below the commit at the start of its round.
"""

from moldau.model.ids import BrokerId, RaftIndex
from moldau.raft.events import ReadFailed, ReadReady, Send
from moldau.raft.messages import RaftHeartbeat
from moldau.raft.progress import FOREVER
from moldau.raft.state import RaftState


class ReadIndex:
    """The reads of one leader."""

    def __init__(self, state: RaftState) -> None:
        self._state = state
        self._waiting: list[int] = []
        self.round = 0
        self._reads: tuple[int, ...] = ()
        """Reads of the round in progress; empty: there is none."""
        self._index = RaftIndex(0)
        self._confirmed: dict[BrokerId, None] = {}
        self._deadline = 0

    @property
    def deadline(self) -> int:
        return self._deadline if self._reads else FOREVER

    def request(self, read_id: int) -> None:
        self._waiting.append(read_id)
        if not self._reads:
            self._begin_round()

    def _begin_round(self) -> None:
        self.round += 1
        self._reads = tuple(self._waiting)
        self._waiting = []
        self._index = self._state.commit
        self._confirmed = {}
        self._send_heartbeats()
        self.on_confirmed(self._state.me, self.round)

    def _send_heartbeats(self) -> None:
        state = self._state
        self._deadline = state.now + state.config.retry_ms
        for voter in state.members.voters:
            if voter != state.me and voter not in self._confirmed:
                state.emit(Send(voter, RaftHeartbeat(state.epoch, state.commit, self.round)))

    def on_confirmed(self, sender: BrokerId, round_number: int) -> None:
        """A member responded to a heartbeat of that round."""
        if round_number != self.round or not self._reads:
            return
        members = self._state.members
        if sender in members.voters:
            self._confirmed[sender] = None
        if len(self._confirmed) >= members.quorum:
            self._state.emit(ReadReady(self._reads, self._index))
            self._reads = ()
            if self._waiting:
                self._begin_round()

    def on_tick(self) -> None:
        if self._reads and self._state.now >= self._deadline:
            self._send_heartbeats()

    def fail_all(self) -> None:
        """This broker no longer leads."""
        reads = (*self._reads, *self._waiting)
        self._reads = ()
        self._waiting = []
        if reads:
            self._state.emit(ReadFailed(reads))
