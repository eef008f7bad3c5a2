"""One queue (a group's leases on one partition) while this broker leads the partition.

A task runs it in rounds. A round decides everything that waits (`round_decider.py`), writes the
records as one batch, and responds after the commit; later requests wait for the next round. If a
write fails or its outcome is unknown, its callers get a retriable error, the state machine is
discarded, and another one is loaded in the same epoch.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from functools import partial

from msgspec import Struct

from moldau.leases.commands import Ack, Command, Nack, TakeOver
from moldau.leases.config import QueueConfig
from moldau.leases.results import CommandRefused, CommandResult, Lease, Refusal
from moldau.leases.state import QueueId
from moldau.leases.state_machine import QueueStateMachine
from moldau.leases.tokens import Token, encode_token
from moldau.metadata.queue_groups import QueueGroup
from moldau.model import log_events as events
from moldau.model.delivery_tokens import DeliveryToken, TokenKind, encode_delivery_token
from moldau.model.errors import CorruptionError, RefusedError
from moldau.model.ids import Offset, TimestampMs
from moldau.queues.dead_letter_mover import DeadLetterMover
from moldau.queues.dead_letter_writer import DeadLetterWriter, Origin
from moldau.queues.ledgers import LedgerRefusedError, Ledgers
from moldau.queues.limits import QueueLimits
from moldau.queues.mailbox import (
    MakeCommand,
    PendingCommand,
    PendingPoll,
    PendingQuery,
    Query,
    R,
    fail,
)
from moldau.queues.monotonic_wall_clock import MonotonicWallClock
from moldau.queues.queue_counts import Backlog, QueueCounts, backlog_of
from moldau.queues.reader import LoadedMessage, QueueReader
from moldau.queues.round_decider import Grant, RoundDecider
from moldau.queues.settlement import refused
from moldau.queues.types import Delivery, ErrorReason, QueueRefusedError, not_leader, unavailable
from moldau.replica.replica import Replica

log = logging.getLogger(__name__)

_NOT_FETCHED = "the worker disconnected before it received the message"
_OUTCOME_UNKNOWN = "the outcome is unknown: retry"
_NEVER = float("inf")


class QueueContext(Struct, frozen=True, kw_only=True):
    """Dependencies that all queues of a broker share."""

    loop: asyncio.AbstractEventLoop
    time: MonotonicWallClock
    ledgers: Ledgers
    dead_letters: DeadLetterWriter
    limits: QueueLimits
    group_of: Callable[[str], QueueGroup | None]
    take_offline: Callable[[Replica, CorruptionError], None]
    on_closed: Callable[["QueuePartition"], None]
    on_internal_error: Callable[[BaseException], None]


def config_of(group: QueueGroup) -> QueueConfig:
    settings = group.settings
    visibility_ms_max = QueueConfig().visibility_ms_max
    return QueueConfig(
        attempts_max=max(1, settings.attempts_max),
        backoff_ms_min=max(0, settings.backoff_ms),
        backoff_ms_max=max(0, settings.backoff_ms, settings.backoff_ms_max),
        visibility_ms_default=min(max(1, settings.visibility_ms), visibility_ms_max),
    )


class QueuePartition:
    """A group's leases on one partition, in one epoch. Call `start` once."""

    def __init__(
        self,
        queue: QueueId,
        topic: str,
        group: QueueGroup,
        replica: Replica,
        ready_end: Offset,
        context: QueueContext,
        counts: QueueCounts,
    ) -> None:
        """`ready_end`: the high watermark when the replica became ready in this epoch, or later."""
        self.queue = queue
        self._counts = counts
        self.topic = topic
        self.replica = replica
        self.epoch = replica.epoch
        self._context = context
        self._loop = context.loop
        self._limits = context.limits
        self._group = group
        self._config = config_of(group)
        starts_at_end = group.settings.starts_at_end
        self._start = replica.high_watermark if starts_at_end else replica.log.start_offset
        self._end = ready_end
        self.reader = QueueReader(context.loop, replica, context.limits, queue.group)
        self.token_routing = encode_delivery_token(
            DeliveryToken(TokenKind.QUEUE, queue.topic_id, queue.partition, b"")
        )
        self._decider: RoundDecider | None = None
        self._commands: deque[PendingCommand] = deque()
        self._tokens_waiting = 0
        """Tokens of waiting commands."""
        self._decided: list[tuple[PendingCommand, CommandResult]] = []
        """Commands whose records are being written."""
        self._queries: deque[PendingQuery] = deque()
        self._polls: dict[PendingPoll, None] = {}
        self._immediate_polls: dict[PendingPoll, None] = {}
        """Those that are not parked: they complete even without messages."""
        self._work = asyncio.Event()
        self.is_closed = False
        self._failure: QueueRefusedError | None = None
        """Why it is not loaded, during the backoff."""
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = _NEVER
        self.used_at = context.loop.time()
        self._dead_letter_mover = DeadLetterMover(
            loop=context.loop,
            letters=context.dead_letters,
            limits=context.limits,
            reader=self.reader,
            origin=Origin(queue.group, topic, queue.partition),
            topic_of=lambda: self._group.settings.dead_letter_topic,
            submit=self.submit,
            on_corrupt=lambda error: context.take_offline(replica, error),
            on_internal_error=context.on_internal_error,
        )

    def start(self) -> None:
        self.replica.watchers[self] = None
        self._task = self._loop.create_task(self._run())
        self._task.add_done_callback(self._on_task_done)

    # ---- requests

    @property
    def is_current(self) -> bool:
        """Whether the replica still leads in the same epoch."""
        return not self.is_closed and self.replica.is_ready and self.replica.epoch == self.epoch

    @property
    def is_idle(self) -> bool:
        """No request waits, and no dead letter is to be moved."""
        has_requests = bool(self._polls or self._commands or self._queries)
        return (
            self._decider is not None and not has_requests and not self._dead_letter_mover.is_busy
        )

    @property
    def has_room(self) -> bool:
        """For one more waiting poll."""
        return len(self._polls) < self._limits.parked_per_queue_max

    def available_estimate(self) -> int:
        """See RoundDecider.available_estimate."""
        if self._decider is None:
            return max(1, self.replica.last_stable_offset - self._start)
        return self._decider.available_estimate(self._context.time.now())

    def backlog(self) -> Backlog | None:
        """None until it is loaded. Counts changes that are being written."""
        if (decider := self._decider) is None:
            return None
        end, now = self.replica.last_stable_offset, self._context.time.now()
        return backlog_of(decider.machine.state, end, now)

    def add_poll(self, poll: PendingPoll) -> None:
        """Complete the poll when there are messages; if it is not parked, soon in any case."""
        poll.queue_count += 1
        if self.is_closed:
            poll.leave(self, self._not_leader())
        elif self._failure is not None and not poll.is_parked:
            poll.leave(self, self._failure)
        else:
            self._polls[poll] = None
            if not poll.is_parked:
                self._immediate_polls[poll] = None
                self._wake()
            elif self._may_serve():
                self._wake()

    def _may_serve(self) -> bool:
        """Whether a parked poll may get a message or needs a timer: a poll waits at many queues,
        most of which are empty."""
        if self._decider is None:
            return True
        state = self._decider.machine.state
        return state.next_due() is not None or self.available_estimate() > 0

    def remove_poll(self, poll: PendingPoll) -> None:
        """The poll is complete, or was cancelled."""
        self._polls.pop(poll, None)
        self._immediate_polls.pop(poll, None)

    async def submit(self, make: MakeCommand, token_count: int = 0) -> CommandResult:
        """Run a command; returns after the commit. Raises QueueRefusedError."""
        self._check_open(len(self._commands))
        tokens = self._tokens_waiting + token_count
        if token_count and self._commands and tokens > self._limits.tokens_waiting_max:
            raise QueueRefusedError(ErrorReason.BUSY)
        self._tokens_waiting = tokens
        future: asyncio.Future[CommandResult] = self._loop.create_future()
        self._commands.append(PendingCommand(make, future, token_count))
        self._wake()
        result = await future
        if isinstance(result, CommandRefused):
            raise refused(result.refusal)
        return result

    async def query(self, query: Query[R]) -> R:
        """Run a read-only query on the committed state. Raises QueueRefusedError."""
        self._check_open(len(self._queries))
        future: asyncio.Future[R] = self._loop.create_future()
        self._queries.append(PendingQuery(query, future))
        self._wake()
        return await future

    def _check_open(self, waiting: int) -> None:
        if self.is_closed:
            raise self._not_leader()
        if self._failure is not None:
            raise self._failure
        if waiting >= self._limits.commands_waiting_max:
            raise QueueRefusedError(ErrorReason.BUSY)

    def _wake(self) -> None:
        self.used_at = self._loop.time()
        self._work.set()

    # ---- notifications

    def on_progress(self, replica: Replica) -> None:
        if self._polls:
            self._work.set()

    def request_drop(self) -> None:
        """Drop cached messages: other queues need the memory."""
        self.reader.is_drop_requested = True
        self._work.set()

    def on_unavailable(self, replica: Replica) -> None:
        self.close(self._not_leader())

    # ---- closing

    def close(self, error: QueueRefusedError) -> None:
        """Fail all requests. A write in progress continues, but its result is ignored."""
        if self.is_closed:
            return
        self.is_closed = True
        self._decider = None
        self.replica.watchers.pop(self, None)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._dead_letter_mover.stop()
        self._refuse_waiting(error)
        polls, self._polls = self._polls, {}
        self._immediate_polls.clear()
        for poll in polls:
            poll.leave(self, error)
        self._work.set()
        self._context.on_closed(self)

    def stop(self, error: QueueRefusedError) -> None:
        self.close(error)
        if self._task is not None:
            self._task.cancel()

    def _refuse_waiting(self, error: QueueRefusedError) -> None:
        """All except polls."""
        futures = [*(one.future for one in self._commands), *(one.future for one in self._queries)]
        decided, self._decided = self._decided, []
        self._commands.clear()
        self._tokens_waiting = 0
        self._queries.clear()
        for future in futures:
            fail(future, error)
        for command, _ in decided:
            # It is being written: NOT_LEADER would mean that it was not executed.
            fail(command.future, unavailable(_OUTCOME_UNKNOWN))

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        if task.cancelled() or (error := task.exception()) is None:
            return
        text = "internal error: the queue of %s is closed"
        log.error(text, self._name, exc_info=error, extra=events.INTERNAL_ERROR())
        self.close(QueueRefusedError(ErrorReason.INTERNAL))
        self._context.on_internal_error(error)

    @property
    def _name(self) -> str:
        return f"group {self.queue.group} on {self.topic}-{self.queue.partition}"

    def _not_leader(self) -> QueueRefusedError:
        return not_leader(self.topic, self.queue.partition)

    # ---- loading and serving

    async def _run(self) -> None:
        """Load the queue and serve it; reload after failures, while this broker leads."""
        limits = self._limits
        pause = 0.0
        while not self.is_closed:
            try:
                decider = await self._load()
                while await self._serve(decider):
                    pause = 0.0
                return
            except LedgerRefusedError as error:
                if error.refusal is Refusal.FENCED:
                    log.info("another broker leads the queue of %s now", self._name)
                    self.close(self._not_leader())
                    return
                failure = unavailable(error)
            except RefusedError as error:
                failure = unavailable(error)
            except CorruptionError as error:
                group, topic, index = self.queue.group, self.topic, self.queue.partition
                log.error(
                    "cannot load the queue of %s: %s",
                    self._name,
                    error,
                    extra=events.QUEUE_STATE_CORRUPT(group=group, topic=topic, partition=index),
                )
                failure = QueueRefusedError(ErrorReason.INTERNAL, str(error))
            log.info("reloading the queue of %s: %s", self._name, failure)
            if self._decider is None or pause:
                # Loading failed, or the first write after it.
                self._fail(failure)
                pause = min(max(limits.pause_seconds_min, 2 * pause), limits.pause_seconds_max)
                await asyncio.sleep(pause)
            else:
                pause = limits.pause_seconds_min
            self._decider = None

    def _fail(self, failure: QueueRefusedError) -> None:
        """Fail requests during the backoff, except parked polls, which may outlast it."""
        self._failure = failure
        self._refuse_waiting(failure)
        for poll in list(self._immediate_polls):
            self.remove_poll(poll)
            poll.leave(self, failure)

    async def _load(self) -> RoundDecider:
        """Raises LedgerRefusedError, RefusedError, CorruptionError."""
        ledgers = self._context.ledgers
        machine = QueueStateMachine(self.queue, self._config, self.epoch)
        machine.load(await ledgers.stored(self.queue))
        # For an existing queue, `_start` must not raise the end: the log may have ended before it
        # when this broker was elected, and other messages may be there now.
        end = self._end if machine.state.exists else max(self._end, self._start)
        # Leases of earlier leaders continue under this epoch.
        taken = machine.decide(
            TakeOver(
                epoch=self.epoch, now=self._context.time.now(), start=min(self._start, end), end=end
            )
        )
        if isinstance(taken.result, CommandRefused):
            raise LedgerRefusedError(taken.result.refusal)
        if taken.record is not None:
            await ledgers.write(self.queue, (taken.record,))
            machine.apply(taken.record)
        log.debug("loaded the queue of %s in epoch %d", self._name, self.epoch)
        decider = RoundDecider(
            machine, self.reader, self.replica, self._limits, self._name, self._counts
        )
        if not self.is_closed:
            self._failure = None
            self._decider = decider
            self._dead_letter_mover.reset(dict(machine.state.dead))
        return decider

    async def _serve(self, decider: RoundDecider) -> bool:
        """Run one round, then wait for work. False: the queue is closed."""
        self._work.clear()
        if not self.is_current:
            self.close(self._not_leader())
            return False
        group = self._context.group_of(self.queue.group)
        if group is None:
            self.close(QueueRefusedError(ErrorReason.UNKNOWN_GROUP))
            return False
        if group is not self._group:
            self._group = group
            self._config = config_of(group)
        decider.machine.config = self._config
        decider.begin_round(self._context.time.now())
        while self._queries:
            query = self._queries.popleft()
            if not query.future.done():
                query.future.set_result(query.query(decider.machine, decider.now))
        is_more = await self._round(decider)
        if is_more:
            # The round may not have yielded to the event loop.
            await asyncio.sleep(0)
        elif not self.is_closed:
            self._set_timer(decider)
            await self._work.wait()
        return not self.is_closed

    def _set_timer(self, decider: RoundDecider) -> None:
        now = self._context.time.now()
        wanted = decider.next_timer(now, has_polls=bool(self._polls))
        if wanted is None:
            return
        delay = min(max(0.0, (wanted - now) / 1000), self._limits.timer_seconds_max)
        at = self._loop.time() + delay
        # A timer that fires too early is harmless, and cheaper than resetting it each time.
        if at < self._timer_at:
            if self._timer is not None:
                self._timer.cancel()
            self._timer_at = at
            self._timer = self._loop.call_later(delay, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._timer_at = _NEVER
        self._work.set()

    # ---- rounds

    async def _round(self, decider: RoundDecider) -> bool:
        """Decide, write, respond. Returns whether the next round has work at once."""
        decider.run_maintenance()
        await self._recall(decider)
        polls, share = self._next_polls(decider)
        if polls:
            await self._prepare(decider, polls, share)
        while self._commands and decider.has_room:
            command = self._commands.popleft()
            self._tokens_waiting -= command.token_count
            self._decided.append((command, decider.execute(command.make)))
        is_empty = not polls or decider.serve_polls(self, polls, share)
        immediate = list(self._immediate_polls)
        if decider.is_full:
            for poll in self._polls:
                poll.is_full = True
        if decider.records and not self.is_closed:
            try:
                await self._context.ledgers.write(self.queue, decider.records)
            except (LedgerRefusedError, RefusedError) as error:
                self._fail_decided(decider, unavailable(error))
                raise
        if self.is_closed:
            # All requests were failed.
            return False
        await self._respond(decider)
        if is_empty:
            # There were no messages for them when the round was decided.
            for poll in immediate:
                if poll.is_open:
                    self.remove_poll(poll)
                    poll.complete([])
        is_more = decider.is_more or bool(self._commands)
        return is_more or (not is_empty and any(poll.is_open for poll in self._polls))

    async def _recall(self, decider: RoundDecider) -> None:
        try:
            await decider.recall()
        except RefusedError as error:
            log.info("cannot read delayed messages of %s, will retry: %s", self._name, error)
        except CorruptionError as error:
            self._context.take_offline(self.replica, error)

    def _next_polls(self, decider: RoundDecider) -> tuple[list[PendingPoll], int]:
        """The first waiting polls, bounded for one round, and the share of each.

        If there are fewer messages than requested, they are shared, so that no worker idles while
        another one gets a hundred messages.
        """
        available = decider.available_estimate(decider.now)
        share = self._limits.poll_count_max
        wanted = 0
        # Stop early: hundreds of polls may wait for a single message.
        for poll in self._polls:
            wanted += poll.count_max
            if wanted > available:
                share = max(1, -(-available // len(self._polls)))
                break
        left = min(self._limits.round_count_max, available)
        polls: list[PendingPoll] = []
        for poll in self._polls:
            if poll.is_open:
                polls.append(poll)
                left -= min(poll.count_max, share)
                if left <= 0 or len(polls) >= self._limits.commands_per_write_max // 2:
                    break
        return polls, share

    async def _prepare(self, decider: RoundDecider, polls: list[PendingPoll], share: int) -> None:
        try:
            await decider.prepare(sum(min(poll.count_max, share) for poll in polls))
        except RefusedError as error:
            failure = unavailable(error)
        except CorruptionError as error:
            failure = unavailable(error)
            self._context.take_offline(self.replica, error)
        else:
            return
        for poll in polls:
            if poll.is_open:
                self.remove_poll(poll)
                fail(poll.future, failure)

    def _fail_decided(self, decider: RoundDecider, error: QueueRefusedError) -> None:
        """The write failed or its outcome is unknown: fail its requests."""
        decided, self._decided = self._decided, []
        for command, _ in decided:
            fail(command.future, error)
        for grant in decider.grants:
            self.remove_poll(grant.poll)
            fail(grant.poll.future, error)

    # ---- responses

    async def _respond(self, decider: RoundDecider) -> None:
        """The round is committed: respond to its requests."""
        decided, self._decided = self._decided, []
        for command, result in decided:
            if command.future is not None and not command.future.done():
                command.future.set_result(result)
        dead = decider.new_dead_letters()
        if dead:
            log.info("%s: %d messages became dead letters", self._name, len(dead))
            self._dead_letter_mover.add(dead)
        for grant in decider.grants:
            poll = grant.poll
            try:
                deliveries = await self._deliveries(decider, grant)
            except (RefusedError, CorruptionError) as error:
                self.remove_poll(poll)
                self._return_leases(poll, grant.leases)
                fail(poll.future, unavailable(error))
                continue
            self.remove_poll(poll)
            if not poll.complete(deliveries):
                self._return_leases(poll, grant.leases)
        self.reader.shrink()

    async def _deliveries(self, decider: RoundDecider, grant: Grant) -> list[Delivery]:
        """Raises RefusedError, CorruptionError."""
        reader, routing = self.reader, self.token_routing
        topic, partition, new = self.topic, self.queue.partition, tuple.__new__
        deliveries: list[Delivery] = []
        kept: list[LoadedMessage] = []
        first_deliveries = grant.first_deliveries
        for token, deadline in grant.leases:
            _, _, offset, attempt = token
            entry = first_deliveries.get(offset)
            if entry is not None:
                kept.append(entry)
            elif offset in decider.missing:
                continue
            else:
                entry = reader.get(offset)
                if entry is None:
                    # It did not fit into the cache, or became due only in this round.
                    entry = (await decider.load((offset,)))[offset]
                if entry is None:
                    self._submit_in_background(partial(_ack_missing, grant.poll.member, token))
                    continue
            delivery_token = routing + encode_token(token)
            fields = (topic, partition, entry[1], delivery_token, attempt, deadline)
            # Avoids the constructor call: a response has hundreds of deliveries.
            deliveries.append(new(Delivery, fields))
        reader.keep_all(kept)
        return deliveries

    def _return_leases(self, poll: PendingPoll, leases: tuple[Lease, ...]) -> None:
        """The poll was cancelled: return its messages at once rather than when the leases expire.

        With the backoff: a client that always cancels early must not use up all attempts.
        """
        tokens = tuple(lease.token for lease in leases)
        self._submit_in_background(
            lambda now: Nack(member=poll.member, tokens=tokens, now=now, reason=_NOT_FETCHED)
        )

    def _submit_in_background(self, make: MakeCommand) -> None:
        if not self.is_closed:
            self._commands.append(PendingCommand(make, None))
            self._work.set()


def _ack_missing(member: str, token: Token, now: TimestampMs) -> Command:
    return Ack(member=member, tokens=(token,), now=now)
