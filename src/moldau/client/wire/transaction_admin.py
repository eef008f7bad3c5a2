"""Owns the requests about transactions: who has one open, since when, and to end it.

librdkafka's Python client has no requests for it, so these go over our own connections.
"""

import time
from collections.abc import Sequence
from types import TracebackType
from typing import NamedTuple, Self

from moldau.client.errors import NotFoundError, RejectedError
from moldau.client.wire.client import KafkaClient
from moldau.client.wire.connection import KafkaConnection
from moldau.model.errors import ErrorCode
from moldau.wire.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
)
from moldau.wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from moldau.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from moldau.wire.messages.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
)

REQUEST_SECONDS_MAX = 15.0
_RETRY_SECONDS = 0.1
_TRANSACTION = 1

# The coordinator changes or is loading, or the transaction is ending: all of this passes.
_PASSING = frozenset(
    {
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.CONCURRENT_TRANSACTIONS,
    }
)


class TransactionInfo(NamedTuple):
    """A transactional id; the state as Kafka spells it."""

    transactional_id: str
    producer_id: int
    state: str
    coordinator: int


class TransactionDetail(NamedTuple):
    """All that is told of a transactional id."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    state: str
    coordinator: int
    timeout_ms: int
    started_ms: int
    """-1 while none is open."""
    partitions: tuple[tuple[str, int], ...]


class TransactionAdmin:
    """Transactions of the cluster at `brokers`."""

    def __init__(self, brokers: str, *, seconds_max: float = REQUEST_SECONDS_MAX) -> None:
        self._seconds_max = seconds_max
        self._client = KafkaClient(brokers, timeout=seconds_max)

    def close(self) -> None:
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def transactions(
        self, states: Sequence[str] = (), open_seconds_min: float = 0.0
    ) -> list[TransactionInfo]:
        """The transactional ids that all brokers know, by name."""
        duration_ms = int(open_seconds_min * 1000)
        request = ListTransactionsRequest(
            state_filters=list(states),
            producer_id_filters=[],
            duration_filter=duration_ms if duration_ms > 0 else -1,
        )
        found = []
        for broker in self._client.metadata().brokers:
            connection = self._client.connection(broker.host, broker.port)
            response = self._list(connection, request)
            if response.unknown_state_filters:
                unknown = ", ".join(response.unknown_state_filters)
                raise RejectedError(f"there is no state {unknown}", ErrorCode.INVALID_REQUEST)
            found += [
                TransactionInfo(
                    each.transactional_id,
                    each.producer_id,
                    each.transaction_state,
                    broker.node_id,
                )
                for each in response.transaction_states
            ]
        return sorted(found)

    def transaction(self, transactional_id: str) -> TransactionDetail:
        """What its coordinator knows of an id. Raises NotFoundError."""
        deadline = time.monotonic() + self._seconds_max
        doing = f"describe the transaction of {transactional_id}"
        while True:
            node, connection = self._coordinator(transactional_id)
            request = DescribeTransactionsRequest(transactional_ids=[transactional_id])
            (found,) = connection.ask(request, DescribeTransactionsResponse).transaction_states
            if found.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
                raise NotFoundError(
                    f"no transactional id {transactional_id}", hint="see: moldau transaction list"
                )
            if not found.error_code:
                break
            self._pause(found.error_code, doing, deadline)
        return TransactionDetail(
            transactional_id=transactional_id,
            producer_id=found.producer_id,
            producer_epoch=found.producer_epoch,
            state=found.transaction_state,
            coordinator=node,
            timeout_ms=found.transaction_timeout_ms,
            started_ms=found.transaction_start_time_ms,
            partitions=tuple(
                (topic.topic, index) for topic in found.topics for index in topic.partitions
            ),
        )

    def abort(self, transactional_id: str) -> TransactionDetail:
        """Abort the open transaction and lock its producer out; what was there before.

        As another producer with the same id would do it. Raises NotFoundError.
        """
        before = self.transaction(transactional_id)
        request = InitProducerIdRequest(
            transactional_id=transactional_id, transaction_timeout_ms=before.timeout_ms
        )
        deadline = time.monotonic() + self._seconds_max
        while True:
            _, connection = self._coordinator(transactional_id)
            response = connection.ask(request, InitProducerIdResponse)
            if not response.error_code:
                return before
            self._pause(
                response.error_code, f"abort the transaction of {transactional_id}", deadline
            )

    # ---- how

    def _coordinator(self, transactional_id: str) -> tuple[int, KafkaConnection]:
        request = FindCoordinatorRequest(coordinator_keys=[transactional_id], key_type=_TRANSACTION)
        deadline = time.monotonic() + self._seconds_max
        doing = f"find the coordinator of {transactional_id}"
        while True:
            # Any broker knows.
            broker = self._client.metadata().brokers[0]
            connection = self._client.connection(broker.host, broker.port)
            (found,) = connection.ask(request, FindCoordinatorResponse, 4).coordinators
            if not found.error_code:
                return found.node_id, self._client.connection(found.host, found.port)
            self._pause(found.error_code, doing, deadline)

    def _list(
        self, connection: KafkaConnection, request: ListTransactionsRequest
    ) -> ListTransactionsResponse:
        deadline = time.monotonic() + self._seconds_max
        while True:
            response = connection.ask(request, ListTransactionsResponse, 1)
            if not response.error_code:
                return response
            self._pause(response.error_code, "list transactions", deadline)

    def _pause(self, code: int, doing: str, deadline: float) -> None:
        """Raises RejectedError unless it is worth another try."""
        if code not in _PASSING or time.monotonic() >= deadline:
            raise RejectedError(f"cannot {doing}: {RejectedError('', code).name}", code)
        time.sleep(_RETRY_SECONDS)
