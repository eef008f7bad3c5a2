"""Transactions over our own connections, for callers that need the producer id and epoch.

Another process can end an open transaction if it knows its transactional id, producer id and epoch.
So the requests use versions in which these stay the same until the end: AddPartitionsToTxn 3,
EndTxn 4, and Produce 11.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, NamedTuple, TypeVar

from moldau.client.errors import (
    ClientError,
    InvalidArgumentError,
    RejectedError,
    UnreachableError,
    code_name,
)
from moldau.client.retry import retry
from moldau.client.wire.client import KafkaClient
from moldau.client.wire.connection import KafkaConnection, request_all
from moldau.model.errors import ErrorCode
from moldau.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
)
from moldau.wire.messages.describe_transactions import (
    DescribedTransaction,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
)
from moldau.wire.messages.end_txn import EndTxnRequest, EndTxnResponse
from moldau.wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from moldau.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from moldau.wire.messages.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from moldau.wire.messages.metadata import MetadataRequest, MetadataResponse

PRODUCE_VERSION_MAX: Final = 11
"""From the next version on, a write adds its partition to the transaction implicitly."""
ONGOING: Final = "Ongoing"

_ADD_VERSION_MAX: Final = 3
_END_VERSION_MAX: Final = 4
_LIST_VERSION_MAX: Final = 1
_SINGLE_KEY: Final = 3
_TRANSACTION: Final = 1
_IN_FLIGHT_MAX: Final = 32
_FENCING: Final = frozenset(
    {
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.TRANSACTION_ABORTABLE,
    }
)

T = TypeVar("T")


class FencedError(RejectedError):
    """The producer is fenced: its transaction timed out, or another producer uses its id."""


class TransactionalProducer(NamedTuple):
    """A producer as the coordinator knows it."""

    name: str
    producer_id: int
    epoch: int


class TransactionClient:
    """Transactions of a cluster. Retries for up to `seconds_max`. Not thread-safe."""

    def __init__(self, client: KafkaClient, *, seconds_max: float = 60.0) -> None:
        self._client = client
        self._seconds_max = seconds_max
        self._coordinators: dict[str, tuple[str, int]] = {}

    def begin(self, name: str, *, timeout_ms: int) -> TransactionalProducer:
        """Initialise a producer. An older one with this name is fenced, its transaction aborted."""
        return self._init(name, timeout_ms, -1, -1)

    def renew(self, producer: TransactionalProducer, *, timeout_ms: int) -> TransactionalProducer:
        """The same producer with a new epoch, for the next transaction.

        Raises FencedError if another producer with this name was initialised since, unless by the
        same request and without having added a partition: then both get the same epoch.
        """
        return self._init(producer.name, timeout_ms, producer.producer_id, producer.epoch)

    def _init(
        self, name: str, timeout_ms: int, producer_id: int, epoch: int
    ) -> TransactionalProducer:
        request = InitProducerIdRequest(
            transactional_id=name,
            transaction_timeout_ms=timeout_ms,
            producer_id=producer_id,
            producer_epoch=epoch,
        )
        doing = f"begin a transaction as {name}"

        def attempt() -> TransactionalProducer:
            found = self._coordinator(name).request(request, InitProducerIdResponse)
            if found.error_code == ErrorCode.INVALID_TRANSACTION_TIMEOUT:
                raise InvalidArgumentError(
                    f"cannot {doing}: the timeout of {timeout_ms} ms exceeds the brokers' maximum",
                    hint="lower kafka.transaction.timeout.ms, or raise transaction.timeout_ms_max "
                    "of the brokers (transaction.max.timeout.ms in Kafka)",
                )
            check(found.error_code, doing)
            return TransactionalProducer(name, found.producer_id, found.producer_epoch)

        return self._retry(name, attempt, doing)

    def add_partitions(
        self, producer: TransactionalProducer, partitions: Mapping[str, Sequence[int]]
    ) -> None:
        """Add partitions to the transaction; required before the first write to them."""
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=producer.name,
            v3_and_below_producer_id=producer.producer_id,
            v3_and_below_producer_epoch=producer.epoch,
            v3_and_below_topics=[
                AddPartitionsToTxnTopic(name=topic, partitions=list(indexes))
                for topic, indexes in partitions.items()
            ],
        )
        doing = f"add partitions of {', '.join(partitions)} to the transaction of {producer.name}"

        def attempt() -> None:
            coordinator = self._coordinator(producer.name)
            version = min(coordinator.version_for(request), _ADD_VERSION_MAX)
            found = coordinator.request(request, AddPartitionsToTxnResponse, version)
            codes = {
                response.partition_error_code
                for topic in found.results_by_topic_v3_and_below
                for response in topic.results_by_partition
            }
            # If one partition is rejected, the others only get OPERATION_NOT_ATTEMPTED.
            for code in sorted(codes, key=lambda code: code == ErrorCode.OPERATION_NOT_ATTEMPTED):
                check(code, doing)

        self._retry(producer.name, attempt, doing)

    def end(self, producer: TransactionalProducer, *, commit: bool) -> None:
        """End the transaction; succeeds if it already ended this way. Raises FencedError."""
        request = _end_request(producer, commit=commit)
        doing = f"{'commit' if commit else 'abort'} the transaction of {producer.name}"

        def attempt() -> None:
            coordinator = self._coordinator(producer.name)
            version = min(coordinator.version_for(request), _END_VERSION_MAX)
            check(coordinator.request(request, EndTxnResponse, version).error_code, doing)

        self._retry(producer.name, attempt, doing)

    def end_all(
        self, producers: Iterable[TransactionalProducer], *, commit: bool
    ) -> dict[TransactionalProducer, FencedError]:
        """End many transactions, several at a time; the ones that were fenced."""
        waiting = list(producers)
        fenced: dict[TransactionalProducer, FencedError] = {}
        for first in range(0, len(waiting), _IN_FLIGHT_MAX):
            chunk = waiting[first : first + _IN_FLIGHT_MAX]
            for producer in self._end_in_parallel(chunk, commit=commit):
                try:
                    self.end(producer, commit=commit)
                except FencedError as error:
                    fenced[producer] = error
        return fenced

    def _end_in_parallel(
        self, producers: Sequence[TransactionalProducer], *, commit: bool
    ) -> list[TransactionalProducer]:
        """Send all EndTxn requests before waiting for any; the producers to retry."""
        self._find(producer.name for producer in producers)
        version = min(EndTxnRequest.VERSIONS.last, _END_VERSION_MAX)
        reached: dict[TransactionalProducer, KafkaConnection] = {}
        for producer in producers:
            with suppress(ClientError):
                reached[producer] = self._coordinator(producer.name)
        responses = request_all(
            [
                (coordinator, _end_request(producer, commit=commit), version)
                for producer, coordinator in reached.items()
            ]
        )
        ended = {
            producer
            for producer, response in zip(reached, responses, strict=True)
            if isinstance(response, EndTxnResponse) and not response.error_code
        }
        return [producer for producer in producers if producer not in ended]

    def describe(self, names: Iterable[str]) -> dict[str, DescribedTransaction]:
        """Describe these transactional ids; unknown ones are left out."""
        found: dict[str, DescribedTransaction] = {}
        left = set(names)

        def attempt() -> None:
            self._find(left)
            by_coordinator: dict[tuple[str, int], list[str]] = {}
            for name in sorted(left):
                by_coordinator.setdefault(self._coordinators[name], []).append(name)
            for address, ids in by_coordinator.items():
                request = DescribeTransactionsRequest(transactional_ids=ids)
                response = self._client.connection(*address).request(
                    request, DescribeTransactionsResponse
                )
                for each in response.transaction_states:
                    if each.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
                        left.discard(each.transactional_id)
                        continue
                    check(each.error_code, f"describe the transaction of {each.transactional_id}")
                    found[each.transactional_id] = each
                    left.discard(each.transactional_id)

        self._retry(None, attempt, "describe transactions")
        return found

    def expiring(
        self, transactions: Mapping[str, DescribedTransaction], seconds: float
    ) -> set[str]:
        """Which of these open transactions may time out within `seconds`.

        The coordinators decide, by the clock with which they also end them: the clock of this
        machine may be off by hours.
        """
        if not transactions:
            return set()
        timeout_ms = min(each.transaction_timeout_ms for each in transactions.values())
        request = ListTransactionsRequest(
            state_filters=[ONGOING],
            producer_id_filters=[],
            duration_filter=max(0, timeout_ms - int(seconds * 1000)),
        )

        def attempt() -> set[str]:
            self._find(transactions)
            found: set[str] = set()
            for address in sorted({self._coordinators[name] for name in transactions}):
                connection = self._client.connection(*address)
                version = min(connection.version_for(request), _LIST_VERSION_MAX)
                if version < _LIST_VERSION_MAX:
                    # Kafka before 3.8 has no duration filter.
                    return {n for n, each in transactions.items() if seconds_left(each) < seconds}
                response = connection.request(request, ListTransactionsResponse, version)
                check(response.error_code, "list transactions")
                found |= {each.transactional_id for each in response.transaction_states}
            return found & transactions.keys()

        return self._retry(None, attempt, "list transactions")

    def open_names(self, prefix: str) -> list[str]:
        """Transactional ids with an open transaction, of all brokers that can be reached.

        Those of a failed broker are listed again when another broker has taken over.
        """
        request = ListTransactionsRequest(state_filters=[ONGOING], producer_id_filters=[])
        all_brokers = MetadataRequest(topics=[], allow_auto_topic_creation=False)

        def attempt() -> list[str]:
            found: list[str] = []
            for broker in self._client.any_broker().request(all_brokers, MetadataResponse).brokers:
                try:
                    connection = self._client.connection(broker.host, broker.port)
                except UnreachableError:
                    continue
                version = min(connection.version_for(request), _LIST_VERSION_MAX)
                response = connection.request(request, ListTransactionsResponse, version)
                check(response.error_code, "list transactions")
                found += [each.transactional_id for each in response.transaction_states]
            return sorted(name for name in set(found) if name.startswith(prefix))

        return retry(attempt, seconds_max=self._seconds_max, doing="list transactions")

    # -- coordinators

    def _retry(self, name: str | None, attempt: Callable[[], T], doing: str) -> T:
        """After an error, the coordinator of `name` is looked up again; None: all of them."""
        known = self._coordinators
        forget = known.clear if name is None else partial(known.pop, name, None)
        return retry(attempt, forget=forget, seconds_max=self._seconds_max, doing=doing)

    def _coordinator(self, name: str) -> KafkaConnection:
        if name not in self._coordinators:
            self._find([name])
        return self._client.connection(*self._coordinators[name])

    def _find(self, names: Iterable[str]) -> None:
        """Find the coordinators of these names that are not cached."""
        unknown = sorted(name for name in names if name not in self._coordinators)
        if not unknown:
            return
        known = self._client.any_broker()
        if known.version_for(FindCoordinatorRequest) > _SINGLE_KEY:
            request = FindCoordinatorRequest(coordinator_keys=unknown, key_type=_TRANSACTION)
            for found in known.request(request, FindCoordinatorResponse).coordinators:
                check(found.error_code, f"find the coordinator of {found.key}")
                self._coordinators[found.key] = (found.host, found.port)
            return
        for name in unknown:
            request = FindCoordinatorRequest(key=name, key_type=_TRANSACTION)
            single = known.request(request, FindCoordinatorResponse)
            check(single.error_code, f"find the coordinator of {name}")
            self._coordinators[name] = (single.host, single.port)


def seconds_left(found: DescribedTransaction) -> float:
    """Until an open transaction times out, by this machine's clock."""
    deadline_ms = found.transaction_start_time_ms + found.transaction_timeout_ms
    return deadline_ms / 1000 - time.time()


def check(code: int, doing: str) -> None:
    """Raises RejectedError, or FencedError if the producer must be initialised again."""
    if not code:
        return
    name = code_name(code)
    if code in _FENCING:
        raise FencedError(
            f"cannot {doing}: {name}",
            code,
            hint="the transaction timed out, was aborted, or another producer uses its id",
        )
    raise RejectedError(f"cannot {doing}: {name}", code)


def _end_request(producer: TransactionalProducer, *, commit: bool) -> EndTxnRequest:
    return EndTxnRequest(
        transactional_id=producer.name,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        committed=commit,
    )
