"""Decides one round of a queue: the order of commands, and which poll gets which messages.

It writes nothing: `queue_partition.py` does, and discards the state machine if a write fails.
"""

import logging
from collections.abc import Iterable
from itertools import islice
from typing import Final, NamedTuple

from moldau.leases.commands import Ack, Command, ExpireDue, Extend, Nack, Poll, Recall, Trim
from moldau.leases.decide import has_room_for
from moldau.leases.delay_buckets import DelayBucket
from moldau.leases.results import (
    CommandRefused,
    CommandResult,
    Decision,
    Done,
    GrantedLeases,
    Lease,
    Refusal,
    SettleResult,
)
from moldau.leases.state import Dead, QueueRecord
from moldau.leases.state_machine import QueueStateMachine
from moldau.model import log_events as events
from moldau.model.ids import Offset, TimestampMs
from moldau.queues.limits import QueueLimits
from moldau.queues.mailbox import MakeCommand, PendingPoll, fail
from moldau.queues.queue_counts import DeliveryTimes, QueueCounts
from moldau.queues.reader import LoadedMessage, QueueReader
from moldau.queues.settlement import refused
from moldau.replica.replica import Replica

log = logging.getLogger(__name__)

_RECALL_AGAIN_MS: Final = 1_000


class Grant(NamedTuple):
    """The leases of a poll, once they are committed."""

    poll: PendingPoll
    leases: tuple[Lease, ...]
    first_deliveries: dict[Offset, LoadedMessage]
    """Messages that are delivered for the first time."""


