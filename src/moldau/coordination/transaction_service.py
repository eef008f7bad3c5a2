"""Requests to transactions: finds the coordinator of a transactional id and submits them.

The coordinator is the leader of the partition of `__transaction_state` that the id hashes to, see
`coordinator_service`; `markers` sends the end markers. Partition leaders call `admit` to verify
that a batch belongs to an open transaction, wherever its coordinator is.
"""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final, Unpack

import msgspec

from moldau.coordination.coordinator_host import CoordinatorHost, HostParts
from moldau.coordination.coordinator_service import (
    CoordinatorService,
    ServiceParts,
    java_hash,
)
from moldau.coordination.group_service import GroupService
from moldau.coordination.marker_request import MarkerRequest
from moldau.coordination.markers import MarkerSender
from moldau.data.partitions import HostedPartition
from moldau.groups.events import NO_GENERATION, NO_MEMBER_ID, OffsetToCommit
from moldau.metadata.image import TRANSACTION_STATE_TOPIC
from moldau.metadata.leaders import NO_LEADER_ID
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import (
    BrokerId,
    Epoch,
    PartitionIndex,
    ProducerEpoch,
    ProducerId,
    TopicPartition,
)
from moldau.model.malformed import MALFORMED
from moldau.net.peers.caller import PeerCaller
from moldau.net.peers.methods import PeerMethod
from moldau.records.control import TRANSACTIONS_V2
from moldau.records.record import NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from moldau.replica.raft_replica import wait_for_code
from moldau.transactions.coordinator import TransactionCoordinator
from moldau.transactions.events import (
    AddPartitions,
    EndTransaction,
    Event,
    InitProducer,
    MarkersFailed,
    MarkersWritten,
    Request,
    VerifyPartitions,
)
from moldau.transactions.results import (
    DescribedTransaction,
    ListedTransaction,
    NeedsProducerId,
    PartitionsResult,
    ProducerResult,
    Result,
    WriteMarkers,
)
from moldau.transactions.totals import TransactionTotals

_ADMIT_SECONDS_MAX: Final = 5.0
_TOKENS_PER_COORDINATOR: Final = 1 << 40

_FATAL_ERRORS: Final = frozenset(
    {
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.TRANSACTION_ABORTABLE,
    }
)
"""Errors that depend on the stored state, and that clients do not retry."""


class TransactionCoordinatorHost(CoordinatorHost[TransactionCoordinator, Event, Result]):
    def __init__(
        self,
        state: TransactionCoordinator,
        markers: MarkerSender,
        **parts: Unpack[HostParts],
    ) -> None:
        super().__init__(state, **parts)
        self._markers = markers

    def _execute(self, effect: object) -> None:
        if isinstance(effect, WriteMarkers):
            # The client gets its response first: while it prepares the next transaction, the
            # markers are written and flushed. Two turns later: the next one makes the response,
            # and the connection sends it at the end of that.
            self._loop.call_soon(self._loop.call_soon, self._send_markers, effect)

    def _send_markers(self, effect: WriteMarkers) -> None:
        if self.is_over:
            # The next coordinator sends them.
            return
        request = MarkerRequest(
            coordinator=self.replica.partition.partition,
            coordinator_epoch=effect.coordinator_epoch,
            number=effect.token,
            producer_id=effect.producer_id,
            producer_epoch=effect.producer_epoch,
            is_commit=effect.is_commit,
            transaction_version=effect.client_version,
            partitions=effect.partitions,
        )
        self._markers.send(request, partial(self._reported, effect.token))

    def _reported(self, token: int, is_marked: bool, partitions: frozenset[TopicPartition]) -> None:
        if not self.is_over:
            kind = MarkersWritten if is_marked else MarkersFailed
            self.handle(kind(token=token, partitions=partitions))


