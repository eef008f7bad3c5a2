"""Appends batches of transactions, after their coordinator has confirmed the partition.

The first batch of a transaction in a partition waits until the transaction coordinator confirms
that the partition belongs to it, or adds it (KIP-890). Otherwise a late batch of an ended
transaction would open a hanging one. Further batches queue behind it meanwhile. The coordinator
also confirms that the producer id belongs to the transactional id; a new leader asks once more.
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
from moldau.replica.raft_replica import Proposal
from moldau.replica.verification_guards import VerificationGuard

log = logging.getLogger(__name__)

ABORTABLE_FROM: Final = 11
"""First version of Produce whose clients know TRANSACTION_ABORTABLE."""
ADDS_FROM: Final = 12
"""First version of Produce where the broker adds partitions (transactions V2)."""
_VERIFY_SECONDS_MAX: Final = 10.0

AppendOutcome = Proposal | RefusedError
_Key = tuple[str, int, str, ProducerId, ProducerEpoch]
"""Topic, partition, transactional id, producer."""


class TransactionAdmission(Protocol):
    """The transaction coordinators, on this broker or another."""

    async def admit(
        self,
        transactional_id: str,
        producer_id: ProducerId,
        producer_epoch: ProducerEpoch,
        partitions: Iterable[TopicPartition],
        *,
        adds: bool,
    ) -> Mapping[TopicPartition, ErrorCode]:
        """Whether partitions belong to the producer's open transaction; `adds` adds them.

        NONE or the coordinator's error for each. May raise RefusedError.
        """
        ...

    def is_admitted(
        self,
        transactional_id: str,
        producer_id: ProducerId,
        producer_epoch: ProducerEpoch,
        partition: TopicPartition,
    ) -> bool:
        """Whether `admit` would say yes, if that is known without waiting."""
        ...


class TransactionalWrite(NamedTuple):
    """The batches of one partition from a transactional producer."""

    transactional_id: str
    topic: str
    partition: int
    data: "memoryview"
    acks: int
    api_version: int


class _Queue:
    """Writes of one producer in one partition that wait for the coordinator, oldest first."""

    __slots__ = ("guard", "timer", "writes")

    def __init__(self, guard: VerificationGuard) -> None:
        self.guard = guard
        self.timer: asyncio.TimerHandle | None = None
        self.writes: list[tuple[TransactionalWrite, Callable[[AppendOutcome], None]]] = []


class TransactionalProduce:
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
        self._queues: dict[_Key, _Queue] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def append(self, write: TransactionalWrite, on_done: Callable[[AppendOutcome], None]) -> None:
        """Appends now, or when the coordinator has confirmed; `on_done` is called once."""
        try:
            header = _transactional_header(write.data)
            if header is None:
                # Not transactional, or invalid.
                on_done(self._append(write, None))
                return
            name, producer = write.transactional_id, (header.producer_id, header.producer_epoch)
            key = (write.topic, write.partition, name, *producer)
            hosted = self._partitions.lead(write.topic, write.partition)
            # First: the coordinator would add the partition to the transaction.
            refuse_internal(hosted)
            guard = hosted.replica.guard_for(header, name)
        except RefusedError as error:
            on_done(error)
            return
        if guard is None:
            on_done(self._append(write, None))
            return
        if key not in self._queues and self._gate.is_admitted(
            name, *producer, TopicPartition(write.topic, PartitionIndex(write.partition))
        ):
            on_done(self._append(write, guard))
            return
        # Copied, because the receive buffer is reused.
        kept = write._replace(data=memoryview(bytearray(write.data)))
        queue = self._queues.get(key)
        if queue is None:
            queue = self._queues[key] = _Queue(guard)
            self._spawn(key, queue, kept)
        queue.writes.append((kept, on_done))

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

    # ---- verification

    def _spawn(self, key: _Key, queue: _Queue, first: TransactionalWrite) -> None:
        task = self._loop.create_task(self._verify(key, queue, first))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        queue.timer = self._loop.call_later(_VERIFY_SECONDS_MAX, self._on_timeout, key, queue, task)

    async def _verify(self, key: _Key, queue: _Queue, first: TransactionalWrite) -> None:
        topic, index, name, producer_id, epoch = key
        partition = TopicPartition(topic, PartitionIndex(index))
        adds = first.api_version >= ADDS_FROM
        code = ErrorCode.COORDINATOR_NOT_AVAILABLE
        try:
            errors = await self._gate.admit(name, producer_id, epoch, [partition], adds=adds)
            code = errors[partition]
        except RefusedError as error:
            code = error.code
        finally:
            # Later batches start a new verification, also if this one failed.
            self._close(key, queue)
        if code is not ErrorCode.NONE:
            log.debug(
                "%s: transaction of producer %d not confirmed: %s",
                partition,
                producer_id,
                code.name,
            )
        self._complete(queue, code)

    def _close(self, key: _Key, queue: _Queue) -> None:
        if self._queues.get(key) is queue:
            del self._queues[key]
        if queue.timer is not None:
            queue.timer.cancel()

    def _on_timeout(self, key: _Key, queue: _Queue, task: asyncio.Task[None]) -> None:
        """The coordinator did not respond in time."""
        task.cancel()
        self._close(key, queue)
        self._complete(queue, ErrorCode.COORDINATOR_NOT_AVAILABLE)

    def _complete(self, queue: _Queue, code: ErrorCode) -> None:
        writes, queue.writes = queue.writes, []
        for write, on_done in writes:
            if code is ErrorCode.NONE:
                on_done(self._append(write, queue.guard))
            else:
                on_done(RefusedError(error_for(code, write.api_version)))

    def stop(self) -> None:
        for key, queue in list(self._queues.items()):
            self._close(key, queue)
        for task in list(self._tasks):
            task.cancel()


def error_for(code: ErrorCode, api_version: int) -> ErrorCode:
    """The coordinator's error as a code that this version of Produce knows."""
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
            # Every producer retries after this code, without a metadata refresh.
            return ErrorCode.NOT_ENOUGH_REPLICAS
        case _:
            return code


def _transactional_header(data: memoryview) -> BatchHeader | None:
    """The header of the first batch, if it is transactional; the append reports errors in it."""
    try:
        header = read_header(data)
    except BatchFormatError:
        return None
    return header if header.is_transactional and header.producer_id >= 0 else None
