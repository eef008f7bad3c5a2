"""Owns writes that belong to transactions: the coordinator is asked before one opens here.

The first batch of a producer's transaction in a partition waits until the transaction's
coordinator has said that the partition belongs to it, or has added it (KIP-890). Otherwise a batch
that comes late, after its transaction has ended, would open one that nobody ever ends. Batches
that come while one is asked about stand in line behind it.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple, Protocol

from moldau.data.partitions import Partitions
from moldau.data.produce import ProduceService, refuse_internal
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import PartitionIndex, ProducerEpoch, ProducerId, TopicPartition
from moldau.records.batch import BatchFormatError, BatchHeader, read_header
from moldau.replica.replica import Proposal, Replica
from moldau.replica.verification_guards import VerificationGuard

log = logging.getLogger(__name__)

ABORTABLE_FROM: Final = 11
"""Versions of Produce whose clients know TRANSACTION_ABORTABLE."""
ADDS_FROM: Final = 12
"""Versions of Produce whose clients leave it to the broker to add partitions (transactions V2)."""
_VERIFY_SECONDS_MAX: Final = 10.0

AppendOutcome = tuple[Replica, Proposal] | RefusedError
_Key = tuple[str, int, ProducerId, ProducerEpoch]


class TransactionAdmission(Protocol):
    """The way to the coordinators of transactions, on this broker or another."""

    async def admit(
        self,
        transactional_id: str,
        producer_id: ProducerId,
        producer_epoch: ProducerEpoch,
        partitions: Iterable[TopicPartition],
        *,
        adds: bool,
    ) -> Mapping[TopicPartition, ErrorCode]:
        """Whether partitions belong to the producer's open transaction; `adds`: make it so.

        NONE or the coordinator's error for each. May raise RefusedError.
        """
        ...


class TransactionalWrite(NamedTuple):
    """The batches of one partition, as a transactional producer sent them."""

    transactional_id: str
    topic: str
    partition: int
    data: memoryview
    acks: int
    api_version: int


class _Line:
    """Writes of one producer in one partition that wait for one answer, oldest first."""

    __slots__ = ("deadline", "guard", "writes")

    def __init__(self, guard: VerificationGuard) -> None:
        self.guard = guard
        self.deadline: asyncio.TimerHandle | None = None
        """When they have waited long enough."""
        self.writes: list[tuple[TransactionalWrite, Callable[[AppendOutcome], None]]] = []


class TransactionalProduce:
    """Appends what belongs to transactions."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        partitions: Partitions,
        produce: ProduceService,
        gate: TransactionAdmission,
    ) -> None:
        self._loop = loop
        self._partitions = partitions
        self._produce = produce
        self._gate = gate
        self._lines: dict[_Key, _Line] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def waiting_count(self) -> int:
        return sum(len(line.writes) for line in self._lines.values())

    def append(self, write: TransactionalWrite, on_done: Callable[[AppendOutcome], None]) -> None:
        """Append now or when the coordinator has agreed; `on_done` hears of it once."""
        try:
            header = _transactional_header(write.data)
            if header is None:
                # No part of a transaction, or no batch at all.
                on_done(self._append(write, None))
                return
            key = (write.topic, write.partition, header.producer_id, header.producer_epoch)
            hosted = self._partitions.lead(write.topic, write.partition)
            # Before the coordinator is asked: its answer would enter the partition.
            refuse_internal(hosted)
            guard = hosted.replica.guard_for(header)
        except RefusedError as error:
            on_done(error)
            return
        if guard is None:
            on_done(self._append(write, None))
            return
        # The bytes are those of a buffer that is used again.
        kept = write._replace(data=memoryview(bytearray(write.data)))
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = _Line(guard)
            self._spawn(key, line, kept)
        line.writes.append((kept, on_done))

    def _append(self, write: TransactionalWrite, guard: VerificationGuard | None) -> AppendOutcome:
        try:
            return self._produce.append(
                write.topic,
                write.partition,
                write.data,
                write.acks,
                is_transactional=True,
                guard=guard,
            )
        except RefusedError as error:
            return error

    # ---- asking

    def _spawn(self, key: _Key, line: _Line, first: TransactionalWrite) -> None:
        task = self._loop.create_task(self._ask(key, line, first))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        line.deadline = self._loop.call_later(_VERIFY_SECONDS_MAX, self._give_up, key, line, task)

    async def _ask(self, key: _Key, line: _Line, first: TransactionalWrite) -> None:
        topic, index, producer_id, epoch = key
        partition = TopicPartition(topic, PartitionIndex(index))
        adds = first.api_version >= ADDS_FROM
        code = ErrorCode.COORDINATOR_NOT_AVAILABLE
        try:
            errors = await self._gate.admit(
                first.transactional_id, producer_id, epoch, [partition], adds=adds
            )
            code = errors[partition]
        except RefusedError as error:
            code = error.code
        finally:
            # Whoever comes from now on asks anew, also if this broke.
            self._close(key, line)
        if code is not ErrorCode.NONE:
            log.debug("%s: no transaction of producer %d: %s", partition, producer_id, code.name)
        self._answer(line, code)

    def _close(self, key: _Key, line: _Line) -> None:
        if self._lines.get(key) is line:
            del self._lines[key]
        if line.deadline is not None:
            line.deadline.cancel()

    def _give_up(self, key: _Key, line: _Line, task: asyncio.Task[None]) -> None:
        """Nobody answered in time."""
        task.cancel()
        self._close(key, line)
        self._answer(line, ErrorCode.COORDINATOR_NOT_AVAILABLE)

    def _answer(self, line: _Line, code: ErrorCode) -> None:
        writes, line.writes = line.writes, []
        for write, on_done in writes:
            if code is ErrorCode.NONE:
                on_done(self._append(write, line.guard))
            else:
                on_done(RefusedError(error_for(code, write.api_version)))

    def stop(self) -> None:
        for key, line in list(self._lines.items()):
            self._close(key, line)
        for task in list(self._tasks):
            task.cancel()


def error_for(code: ErrorCode, api_version: int) -> ErrorCode:
    """A coordinator's error as a producer of that version of Produce understands it."""
    match code:
        case ErrorCode.PRODUCER_FENCED:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        case ErrorCode.TRANSACTION_ABORTABLE if api_version < ABORTABLE_FROM:
            return ErrorCode.INVALID_TXN_STATE
        case ErrorCode.CONCURRENT_TRANSACTIONS if api_version >= ADDS_FROM:
            return code
        case (
            ErrorCode.CONCURRENT_TRANSACTIONS
            | ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            | ErrorCode.COORDINATOR_NOT_AVAILABLE
            | ErrorCode.NOT_COORDINATOR
            | ErrorCode.NETWORK_EXCEPTION
            | ErrorCode.REQUEST_TIMED_OUT
            | ErrorCode.THROTTLING_QUOTA_EXCEEDED
        ):
            # Every producer sends again after this one, and does not look for another leader.
            return ErrorCode.NOT_ENOUGH_REPLICAS
        case _:
            return code


def _transactional_header(data: memoryview) -> BatchHeader | None:
    """The header of the first batch, if it belongs to a transaction. What is wrong with it is said
    when it is appended."""
    try:
        header = read_header(data)
    except BatchFormatError:
        return None
    return header if header.is_transactional and header.producer_id >= 0 else None
