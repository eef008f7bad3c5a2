"""What the leader of a queue's partitions does for those who look after the queue."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import msgspec
from msgspec.structs import replace

from moldau.control.metadata_store import MetadataStore
from moldau.data.append_forwarding import AppendForwarder
from moldau.leases.commands import Ack
from moldau.metadata.image import Topic
from moldau.metadata.queue_groups import QueueGroup
from moldau.model.clock import Clock
from moldau.model.dead_letters import REDRIVE_SUFFIX, note_of
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import BrokerId, Offset, PartitionIndex
from moldau.net.peers.caller import decode_request
from moldau.queues.admin_messages import (
    IN_FLIGHT_MAX,
    DeadLettersFound,
    DeadLettersWanted,
    PartitionReport,
    PurgeOrder,
    PurgeReport,
    QueuePartitions,
    RedriveOrder,
    RedriveReport,
    SentRecord,
)
from moldau.queues.dead_letter_scan import DeadLetterScan
from moldau.queues.inspection import report_of
from moldau.queues.limits import QueueLimits
from moldau.queues.queue_host import QueueHost
from moldau.queues.queue_partition import QueuePartition
from moldau.queues.redrive import RedriveRun
from moldau.queues.types import DONE, ErrorReason, QueueRefusedError

_SHOW_SECONDS: Final = 2.0
_AT_ONCE: Final = 16
"""Queues that are asked together: each may have to be loaded."""
_RUNS_MAX: Final = 4
"""Redrives and purges at the same time."""
_PURGE_LEASE_MS: Final = 60_000
_SCAN_LETTERS: Final = 200
_SCAN_PAGES_MAX: Final = 20
"""Of one request for dead letters: most may be of other queues."""

_CODES: Final = {
    ErrorReason.INVALID_ARGUMENT: ErrorCode.INVALID_REQUEST,
    ErrorReason.UNKNOWN_TOPIC: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorReason.UNKNOWN_GROUP: ErrorCode.GROUP_ID_NOT_FOUND,
    ErrorReason.OTHER_MODE: ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
    ErrorReason.NOT_LEADER: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorReason.INTERNAL: ErrorCode.UNKNOWN_SERVER_ERROR,
}


def as_refused(error: QueueRefusedError) -> RefusedError:
    code = _CODES.get(error.reason, ErrorCode.COORDINATOR_NOT_AVAILABLE)
    return RefusedError(code, str(error))


_show: Final = msgspec.msgpack.Decoder(QueuePartitions).decode
_read: Final = msgspec.msgpack.Decoder(DeadLettersWanted).decode
_redrive: Final = msgspec.msgpack.Decoder(RedriveOrder).decode
_purge: Final = msgspec.msgpack.Decoder(PurgeOrder).decode


class QueueAdminHandlers:
    """Methods raise RefusedError."""

    def __init__(
        self,
        *,
        me: BrokerId,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        metadata: MetadataStore,
        host: QueueHost,
        appends: AppendForwarder,
        new_name: Callable[[], str],
    ) -> None:
        """`new_name`: a text that no other call gets."""
        self._me = me
        self._loop = loop
        self._clock = clock
        self._metadata = metadata
        self._host = host
        self._appends = appends
        self._new_name = new_name
        self._runs = 0

    # ---- for the peers

    async def on_show(self, sender: BrokerId, payload: bytes) -> bytes:
        return msgspec.msgpack.encode(await self.show(decode_request(_show, payload)))

    async def on_dead_letters(self, sender: BrokerId, payload: bytes) -> bytes:
        return msgspec.msgpack.encode(await self.dead_letters(decode_request(_read, payload)))

    async def on_redrive(self, sender: BrokerId, payload: bytes) -> bytes:
        return msgspec.msgpack.encode(await self.redrive(decode_request(_redrive, payload)))

    async def on_purge(self, sender: BrokerId, payload: bytes) -> bytes:
        return msgspec.msgpack.encode(await self.purge(decode_request(_purge, payload)))

    # ---- show

    async def show(self, wanted: QueuePartitions) -> list[PartitionReport]:
        """Of those partitions whose queue responds in time."""
        topic = await self._topic(wanted.topic, wanted.topic_id)
        group = await self._group(wanted.group, topic, is_needed=not wanted.or_log)
        reports: list[PartitionReport] = []
        leases_left = IN_FLIGHT_MAX if wanted.has_leases else 0
        turns = asyncio.Semaphore(_AT_ONCE)

        async def report(index: int) -> None:
            nonlocal leases_left
            async with turns:
                try:
                    if group is None:
                        reports.append(self._report_of_log(topic, index))
                    else:
                        queue = self._host.find(group, topic, PartitionIndex(index))
                        found = await report_of(queue, leases_left)
                        # Others ran meanwhile, and took of what was left.
                        shown = found.in_flight[:leases_left]
                        leases_left -= len(shown)
                        reports.append(replace(found, in_flight=shown))
                except QueueRefusedError:
                    # Led by another broker now, or loading.
                    return

        tasks = [self._loop.create_task(report(index)) for index in wanted.partitions]
        try:
            if tasks:
                await asyncio.wait(tasks, timeout=_SHOW_SECONDS)
        finally:
            for task in tasks:
                task.cancel()
        return list(reports)

    def _report_of_log(self, topic: Topic, index: int) -> PartitionReport:
        """Of a group that does not exist yet, and will start at the beginning."""
        replica = self._host.lead(topic, PartitionIndex(index))
        start, end = replica.log.start_offset, replica.last_stable_offset
        return PartitionReport(
            partition=index,
            ready=max(0, end - start),
            leased=0,
            delayed=0,
            dead=0,
            redeliveries=0,
            acked_up_to=start,
            end=replica.high_watermark,
            oldest_ready_ms=None,
        )

    # ---- dead letters

    async def dead_letters(self, wanted: DeadLettersWanted) -> DeadLettersFound:
        topic = await self._topic(wanted.dead_topic, wanted.dead_topic_id)
        records: list[SentRecord] = []
        position, bytes_left, is_end = Offset(wanted.position), wanted.bytes_max, False
        try:
            scan, _ = await self._scan(wanted.group, topic, wanted.partition)
            for _ in range(_SCAN_PAGES_MAX):
                missing = min(wanted.count_max - len(records), _SCAN_LETTERS)
                if missing <= 0 or bytes_left <= 0 or is_end:
                    break
                page = await scan.page(position, missing, bytes_left)
                for letter in page.letters:
                    record = letter.message.record
                    note = note_of(record.headers)
                    if note is None or note.origin[:2] != (wanted.group, wanted.topic):
                        continue
                    if letter.message.size > bytes_left and records:
                        return DeadLettersFound(records=records, next=record.offset, is_end=False)
                    bytes_left -= letter.message.size
                    records.append(SentRecord.of(record))
                position, is_end = page.next, page.is_end
        except QueueRefusedError as error:
            raise as_refused(error) from None
        return DeadLettersFound(records=records, next=position, is_end=is_end)

    async def redrive(self, order: RedriveOrder) -> RedriveReport:
        dead_topic = await self._topic(order.dead_topic, order.dead_topic_id)
        target = None if order.target is None else await self._target(order.target)
        run = RedriveRun(
            order,
            target,
            member=self._member("purge" if target is None else "redrive"),
            clock=self._clock,
            appends=self._appends,
        )
        with self._counted():
            for index, offsets in order.partitions:
                try:
                    scan, queue = await self._scan(
                        order.group, dead_topic, index, is_redrive=not order.validate_only
                    )
                    await run.partition(index, offsets, scan, queue)
                except (QueueRefusedError, RefusedError) as error:
                    # Others may be done already: their report is kept.
                    run.give_up(index, offsets, str(error))
        return run.report

    async def _scan(
        self, group: str, topic: Topic, index: int, *, is_redrive: bool = False
    ) -> tuple[DeadLetterScan, QueuePartition | None]:
        """With the queue that redrives, if there is one. Raises also QueueRefusedError."""
        reader = await self._group(group + REDRIVE_SUFFIX, topic, is_needed=is_redrive)
        at = PartitionIndex(index)
        if not 0 <= index < len(topic.partitions):
            raise QueueRefusedError(ErrorReason.UNKNOWN_TOPIC)
        replica = self._host.lead(topic, at)
        queue = None if reader is None else self._host.find(reader, topic, at)
        return DeadLetterScan(self._loop, replica, QueueLimits(), queue), queue

    # ---- purge

    async def purge(self, order: PurgeOrder) -> PurgeReport:
        topic = await self._topic(order.topic, order.topic_id)
        with self._counted():
            return await self._purge(order, topic)

    async def _purge(self, order: PurgeOrder, topic: Topic) -> PurgeReport:
        """Lease what is ready, as a worker, and ack it."""
        group = await self._group(order.group, topic, is_needed=True)
        if group is None:
            raise RefusedError(ErrorCode.GROUP_ID_NOT_FOUND, f"No queue group '{order.group}'")
        deadline = self._clock.monotonic() + order.seconds_max
        member = self._member("purge")
        limits = QueueLimits()
        purged, is_complete = 0, True
        refusals: dict[str, list[int]] = {}
        for index in order.partitions:
            part = [(topic, PartitionIndex(index))]
            try:
                # Messages that arrive meanwhile are not meant.
                left = (await report_of(self._host.find(group, *part[0]))).ready
                while left > 0:
                    if self._clock.monotonic() >= deadline:
                        return PurgeReport(purged=purged, is_complete=False, refusals=refusals)
                    polled = await self._host.poll(
                        group, part, member, min(left, limits.round_count_max), _PURGE_LEASE_MS, 0.0
                    )
                    if not polled.deliveries:
                        is_complete &= not polled.is_full
                        break
                    tokens = [each.token for each in polled.deliveries]
                    results = await self._host.settle(group, member, tokens, Ack)
                    purged += sum(result == DONE for result in results)
                    left -= len(tokens)
            except QueueRefusedError as error:
                is_complete = False
                refusals.setdefault(str(error), []).append(index)
        return PurgeReport(purged=purged, is_complete=is_complete, refusals=refusals)

    # ---- common

    @contextmanager
    def _counted(self) -> Iterator[None]:
        if self._runs >= _RUNS_MAX:
            raise RefusedError(
                ErrorCode.COORDINATOR_NOT_AVAILABLE,
                f"broker {self._me} runs {_RUNS_MAX} redrives or purges: retry later",
            )
        self._runs += 1
        try:
            yield
        finally:
            self._runs -= 1

    def _member(self, what: str) -> str:
        return f"{what}-{self._me}-{self._new_name()}"

    async def _target(self, name: str) -> Topic:
        topic = self._metadata.image.topic(name)
        if topic is None:
            # It may be new, and not be known here yet.
            topic = (await self._metadata.fresh()).topic(name)
        if topic is None:
            raise RefusedError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Topic '{name}' does not exist"
            )
        return topic

    async def _topic(self, name: str, topic_id: bytes) -> Topic:
        topic = self._metadata.image.topic(name)
        if topic is None or topic.topic_id != topic_id:
            # It may be new, and not be known here yet.
            topic = (await self._metadata.fresh()).topic(name)
        if topic is None or topic.topic_id != topic_id:
            raise RefusedError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Topic '{name}' was deleted")
        return topic

    async def _group(self, name: str, topic: Topic, *, is_needed: bool) -> QueueGroup | None:
        """The queue group, if it has that topic. Raises RefusedError if it is needed."""
        group = self._metadata.image.queue_groups.get(name)
        if is_needed and (group is None or topic.name not in group.topics):
            # It may have been defined by another broker just now.
            group = (await self._metadata.fresh()).queue_groups.get(name)
        if group is not None and topic.name in group.topics:
            return group
        if is_needed:
            raise RefusedError(
                ErrorCode.GROUP_ID_NOT_FOUND, f"No queue group '{name}' has topic '{topic.name}'"
            )
        return None
