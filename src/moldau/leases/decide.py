"""The rules of a queue: the outcome of a command, as a pure function of state and settings.

A decision has at most one record, so a command takes effect atomically: a message whose last
attempt failed loses its lease and becomes a dead letter in the same record.

An attempt counts when it is decided, before the worker receives the message. So a message that
crashes its worker or its leader also runs out of attempts.
"""

from collections.abc import Iterator
from typing import assert_never

import msgspec

from moldau.leases.commands import (
    BACKOFF,
    Ack,
    Claim,
    Command,
    Evict,
    ExpireDue,
    Extend,
    LogMessage,
    LogSlice,
    Nack,
    Poll,
    Recall,
    SettleDead,
    TakeOver,
    Trim,
)
from moldau.leases.config import QueueConfig
from moldau.leases.delay_buckets import (
    BUCKETS_MAX,
    DELIVER_MS_MAX,
    HOUR_MS,
    MINUTE_MS,
    SPANS_MS,
    DelayBucket,
    span_for,
)
from moldau.leases.draft import Draft
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
from moldau.leases.state import Dead, Leased, Open, QueueId, QueueState, Waiting
from moldau.leases.tokens import Token
from moldau.model.ids import NO_TIMESTAMP, Offset, TimestampMs
from moldau.model.queue_headers import DELIVER_DAYS_MAX

# Creates a NamedTuple without its slower constructor.
_new = tuple.__new__

_EXPIRED_LAST = "the last lease expired"
_EVICTED_LAST = "the worker of the last attempt disconnected"
_TRIED_ENOUGH = "the maximum number of attempts was reached"
_NACKED_LAST = "the worker rejected the last attempt"
_TOO_LATE = f"deliver_at was more than {DELIVER_DAYS_MAX} days ahead when the message was read"


def decide(
    state: QueueState, config: QueueConfig, queue: QueueId, checksum: int, command: Command
) -> Decision:
    """`checksum` is that of the queue's name, which its tokens contain."""
    if isinstance(command, TakeOver):
        return _take_over(state, config, queue, command)
    if not state.exists:
        return _refused(Refusal.NOT_LEADING)
    draft = Draft(state, config, queue)
    result: CommandResult
    match command:
        case Poll():
            result = _poll(draft, checksum, command)
        case Claim():
            result = _claim(draft, checksum, command)
        case Recall():
            result = _recall(draft, command)
        case Ack() | Nack() | Extend():
            result = _settle(draft, checksum, command)
        case ExpireDue():
            result = _expire(draft, command)
        case Evict():
            result = _evict(draft, command)
        case SettleDead():
            result = _settle_dead(draft, command)
        case Trim():
            result = _trim(draft, command)
        case _:
            assert_never(command)
    return Decision(record=draft.record(), result=result, died=draft.died)


def _refused(refusal: Refusal) -> Decision:
    return Decision(record=None, result=CommandRefused(refusal))


# ---- leader change


def _take_over(
    state: QueueState, config: QueueConfig, queue: QueueId, command: TakeOver
) -> Decision:
    if command.epoch < 0 or not 0 <= command.start <= command.end:
        return _refused(Refusal.BAD_ARGUMENT)
    if command.epoch < state.epoch:
        return _refused(Refusal.FENCED)
    if command.epoch == state.epoch:
        # The same leader loaded the queue again: its leases stay valid.
        return Decision(record=None, result=Done(count=0))
    draft = Draft(state, config, queue)
    if not state.exists:
        draft.next = command.start
    elif draft.next > command.end:
        draft.next = command.end
    for offset in state.open:
        if offset >= command.end:
            draft.settle(offset)
    for bucket in state.buckets.values():
        if bucket.end > command.end:
            draft.put_bucket(msgspec.structs.replace(bucket, end=max(bucket.first, command.end)))
    count = 0
    # The clock of the previous leader may differ: bound the remaining time on both sides.
    soonest = TimestampMs(command.now + config.visibility_ms_default)
    latest = TimestampMs(command.now + config.visibility_ms_max)
    for offset, lease in state.leases_by_deadline():
        if offset < command.end:
            deadline = min(max(lease.deadline, soonest), latest)
            draft.put(offset, msgspec.structs.replace(lease, deadline=deadline))
            count += 1
    return Decision(record=draft.snapshot(command.epoch), result=Done(count=count))


# ---- delivery