class TransactionService(CoordinatorService[TransactionCoordinatorHost]):
    """Transactions of this broker.

    `new_coordinator` gets the epoch of the partition and the first token. `take_producer_id`
    returns an unused id, or raises RefusedError.
    """

    def __init__(
        self,
        *,
        new_coordinator: Callable[[Epoch, int], TransactionCoordinator],
        groups: GroupService,
        state_partitions: int,
        take_producer_id: Callable[[], Awaitable[ProducerId]],
        markers: MarkerSender,
        caller: PeerCaller,
        **parts: Unpack[ServiceParts],
    ) -> None:
        super().__init__(topic=TRANSACTION_STATE_TOPIC, partitions_wanted=state_partitions, **parts)
        self._new_state = new_coordinator
        self._groups = groups
        self._take_producer_id = take_producer_id
        self._markers = markers
        self._caller = caller
        self._coordinators_made = 0

    def _new_coordinator(self, index: int, hosted: HostedPartition) -> TransactionCoordinatorHost:
        # An epoch may have several, one after the other; tokens order their marker requests.
        self._coordinators_made += 1
        first_token = self._coordinators_made * _TOKENS_PER_COORDINATOR
        state = self._new_state(hosted.replica.epoch, first_token)
        return TransactionCoordinatorHost(state, self._markers, **self._host_parts(index, hosted))

    def stop(self) -> None:
        super().stop()
        self._markers.stop()

    # ---- producers

    async def init_producer(
        self,
        transactional_id: str,
        timeout_ms: int,
        producer_id: ProducerId = NO_PRODUCER_ID,
        producer_epoch: ProducerEpoch = NO_PRODUCER_EPOCH,
    ) -> ProducerResult:
        """A producer id and epoch; the previous producer with this transactional id is fenced."""
        return await self._submit_producer(
            transactional_id,
            lambda new_producer_id, request_id: InitProducer(
                request_id=request_id,
                transactional_id=transactional_id,
                timeout_ms=timeout_ms,
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                new_producer_id=new_producer_id,
            ),
        )

    async def end(
        self,
        transactional_id: str,
        producer_id: ProducerId,
        producer_epoch: ProducerEpoch,
        *,
        is_commit: bool,
        client_version: int = 0,
    ) -> ProducerResult:
        """Commit or abort; returns when the decision is durable. Raises RefusedError."""
        return await self._submit_producer(
            transactional_id,
            lambda new_producer_id, request_id: EndTransaction(
                request_id=request_id,
                transactional_id=transactional_id,
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                is_commit=is_commit,
                client_version=client_version,
                new_producer_id=new_producer_id,
            ),
        )

    async def _submit_producer(
        self, name: str, make_event: Callable[[ProducerId, int], Request]
    ) -> ProducerResult:
        coordinator = await self._coordinator_for(name)
        new_producer_id = NO_PRODUCER_ID
        while True:
            result = await coordinator.submit(partial(make_event, new_producer_id))
            if isinstance(result, ProducerResult):
                if result.error in _FATAL_ERRORS:
                    await _confirm_leading(coordinator)
                return result
            if not isinstance(result, NeedsProducerId) or new_producer_id != NO_PRODUCER_ID:
                raise TypeError(f"the coordinator returned {type(result).__name__}")
            try:
                new_producer_id = await self._take_producer_id()
            except RefusedError as error:
                # Every client retries this code.
                raise RefusedError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, str(error)) from None

    # ---- partitions

    async def add_partitions(
        self,
        transactional_id: str,
        producer_id: ProducerId,
        producer_epoch: ProducerEpoch,
        partitions: Iterable[TopicPartition],
    ) -> Mapping[TopicPartition, ErrorCode]:
        """Add partitions to a transaction: all of them, or none. Raises RefusedError."""
        wanted = frozenset(partitions)
        refused = {
            each: error
            for each in wanted
            if (error := self._partition_error(each)) is not ErrorCode.NONE
        }
        if refused:
            return dict.fromkeys(wanted, ErrorCode.OPERATION_NOT_ATTEMPTED) | refused
        return await self._add_partitions(transactional_id, producer_id, producer_epoch, wanted)

    async def _add_partitions(
        self,
        transactional_id: str,
        producer_id: ProducerId,
        producer_epoch: ProducerEpoch,
        wanted: frozenset[TopicPartition],
    ) -> Mapping[TopicPartition, ErrorCode]:
        result = await self._submit_partitions(
            await self._coordinator_for(transactional_id),
            lambda request_id: AddPartitions(
                request_id=request_id,
                transactional_id=transactional_id,
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                partitions=wanted,
            ),
        )
        return result.errors

    async def add_offsets(
        self,
        transactional_id: str,
        producer_id: ProducerId,
        producer_epoch: ProducerEpoch,
        group_id: str,
    ) -> ErrorCode:
        """Add the offsets of a group to a transaction. Raises RefusedError."""
        partition = await self._groups.partition_of(group_id)
        errors = await self._add_partitions(
            transactional_id, producer_id, producer_epoch, frozenset({partition})
        )
        return errors[partition]

    async def commit_offsets(
        self,
        transactional_id: str,
        group_id: str,
        producer_id: ProducerId,
        producer_epoch: ProducerEpoch,
        offsets: Sequence[OffsetToCommit],
        *,
        adds: bool,
        member_id: str = NO_MEMBER_ID,
        generation: int = NO_GENERATION,
        instance_id: str | None = None,
    ) -> list[ErrorCode]:
        """Commit offsets of a group in a transaction; an error per offset, in order.

        `adds`: the client has not added the group's offsets to the transaction (V2).
        """

        async def admit(partition: TopicPartition) -> ErrorCode:
            errors = await self.admit(
                transactional_id, producer_id, producer_epoch, [partition], adds=adds
            )
            return _offsets_error(errors[partition])

        return await self._groups.commit_transaction_offsets(
            group_id,
            producer_id,
            producer_epoch,
            offsets,
            admit=admit,
            member_id=member_id,
            generation=generation,
            instance_id=instance_id,
        )

    def is_admitted(
        self,
        transactional_id: str,
        producer_id: ProducerId,
        producer_epoch: ProducerEpoch,
        partition: TopicPartition,
    ) -> bool:
        """Whether `admit` would say yes without asking any other broker; False says nothing.

        Only where the coordinator's partition has no other replica that could lead it by now.
        """
        topic = self._topics.image.topic(self._topic)
        if topic is None:
            return False
        coordinator = self._coordinators.get(java_hash(transactional_id) % len(topic.partitions))
        return (
            coordinator is not None
            and coordinator.is_current
            and coordinator.replica.group.leads_alone
            and coordinator.state.is_open(transactional_id, producer_id, producer_epoch, partition)
        )

    async def admit(
        self,
        transactional_id: str,
        producer_id: ProducerId,
        producer_epoch: ProducerEpoch,
        partitions: Iterable[TopicPartition],
        *,
        adds: bool,
    ) -> Mapping[TopicPartition, ErrorCode]:
        """Whether a producer's open transaction includes these partitions; an error for each.

        Called by partition leaders; the coordinator may be on another broker. With `adds`, missing
        ones are added. If the coordinator rejects the request or cannot be reached, that is the
        error of all partitions.
        """
        wanted = frozenset(partitions)
        try:
            leader = self._known_leader(transactional_id)
            if leader == NO_LEADER_ID:
                raise RefusedError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
            if leader == self._broker:
                return await self._admit_here(
                    transactional_id, producer_id, producer_epoch, wanted, adds=adds
                )
            request = (transactional_id, producer_id, producer_epoch, sorted(wanted), adds)
            reply = await self._caller.call(
                leader,
                PeerMethod.ADMIT_TO_TRANSACTION,
                msgspec.msgpack.encode(request),
                _ADMIT_SECONDS_MAX,
            )
            codes = msgspec.msgpack.decode(reply, type=list[int])
            return dict(zip(sorted(wanted), map(ErrorCode, codes), strict=True))
        except RefusedError as error:
            return dict.fromkeys(wanted, error.code)
        except (msgspec.DecodeError, ValueError):
            return dict.fromkeys(wanted, ErrorCode.UNKNOWN_SERVER_ERROR)

    async def answer_admit(self, sender: BrokerId, payload: bytes) -> bytes:
        """For the peers. Raises RefusedError."""
        try:
            name, producer_id, epoch, partitions, adds = msgspec.msgpack.decode(
                payload, type=tuple[str, int, int, list[tuple[str, int]], bool]
            )
        except MALFORMED as error:
            raise RefusedError(ErrorCode.INVALID_REQUEST, str(error)) from None
        wanted = [TopicPartition(topic, PartitionIndex(index)) for topic, index in partitions]
        errors = await self._admit_here(
            name, ProducerId(producer_id), ProducerEpoch(epoch), frozenset(wanted), adds=adds
        )
        return msgspec.msgpack.encode([int(errors[partition]) for partition in wanted])

    async def _admit_here(
        self,
        transactional_id: str,
        producer_id: ProducerId,
        producer_epoch: ProducerEpoch,
        partitions: frozenset[TopicPartition],
        *,
        adds: bool,
    ) -> Mapping[TopicPartition, ErrorCode]:
        coordinator = self._coordinator_of(transactional_id)

        add = partial(AddPartitions, client_version=TRANSACTIONS_V2)
        result = await self._submit_partitions(
            coordinator,
            lambda request_id: (add if adds else VerifyPartitions)(
                request_id=request_id,
                transactional_id=transactional_id,
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                partitions=partitions,
            ),
        )
        if not result.is_stored and ErrorCode.NONE in result.errors.values():
            # A stale coordinator may not know that the transaction has ended: the batch would open
            # it again, and it would never be ended.
            try:
                await coordinator.replica.confirm_leadership()
            except RefusedError:
                return dict.fromkeys(partitions, ErrorCode.NOT_COORDINATOR)
        return result.errors

    async def _submit_partitions(
        self, coordinator: TransactionCoordinatorHost, make_event: Callable[[int], Request]
    ) -> PartitionsResult:
        result = await coordinator.submit(make_event)
        if not isinstance(result, PartitionsResult):
            raise TypeError(f"the coordinator returned {type(result).__name__}")
        if not _FATAL_ERRORS.isdisjoint(result.errors.values()):
            await _confirm_leading(coordinator)
        return result

    def _partition_error(self, partition: TopicPartition) -> ErrorCode:
        topic = self._topics.image.topic(partition.topic)
        if topic is None or not 0 <= partition.partition < len(topic.partitions):
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        # As in Kafka: clients cannot write to internal topics.
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED if topic.internal else ErrorCode.NONE

    async def abort_hanging(
        self, partition: TopicPartition, producer_id: ProducerId, producer_epoch: ProducerEpoch
    ) -> ErrorCode:
        """Abort a transaction that is open in a partition and unknown to any coordinator."""
        abort = self._markers.writer.abort_hanging
        return await wait_for_code(partial(abort, partition, producer_id, producer_epoch))

    # ---- reads

    def describe(self, transactional_id: str) -> DescribedTransaction:
        """State of a transactional id; errors are in the result."""
        try:
            return self._coordinator_of(transactional_id).state.describe(transactional_id)
        except RefusedError as error:
            return DescribedTransaction(error=error.code)

    def list_transactions(
        self, states: Iterable[str], producer_ids: Iterable[int], duration_ms_min: int
    ) -> tuple[ErrorCode, list[ListedTransaction]]:
        """The transactional ids of this broker, filtered."""
        states, producer_ids = list(states), list(producer_ids)
        return self._list_all(
            lambda one: one.state.list_transactions(states, producer_ids, duration_ms_min)
        )

    def coordinated(self) -> list[int]:
        """The partitions of the state topic whose transactions are served here, and loaded."""
        coordinators = self._coordinators.items()
        return [index for index, one in coordinators if one.is_current and one.state.loaded]

    def totals(self) -> Iterator[TransactionTotals | None]:
        """Of each coordinator here; None of one that is loading."""
        for one in list(self._coordinators.values()):
            if one.is_current:
                yield one.state.totals()


async def _confirm_leading(coordinator: TransactionCoordinatorHost) -> None:
    """Confirm leadership before a fatal error is returned: a stale coordinator may decide on old
    state. Raises RefusedError."""
    try:
        await coordinator.replica.confirm_leadership()
    except RefusedError as error:
        raise RefusedError(ErrorCode.NOT_COORDINATOR, str(error)) from None


def _offsets_error(error: ErrorCode) -> ErrorCode:
    """The error of TxnOffsetCommit for an error of `admit`.

    Clients would look up the group coordinator again on errors of the transaction coordinator.
    """
    match error:
        case ErrorCode.PRODUCER_FENCED:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        case (
            ErrorCode.CONCURRENT_TRANSACTIONS
            | ErrorCode.NOT_COORDINATOR
            | ErrorCode.COORDINATOR_NOT_AVAILABLE
            | ErrorCode.NETWORK_EXCEPTION
            | ErrorCode.REQUEST_TIMED_OUT
            | ErrorCode.THROTTLING_QUOTA_EXCEEDED
        ):
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        case _:
            return error
