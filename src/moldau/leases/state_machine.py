"""The state machine of one queue: a group's leases on one partition, in one leader epoch.

    machine = QueueStateMachine(queue, config, epoch)
    machine.load(ledger.stored(queue))          # empty for a new queue
    decision = machine.decide(TakeOver(...))    # must be the first command
    ... commit decision.record ...
    machine.apply(decision.record)              # then return decision.result

One write at a time: the next command is decided after the previous record is applied, or several
are decided by `decide_and_apply` and written as one batch. If it is unknown whether a record was
committed, the machine must be discarded, and another one loaded.
"""

import zlib
from collections.abc import Iterable

from moldau.leases.commands import Command, TakeOver
from moldau.leases.config import QueueConfig
from moldau.leases.decide import decide
from moldau.leases.records import decode, queue_key
from moldau.leases.results import CommandRefused, Decision, Refusal
from moldau.leases.state import QueueId, QueueRecord, QueueState
from moldau.model.errors import CorruptionError
from moldau.model.ids import Epoch


class QueueStateMachine:
    """Decides and applies. Raises RefusedError for an invalid group name."""

    __slots__ = ("_queue_checksum", "config", "epoch", "queue", "state")

    def __init__(self, queue: QueueId, config: QueueConfig, epoch: Epoch) -> None:
        self.queue = queue
        self.config = config
        """May be replaced at any time: it affects new decisions only."""
        self.epoch = epoch
        self.state = QueueState()
        self._queue_checksum = zlib.crc32(queue_key(queue))

    @property
    def is_leading(self) -> bool:
        """Whether it has taken over, and no newer leader is known."""
        return self.state.epoch == self.epoch

    def load(self, stored: Iterable[tuple[bytes, bytes]]) -> None:
        """Load the records that a ledger stores. Raises CorruptionError."""
        for key, value in stored:
            record = decode(key, value)
            if not isinstance(record, QueueRecord) or record.queue != self.queue:
                raise CorruptionError("a stored record belongs to another queue")
            if not self.state.apply(record):
                raise CorruptionError(
                    f"record {record.sequence} does not follow record {self.state.sequence}"
                )

    def decide(self, command: Command) -> Decision:
        """Decide a command without changing the state."""
        if isinstance(command, TakeOver):
            if command.epoch != self.epoch:
                return Decision(record=None, result=CommandRefused(Refusal.BAD_ARGUMENT))
        elif not self.is_leading:
            return Decision(record=None, result=CommandRefused(Refusal.NOT_LEADING))
        return decide(self.state, self.config, self.queue, self._queue_checksum, command)

    def decide_and_apply(self, command: Command) -> Decision:
        """Decide one of several commands of one write: the next one sees its effects.

        The record is applied before it is committed, and must not be applied again. Unless all
        records of the write are committed, in this order, the machine must be discarded without
        returning any result.
        """
        decision = self.decide(command)
        if decision.record is not None:
            self.state.apply(decision.record)
        return decision

    def apply(self, record: QueueRecord) -> bool:
        """The record is committed. False: it is not the next one; discard this machine."""
        return self.state.apply(record)
