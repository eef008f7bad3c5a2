"""Owns a queue whose records are committed at once, for tests of its rules.

Offsets, epochs and times are plain numbers in these tests: hence Any.
"""

from typing import Any

from queue_invariants import snapshot

from moldau.leases.commands import LogMessage, LogSlice, Poll, TakeOver
from moldau.leases.config import QueueConfig
from moldau.leases.records import encode
from moldau.leases.results import GrantedLeases, Refusal, SettleResult
from moldau.leases.state import QueueId
from moldau.leases.state_machine import QueueStateMachine
from moldau.leases.tokens import Token
from moldau.model.ids import Offset, PartitionIndex, TimestampMs, TopicId

QUEUE = QueueId("g", TopicId(b"t" * 16), PartitionIndex(0))
CONFIG = QueueConfig(
    attempts_max=3, backoff_ms_min=100, backoff_ms_max=150, leases_max=4, open_max=6
)


class Queue:
    """A machine whose records are committed at once, over a log of so many messages."""

    def __init__(self, messages: int = 10, config: QueueConfig = CONFIG, epoch: Any = 1) -> None:
        self.config = config
        self.log = [LogMessage(Offset(offset)) for offset in range(messages)]
        self.machine = QueueStateMachine(QUEUE, config, epoch)
        self.is_full = False
        self.died: tuple[Offset, ...] = ()
        start, end = Offset(0), Offset(messages)
        self.do(TakeOver(epoch=epoch, now=TimestampMs(0), start=start, end=end))

    @property
    def state(self) -> Any:
        return self.machine.state

    def do(self, command: Any) -> Any:
        decision = self.machine.decide(command)
        if decision.record is not None:
            assert self.machine.apply(decision.record)
        self.died = decision.died
        return decision.result

    def poll(
        self,
        count: int = 1,
        now: Any = 0,
        member: str = "ann",
        visibility: int = 1_000,
        gives: LogSlice | None = None,
    ) -> list[Token]:
        first = self.state.next
        end = Offset(len(self.log))
        read = LogSlice(first=first, end=end, messages=tuple(self.log[first:]))
        answer = self.do(
            Poll(
                member=member,
                count_max=count,
                now=now,
                visibility_ms=visibility,
                read=gives or read,
            )
        )
        assert isinstance(answer, GrantedLeases)
        self.is_full = answer.is_full
        return [lease.token for lease in answer.leases]

    def settle(
        self, kind: Any, *tokens: Any, now: Any = 0, member: str = "ann", **fields: Any
    ) -> list[Refusal]:
        answer = self.do(kind(member=member, tokens=tokens, now=now, **fields))
        assert isinstance(answer, SettleResult)
        return list(answer.refusals)

    def next_leader(self, now: Any = 0, epoch: Any = 2, **fields: Any) -> Any:
        loaded = QueueStateMachine(QUEUE, self.config, epoch)
        loaded.load([encode(snapshot(self.state, QUEUE))])
        self.machine = loaded
        end = len(self.log)
        wanted: dict[str, Any] = {"epoch": epoch, "now": now, "start": 0, "end": end, **fields}
        return self.do(TakeOver(**wanted))