def _poll(draft: Draft, checksum: int, command: Poll) -> CommandResult:
    config, state = draft.config, draft.state
    if command.count_max < 1 or not _may_lease(config, command):
        return CommandRefused(Refusal.BAD_ARGUMENT)
    deadline = TimestampMs(command.now + command.visibility_ms)
    # A dead letter counts as a lease until it is moved: if the dead-letter topic is unavailable,
    # deliveries stop, and memory stays bounded.
    room = config.leases_max - state.leased_count - state.dead_count
    count_left = command.count_max
    leases: list[Lease] = []
    for offset, entry in state.due(command.now):
        if room == 0 or not count_left:
            break
        room -= 1
        if entry.attempts >= config.attempts_max:
            # attempts_max was lowered.
            draft.put(offset, Dead(entry.attempts, _TRIED_ENOUGH))
        else:
            count_left -= 1
            attempts = entry.attempts + 1
            draft.put(offset, Leased(attempts, command.member, deadline, state.epoch))
            leases.append(Lease(Token(checksum, state.epoch, offset, attempts), deadline))
    is_full = room == 0
    open_count, open_max = len(state.open), config.open_max
    first_leases: list[Offset] = []
    for offset, deliver_at, fault in _fresh(state, command.read):
        draft.next = offset
        if deliver_at > command.now + DELIVER_MS_MAX:
            deliver_at, fault = NO_TIMESTAMP, _TOO_LATE
        if (
            not fault
            and deliver_at != NO_TIMESTAMP
            and _belongs_in_bucket(draft, deliver_at, command.now, open_count)
        ):
            span_ms = span_for(deliver_at - command.now)
            if draft.add_to_bucket(offset, deliver_at, draft.bucket_for(deliver_at), span_ms):
                continue
            is_full = True
            break
        is_now = deliver_at <= command.now
        if is_now and not fault and not count_left:
            break
        if open_count >= open_max or (is_now and room == 0):
            is_full = True
            break
        open_count += 1
        if is_now:
            room -= 1
        if fault:
            draft.put(offset, Dead(0, _truncate(fault, config.text_bytes_max)))
        elif is_now:
            count_left -= 1
            first_leases.append(offset)
        else:
            draft.put(offset, Waiting(0, deliver_at))
    else:
        if command.read.first <= draft.next:
            draft.next = max(draft.next, command.read.end)
    # One lease for all: they differ in their offsets only.
    epoch = state.epoch
    draft.put_all(first_leases, Leased(1, command.member, deadline, epoch))
    leases += [
        _new(Lease, (_new(Token, (checksum, epoch, offset, 1)), deadline))
        for offset in first_leases
    ]
    return GrantedLeases(leases=tuple(leases), is_full=is_full)


def _may_lease(config: QueueConfig, command: Poll | Claim) -> bool:
    """Whether the time of the lease and the name of the member are within bounds."""
    return (
        1 <= command.visibility_ms <= config.visibility_ms_max
        and bool(command.member)
        and _truncate(command.member, config.text_bytes_max) == command.member
    )


def _claim(draft: Draft, checksum: int, command: Claim) -> CommandResult:
    config, state = draft.config, draft.state
    if not _may_lease(config, command):
        return CommandRefused(Refusal.BAD_ARGUMENT)
    deadline = TimestampMs(command.now + command.visibility_ms)
    room = config.leases_max - state.leased_count - state.dead_count
    leases: list[Lease] = []

    def lease(offset: Offset, attempts: int) -> None:
        draft.put(offset, Leased(attempts, command.member, deadline, state.epoch))
        leases.append(Lease(Token(checksum, state.epoch, offset, attempts), deadline))

    is_full = False
    for offset in sorted(command.offsets):
        entry = state.get(offset)
        if not isinstance(entry, Waiting) or (
            # It was never delivered: `deliver_at` delays it, and not a backoff.
            entry.attempts == 0 and entry.not_before > command.now
        ):
            continue
        if room <= 0:
            is_full = True
            break
        room -= 1
        if entry.attempts >= config.attempts_max:
            draft.put(offset, Dead(entry.attempts, _TRIED_ENOUGH))
        else:
            lease(offset, entry.attempts + 1)
    open_count = len(state.open)
    for offset, deliver_at, fault in _fresh(state, command.read):
        draft.next = offset
        if deliver_at > command.now + DELIVER_MS_MAX:
            deliver_at, fault = NO_TIMESTAMP, _TOO_LATE
        if not fault and _belongs_in_bucket(draft, deliver_at, command.now, open_count):
            span_ms = span_for(deliver_at - command.now)
            if draft.add_to_bucket(offset, deliver_at, draft.bucket_for(deliver_at), span_ms):
                continue
            is_full = True
            break
        is_leased = bool(fault) or (deliver_at <= command.now and offset in command.offsets)
        if open_count >= config.open_max or (is_leased and room <= 0):
            is_full = True
            break
        open_count += 1
        room -= is_leased
        if fault:
            draft.put(offset, Dead(0, _truncate(fault, config.text_bytes_max)))
        elif is_leased:
            lease(offset, 1)
        else:
            draft.put(offset, Waiting(0, max(deliver_at, command.now)))
    else:
        if command.read.first <= draft.next:
            draft.next = max(draft.next, command.read.end)
    return GrantedLeases(leases=tuple(leases), is_full=is_full)


