"""Sends dead letters of the partitions that this broker leads back to a queue, or to another topic.
Or removes them from the queue.

A letter is leased, sent with acks=all, and settled after that, in the queue group G.redrive that
`moldau queue redrive` uses, too: what was settled is not sent again by anyone, and what was sent
and not settled in a crash is sent again when its lease has expired. One that is removed is settled
in the same way, and not sent: the record stays in its topic until retention deletes it.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from moldau.data.append_forwarding import AppendForwarder, AppendResult
from moldau.data.produce import ACKS_ALL
from moldau.leases.commands import EMPTY_SLICE, Ack, Claim, Command, LogSlice, Nack
from moldau.leases.results import GrantedLeases
from moldau.leases.tokens import Token
from moldau.metadata.image import Topic
from moldau.model import log_events as events
from moldau.model.clock import Clock
from moldau.model.dead_letters import (
    DeadLetterNote,
    digest_of,
    note_of,
    restored_headers,
    without_earlier_deaths,
)
from moldau.model.errors import CorruptionError, ErrorCode, RefusedError
from moldau.model.ids import Offset, TimestampMs
from moldau.queues.admin_messages import ROWS_MAX, RedriveOrder, RedriveReport, RedriveRow
from moldau.queues.dead_letter_scan import DeadLetterScan, FoundLetter
from moldau.queues.dead_letter_writer import RETRY_SINGLY, TOO_LARGE
from moldau.queues.queue_partition import QueuePartition
from moldau.queues.types import QueueRefusedError, unavailable
from moldau.records.murmur2 import partition_of
from moldau.records.record import Record, build_batch

log = logging.getLogger(__name__)

_LETTERS: Final = 100
_BYTES: Final = 512 * 1024
"""Of one step: leased, sent and settled together. A single letter may exceed it."""
_CLAIM_READ: Final = 500
_LEASE_MS: Final = 60_000
"""Longer than a step takes; after a crash, so long nobody else sends its letters."""
_APPEND_SECONDS_MAX: Final = 5.0


class _Letter(NamedTuple):
    record: Record
    note: DeadLetterNote


class RedriveRun:
    """Carries out one order on one broker. `member` is the name under which it leases. Without a
    target, letters are removed."""

    def __init__(
        self,
        order: RedriveOrder,
        target: Topic | None,
        *,
        member: str,
        clock: Clock,
        appends: AppendForwarder,
    ) -> None:
        self._order = order
        self._target = target
        self._member = member
        self._clock = clock
        self._appends = appends
        self._deadline = clock.monotonic() + order.seconds_max
        self._seen: set[bytes] = set()
        self._spread = 0
        self._is_stopped = False
        self.report = RedriveReport()

    @property
    def is_over(self) -> bool:
        """The rest is for another request."""
        report = self.report
        return (
            self._is_stopped
            or report.redriven >= self._order.count_max
            or self._clock.monotonic() >= self._deadline
        )

    def give_up(self, partition: int, offsets: Iterable[int] | None, why: str) -> None:
        """A partition that cannot be redriven now."""
        self.report.is_complete = False
        self.report.refusals.setdefault(why, []).append(partition)
        for offset in offsets or ():
            self._failed(partition, offset, why)

    async def partition(
        self,
        partition: int,
        offsets: list[int] | None,
        scan: DeadLetterScan,
        queue: QueuePartition | None,
    ) -> None:
        """Redrive or remove these letters of a partition, or all; without a queue, only count them.

        Raises QueueRefusedError.
        """
        wanted = None if offsets is None else set(offsets)
        position = Offset(0 if wanted is None else min(wanted, default=0))
        last = None if wanted is None else max(wanted, default=0)
        while True:
            if self.is_over:
                self.report.is_complete = False
                for offset in sorted(wanted or ()):
                    self._failed(partition, offset, "there was no time for it: repeat the request")
                return
            page = await scan.page(position, _LETTERS, _BYTES)
            chosen: list[_Letter] = []
            foreign: list[Offset] = []
            for letter in page.letters:
                if wanted is None or letter.message.record.offset in wanted:
                    self._judge(partition, letter, chosen, foreign, is_named=wanted is not None)
                    if wanted is not None:
                        wanted.discard(letter.message.record.offset)
            left = self._order.count_max - self.report.redriven
            if len(chosen) > left:
                for record, _ in chosen[left:]:
                    if wanted is not None:
                        self._failed(partition, record.offset, "too many: repeat the request")
                chosen, self.report.is_complete = chosen[:left], False
            if queue is None or self._order.validate_only:
                self._count(partition, chosen)
            elif chosen or foreign:
                await self._redrive(partition, queue, chosen, foreign)
            position = page.next
            if page.is_end or (last is not None and (not wanted or position > last)):
                break
        for offset in sorted(wanted or ()):
            self._failed(partition, offset, "there is no such dead letter, or it was redriven")

    # ---- which

    def _judge(
        self,
        partition: int,
        found: FoundLetter,
        chosen: list[_Letter],
        foreign: list[Offset],
        *,
        is_named: bool,
    ) -> None:
        """Choose it, or say why not. Those of no queue or another one are settled on the way: the
        state is that of this queue only."""
        record, order = found.message.record, self._order
        note = note_of(record.headers)
        is_foreign = note is None or note.origin.group != order.group
        if found.is_leased:
            if is_named:
                self._failed(partition, record.offset, "another request redrives it just now")
        elif found.message.message.fault:
            # Nobody knows of which queue it is: a purge leaves it.
            if self._target is not None:
                self._failed(partition, record.offset, "it cannot be read")
        elif note is None or is_foreign:
            if is_named:
                self._failed(partition, record.offset, "it is not a dead letter of this queue")
            else:
                foreign.append(record.offset)
        elif note.origin.topic != order.topic:
            if is_named:
                self._failed(partition, record.offset, f"it is of topic {note.origin.topic!r}")
        elif self._target is None:
            chosen.append(_Letter(record, note))
        elif note.missing:
            # It would be another message, and in a compacted topic a tombstone.
            self._failed(partition, record.offset, f"it was cut: {note.missing} is missing")
        else:
            digest = digest_of(note, record.key, record.value, record.headers)
            if not is_named and digest in self._seen:
                self.report.duplicates += 1
                foreign.append(record.offset)
            else:
                self._seen.add(digest)
                chosen.append(_Letter(record, note))

    def _count(self, partition: int, chosen: list[_Letter]) -> None:
        for record, _ in chosen:
            self.report.redriven += 1
            self._add(RedriveRow(partition, record.offset))

    # ---- one step

    async def _redrive(
        self,
        partition: int,
        queue: QueuePartition,
        chosen: list[_Letter],
        foreign: list[Offset],
    ) -> None:
        offsets = frozenset((*foreign, *(letter.record.offset for letter in chosen)))
        tokens, is_full = await self._claim(queue, offsets)
        letters = []
        for letter in chosen:
            if letter.record.offset in tokens:
                letters.append(letter)
            else:
                why = (
                    "too many older dead letters are in between: redrive or purge them first"
                    if is_full
                    else "another request redrives it, or has"
                )
                self._failed(partition, letter.record.offset, why)
        self._is_stopped |= is_full
        done = {offset for offset in foreign if offset in tokens}
        if self._target is None:
            done |= {letter.record.offset for letter in letters}
            if await self._settle(queue, tokens, done):
                self.report.redriven += len(letters)
            return
        sent = await self._send(self._target, partition, letters) if letters else {}
        done |= sent.keys()
        await self._settle(queue, tokens, done)
        for offset, (target_partition, target_offset) in sent.items():
            self.report.redriven += 1
            self._add(RedriveRow(partition, offset, "", target_partition, target_offset))
        if letters and not sent:
            # The target refuses all: neither will it take the others now.
            self._is_stopped = True

    async def _claim(
        self, queue: QueuePartition, offsets: frozenset[Offset]
    ) -> tuple[dict[Offset, Token], bool]:
        """Lease these letters; and whether too many others are open to lease all."""
        tokens: dict[Offset, Token] = {}
        last = max(offsets)
        while True:
            read, is_last = EMPTY_SLICE, True
            position = await queue.query(lambda machine, _: machine.state.next)
            if position <= last:
                try:
                    entries, end = await queue.reader.browse_on(position, _CLAIM_READ, _BYTES)
                except (RefusedError, CorruptionError) as error:
                    raise unavailable(error) from None
                messages = tuple(entry.message for entry in entries)
                read = LogSlice(first=position, end=end, messages=messages)
                is_last = end > last or end == position
            claim = _Claimed(self._member, offsets - tokens.keys(), read)
            result = await queue.submit(claim.command)
            if not isinstance(result, GrantedLeases):
                raise TypeError(f"a queue returned {type(result).__name__}, not GrantedLeases")
            tokens.update((lease.token.offset, lease.token) for lease in result.leases)
            if is_last or result.is_full:
                return tokens, result.is_full

    async def _settle(
        self, queue: QueuePartition, tokens: Mapping[Offset, Token], done: set[Offset]
    ) -> bool:
        acks = tuple(token for offset, token in tokens.items() if offset in done)
        nacks = tuple(token for offset, token in tokens.items() if offset not in done)
        member = self._member
        try:
            if acks:
                await queue.submit(lambda now: Ack(member=member, tokens=acks, now=now), len(acks))
            if nacks:
                nack = _Returned(member, nacks)
                await queue.submit(nack.command, len(nacks))
        except QueueRefusedError as error:
            log.warning(
                "%d dead letters may be redriven again: %s",
                len(acks),
                error,
                extra=events.REDRIVE_UNSETTLED(),
            )
            self._is_stopped = True
            return False
        return True

    # ---- sending

    async def _send(
        self, target: Topic, partition: int, letters: list[_Letter]
    ) -> dict[Offset, tuple[int, int]]:
        """Where each is now, of those that were stored on enough replicas."""
        by_partition: dict[int, list[_Letter]] = defaultdict(list)
        count = len(target.partitions)
        for letter in letters:
            key = None if letter.note.is_keyless else letter.record.key
            if key is None:
                self._spread += 1
                by_partition[self._spread % count].append(letter)
            else:
                by_partition[partition_of(key, count)].append(letter)
        stored: dict[Offset, tuple[int, int]] = {}
        await asyncio.gather(
            *(
                self._send_to((target, index), theirs, partition, stored)
                for index, theirs in by_partition.items()
            )
        )
        return stored

    async def _send_to(
        self,
        to: tuple[Topic, int],
        letters: list[_Letter],
        partition: int,
        stored: dict[Offset, tuple[int, int]],
    ) -> None:
        appended = await self._append(to, letters)
        if appended.error in RETRY_SINGLY and len(letters) > 1:
            for letter in letters:
                await self._send_to(to, [letter], partition, stored)
            return
        if appended.error in TOO_LARGE:
            appended = await self._append(to, letters, forget=True)
        for number, letter in enumerate(letters):
            if appended.error is ErrorCode.NONE:
                stored[letter.record.offset] = to[1], appended.base_offset + number
            else:
                why = appended.message or appended.error.name
                if appended.is_uncertain:
                    why += " (it may have been stored)"
                self._failed(partition, letter.record.offset, why)

    async def _append(
        self, to: tuple[Topic, int], letters: list[_Letter], *, forget: bool = False
    ) -> AppendResult:
        """`forget`: without earlier deaths, which are not worth a message."""
        target, index = to
        records = [self._restored(target, letter) for letter in letters]
        if forget:
            records = [one._replace(headers=without_earlier_deaths(one.headers)) for one in records]
        return await self._appends.append(
            target,
            index,
            build_batch(records),
            acks=ACKS_ALL,
            timeout_seconds=_APPEND_SECONDS_MAX,
        )

    def _restored(self, target: Topic, letter: _Letter) -> Record:
        """The message that it was, with the current time: by its own, retention might delete it at
        once. Back in its topic, it is for this queue only: others have had it."""
        record, note = letter
        is_back = target.name == note.origin.topic
        group = note.origin.group.encode() if is_back else None
        return record._replace(
            key=None if note.is_keyless else record.key,
            timestamp=self._clock.wall_ms(),
            headers=restored_headers(record.headers, group),
        )

    # ---- the report

    def _failed(self, partition: int, offset: int, why: str) -> None:
        self.report.failed += 1
        self._add(RedriveRow(partition, offset, why))
        if self._target is None and partition not in (
            known := self.report.refusals.setdefault(why, [])
        ):
            known.append(partition)

    def _add(self, row: RedriveRow) -> None:
        if len(self.report.rows) < ROWS_MAX:
            self.report.rows.append(row)


class _Claimed(NamedTuple):
    member: str
    offsets: frozenset[Offset]
    read: LogSlice

    def command(self, now: TimestampMs) -> Command:
        return Claim(
            member=self.member,
            offsets=self.offsets,
            now=now,
            visibility_ms=_LEASE_MS,
            read=self.read,
        )


class _Returned(NamedTuple):
    member: str
    tokens: tuple[Token, ...]

    def command(self, now: TimestampMs) -> Command:
        return Nack(
            member=self.member, tokens=self.tokens, now=now, delay_ms=0, reason="redrive failed"
        )
