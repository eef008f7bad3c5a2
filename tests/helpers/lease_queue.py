"""Owns a queue whose records are committed at once, for tests of its rules."""

from queue_invariants import snapshot

from moldau.leases.commands import LogMessage, LogSlice, Poll, TakeOver
from moldau.leases.config import QueueConfig
from moldau.leases.records import encode
from moldau.leases.results import GrantedLeases, SettleResult
from moldau.leases.state import QueueId
from moldau.leases.state_machine import QueueStateMachine

QUEUE = QueueId("g", b"t" * 16, 0)
CONFIG = QueueConfig(
    attempts_max=3, backoff_ms_min=100, backoff_ms_max=150, leases_max=4, open_max=6
)


class Queue:
    """A machine whose records are committed at once, over a log of so many messages."""

    def __init__(self, messages=10, config=CONFIG, epoch=1):
        self.config = config
        self.log = [LogMessage(offset) for offset in range(messages)]
        self.machine = QueueStateMachine(QUEUE, config, epoch)
        self.do(TakeOver(epoch=epoch, now=0, start=0, end=messages))

    @property
    def state(self):
        return self.machine.state

    def do(self, command):
        decision = self.machine.decide(command)
        if decision.record is not None:
            assert self.machine.apply(decision.record)
        self.died = decision.died
        return decision.result

    def poll(self, count=1, now=0, member="ann", visibility=1_000, gives=None):
        first = self.state.next
        read = LogSlice(first=first, end=len(self.log), messages=tuple(self.log[first:]))
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

    def settle(self, kind, *tokens, now=0, member="ann", **fields):
        answer = self.do(kind(member=member, tokens=tokens, now=now, **fields))
        assert isinstance(answer, SettleResult)
        return list(answer.refusals)

    def next_leader(self, now=0, epoch=2, **fields):
        loaded = QueueStateMachine(QUEUE, self.config, epoch)
        loaded.load([encode(snapshot(self.state, QUEUE))])
        self.machine = loaded
        end = len(self.log)
        return self.do(TakeOver(**{"epoch": epoch, "now": now, "start": 0, "end": end, **fields}))
