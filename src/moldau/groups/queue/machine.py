"""Owns the door to one queue: the group's leases on one partition, for one epoch of its leader.

    machine = QueueMachine(queue, config, epoch)
    machine.load(snapshot)                      # what the ledger has; nothing for a new queue
    decision = machine.decide(TakeOver(...))    # first of all
    ... commit decision.record ...
    machine.apply(decision.record)              # then give decision.answer

One command at a time: the next is decided when the record of the one before is applied. A record
whose fate is unknown ends the machine; whoever goes on loads another, in the same epoch if need be.
"""

from moldau.groups.queue.answers import Decision, Refusal, Refused
from moldau.groups.queue.commands import Command, TakeOver
from moldau.groups.queue.config import QueueConfig
from moldau.groups.queue.decide import decide
from moldau.groups.queue.records import queue_key
from moldau.groups.queue.state import QueueId, QueueRecord, QueueState
from moldau.groups.queue.tokens import queue_sum
from moldau.model.ids import Epoch


class QueueMachine:
    """Decides and applies; `state` may be read at any time. Raises RefusedError for a bad name."""

    __slots__ = ("_queue_sum", "config", "epoch", "queue", "state")

    def __init__(self, queue: QueueId, config: QueueConfig, epoch: Epoch) -> None:
        self.queue = queue
        self.config = config
        """May be replaced at any time: it binds decisions, not what was decided."""
        self.epoch = epoch
        self.state = QueueState()
        self._queue_sum = queue_sum(queue_key(queue))

    @property
    def is_leading(self) -> bool:
        """Whether it has taken over, and nobody after it that it knows of."""
        return self.state.epoch == self.epoch

    def load(self, stored: QueueRecord | None) -> None:
        if stored is not None:
            self.state.apply(stored)

    def decide(self, command: Command) -> Decision:
        """What the command leads to. Nothing is changed."""
        if isinstance(command, TakeOver):
            if command.epoch != self.epoch:
                return Decision(record=None, answer=Refused(Refusal.BAD_ARGUMENT))
        elif not self.is_leading:
            return Decision(record=None, answer=Refused(Refusal.NOT_LEADING))
        return decide(self.state, self.config, self.queue, self._queue_sum, command)

    def apply(self, record: QueueRecord) -> bool:
        """The record is committed. False: it does not follow, and this machine is to be left."""
        return self.state.apply(record)