def _belongs_in_bucket(
    draft: Draft, deliver_at: TimestampMs, now: TimestampMs, open_count: int
) -> bool:
    """If there is a bucket for its time, if it is due much later, or if many others wait."""
    if deliver_at == NO_TIMESTAMP:
        return False
    if draft.bucket_for(deliver_at) is not None:
        return True
    ahead_ms = deliver_at - now
    return ahead_ms > 0 and (ahead_ms >= HOUR_MS or open_count >= _delayed_max(draft.config))


def has_room_for(bucket: DelayBucket, state: QueueState, config: QueueConfig) -> bool:
    """Whether messages could be taken out; those of long spans go to other buckets."""
    if bucket.span_ms > MINUTE_MS:
        return len(state.buckets) < BUCKETS_MAX
    return len(state.open) < _delayed_max(config)


def _delayed_max(config: QueueConfig) -> int:
    """The other half is reserved for messages that are due now."""
    return max(1, config.open_max // 2)


def _recall(draft: Draft, command: Recall) -> CommandResult:
    """`is_more`: there is no room for the rest yet."""
    bucket = draft.bucket(command.bucket)
    read = command.read
    if bucket is None or read.first > bucket.first:
        return Done(count=0)
    open_count = len(draft.state.open)
    end = min(read.end, bucket.end)
    count = 0
    is_stopped = False
    for offset, deliver_at, fault in read.messages:
        # Unreadable batches became dead letters when they were first read.
        if not bucket.first <= offset < end or fault or not bucket.covers(deliver_at):
            continue
        shorter = draft.bucket_for(deliver_at, below_ms=bucket.span_ms)
        is_last = bucket.span_ms == MINUTE_MS
        ahead_ms = deliver_at - command.now
        is_near = is_last or ahead_ms < HOUR_MS
        if shorter is None and is_near and open_count < _delayed_max(draft.config):
            draft.put(offset, Waiting(0, deliver_at))
            open_count += 1
        elif is_last or not draft.add_to_bucket(
            offset, deliver_at, shorter, _span_below(bucket, ahead_ms)
        ):
            end, is_stopped = offset, True
            break
        count += 1
    left = max(0, bucket.count - count)
    draft.put_bucket(msgspec.structs.replace(bucket, first=max(bucket.first, end), count=left))
    return Done(count=count, is_more=is_stopped)


def _span_below(bucket: DelayBucket, ahead_ms: int) -> int:
    return min(span_for(ahead_ms), SPANS_MS[SPANS_MS.index(bucket.span_ms) + 1])


def _fresh(state: QueueState, read: LogSlice) -> Iterator[LogMessage]:
    """Messages at or after `next`; none if there is a gap between `next` and the slice."""
    if read.first > state.next:
        return
    position, end = state.next, read.end
    for message in read.messages:
        offset = message[0]
        if position <= offset < end:
            yield message
            position = Offset(offset + 1)


# ---- commands of workers


def _settle(draft: Draft, checksum: int, command: Ack | Nack | Extend) -> CommandResult:
    config = draft.config
    if isinstance(command, Extend) and not 1 <= command.visibility_ms <= config.visibility_ms_max:
        return CommandRefused(Refusal.BAD_ARGUMENT)
    if isinstance(command, Nack) and not BACKOFF <= command.delay_ms <= config.delay_ms_max:
        return CommandRefused(Refusal.BAD_ARGUMENT)
    refusals: list[Refusal] = []
    is_ack, none = isinstance(command, Ack), Refusal.NONE
    member, now = command.member, command.now
    for token in command.tokens:
        found = _check_token(draft, checksum, token, member, now)
        if isinstance(found, Refusal):
            refusals.append(found)
            continue
        refusals.append(none)
        if is_ack:
            draft.settle(token.offset)
        elif isinstance(command, Nack):
            draft.put(token.offset, _nacked(config, found, command))
        elif isinstance(command, Extend):
            deadline = TimestampMs(now + command.visibility_ms)
            draft.put(token.offset, msgspec.structs.replace(found, deadline=deadline))
    return SettleResult(refusals=tuple(refusals))


def _check_token(
    draft: Draft, checksum: int, token: Token, member: str, now: TimestampMs
) -> Leased | Refusal:
    """The lease that the token is valid for, or why it is not."""
    token_checksum, epoch, offset, attempt = token
    if token_checksum != checksum:
        return Refusal.OTHER_QUEUE
    entry = draft.get(offset)
    if (
        isinstance(entry, Leased)
        and attempt == entry.attempts
        and epoch == entry.epoch
        and member == entry.holder
        and now < entry.deadline
    ):
        return entry
    if isinstance(entry, Dead):
        return Refusal.DEAD
    if entry is None:
        if draft.state.was_dead_lettered(offset):
            return Refusal.DEAD
        # Checked before the epoch: a worker that retries a lost ack must get SETTLED.
        return Refusal.SETTLED if offset < draft.next else Refusal.NEVER_DELIVERED
    if attempt > entry.attempts:
        is_lost = epoch < draft.state.epoch
        return Refusal.OTHER_EPOCH if is_lost else Refusal.NEVER_DELIVERED
    if isinstance(entry, Waiting) or attempt < entry.attempts:
        return Refusal.EXPIRED
    if epoch != entry.epoch:
        return Refusal.OTHER_EPOCH
    if entry.holder != member:
        return Refusal.NOT_HOLDER
    # ExpireDue may run later; an expired lease must not settle anything in the meantime.
    return Refusal.EXPIRED


def _nacked(config: QueueConfig, lease: Leased, command: Nack) -> Open:
    if lease.attempts >= config.attempts_max:
        return Dead(
            lease.attempts, _truncate(command.reason or _NACKED_LAST, config.text_bytes_max)
        )
    delay_ms = command.delay_ms
    if delay_ms == BACKOFF:
        # The shift is bounded: attempts are not, and the result would be a huge number.
        doubled = config.backoff_ms_min << min(lease.attempts - 1, 40)
        delay_ms = min(doubled, config.backoff_ms_max)
    return Waiting(lease.attempts, TimestampMs(command.now + delay_ms))


def _truncate(text: str, bytes_max: int) -> str:
    return text.encode("utf-8", "replace")[:bytes_max].decode("utf-8", "ignore")


def _redeliver(config: QueueConfig, lease: Leased, now: TimestampMs, last: str) -> Open:
    """A lease ended without a response of its worker: redeliver without a delay."""
    if lease.attempts >= config.attempts_max:
        return Dead(lease.attempts, _truncate(last, config.text_bytes_max))
    return Waiting(lease.attempts, now)


# ---- commands of the leader


def _expire(draft: Draft, command: ExpireDue) -> CommandResult:
    count = 0
    for offset, lease in draft.state.leases_by_deadline():
        if lease.deadline > command.now:
            break
        if count >= command.count_max:
            return Done(count=count, is_more=True)
        draft.put(offset, _redeliver(draft.config, lease, command.now, _EXPIRED_LAST))
        count += 1
    return Done(count=count)


def _evict(draft: Draft, command: Evict) -> CommandResult:
    count = 0
    for offset, lease in draft.state.leases_by_deadline():
        if lease.holder == command.member:
            draft.put(offset, _redeliver(draft.config, lease, command.now, _EVICTED_LAST))
            count += 1
    return Done(count=count)


def _settle_dead(draft: Draft, command: SettleDead) -> CommandResult:
    count = 0
    for offset in command.offsets:
        if isinstance(draft.get(offset), Dead):
            draft.settle(offset)
            count += 1
    return Done(count=count)


def _trim(draft: Draft, command: Trim) -> CommandResult:
    deleted = draft.state.open_below(command.start)
    for offset in deleted:
        draft.settle(offset)
    count = len(deleted)
    for bucket in draft.state.buckets.values():
        if bucket.first < command.start:
            left = msgspec.structs.replace(bucket, first=min(command.start, bucket.end))
            count += bucket.count if left.is_empty else 0
            draft.put_bucket(left)
    draft.next = max(draft.next, command.start)
    return Done(count=count)
