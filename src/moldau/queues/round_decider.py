"""Owns what is decided in one round of a queue: in which order, and who gets what.

Nothing is written or answered here; `one_queue.py` does, and leaves a machine whose decisions could
not be written.
"""

import logging
from collections.abc import Callable, Iterable
from itertools import islice, takewhile
from typing import NamedTuple

from moldau.groups.queue.commands import (
    Ack,
    Command,
    ExpireDue,
    Extend,
    Nack,
    Poll,
    Recall,
    Trim,
)
from moldau.groups.queue.decide import has_room_for
from moldau.groups.queue.delay_buckets import DelayBucket
from moldau.groups.queue.results import (
    CommandRefused,
    CommandResult,
    Decision,
    Done,
    Lease,
    Refusal,
    SettleResult,
)
from moldau.groups.queue.results import GrantedLeases as Leases
from moldau.groups.queue.state import Dead, QueueRecord
from moldau.groups.queue.state_machine import QueueStateMachine
from moldau.model.ids import Offset, TimestampMs
from moldau.queues.limits import QueueLimits
from moldau.queues.pending_poll import PendingPoll
from moldau.queues.reader import LoadedMessage, QueueReader
from moldau.queues.settlement import refused
from moldau.replica.replica import Replica

log = logging.getLogger(__name__)

MakeCommand = Callable[[TimestampMs], Command]
"""Makes a command when its turn has come: it holds the time of then."""


class Grant(NamedTuple):
    """What a poll is given, once that is committed."""

    ask: PendingPoll
    leases: tuple[Lease, ...]
    passed: dict[Offset, LoadedMessage]
    """Messages, of those that are delivered for the first time."""