class RoundDecider:
    """Decides rounds with one state machine. `now` is the time of the current round."""

    def __init__(
        self,
        machine: QueueStateMachine,
        reader: QueueReader,
        replica: Replica,
        limits: QueueLimits,
        name: str,
        counts: QueueCounts,
    ) -> None:
        self.machine = machine
        self._counts = counts
        self._delivery_times = DeliveryTimes(counts)
        self._reader = reader
        self._replica = replica
        self._limits = limits
        self._name = name
        self._is_blocked = False
        self._blocked_until: TimestampMs | None = None
        self.missing: set[Offset] = set()
        """Offsets that are no longer in the log."""
        self.begin_round(TimestampMs(0))

    def begin_round(self, now: TimestampMs) -> None:
        self.now = now
        self.records: list[QueueRecord] = []
        self.grants: list[Grant] = []
        self.is_more = False
        """The next round has work at once."""
        self._new_dead: list[Offset] = []
        self._token_count = 0
        self.missing.clear()

    @property
    def is_full(self) -> bool:
        """Too many messages are open: polls get none until some are settled."""
        return self._is_blocked and (self._blocked_until is None or self.now < self._blocked_until)

    @property
    def has_room(self) -> bool:
        """For one more command in this round."""
        return (
            len(self.records) < self._limits.commands_per_write_max
            and self._token_count < self._limits.tokens_per_round_max
        )

    def decide(self, command: Command) -> Decision:
        decision = self.machine.decide_and_apply(command)
        if decision.record is not None:
            self.records.append(decision.record)
            self._new_dead += decision.died
            self._delivery_times.died(decision.died)
        return decision

    def new_dead_letters(self) -> dict[Offset, Dead]:
        """Messages that became dead letters in this round."""
        entries = ((offset, self.machine.state.get(offset)) for offset in self._new_dead)
        return {offset: entry for offset, entry in entries if isinstance(entry, Dead)}

    # ---- commands

    def run_maintenance(self) -> None:
        """Apply retention and expire leases."""
        self._reader.drop_if_requested()
        state = self.machine.state
        start = self._replica.log.start_offset
        if start > state.floor:
            trimmed = self.decide(Trim(start=start)).result
            self._is_blocked = False
            if isinstance(trimmed, Done) and trimmed.count:
                log.warning(
                    "%s: retention deleted %d messages that were not settled",
                    *(self._name, trimmed.count),
                    extra=events.MESSAGES_DELETED_UNSETTLED(count=trimmed.count),
                )
        expiry = state.next_expiry()
        if expiry is not None and expiry <= self.now:
            expired = self.decide(ExpireDue(now=self.now)).result
            self._is_blocked = False
            if isinstance(expired, Done):
                self._counts.expired += expired.count
                self.is_more |= expired.is_more

    @property
    def due_bucket(self) -> DelayBucket | None:
        """The bucket to take messages from now, if there is room for them."""
        machine = self.machine
        state = machine.state
        bucket = state.next_recall
        if bucket is None or bucket.recall_at > self.now:
            return None
        if has_room_for(bucket, state, machine.config):
            return bucket
        # A bucket without room must not block the others: they make room for it.
        return min(
            (
                other
                for other in state.buckets.values()
                if other.recall_at <= self.now and has_room_for(other, state, machine.config)
            ),
            key=lambda other: other.recall_at,
            default=None,
        )

    async def recall(self) -> None:
        """Take messages out of a delay bucket before they are due.

        Raises RefusedError, CorruptionError.
        """
        bucket = self.due_bucket
        if bucket is None:
            return
        read = await self._reader.scan(bucket)
        recalled = self.decide(Recall(bucket=bucket.key, now=self.now, read=read)).result
        self.is_more |= (
            isinstance(recalled, Done) and not recalled.is_more and read.end > bucket.first
        )

    def execute(self, make: MakeCommand) -> CommandResult:
        command = make(self.now)
        if isinstance(command, Ack | Nack | Extend):
            self._token_count += len(command.tokens)
        decision = self.decide(command)
        if decision.record is not None:
            self._is_blocked = False
        if isinstance(command, Ack | Nack) and isinstance(decision.result, SettleResult):
            pairs = zip(command.tokens, decision.result.refusals, strict=True)
            offsets = [token.offset for token, refusal in pairs if refusal is Refusal.NONE]
            if isinstance(command, Ack):
                self._reader.drop_all(offsets)
                self._delivery_times.acked(offsets, self.now)
            else:
                self._delivery_times.nacked(offsets)
        return decision.result

    def next_timer(self, now: TimestampMs, *, has_polls: bool) -> TimestampMs | None:
        """The next time that a lease expires, a bucket is due or, if polls wait, a message is."""
        state = self.machine.state
        times = [state.next_due() if has_polls else None]
        if (bucket := state.next_recall) is not None:
            # One that was already due waits for room, or could not be read.
            is_late = self.due_bucket is not None
            times.append(TimestampMs(now + _RECALL_AGAIN_MS) if is_late else bucket.recall_at)
        # What was already due in this round waits for room, not for time.
        later = [time for time in times if time is not None and time > self.now]
        expiry = state.next_expiry()
        return min(later if expiry is None else [expiry, *later], default=None)

    # ---- polls

    def available_estimate(self, now: TimestampMs) -> int:
        """Estimated number of available messages, rather too high than too low."""
        state = self.machine.state
        count = max(0, self._replica.last_stable_offset - state.next)
        due, expiry = state.next_due(), state.next_expiry()
        if due is not None and due <= now:
            count += sum(1 for _ in islice(state.due(now), self._limits.poll_count_max))
        if expiry is not None and expiry <= now:
            count += state.leased_count
        bucket = state.next_recall
        if bucket is not None and bucket.recall_at <= now:
            count += bucket.count
        return count

    async def prepare(self, count: int) -> None:
        """Load up to `count` messages. Raises RefusedError, CorruptionError."""
        state = self.machine.state
        self._reader.align(state.next)
        due = [offset for offset, _ in islice(state.due(self.now), count)]
        missing = [offset for offset in due if self._reader.get(offset) is None]
        if missing:
            await self.load(missing)
        if len(due) < count:
            await self._reader.read_on(count - len(due))

    async def load(self, offsets: Iterable[Offset]) -> dict[Offset, LoadedMessage | None]:
        """Messages to redeliver by offset, None if deleted; at least the first of them.

        Raises RefusedError, CorruptionError.
        """
        state = self.machine.state
        loaded = await self._reader.load(offsets, lambda offset: state.get(offset) is not None)
        for offset, entry in loaded.items():
            if entry is not None and entry.message.fault:
                # It was readable when it was delivered.
                self._reader.drop(offset)
                loaded[offset] = None
        self.missing.update(offset for offset, entry in loaded.items() if entry is None)
        return loaded

    def serve_polls(self, queue: object, polls: list[PendingPoll], share: int) -> bool:
        """Serve polls in order, claimed by `queue`, with at most `share` messages each.

        Returns whether no messages are left.
        """
        # Earlier commands of the round may have moved it.
        self._reader.align(self.machine.state.next)
        for poll in polls:
            if not self._has_any():
                return True
            if poll.is_open:
                self._poll(queue, poll, share)
        return not self._has_any()

    def _has_any(self) -> bool:
        if self.is_full:
            return False
        state = self.machine.state
        due = state.next_due()
        return (due is not None and due <= self.now) or (
            state.next < self._replica.last_stable_offset
        )

    def _poll(self, queue: object, poll: PendingPoll, share: int) -> None:
        """Decide one poll; it is claimed if it gets messages."""
        count_max = min(poll.count_max, share)
        count, bytes_left, is_size_limited = self._fit_due(poll, count_max)
        fresh = self._reader.offer(
            0 if is_size_limited else count_max - count,
            bytes_left,
            self.now,
            is_first=count == 0 and not poll.is_strict,
        )
        if count + fresh.ready_count == 0 and (is_size_limited or fresh.is_size_limited):
            # The next message exceeds its share of the response.
            poll.complete([])
            return
        machine = self.machine
        decision = self.decide(
            Poll(
                member=poll.member,
                count_max=max(1, count + fresh.ready_count),
                now=self.now,
                visibility_ms=(
                    machine.config.visibility_ms_default
                    if poll.visibility_ms is None
                    else poll.visibility_ms
                ),
                read=fresh.read,
            )
        )
        first_deliveries = self._reader.take(machine.state.next)
        result = decision.result
        if isinstance(result, CommandRefused):
            fail(poll.future, refused(result.refusal))
        elif isinstance(result, GrantedLeases):
            poll.is_full = result.is_full
            if result.leases:
                poll.claimed_by = queue
                self._delivery_times.delivered(result.leases, self.now, machine.state.leased_count)
                self.grants.append(Grant(poll, result.leases, first_deliveries))
                self._settle_missing(poll.member, result.leases)
            elif result.is_full:
                self._is_blocked = True
                due = machine.state.next_due()
                self._blocked_until = due if due is not None and due > self.now else None

    def _fit_due(self, poll: PendingPoll, count_max: int) -> tuple[int, int, bool]:
        """How many redeliveries fit into the response, the bytes left then, and whether one did
        not fit."""
        count, bytes_left = 0, poll.bytes_max
        for offset, waiting in self.machine.state.due(self.now):
            if count == count_max:
                break
            if waiting.attempts >= self.machine.config.attempts_max:
                # It becomes a dead letter.
                continue
            entry = self._reader.get(offset)
            if entry is not None:
                bytes_left -= entry.size
            elif offset not in self.missing:
                # It became due just now, its size is unknown: deliver it alone.
                bytes_left = -1
            if bytes_left < 0 and (count or poll.is_strict):
                return count, 0, True
            count += 1
        return count, bytes_left, False

    def _settle_missing(self, member: str, leases: tuple[Lease, ...]) -> None:
        """Settle messages that retention or compaction deleted."""
        if self.missing:
            tokens = tuple(each.token for each in leases if each.token.offset in self.missing)
            if tokens:
                self.decide(Ack(member=member, tokens=tokens, now=self.now))
