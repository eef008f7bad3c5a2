"""Looks after queues: what is in them, their dead letters, redrive and purge, on any broker.

The leaders of the partitions do the work (`QueueAdminHandlers`); this broker asks all of them, and
says which did not answer.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple, TypeVar

import msgspec
from msgspec import Struct

from moldau.control.metadata_store import MetadataStore
from moldau.metadata.image import Topic
from moldau.metadata.leaders import NO_LEADER_ID, Leader
from moldau.metadata.queue_groups import QueueGroup
from moldau.model.clock import Clock
from moldau.model.dead_letters import REDRIVE_SUFFIX
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import BrokerId
from moldau.model.limits import TOPIC_NAME_LENGTH_MAX
from moldau.model.malformed import MALFORMED
from moldau.model.queue_limits import ATTEMPTS_MAX, POLL_RESPONSE_BYTES_MAX
from moldau.net.peers.caller import PeerCaller
from moldau.net.peers.methods import PeerMethod
from moldau.queues.admin_handlers import QueueAdminHandlers, as_refused
from moldau.queues.admin_messages import (
    IN_FLIGHT_MAX,
    ROWS_MAX,
    DeadLettersFound,
    DeadLettersWanted,
    InFlight,
    PartitionReport,
    Purged,
    PurgeOrder,
    PurgeReport,
    QueuePartitions,
    RedriveOrder,
    RedriveReport,
)
from moldau.queues.types import ConnectOptions, Mode, QueueRefusedError
from moldau.records.record import Record

log = logging.getLogger(__name__)

_SHOW_SECONDS: Final = 3.0
_READ_SECONDS: Final = 3.0
_PAGE_SECONDS: Final = 6.0
"""Of a page of dead letters, which may come from many partitions."""
_RUN_SECONDS: Final = 8.0
"""A redrive or a purge ends after this, and says that there is more."""
_RUN_MARGIN_SECONDS: Final = 8.0
"""The last step of it may wait for replicas."""
REDRIVE_MAX: Final = 10_000
_PURGE_MAX: Final = 100_000
"""Dead letters per request and broker."""

A = TypeVar("A", bound=Struct)
T = TypeVar("T")


class QueueView(Struct, frozen=True, kw_only=True):
    """`partitions`: of all, with their leader (-1: none), and None where it did not answer."""

    group: QueueGroup
    partitions: list[tuple[int, PartitionReport | None]]
    in_flight: list[InFlight]
    dead_letters: int | None
    """In the dead-letter topic and not redriven, of all topics of the group."""
    silent: list[int]


class DeadLetterPosition(NamedTuple):
    partition: int
    offset: int


class DeadLetterPage(Struct, frozen=True, kw_only=True):
    """`topic`: the dead-letter topic."""

    topic: str
    records: list[tuple[int, Record]]
    """With their partition of the dead-letter topic."""
    next: DeadLetterPosition | None
    silent: list[int]


class LeaderRefusal(NamedTuple):
    """What a leader did not do, or not to the end."""

    broker: int
    partitions: list[int]
    error: str


class Redriven(Struct, frozen=True, kw_only=True):
    report: RedriveReport
    left: int | None
    """Of all: dead letters that are not redriven, of all topics of the group; None if unknown. Of
    those that were named: those that nobody looked at."""
    target: str
    refused: list[LeaderRefusal]
    """Others may have done their part."""
    silent: list[int]


class PurgeResult(Struct, frozen=True, kw_only=True):
    purged: int
    is_complete: bool
    refused: list[LeaderRefusal] = []
    silent: list[int] = []


class QueueAdmin:
    """Methods raise RefusedError.

    `define` defines a queue group; `call_here` and the peers carry out what leaders do.
    """

    def __init__(
        self,
        *,
        me: BrokerId,
        clock: Clock,
        metadata: MetadataStore,
        leader_of: Callable[[Topic, int], Leader],
        handlers: QueueAdminHandlers,
        caller: PeerCaller,
        define: Callable[[ConnectOptions], Awaitable[QueueGroup]],
    ) -> None:
        self._me = me
        self._clock = clock
        self._metadata = metadata
        self._leader_of = leader_of
        self._handlers = handlers
        self._caller = caller
        self._define = define

    # ---- show

    async def show(self, group_name: str, topic_name: str) -> QueueView:
        """What is in a queue, and who has it."""
        group, topic = await self.find(group_name, topic_name)
        found, silent = await self._reports(
            group.name, topic, [part.index for part in topic.partitions], has_leases=True
        )
        dead, silent_too = await self._dead_letters_left(group)
        in_flight = [one for index in sorted(found) for one in found[index].in_flight]
        return QueueView(
            group=group,
            partitions=[
                (self._leader_of(topic, part.index).broker, found.get(part.index))
                for part in topic.partitions
            ],
            in_flight=in_flight[:IN_FLIGHT_MAX],
            dead_letters=dead,
            silent=sorted(silent | silent_too),
        )

    async def find(self, group_name: str, topic_name: str) -> tuple[QueueGroup, Topic]:
        """Raises GROUP_ID_NOT_FOUND, UNKNOWN_TOPIC_OR_PARTITION."""
        image = self._metadata.image
        if group_name not in image.queue_groups:
            # It may have been created on another broker just now.
            image = await self._metadata.fresh()
        group, topic = image.queue_groups.get(group_name), image.topic(topic_name)
        if group is None:
            raise RefusedError(
                ErrorCode.GROUP_ID_NOT_FOUND, f"There is no queue group '{group_name}'"
            )
        if topic is None or topic_name not in group.topics:
            raise RefusedError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"Topic '{topic_name}' is not a topic of queue group '{group_name}'",
            )
        return group, topic

    async def _reports(
        self,
        group: str,
        topic: Topic,
        partitions: Iterable[int],
        *,
        or_log: bool = False,
        has_leases: bool = False,
    ) -> tuple[dict[int, PartitionReport], set[int]]:
        by_leader = self._by_leader(topic, partitions)
        requests = {
            leader: QueuePartitions(
                group=group,
                topic=topic.name,
                topic_id=topic.topic_id,
                partitions=theirs,
                or_log=or_log,
                has_leases=has_leases,
            )
            for leader, theirs in by_leader.items()
        }
        replies, silent = await self._ask_all(
            PeerMethod.QUEUE_SHOW,
            requests,
            self._handlers.show,
            list[PartitionReport],
            _SHOW_SECONDS,
        )
        return {one.partition: one for reply in replies.values() for one in reply}, silent

    async def _dead_letters_left(self, group: QueueGroup) -> tuple[int | None, set[int]]:
        """How many are in the dead-letter topic, and were not redriven; None if unknown."""
        topic = self._metadata.image.topic(group.settings.dead_letter_topic)
        if topic is None:
            return 0, set()
        indexes = [part.index for part in topic.partitions]
        found, silent = await self._reports(
            group.name + REDRIVE_SUFFIX, topic, indexes, or_log=True
        )
        if len(found) < len(indexes):
            return None, silent
        return sum(one.ready + one.leased + one.delayed for one in found.values()), silent

    # ---- dead letters

    async def dead_letters(
        self, group_name: str, topic_name: str, after: DeadLetterPosition, count: int
    ) -> DeadLetterPage:
        """Dead letters of the queue that were not redriven, by partition and offset."""
        group, topic = await self.find(group_name, topic_name)
        dead_topic = self._metadata.image.topic(group.settings.dead_letter_topic)
        if dead_topic is None:
            name = group.settings.dead_letter_topic
            return DeadLetterPage(topic=name, records=[], next=None, silent=[])
        deadline = self._clock.monotonic() + _PAGE_SECONDS
        records: list[tuple[int, Record]] = []
        silent: set[int] = set()
        bytes_left = POLL_RESPONSE_BYTES_MAX
        for part in dead_topic.partitions[max(0, after.partition) :]:
            position = after.offset + 1 if part.index == after.partition else 0
            is_end = False
            while not is_end:
                if len(records) >= count or bytes_left <= 0 or self._clock.monotonic() > deadline:
                    following = DeadLetterPosition(part.index, position - 1)
                    return DeadLetterPage(
                        topic=dead_topic.name,
                        records=records,
                        next=following,
                        silent=sorted(silent),
                    )
                wanted = DeadLettersWanted(
                    group=group.name,
                    topic=topic.name,
                    dead_topic=dead_topic.name,
                    dead_topic_id=dead_topic.topic_id,
                    partition=part.index,
                    position=position,
                    count_max=count - len(records),
                    bytes_max=bytes_left,
                )
                leader = self._leader_of(dead_topic, part.index).broker
                replies, unheard = await self._ask_all(
                    PeerMethod.QUEUE_DEAD_LETTERS,
                    {leader: wanted},
                    self._handlers.dead_letters,
                    DeadLettersFound,
                    _READ_SECONDS,
                )
                silent |= unheard
                found = replies.get(leader)
                if found is None:
                    break
                for sent in found.records:
                    record = sent.record
                    records.append((part.index, record))
                    bytes_left -= len(record.value or b"") + len(record.key or b"")
                position, is_end = found.next, found.is_end
        return DeadLetterPage(
            topic=dead_topic.name, records=records, next=None, silent=sorted(silent)
        )

    async def redrive(
        self,
        group_name: str,
        topic_name: str,
        records: Sequence[DeadLetterPosition] | None,
        target_name: str,
        *,
        validate_only: bool,
    ) -> Redriven:
        """Send these dead letters, or all, to the target; at most REDRIVE_MAX per broker."""
        group, topic = await self.find(group_name, topic_name)
        target = self._metadata.image.topic(target_name)
        if target is None:
            # It may have been created on another broker just now.
            target = (await self._metadata.fresh()).topic(target_name)
        if target is None or target.internal:
            raise RefusedError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Topic '{target_name}' does not exist"
            )
        dead_topic = self._metadata.image.topic(group.settings.dead_letter_topic)
        if dead_topic is None:
            if records:
                raise RefusedError(
                    ErrorCode.RESOURCE_NOT_FOUND,
                    f"Queue group '{group_name}' has no dead letters: its topic does not exist",
                )
            return Redriven(
                report=RedriveReport(), left=0, target=target.name, refused=[], silent=[]
            )
        if target.name == dead_topic.name:
            raise RefusedError(
                ErrorCode.INVALID_REQUEST, f"'{target.name}' is where the dead letters are"
            )
        wanted = _by_partition(dead_topic, records)
        report, refused, silent = await self._run(
            group, topic, dead_topic, wanted, target=target.name, validate_only=validate_only
        )
        if records is not None:
            left: int | None = max(0, len(set(records)) - report.redriven - report.failed)
        else:
            try:
                left, silent_too = await self._dead_letters_left(group)
                silent |= silent_too
            except RefusedError as error:
                # What was sent is reported even so.
                log.debug("the dead letters that are left are not known: %s", error)
                left = None
            if left is not None and validate_only:
                left = max(0, left - report.redriven)
        return Redriven(
            report=report, left=left, target=target.name, refused=refused, silent=sorted(silent)
        )

    async def _run(
        self,
        group: QueueGroup,
        topic: Topic,
        dead_topic: Topic,
        wanted: Mapping[int, list[int] | None],
        *,
        target: str | None,
        validate_only: bool = False,
    ) -> tuple[RedriveReport, list[LeaderRefusal], set[int]]:
        """Leaders send these dead letters to the target, or remove them without one."""
        if not validate_only:
            await self._define_reader(group.name + REDRIVE_SUFFIX, dead_topic)
        orders = {
            leader: RedriveOrder(
                group=group.name,
                topic=topic.name,
                dead_topic=dead_topic.name,
                dead_topic_id=dead_topic.topic_id,
                partitions=[(index, wanted[index]) for index in theirs],
                target=target,
                validate_only=validate_only,
                count_max=_PURGE_MAX if target is None else REDRIVE_MAX,
                seconds_max=_RUN_SECONDS,
            )
            for leader, theirs in self._by_leader(dead_topic, wanted).items()
        }
        replies, failures, silent = await self._ask_each(
            PeerMethod.QUEUE_REDRIVE,
            orders,
            self._handlers.redrive,
            RedriveReport,
            _RUN_SECONDS + _RUN_MARGIN_SECONDS,
        )
        refused = _refused(
            failures,
            {leader: [at for at, _ in order.partitions] for leader, order in orders.items()},
        )
        if refused and not replies and not silent:
            raise next(iter(failures.values()))
        report = RedriveReport()
        for leader, one in replies.items():
            refused += _of_report(leader, one.refusals)
            report.redriven += one.redriven
            report.failed += one.failed
            report.duplicates += one.duplicates
            report.rows += one.rows[: ROWS_MAX - len(report.rows)]
            report.is_complete &= one.is_complete
        report.is_complete &= not silent and not refused
        report.rows.sort()
        return report, sorted(refused), silent

    async def _define_reader(self, name: str, dead_topic: Topic) -> None:
        """The queue group whose state says what was redriven. Without a limit of attempts: a
        target that refuses a dead letter for long must not bury it in another topic."""
        is_new = name not in self._metadata.image.queue_groups
        options = ConnectOptions(
            group=name,
            topics=(dead_topic.name,),
            mode=Mode.QUEUE,
            attempts_max=ATTEMPTS_MAX,
            # For what cannot be read. By default it has the name of the group, which may not be one
            # of a topic.
            dead_letter_topic=_unreadable_topic(dead_topic.name) if is_new else None,
        )
        try:
            await self._define(options)
        except QueueRefusedError as error:
            raise as_refused(error) from None

    # ---- purge

    async def purge(self, group_name: str, topic_name: str, what: Purged) -> PurgeResult:
        """Remove the dead letters, or the ready messages, of a queue."""
        group, topic = await self.find(group_name, topic_name)
        if what is Purged.DEAD:
            return await self._purge_dead(group, topic)
        orders = {
            leader: PurgeOrder(
                group=group.name,
                topic=topic.name,
                topic_id=topic.topic_id,
                partitions=theirs,
                seconds_max=_RUN_SECONDS,
            )
            for leader, theirs in self._by_leader(
                topic, [part.index for part in topic.partitions]
            ).items()
        }
        replies, failures, silent = await self._ask_each(
            PeerMethod.QUEUE_PURGE,
            orders,
            self._handlers.purge,
            PurgeReport,
            _RUN_SECONDS + _RUN_MARGIN_SECONDS,
        )
        refused = _refused(failures, {leader: order.partitions for leader, order in orders.items()})
        if refused and not replies and not silent:
            raise next(iter(failures.values()))
        for leader, one in replies.items():
            refused += _of_report(leader, one.refusals)
        is_complete = not refused and not silent
        return PurgeResult(
            purged=sum(one.purged for one in replies.values()),
            is_complete=is_complete and all(one.is_complete for one in replies.values()),
            refused=sorted(refused),
            silent=sorted(silent),
        )

    async def _purge_dead(self, group: QueueGroup, topic: Topic) -> PurgeResult:
        """Not by deleting records: others of the dead-letter topic may be of other queues."""
        dead_topic = self._metadata.image.topic(group.settings.dead_letter_topic)
        if dead_topic is None:
            return PurgeResult(purged=0, is_complete=True)
        report, refused, silent = await self._run(
            group, topic, dead_topic, _by_partition(dead_topic, None), target=None
        )
        return PurgeResult(
            purged=report.redriven,
            is_complete=report.is_complete,
            refused=refused,
            silent=sorted(silent),
        )

    # ---- the leaders

    def _by_leader(self, topic: Topic, partitions: Iterable[int]) -> dict[BrokerId, list[int]]:
        found: dict[BrokerId, list[int]] = defaultdict(list)
        for index in partitions:
            found[self._leader_of(topic, index).broker].append(index)
        return found

    async def _ask_all(
        self,
        method: PeerMethod,
        requests: Mapping[BrokerId, A],
        handle_here: Callable[[A], Awaitable[T]],
        kind: type[T],
        seconds_max: float,
    ) -> tuple[dict[BrokerId, T], set[int]]:
        """The replies, and the brokers that gave none; -1 for partitions without a leader.

        An error that is not about their availability is raised.
        """
        replies, failures, silent = await self._ask_each(
            method, requests, handle_here, kind, seconds_max
        )
        for failure in failures.values():
            raise failure
        return replies, silent

    async def _ask_each(
        self,
        method: PeerMethod,
        requests: Mapping[BrokerId, A],
        handle_here: Callable[[A], Awaitable[T]],
        kind: type[T],
        seconds_max: float,
    ) -> tuple[dict[BrokerId, T], dict[BrokerId, RefusedError], set[int]]:
        """The replies, the refusals that are not about availability, and the brokers that gave
        neither; -1 for partitions without a leader."""
        silent: set[int] = set()
        replies: dict[BrokerId, T] = {}
        failures: dict[BrokerId, RefusedError] = {}

        async def ask(broker: BrokerId, request: A) -> None:
            try:
                if broker == NO_LEADER_ID:
                    silent.add(broker)
                elif broker == self._me:
                    replies[broker] = await handle_here(request)
                else:
                    payload = msgspec.msgpack.encode(request)
                    reply = await self._caller.call(broker, method, payload, seconds_max)
                    replies[broker] = msgspec.msgpack.decode(reply, type=kind)
            except MALFORMED as error:
                log.debug("broker %d sent an invalid reply to %s: %s", broker, method.name, error)
                silent.add(broker)
            except RefusedError as error:
                log.debug("broker %d did not respond to %s: %s", broker, method.name, error)
                if error.code.is_unavailable or error.code in _OLD:
                    silent.add(broker)
                else:
                    failures[broker] = error

        await asyncio.gather(*(ask(broker, request) for broker, request in requests.items()))
        return replies, failures, silent


_OLD: Final = frozenset({ErrorCode.UNSUPPORTED_VERSION})
"""Of a broker that does not know the method yet."""


def _refused(
    failures: Mapping[BrokerId, RefusedError], partitions: Mapping[BrokerId, Sequence[int]]
) -> list[LeaderRefusal]:
    return [
        LeaderRefusal(broker, list(partitions[broker]), str(error))
        for broker, error in failures.items()
    ]


def _of_report(broker: BrokerId, refusals: Mapping[str, list[int]]) -> list[LeaderRefusal]:
    return [LeaderRefusal(broker, partitions, error) for error, partitions in refusals.items()]


def _unreadable_topic(dead_topic: str) -> str:
    return dead_topic[: TOPIC_NAME_LENGTH_MAX - len(REDRIVE_SUFFIX)] + REDRIVE_SUFFIX


def _by_partition(
    topic: Topic, records: Sequence[DeadLetterPosition] | None
) -> Mapping[int, list[int] | None]:
    """Raises RefusedError for a partition that the topic does not have."""
    if records is None:
        return {part.index: None for part in topic.partitions}
    found: dict[int, list[int] | None] = {}
    chosen: dict[int, list[int]] = defaultdict(list)
    for index, offset in records:
        if not 0 <= index < len(topic.partitions):
            raise RefusedError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"Topic '{topic.name}' has no partition {index}",
            )
        chosen[index].append(offset)
    found.update(chosen)
    return found
