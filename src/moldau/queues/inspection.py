"""Inspects a queue without changing it: its counts and its messages."""

from msgspec.structs import replace

from moldau.leases.delay_buckets import DelayBucket
from moldau.leases.state import Dead, Leased, Open, Waiting
from moldau.leases.state_machine import QueueStateMachine
from moldau.model.errors import CorruptionError, RefusedError
from moldau.model.ids import Offset, TimestampMs
from moldau.queues.admin_messages import InFlight, PartitionReport
from moldau.queues.queue_counts import backlog_of
from moldau.queues.queue_partition import QueuePartition
from moldau.queues.reader import LoadedMessage
from moldau.queues.types import InspectedMessage, MessageState, PartitionStats, unavailable


async def stats_of(queue: QueuePartition) -> PartitionStats:
    """Raises QueueRefusedError."""
    replica = queue.replica

    def query(machine: QueueStateMachine, now: TimestampMs) -> PartitionStats:
        state = machine.state
        backlog = backlog_of(state, replica.last_stable_offset, now)
        return PartitionStats(
            topic=queue.topic,
            partition=queue.queue.partition,
            leader=replica.leader,
            is_here=True,
            ready=backlog.ready,
            leased=backlog.leased,
            delayed=backlog.delayed,
            dead=backlog.dead,
            floor=state.floor,
            end=replica.high_watermark,
        )

    return await queue.query(query)


async def report_of(queue: QueuePartition, leases_max: int = 0) -> PartitionReport:
    """The same in more detail: its first leases, and since when its oldest ready message is there.

    Raises QueueRefusedError.
    """
    replica, partition = queue.replica, queue.queue.partition

    def query(
        machine: QueueStateMachine, now: TimestampMs
    ) -> tuple[PartitionReport, Offset | None, TimestampMs]:
        state = machine.state
        backlog = backlog_of(state, replica.last_stable_offset, now)
        redeliveries = 0
        in_flight: list[InFlight] = []
        for offset, entry in state.open.items():
            if not isinstance(entry, Dead) and entry.attempts > 1:
                redeliveries += entry.attempts - 1
            if isinstance(entry, Leased) and len(in_flight) < leases_max:
                left = max(0, entry.deadline - now)
                in_flight.append(InFlight(partition, offset, entry.holder, entry.attempts, left))
        oldest = min((offset for offset, _ in state.due(now)), default=None)
        if oldest is None and state.next < replica.last_stable_offset:
            oldest = state.next
        report = PartitionReport(
            partition=partition,
            ready=backlog.ready,
            leased=backlog.leased,
            delayed=backlog.delayed,
            dead=backlog.dead,
            redeliveries=redeliveries,
            acked_up_to=state.floor,
            end=replica.high_watermark,
            oldest_ready_ms=None,
            in_flight=in_flight,
        )
        return report, oldest, now

    report, oldest, now = await queue.query(query)
    if oldest is None:
        return report
    try:
        found = await queue.reader.browse(oldest, 1, 1)
    except (RefusedError, CorruptionError) as error:
        raise unavailable(error) from None
    if not found:
        return report
    return replace(report, oldest_ready_ms=max(0, now - found[0].record.timestamp))


async def peek_queue(
    queue: QueuePartition, count_max: int, bytes_max: int
) -> list[InspectedMessage]:
    """Open messages by offset, then unread ones, then those in delay buckets.

    Raises QueueRefusedError.
    """

    def query(
        machine: QueueStateMachine, now: TimestampMs
    ) -> tuple[list[tuple[Offset, Open]], Offset, list[DelayBucket], TimestampMs]:
        state = machine.state
        offsets = state.open_below(state.next)[:count_max]
        entries = [(offset, state.get(offset)) for offset in offsets]
        return (
            [(offset, entry) for offset, entry in entries if entry is not None],
            state.next,
            sorted(state.buckets.values(), key=lambda bucket: bucket.begin),
            now,
        )

    opened, position, buckets, now = await queue.query(query)
    found: list[InspectedMessage] = []
    try:
        loaded = await queue.reader.load([offset for offset, _ in opened], lambda _: False)
        for offset, known in opened:
            if offset not in loaded:
                # The rest exceeds the limit of bytes.
                return found
            entry = loaded[offset]
            if entry is not None:
                bytes_max -= entry.size
                if bytes_max < 0 and found:
                    return found
                found.append(_describe(queue, entry, known, now))
        if len(found) < count_max:
            for entry in await queue.reader.browse(position, count_max - len(found), bytes_max):
                bytes_max -= entry.size
                if bytes_max < 0 and found:
                    break
                found.append(_describe(queue, entry, None, now))
        for bucket in buckets:
            if len(found) >= count_max or bytes_max < 0:
                break
            count = count_max - len(found)
            for entry in await queue.reader.browse(bucket.first, count, bytes_max):
                message = entry.message
                if message.offset < bucket.end and bucket.covers(message.deliver_at):
                    bytes_max -= entry.size
                    found.append(_describe(queue, entry, None, now))
    except (RefusedError, CorruptionError) as error:
        raise unavailable(error) from None
    return found


def _describe(
    queue: QueuePartition, entry: LoadedMessage, known: Open | None, now: TimestampMs
) -> InspectedMessage:
    state, attempt, consumer, reason = MessageState.READY, 0, "", ""
    due = 0
    match known:
        case Leased():
            state, attempt = MessageState.LEASED, known.attempts
            consumer, due = known.holder, known.deadline
        case Waiting():
            attempt = known.attempts
            if known.not_before > now:
                state, due = MessageState.DELAYED, known.not_before
        case Dead():
            state, attempt, reason = MessageState.DEAD, known.attempts, known.reason
        case None:
            if entry.message.deliver_at > now:
                state, due = MessageState.DELAYED, entry.message.deliver_at
    return InspectedMessage(
        topic=queue.topic,
        partition=queue.queue.partition,
        record=entry.record,
        state=state,
        attempt=attempt,
        consumer=consumer,
        reason=reason,
        due=due,
    )
