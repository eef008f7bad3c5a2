"""Administrative requests about transactions: list, describe and abort them.

librdkafka's Python client does not have them, so they go over our own connections.
"""

from collections.abc import Sequence
from typing import NamedTuple

from moldau.client.errors import (
    ClientError,
    NotFoundError,
    RejectedError,
    TimedOutError,
    UnreachableError,
)
from moldau.client.security import PLAIN_TEXT, Security
from moldau.client.wire.client import WireAdmin, check_code
from moldau.client.wire.connection import KafkaConnection
from moldau.model.errors import ErrorCode
from moldau.wire.messages.describe_transactions import (
    DescribedTransaction,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
)
from moldau.wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from moldau.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from moldau.wire.messages.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
)

_TRANSACTION = 1


class TransactionInfo(NamedTuple):
    """A transactional id; the state as Kafka spells it."""

    transactional_id: str
    producer_id: int
    state: str
    coordinator: int


class TransactionDetail(NamedTuple):
    """Everything a coordinator knows about a transactional id."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    state: str
    coordinator: int
    timeout_ms: int
    started_ms: int
    """-1 if no transaction is open."""
    partitions: tuple[tuple[str, int], ...]


class TransactionAdmin(WireAdmin):
    """Transactions of a cluster."""

    def __init__(self, brokers: str, security: Security = PLAIN_TEXT) -> None:
        super().__init__(brokers, security)
        self.failures: dict[int, ClientError] = {}
        """Brokers that did not respond to the last `transactions`."""

    def transactions(
        self, states: Sequence[str] = (), open_seconds_min: float = 0.0
    ) -> list[TransactionInfo]:
        """The transactional ids of all brokers that respond, by name."""
        duration_ms = int(open_seconds_min * 1000)
        request = ListTransactionsRequest(
            state_filters=list(states),
            producer_id_filters=[],
            duration_filter=duration_ms if duration_ms > 0 else -1,
        )
        found = []
        self.failures.clear()
        for broker in self._retry(self._client.brokers):
            try:
                response = self._list((broker.host, broker.port), request)
            except (UnreachableError, TimedOutError) as error:
                self.failures[broker.node_id] = error
                continue
            if response.unknown_state_filters:
                unknown = ", ".join(response.unknown_state_filters)
                raise RejectedError(
                    f"unknown transaction state: {unknown}", ErrorCode.INVALID_REQUEST
                )
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
        """Describe a transactional id. Raises NotFoundError."""
        request = DescribeTransactionsRequest(transactional_ids=[transactional_id])

        def attempt() -> tuple[int, DescribedTransaction]:
            node, connection = self._coordinator(transactional_id)
            (found,) = connection.request(request, DescribeTransactionsResponse).transaction_states
            if found.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
                raise NotFoundError(
                    f"unknown transactional id {transactional_id}",
                    hint="list them: moldau transaction list",
                )
            check_code(found.error_code, f"describe the transaction of {transactional_id}")
            return node, found

        node, found = self._retry(attempt)
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
        """Abort the open transaction and fence its producer; returns the state before.

        Works like a new producer with the same id. Raises NotFoundError.
        """
        before = self.transaction(transactional_id)
        request = InitProducerIdRequest(
            transactional_id=transactional_id, transaction_timeout_ms=before.timeout_ms
        )

        def attempt() -> None:
            _, connection = self._coordinator(transactional_id)
            code = connection.request(request, InitProducerIdResponse).error_code
            check_code(code, f"abort the transaction of {transactional_id}")

        self._retry(attempt)
        return before

    def _coordinator(self, transactional_id: str) -> tuple[int, KafkaConnection]:
        request = FindCoordinatorRequest(coordinator_keys=[transactional_id], key_type=_TRANSACTION)
        connection = self._client.any_broker()
        (found,) = connection.request(request, FindCoordinatorResponse, 4).coordinators
        check_code(found.error_code, f"find the coordinator of {transactional_id}")
        return found.node_id, self._client.connection(found.host, found.port)

    def _list(
        self, broker: tuple[str, int], request: ListTransactionsRequest
    ) -> ListTransactionsResponse:
        def attempt() -> ListTransactionsResponse:
            response = self._client.connection(*broker).request(
                request, ListTransactionsResponse, 1
            )
            check_code(response.error_code, "list transactions")
            return response

        return self._retry(attempt)
