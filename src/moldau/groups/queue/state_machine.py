"""Owns the door to one queue: the group's leases on one partition, for one epoch of its leader.

    machine = QueueMachine(queue, config, epoch)
    machine.load(ledger.stored(queue))          # nothing for a new queue
    decision = machine.decide(TakeOver(...))    # first of all
    ... commit decision.record ...
    machine.apply(decision.record)              # then give decision.answer

One write at a time: the next command is decided when the record of the one before is applied. What
came meanwhile is decided together, by `decide_all`, and written in one batch. A record whose fate
is unknown ends the machine; whoever goes on loads another, in the same epoch if need be.
"""

from collections.abc import Iterable

from moldau.groups.queue.commands import Command, TakeOver
from moldau.groups.queue.config import QueueConfig
from moldau.groups.queue.decide import decide
from moldau.groups.queue.records import decode, queue_key
from moldau.groups.queue.results import CommandRefused, Decision, Refusal
from moldau.groups.queue.state import QueueId, QueueRecord, QueueState
from moldau.groups.queue.tokens import queue_sum
from moldau.model.errors import CorruptionError
from moldau.model.ids import Epoch


class QueueStateMachine:
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

    def load(self, stored: Iterable[tuple[bytes, bytes]]) -> None:
        """Take what a ledger keeps of the queue. Raises CorruptionError."""
        for key, value in stored:
            record = decode(key, value)
            if not isinstance(record, QueueRecord) or record.queue != self.queue:
                raise CorruptionError("what is stored of a queue is not about it")
            if not self.state.apply(record):
                raise CorruptionError(
                    f"record {record.sequence} does not follow record {self.state.sequence}"
                )

    def decide(self, command: Command) -> Decision:
        """What the command leads to. Nothing is changed."""
        if isinstance(command, TakeOver):
            if command.epoch != self.epoch:
                return Decision(record=None, answer=CommandRefused(Refusal.BAD_ARGUMENT))
        elif not self.is_leading:
            return Decision(record=None, answer=CommandRefused(Refusal.NOT_LEADING))
        return decide(self.state, self.config, self.queue, self._queue_sum, command)

    def decide_all(self, commands: Iterable[Command]) -> list[Decision]:
        """Decide in a row for one write: each command sees what those before it lead to.

        The state runs ahead of the log then, and no record is to be applied again. Unless all
        records are committed, in this order, the machine is to be left: no answer was given, so
        nobody has seen what was not to be.
        """
        decisions = []
        for command in commands:
            decision = self.decide(command)
            if decision.record is not None:
                self.state.apply(decision.record)
            decisions.append(decision)
        return decisions

    def apply(self, record: QueueRecord) -> bool:
        """The record is committed. False: it does not follow, and this machine is to be left."""
        return self.state.apply(record)
