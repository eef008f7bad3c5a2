"""Owns one queue while this broker leads its partition: its mailbox, its task, its timers.

One task works for it, in rounds. A round decides about everything that waits (`serving.py`), writes
the records as one batch, and answers when they are committed; what comes meanwhile is for the next
round. A write that fails, or whose fate is unknown, ends the machine: those whom it was for are
told to try again, and another one is loaded, in the same epoch.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from msgspec import Struct

from moldau.groups.queue.commands import Ack, Command, Nack, TakeOver
from moldau.groups.queue.config import QueueConfig
from moldau.groups.queue.results import CommandRefused, CommandResult, Lease, Refusal
from moldau.groups.queue.state import QueueId
from moldau.groups.queue.state_machine import QueueStateMachine
from moldau.groups.queue.tokens import Token, encode_token
from moldau.metadata.queue_groups import QueueGroup
from moldau.model.delivery_tokens import DeliveryToken, TokenKind, encode_delivery_token
from moldau.model.errors import CorruptionError, RefusedError
from moldau.model.ids import Offset, TimestampMs
from moldau.queues.dead_letter_mover import DeadLetterMover
from moldau.queues.dead_letter_writer import DeadLetterWriter, Origin
from moldau.queues.ledgers import LedgerRefusedError
from moldau.queues.limits import QueueLimits
from moldau.queues.mailbox import PendingCommand, PendingQuery, Query, R
from moldau.queues.monotonic_wall_clock import MonotonicWallClock
from moldau.queues.pending_poll import PendingPoll
from moldau.queues.ports import LedgerStore
from moldau.queues.reader import QueueReader
from moldau.queues.round_decider import Grant, MakeCommand, RoundDecider
from moldau.queues.settlement import refused
from moldau.queues.types import Delivery, ErrorReason, QueueRefusedError
from moldau.replica.replica import Replica

log = logging.getLogger(__name__)

_NOT_FETCHED = "the worker was gone before the message could be handed over"
_IN_DOUBT = "whether it was done is not known: ask again"
_NEVER = float("inf")
_RECALL_AGAIN_MS = 1_000


class QueueContext(Struct, frozen=True, kw_only=True):
    """What all queues of a broker share."""

    loop: asyncio.AbstractEventLoop
    time: MonotonicWallClock
    ledgers: LedgerStore
    dead_letters: DeadLetterWriter
    limits: QueueLimits
    group_of: Callable[[str], QueueGroup | None]
    take_offline: Callable[[Replica, CorruptionError], None]
    on_over: Callable[["QueuePartition"], None]
    on_internal_error: Callable[[BaseException], None]


def config_of(group: QueueGroup) -> QueueConfig:
    """The settings of a group, as far as a machine goes by them."""
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
        around: QueueContext,
    ) -> None:
        """`ready_end`: the high watermark when the replica was ready in this epoch, or later."""
        self.queue = queue
        self.topic = topic
        self.replica = replica
        self.epoch = replica.epoch
        self._around = around
        self._loop = around.loop
        self._limits = around.limits
        self._group = group
        self._config = config_of(group)
        starts_at_end = group.settings.starts_at_end
        self._start = replica.high_watermark if starts_at_end else replica.log.start_offset
        self._end = ready_end
        self.reader = QueueReader(around.loop, replica, around.limits, queue.group)
        self.ticket_head = encode_delivery_token(
            DeliveryToken(TokenKind.QUEUE, queue.topic_id, queue.partition, b"")
        )
        self._serving: RoundDecider | None = None
        self._told: deque[PendingCommand] = deque()
        self._tokens_waiting = 0
        """Of those who wait."""
        self._decided: list[tuple[PendingCommand, CommandResult]] = []
        """Those whose records are being written."""
        self._looks: deque[PendingQuery] = deque()
        self._asks: dict[PendingPoll, None] = {}
        self._hasty: dict[PendingPoll, None] = {}
        """Those of them that are not parked, and hear of it if there is nothing."""
        self._work = asyncio.Event()
        self.is_over = False
        self._failure: QueueRefusedError | None = None
        """Why it is not loaded now, while it pauses between two tries."""
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = _NEVER
        self.used_at = around.loop.time()
        self._mover = DeadLetterMover(
            loop=around.loop,
            letters=around.dead_letters,
            limits=around.limits,
            reader=self.reader,
            origin=Origin(queue.group, topic, queue.partition),
            topic_of=lambda: self._group.settings.dead_letter_topic,
            tell=self.tell,
            on_corrupt=lambda error: around.take_offline(replica, error),
            on_internal_error=around.on_internal_error,
        )

    def start(self) -> None:
        self.replica.watchers[self] = None
        self._task = self._loop.create_task(self._run())
        self._task.add_done_callback(self._ended)

    # ---- what is asked of it

    @property
    def is_current(self) -> bool:
        """Whether the replica still leads in the epoch that this was made for."""
        return not self.is_over and self.replica.is_ready and self.replica.epoch == self.epoch

    @property
    def is_idle(self) -> bool:
        """Nobody asks, and nothing is owed to the dead letters."""
        is_asked = bool(self._asks or self._told or self._looks)
        return self._serving is not None and not is_asked and not self._mover.is_busy

    @property
    def has_room(self) -> bool:
        """For one more who waits."""
        return len(self._asks) < self._limits.parked_per_queue_max

    def may_have(self) -> int:
        """About how many messages are to be had, rather more than less."""
        if self._serving is None:
            return max(1, self.replica.last_stable_offset - self._start)
        return self._serving.may_have(self._around.time.now())

    def ask(self, ask: PendingPoll) -> None:
        """Answer it when there is something; one that is not parked, soon in any case."""
        ask.places += 1
        if self.is_over:
            ask.leave(self, self._not_leader())
        elif self._failure is not None and not ask.is_parked:
            ask.leave(self, self._failure)
        else:
            self._asks[ask] = None
            if not ask.is_parked:
                self._hasty[ask] = None
                self._wake()
            elif self._is_worth_a_look():
                self._wake()

    def _is_worth_a_look(self) -> bool:
        """Whether one more who waits may get something, or needs a timer: a poll waits at many
        queues, most of which have nothing."""
        if self._serving is None:
            return True
        state = self._serving.machine.state
        return state.next_due() is not None or self.may_have() > 0

    def leave(self, ask: PendingPoll) -> None:
        """Whoever asked has its answer, or is gone."""
        self._asks.pop(ask, None)
        self._hasty.pop(ask, None)

    async def tell(self, make: MakeCommand, token_count: int = 0) -> CommandResult:
        """Decide about a command; returns when that is committed. Raises QueueRefusedError."""
        self._check_open(len(self._told))
        tokens = self._tokens_waiting + token_count
        if token_count and self._told and tokens > self._limits.tokens_waiting_max:
            raise QueueRefusedError(ErrorReason.BUSY)
        self._tokens_waiting = tokens
        future: asyncio.Future[CommandResult] = self._loop.create_future()
        self._told.append(PendingCommand(make, future, token_count))
        self._wake()
        answer = await future
        if isinstance(answer, CommandRefused):
            raise refused(answer.refusal)
        return answer

    async def look(self, see: Query[R]) -> R:
        """What is committed, without a change. Raises QueueRefusedError."""
        self._check_open(len(self._looks))
        future: asyncio.Future[R] = self._loop.create_future()
        self._looks.append(PendingQuery(see, future))
        self._wake()
        return await future

    def _check_open(self, waiting: int) -> None:
        if self.is_over:
            raise self._not_leader()
        if self._failure is not None:
            raise self._failure
        if waiting >= self._limits.commands_waiting_max:
            raise QueueRefusedError(ErrorReason.BUSY)

    def _wake(self) -> None:
        self.used_at = self._loop.time()
        self._work.set()

    # ---- what the replica tells

    def on_progress(self, replica: Replica) -> None:
        if self._asks:
            self._work.set()

    def forget_messages(self) -> None:
        """Others need the room."""
        self.reader.is_to_forget = True
        self._work.set()

    def on_gone(self, replica: Replica) -> None:
        self.end(self._not_leader())

    # ---- the end

    def end(self, error: QueueRefusedError) -> None:
        """Answer everybody. A write that is under way goes on, and nobody hears of it."""
        if self.is_over:
            return
        self.is_over = True
        self._serving = None
        self.replica.watchers.pop(self, None)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._mover.stop()
        self._refuse_waiting(error)
        asks, self._asks = self._asks, {}
        self._hasty.clear()
        for ask in asks:
            ask.leave(self, error)
        self._work.set()
        self._around.on_over(self)

    def stop(self, error: QueueRefusedError) -> None:
        """The process ends."""
        self.end(error)
        if self._task is not None:
            self._task.cancel()

    def _refuse_waiting(self, error: QueueRefusedError) -> None:
        """But not the polls."""
        futures = [*(told.future for told in self._told), *(look.future for look in self._looks)]
        decided, self._decided = self._decided, []
        self._told.clear()
        self._tokens_waiting = 0
        self._looks.clear()
        for future in futures:
            _refuse(future, error)
        for told, _ in decided:
            # It is being written: to say that this is no leader would be to say that it was not.
            _refuse(told.future, QueueRefusedError(ErrorReason.UNAVAILABLE, _IN_DOUBT))

    def _ended(self, task: asyncio.Task[None]) -> None:
        if task.cancelled() or (error := task.exception()) is None:
            return
        log.error("%s ended", self._name, exc_info=error)
        self.end(QueueRefusedError(ErrorReason.INTERNAL))
        self._around.on_internal_error(error)

    @property
    def _name(self) -> str:
        return f"group {self.queue.group} on {self.topic}-{self.queue.partition}"

    def _not_leader(self) -> QueueRefusedError:
        return QueueRefusedError(
            ErrorReason.NOT_LEADER, f"this broker does not lead {self.topic}-{self.queue.partition}"
        )

    # ---- its life

    async def _run(self) -> None:
        """Load a machine and serve; again after a failure, as long as this broker leads."""
        limits = self._limits
        pause = 0.0
        while not self.is_over:
            try:
                serving = await self._load()
                while await self._serve(serving):
                    pause = 0.0
                return
            except LedgerRefusedError as error:
                if error.refusal is Refusal.FENCED:
                    log.info("%s is led by a later leader", self._name)
                    self.end(self._not_leader())
                    return
                failure = QueueRefusedError(ErrorReason.UNAVAILABLE, str(error))
            except RefusedError as error:
                failure = QueueRefusedError(ErrorReason.UNAVAILABLE, str(error))
            except CorruptionError as error:
                log.error("%s cannot be loaded: %s", self._name, error)
                failure = QueueRefusedError(ErrorReason.INTERNAL, str(error))
            log.info("%s is loaded anew: %s", self._name, failure)
            if self._serving is None or pause:
                # It could not be loaded, or not be written right after.
                self._fail(failure)
                pause = min(max(limits.pause_seconds_min, 2 * pause), limits.pause_seconds_max)
                await asyncio.sleep(pause)
            else:
                pause = limits.pause_seconds_min
            self._serving = None

    def _fail(self, failure: QueueRefusedError) -> None:
        """It can be asked nothing for a while. Polls that are parked may outlast that."""
        self._failure = failure
        self._refuse_waiting(failure)
        for ask in list(self._hasty):
            self.leave(ask)
            ask.leave(self, failure)

    async def _load(self) -> RoundDecider:
        """Raises LedgerRefusedError, RefusedError, CorruptionError."""
        ledgers = self._around.ledgers
        machine = QueueStateMachine(self.queue, self._config, self.epoch)
        machine.load(await ledgers.stored(self.queue))
        # Where a new queue starts does not count for one that is known: the log may have ended
        # before that when this broker was elected, and what is there now be other messages.
        end = self._end if machine.state.exists else max(self._end, self._start)
        # The leader's own leases of before hold; those of others end here.
        taken = machine.decide(
            TakeOver(
                epoch=self.epoch,
                now=self._around.time.now(),
                start=min(self._start, end),
                end=end,
            )
        )
        if isinstance(taken.answer, CommandRefused):
            raise LedgerRefusedError(taken.answer.refusal)
        if taken.record is not None:
            await ledgers.write(self.queue, (taken.record,))
            machine.apply(taken.record)
        log.debug("%s serves in epoch %d", self._name, self.epoch)
        serving = RoundDecider(machine, self.reader, self.replica, self._limits, self._name)
        if not self.is_over:
            self._failure = None
            self._serving = serving
            self._mover.owe_only(dict(machine.state.dead))
        return serving

    async def _serve(self, serving: RoundDecider) -> bool:
        """One round, and then wait for something to do. False: it is over."""
        self._work.clear()
        if not self.is_current:
            self.end(self._not_leader())
            return False
        group = self._around.group_of(self.queue.group)
        if group is None:
            self.end(QueueRefusedError(ErrorReason.UNKNOWN_GROUP))
            return False
        if group is not self._group:
            self._group = group
            self._config = config_of(group)
        serving.machine.config = self._config
        serving.begin(self._around.time.now())
        while self._looks:
            look = self._looks.popleft()
            if not look.future.done():
                look.future.set_result(look.see(serving.machine, serving.now))
        is_more = await self._round(serving)
        if is_more:
            # A round may have been without a write, and without waiting for anything.
            await asyncio.sleep(0)
        elif not self.is_over:
            self._set_timer(serving)
            await self._work.wait()
        return not self.is_over

    def _set_timer(self, serving: RoundDecider) -> None:
        """For the next lease that ends, and, if somebody waits, the next message that is due."""
        state = serving.machine.state
        now = self._around.time.now()
        wanted = state.next_expiry()
        due = state.next_due() if self._asks else None
        # What was due already waits for room, not for time.
        if due is not None and due > serving.now and (wanted is None or due < wanted):
            wanted = due
        shelf = state.next_recall()
        if shelf is not None:
            # One that was due already waits for room, or could not be read.
            recall = shelf.recall_at if serving.due_shelf is None else now + _RECALL_AGAIN_MS
            if recall > serving.now and (wanted is None or recall < wanted):
                wanted = TimestampMs(recall)
        if wanted is None:
            return
        delay = min(max(0.0, (wanted - now) / 1000), self._limits.timer_seconds_max)
        at = self._loop.time() + delay
        # A timer that comes too early does no harm, and costs less than to set one anew each time.
        if at < self._timer_at:
            if self._timer is not None:
                self._timer.cancel()
            self._timer_at = at
            self._timer = self._loop.call_later(delay, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._timer_at = _NEVER
        self._work.set()

    # ---- a round

    async def _round(self, serving: RoundDecider) -> bool:
        """Decide, write, answer. Returns whether there is more to do at once."""
        serving.keep_house()
        await self._recall(serving)
        asks, share = self._next_asks(serving)
        if asks:
            await self._prepare(serving, asks, share)
        while self._told and serving.has_room:
            told = self._told.popleft()
            self._tokens_waiting -= told.token_count
            self._decided.append((told, serving.carry_out(told.make)))
        is_dry = not asks or serving.poll_all(self, asks, share)
        hasty = list(self._hasty)
        if serving.is_full:
            for ask in self._asks:
                ask.is_full = True
        if serving.records and not self.is_over:
            try:
                await self._around.ledgers.write(self.queue, serving.records)
            except (LedgerRefusedError, RefusedError) as error:
                self._lose(serving, QueueRefusedError(ErrorReason.UNAVAILABLE, str(error)))
                raise
        if self.is_over:
            # Everybody was told so.
            return False
        await self._answer(serving)
        if is_dry:
            # There was nothing for them when it was decided.
            for ask in hasty:
                if ask.is_open:
                    self.leave(ask)
                    ask.give_up()
        is_more = serving.is_more or bool(self._told)
        return is_more or (not is_dry and any(ask.is_open for ask in self._asks))

    async def _recall(self, serving: RoundDecider) -> None:
        try:
            await serving.recall()
        except RefusedError as error:
            log.info("%s cannot read what is due later yet: %s", self._name, error)
        except CorruptionError as error:
            self._around.take_offline(self.replica, error)

    def _next_asks(self, serving: RoundDecider) -> tuple[list[PendingPoll], int]:
        """The first that wait, as many as one round is for, and how much each of them may get.

        If there is less than all want, it is shared: nobody shall wait while another one has a
        hundred messages before it.
        """
        there = serving.may_have(serving.now)
        share = self._limits.poll_count_max
        wanted = 0
        # No further than needed: hundreds may wait for the one message that there is.
        for ask in self._asks:
            wanted += ask.count_max
            if wanted > there:
                share = max(1, -(-there // len(self._asks)))
                break
        left = min(self._limits.round_count_max, there)
        asks: list[PendingPoll] = []
        for ask in self._asks:
            if ask.is_open:
                asks.append(ask)
                left -= min(ask.count_max, share)
                if left <= 0 or len(asks) >= self._limits.commands_per_write_max // 2:
                    break
        return asks, share

    async def _prepare(self, serving: RoundDecider, asks: list[PendingPoll], share: int) -> None:
        try:
            await serving.prepare(sum(min(ask.count_max, share) for ask in asks))
        except RefusedError as error:
            failure = QueueRefusedError(ErrorReason.UNAVAILABLE, str(error))
        except CorruptionError as error:
            failure = QueueRefusedError(ErrorReason.UNAVAILABLE, str(error))
            self._around.take_offline(self.replica, error)
        else:
            return
        for ask in asks:
            if ask.is_open:
                self.leave(ask)
                ask.refuse(failure)

    def _lose(self, serving: RoundDecider, error: QueueRefusedError) -> None:
        """What was decided may be so or not: nobody is told that it is."""
        decided, self._decided = self._decided, []
        for told, _ in decided:
            _refuse(told.future, error)
        for given in serving.given:
            self.leave(given.ask)
            given.ask.refuse(error)

    # ---- answers

    async def _answer(self, serving: RoundDecider) -> None:
        """All of it is committed."""
        decided, self._decided = self._decided, []
        for told, answer in decided:
            if told.future is not None and not told.future.done():
                told.future.set_result(answer)
        dead = serving.died()
        if dead:
            log.info("%s: %d messages are dead letters", self._name, len(dead))
            self._mover.owe(dead)
        for given in serving.given:
            ask = given.ask
            try:
                deliveries = await self._deliveries(serving, given)
            except (RefusedError, CorruptionError) as error:
                self.leave(ask)
                self._give_back(ask, given.leases)
                ask.refuse(QueueRefusedError(ErrorReason.UNAVAILABLE, str(error)))
                continue
            self.leave(ask)
            if not ask.answer(deliveries):
                self._give_back(ask, given.leases)
        self.reader.shrink()

    async def _deliveries(self, serving: RoundDecider, given: Grant) -> list[Delivery]:
        """Raises RefusedError, CorruptionError."""
        reader, head = self.reader, self.ticket_head
        topic, partition = self.topic, self.queue.partition
        deliveries = []
        passed = given.passed
        for token, deadline in given.leases:
            offset = token.offset
            entry = passed.get(offset)
            if entry is not None:
                reader.keep(entry)
            elif offset in serving.gone:
                continue
            else:
                entry = reader.get(offset)
                if entry is None:
                    # It was too much to be kept, or has become due only in this round.
                    entry = (await serving.load((offset,)))[offset]
                if entry is None:
                    self._tell_later(partial(_done, given.ask.member, token))
                    continue
            ticket = head + encode_token(token)
            fields = (topic, partition, entry.record, ticket, token.attempt, deadline)
            # Without the call of its own constructor: there are hundreds in an answer.
            deliveries.append(tuple.__new__(Delivery, fields))
        return deliveries

    def _give_back(self, ask: PendingPoll, leases: tuple[Lease, ...]) -> None:
        """Nobody was there to take them: sent back, rather than left until their leases end.

        With a pause: who gives up too early each time shall not use up all attempts at once.
        """
        tokens = tuple(lease.token for lease in leases)
        self._tell_later(
            lambda now: Nack(member=ask.member, tokens=tokens, now=now, reason=_NOT_FETCHED)
        )

    def _tell_later(self, make: MakeCommand) -> None:
        if not self.is_over:
            self._told.append(PendingCommand(make, None))
            self._work.set()


def _done(member: str, token: Token, now: TimestampMs) -> Command:
    return Ack(member=member, tokens=(token,), now=now)


def _refuse(future: "asyncio.Future[Any] | None", error: QueueRefusedError) -> None:
    if future is not None and not future.done():
        future.set_exception(error)
        # Its caller may be gone; then nobody asks for it, which is no mistake.
        future.exception()
