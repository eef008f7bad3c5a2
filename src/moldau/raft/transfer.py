"""Leadership transfer: once the target has every entry, it is requested to stand for election."""

from moldau.model.ids import BrokerId
from moldau.raft.errors import RaftRejection
from moldau.raft.events import Send, TransferEnded
from moldau.raft.membership import NO_BROKER
from moldau.raft.messages import TimeoutNow
from moldau.raft.progress import FOREVER
from moldau.raft.state import RaftState


class LeadershipTransfer:
    """At most one transfer of one leader. While `target` is set, nothing may be proposed."""

    def __init__(self, state: RaftState) -> None:
        self._state = state
        self.target = NO_BROKER
        self.deadline = FOREVER
        """When the transfer is given up, and writes continue here."""
        self._is_sent = False

    def request(self, target: BrokerId) -> None:
        state = self._state
        if target == state.me or target not in state.members.voters:
            raise RaftRejection(f"the target {target} must be another voter of the group")
        if self.target != NO_BROKER:
            raise RaftRejection(f"a transfer to broker {self.target} is in progress")
        self.target = target
        self.deadline = state.now + state.config.transfer_ms_max
        self._is_sent = False
        self.maybe_hand_over()

    def maybe_hand_over(self) -> None:
        """Ask the target to stand for election once it has every entry."""
        if self.target == NO_BROKER or self._is_sent:
            return
        state = self._state
        progress = state.progress.get(self.target)
        if progress is not None and progress.match >= state.end:
            self._is_sent = True
            state.emit(Send(self.target, TimeoutNow(state.epoch)))

    def on_tick(self) -> None:
        if self._state.now >= self.deadline:
            self._give_up()

    def _give_up(self) -> None:
        target, self.target, self.deadline = self.target, NO_BROKER, FOREVER
        self._state.emit(TransferEnded(target))