class RoundDecider:
    """One machine at work, until it is left. `now` is the time of the round that is under way."""

    def __init__(
        self,
        machine: QueueStateMachine,
        reader: QueueReader,
        replica: Replica,
        limits: QueueLimits,
        name: str,
    ) -> None:
        self.machine = machine
        self._reader = reader
        self._replica = replica
        self._limits = limits
        self._name = name
        self._is_blocked = False
        self._blocked_until: TimestampMs | None = None
        self.gone: set[Offset] = set()
        """Messages that were looked for and are in the log no more."""
        self.begin(TimestampMs(0))

    def begin(self, now: TimestampMs) -> None:
        """A round: nothing is decided yet."""
        self.now = now
        self.records: list[QueueRecord] = []
        self.given: list[Grant] = []
        self.is_more = False
        """The next round has something to do at once."""
        self._died: list[Offset] = []
        self._token_count = 0
        self.gone.clear()

    @property
    def is_full(self) -> bool:
        """Too much is open: polls get nothing until something is settled."""
        return self._is_blocked and (self._blocked_until is None or self.now < self._blocked_until)

    @property
    def has_room(self) -> bool:
        """In this round, for one more command."""
        return (
            len(self.records) < self._limits.commands_per_write_max
            and self._token_count < self._limits.tokens_per_round_max
        )

    def decide(self, command: Command) -> Decision:
        # One by one: the next command is made when it is known what this one leads to.
        (decision,) = self.machine.decide_all((command,))
        if decision.record is not None:
            self.records.append(decision.record)
            self._died += decision.died
        return decision

    def died(self) -> dict[Offset, Dead]:
        """What this round has made dead letters."""
        entries = ((offset, self.machine.state.get(offset)) for offset in self._died)
        return {offset: entry for offset, entry in entries if isinstance(entry, Dead)}

    # ---- all but polls

    def keep_house(self) -> None:
        """What time and retention have done since the last round."""
        self._reader.forget_if_told()
        state = self.machine.state
        start = self._replica.log.start_offset
        if start > state.floor:
            trimmed = self.decide(Trim(start=start)).answer
            self._is_blocked = False
            if isinstance(trimmed, Done) and trimmed.count:
                log.warning(
                    "%s: retention deleted %d messages before they were done",
                    *(self._name, trimmed.count),
                )
        expiry = state.next_expiry()
        if expiry is not None and expiry <= self.now:
            expired = self.decide(ExpireDue(now=self.now)).answer
            self._is_blocked = False
            self.is_more |= isinstance(expired, Done) and expired.is_more

    @property
    def due_shelf(self) -> DelayBucket | None:
        """The one to be taken from now, if there is room for what is on it."""
        machine = self.machine
        state = machine.state
        shelf = state.next_recall()
        if shelf is None or shelf.recall_at > self.now:
            return None
        if has_room_for(shelf, state, machine.config):
            return shelf
        # One that is full must not hold up the others: they make room for it.
        return min(
            (
                other
                for other in state.shelves.values()
                if other.recall_at <= self.now and has_room_for(other, state, machine.config)
            ),
            key=lambda other: other.recall_at,
            default=None,
        )

    async def recall(self) -> None:
        """Take messages off a shelf, so that they are at hand when their time comes.

        Raises RefusedError, CorruptionError.
        """
        shelf = self.due_shelf
        if shelf is None:
            return
        read = await self._reader.scan(shelf)
        recalled = self.decide(Recall(shelf=shelf.key, now=self.now, read=read)).answer
        self.is_more |= (
            isinstance(recalled, Done) and not recalled.is_more and read.end > shelf.first
        )

    def carry_out(self, make: MakeCommand) -> CommandResult:
        command = make(self.now)
        if isinstance(command, Ack | Nack | Extend):
            self._token_count += len(command.tokens)
        decision = self.decide(command)
        if decision.record is not None:
            self._is_blocked = False
        if isinstance(command, Ack) and isinstance(decision.answer, SettleResult):
            for token, refusal in zip(command.tokens, decision.answer.refusals, strict=True):
                if refusal is Refusal.NONE:
                    self._reader.drop(token.offset)
        return decision.answer

    # ---- polls

    def may_have(self, now: TimestampMs) -> int:
        """About how many messages are to be had, rather more than less."""
        state = self.machine.state
        count = max(0, self._replica.last_stable_offset - state.next)
        due, expiry = state.next_due(), state.next_expiry()
        if due is not None and due <= now:
            count += self._due_count(now)
        if expiry is not None and expiry <= now:
            count += state.leased_count
        shelf = state.next_recall()
        if shelf is not None and shelf.recall_at <= now:
            count += shelf.count
        return count

    def _due_count(self, now: TimestampMs) -> int:
        found = takewhile(
            lambda waiting: waiting[1].not_before <= now, self.machine.state.waiting_by_time()
        )
        return sum(1 for _ in islice(found, self._limits.poll_count_max))

    async def prepare(self, count: int) -> None:
        """Have so many messages at hand, if there are. Raises RefusedError, CorruptionError."""
        state = self.machine.state
        self._reader.align(state.next)
        due = self._due(count)
        missing = [offset for offset in due if self._reader.get(offset) is None]
        if missing:
            await self.load(missing)
        if len(due) < count:
            await self._reader.read_on(count - len(due))

    async def load(self, offsets: Iterable[Offset]) -> dict[Offset, LoadedMessage | None]:
        """Messages that come again, by offset, None for what is gone; the first of them at least.

        Raises RefusedError, CorruptionError.
        """
        state = self.machine.state
        loaded = await self._reader.load(offsets, lambda offset: state.get(offset) is not None)
        for offset, entry in loaded.items():
            if entry is not None and entry.message.fault:
                # It could be read once, or it would not have been delivered.
                self._reader.drop(offset)
                loaded[offset] = None
        self.gone.update(offset for offset, entry in loaded.items() if entry is None)
        return loaded

    def _due(self, count_max: int) -> list[Offset]:
        due: list[Offset] = []
        for offset, entry in self.machine.state.waiting_by_time():
            if entry.not_before > self.now or len(due) >= count_max:
                break
            due.append(offset)
        return due

    def poll_all(self, queue: object, asks: list[PendingPoll], share: int) -> bool:
        """Serve them in order, in the name of `queue`, with at most `share` messages each.

        Returns whether nothing is left to be had.
        """
        # What was decided before may have moved it on.
        self._reader.align(self.machine.state.next)
        for ask in asks:
            if not self._has_any():
                return True
            if ask.is_open:
                self._poll(queue, ask, share)
        return not self._has_any()

    def _has_any(self) -> bool:
        if self.is_full:
            return False
        state = self.machine.state
        due = state.next_due()
        return (due is not None and due <= self.now) or (
            state.next < self._replica.last_stable_offset
        )

    def _poll(self, queue: object, ask: PendingPoll, share: int) -> None:
        """Decide for one; it is claimed if it gets something."""
        count_max = min(ask.count_max, share)
        count, bytes_left, is_cut = self._fit_due(ask, count_max)
        fresh = self._reader.offer(
            0 if is_cut else count_max - count,
            bytes_left,
            self.now,
            is_first=count == 0 and not ask.is_strict,
        )
        if count + fresh.ready_count == 0 and (is_cut or fresh.is_cut):
            # Too large for its part of an answer.
            ask.give_up()
            return
        machine = self.machine
        decision = self.decide(
            Poll(
                member=ask.member,
                count_max=max(1, count + fresh.ready_count),
                now=self.now,
                visibility_ms=(
                    machine.config.visibility_ms_default
                    if ask.visibility_ms is None
                    else ask.visibility_ms
                ),
                read=fresh.read,
            )
        )
        passed = self._reader.take(machine.state.next)
        answer = decision.answer
        if isinstance(answer, CommandRefused):
            ask.refuse(refused(answer.refusal))
        elif isinstance(answer, Leases):
            ask.is_full = answer.is_full
            if answer.leases:
                ask.claimed_by = queue
                self.given.append(Grant(ask, answer.leases, passed))
                self._settle_gone(ask.member, answer.leases)
            elif answer.is_full:
                self._is_blocked = True
                due = machine.state.next_due()
                self._blocked_until = due if due is not None and due > self.now else None

    def _fit_due(self, ask: PendingPoll, count_max: int) -> tuple[int, int, bool]:
        """How many of those that come again go into the answer, what room is left then, and whether
        it is too little for the next."""
        count, bytes_left = 0, ask.bytes_max
        for offset, waiting in self.machine.state.waiting_by_time():
            if waiting.not_before > self.now or count == count_max:
                break
            if waiting.attempts >= self.machine.config.attempts_max:
                # It makes a dead letter.
                continue
            entry = self._reader.get(offset)
            if entry is not None:
                bytes_left -= entry.size
            elif offset not in self.gone:
                # Due since a moment, and not looked at: it goes alone.
                bytes_left = -1
            if bytes_left < 0 and (count or ask.is_strict):
                return count, 0, True
            count += 1
        return count, bytes_left, False

    def _settle_gone(self, member: str, leases: tuple[Lease, ...]) -> None:
        """What compaction took since cannot be delivered: it is done."""
        if self.gone:
            tokens = tuple(each.token for each in leases if each.token.offset in self.gone)
            if tokens:
                self.decide(Ack(member=member, tokens=tokens, now=self.now))
