"""The sink's requests to brokers: the decisions topic and transactions.

Each call retries until the deadline of the options. A failed call may still have had its effect.
"""

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Final, TypeVar

from moldau.client.errors import NotFoundError, RejectedError
from moldau.client.retry import retry
from moldau.client.wire.client import OFFSET_EARLIEST
from moldau.client.wire.transactions import ONGOING, FencedError, TransactionClient
from moldau.client.wire.transactions import TransactionalProducer as Transaction
from moldau.model.errors import ErrorCode
from moldau.model.ids import Offset, TimestampMs
from moldau.records.compression import Codec
from moldau.records.record import Record, build_batch
from moldau.spark.compacted_topic import batches_to_end, create_compacted
from moldau.spark.sink.decisions import Ledger, LedgerEntry, encode_entry
from moldau.spark.sink.write_options import DECISIONS, TRANSACTION_TIMEOUT, WriteOptions
from moldau.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from moldau.wire.messages.describe_transactions import DescribedTransaction

log = logging.getLogger(__name__)

REQUEST_SECONDS_MAX: Final = 20.0
TIMEOUT_MS_DEFAULT_MAX: Final = 24 * 3_600_000
"""Brokers may allow longer transactions; an abandoned one blocks read_committed readers."""
TIMEOUT_MS_SMALL: Final = 5 * 60_000
TIMEOUT_MS_KAFKA: Final = 900_000
"""Kafka's default limit."""
_LEDGERS_MAX: Final = 64
_REPLICAS_MAX: Final = 3
_BROKER: Final = 4
_TIMEOUT_CONFIG: Final = "transaction.max.timeout.ms"

T = TypeVar("T")
PartitionKey = tuple[str, int]
"""A topic and a partition."""


class SinkClient:
    """The brokers as the sink needs them. Not thread-safe.

    Data and coordination use separate connections: while batches are in flight, a connection
    cannot be used for other requests.
    """

    def __init__(self, options: WriteOptions) -> None:
        self._options = options
        self._topic = options.decisions_topic
        self.data = options.new_client(request_seconds_max=REQUEST_SECONDS_MAX)
        self._client = options.new_client(request_seconds_max=REQUEST_SECONDS_MAX)
        self.forget_coordinators()
        self._ledgers: dict[tuple[bytes, str], Ledger] = {}
        """Cached ledgers, by topic id and query."""
        self._timeout_ms = options.transaction_timeout_ms

    def forget_coordinators(self) -> None:
        """Clears the cached coordinators, which grow with each new transaction name."""
        self.transactions = TransactionClient(
            self._client, seconds_max=max(self._options.timeout_seconds, 1.0)
        )

    # -- decisions

    def read(self, query: str) -> Ledger:
        """The current ledger of a query; a copy that later reads do not change."""
        doing = f"read the decisions of query {query}"
        return self._retry(partial(self._read, query), doing).copy()

    def _read(self, query: str) -> Ledger:
        """Continues the cached ledger, or reads it from the start."""
        layout = self._client.layout(self._topic)
        key = (layout.topic_id, query)
        known = self._ledgers.pop(key, None)
        if len(self._ledgers) >= _LEDGERS_MAX:
            self._ledgers.clear()
        ledger = self._find(query, len(layout.leaders)) if known is None else self._read_on(known)
        self._ledgers[key] = ledger
        return ledger

    def _find(self, query: str, partition_count: int) -> Ledger:
        """New entries are written to partition 0.

        Earlier versions chose the partition by the partition count, so older entries may be in any
        partition, or in several if the topic grew: the last decision counts.
        """
        partitions = range(partition_count)
        found = [self._read_on(Ledger(query=query, partition=number)) for number in partitions]
        newest = max(found, key=lambda ledger: (ledger.last_batch, ledger.next_number))
        newest.claim_floor = max(each.next_number for each in found) - 1
        return newest

    def _read_on(self, ledger: Ledger) -> Ledger:
        """Applies new entries; returns a new ledger if the topic was deleted or truncated."""
        key = (self._topic, ledger.partition)
        while True:
            try:
                for end, records in batches_to_end(self._client, *key, ledger.position):
                    for record in records:
                        if record.key is not None:
                            ledger.apply(record.key.decode("utf-8", "replace"), record.value)
                    ledger.position = end
                return ledger
            except RejectedError as error:
                if error.code != ErrorCode.OFFSET_OUT_OF_RANGE:
                    raise
                # The topic was deleted or recreated: start from scratch.
                first = self._client.list_offset(*key, OFFSET_EARLIEST)
                ledger = Ledger(query=ledger.query, partition=ledger.partition, position=first)

    def append(
        self, ledger: Ledger, entries: Sequence[LedgerEntry], deleted: Sequence[str] = ()
    ) -> None:
        """Writes entries and tombstones for `deleted`, in one batch: all or none."""
        now = TimestampMs(time.time_ns() // 1_000_000)
        pairs = [(entry.key(ledger.query), encode_entry(entry)) for entry in entries]
        records = [
            Record(Offset(0), now, key.encode(), value, [])
            for key, value in [*pairs, *((key, None) for key in deleted)]
        ]
        batch = build_batch(records, codec=Codec.GZIP)
        # Retries are safe: a duplicate entry has no effect.
        self._retry(
            partial(self._client.produce, self._topic, ledger.partition, batch),
            f"write a decision of query {ledger.query}",
        )

    def _create_topic(self) -> None:
        replicas = min(_REPLICAS_MAX, len(self._client.metadata().brokers))
        # By the broker's clock: the clock of a driver may be wrong.
        configs = {"message.timestamp.type": "LogAppendTime", "segment.bytes": str(4 * 1024 * 1024)}
        if replicas >= _REPLICAS_MAX:
            configs["min.insync.replicas"] = str(_REPLICAS_MAX - 1)
        try:
            create_compacted(self._client, self._topic, configs, replication_factor=replicas)
        except RejectedError as error:
            if error.code == ErrorCode.LEADER_NOT_AVAILABLE:
                raise
            raise RejectedError(
                f"cannot create the decisions topic {self._topic}: {error}",
                error.code,
                hint=f"create it with cleanup.policy=compact, or use another: option {DECISIONS}",
            ) from error

    def _retry(self, attempt: Callable[[], T], doing: str) -> T:
        def try_it() -> T:
            try:
                return attempt()
            except NotFoundError as error:
                try:
                    self._client.layout(self._topic)
                except NotFoundError:
                    self._create_topic()
                # It exists now, but not every broker knows it yet.
                raise RejectedError(str(error), ErrorCode.LEADER_NOT_AVAILABLE) from error

        return retry(
            try_it,
            forget=partial(self._client.forget, self._topic),
            seconds_max=self._options.timeout_seconds,
            doing=doing,
        )

    # -- transactions

    def begin(self, name: str) -> Transaction:
        """A new transaction of that name; an open one is aborted."""
        return self.transactions.begin(name, timeout_ms=self.timeout_ms())

    def next_transaction(self, before: Transaction, nonce: int) -> Transaction | None:
        """The successor of an ended transaction; None if it already has one.

        Until a partition is added, callers get the same successor, with the last one's nonce.
        """
        # The nonce is stored in the timeout, the only field of a transaction that we can choose.
        try:
            return self.transactions.renew(before, timeout_ms=self._timeout_with(nonce))
        except FencedError:
            return None

    def add_partition(self, transaction: Transaction, key: PartitionKey) -> None:
        """Opens the transaction by adding a partition to it."""
        topic, partition = key
        self.transactions.add_partitions(transaction, {topic: [partition]})

    def has_nonce(self, transaction: Transaction, nonce: int) -> bool:
        """Whether this nonce is the one stored for an open transaction."""
        found = self._open_ones([transaction]).get(transaction.name)
        return found is not None and found.transaction_timeout_ms == self._timeout_with(nonce)

    def _timeout_with(self, nonce: int) -> int:
        longest = self.timeout_ms()
        return longest - nonce % (longest // 10)

    def expiring(self, transactions: Iterable[Transaction]) -> dict[str, bool]:
        """Whether open transactions expire too soon to be decided, by name."""
        still_open = self._open_ones(transactions)
        found = self.transactions.expiring(still_open, self.seconds_left_min())
        return {name: name in found for name in still_open}

    def _open_ones(self, transactions: Iterable[Transaction]) -> dict[str, DescribedTransaction]:
        wanted = {each.name: each for each in transactions}
        found = self.transactions.describe(wanted) if wanted else {}
        return {
            name: described
            for name, described in found.items()
            if described.transaction_state == ONGOING
            and (name, described.producer_id, described.producer_epoch) == wanted[name]
        }

    def commit(self, transactions: Iterable[Transaction]) -> list[Transaction]:
        """Commits transactions, also if they were committed before; returns the aborted ones."""
        lost = list(self.transactions.end_all(transactions, commit=True))
        if lost and not self._options.fail_on_data_loss:
            log.warning(
                "transactions of a decided batch were aborted, their records are lost; continuing, "
                "since failOnDataLoss is false: %s",
                ", ".join(each.name for each in lost),
            )
            return []
        return lost

    def abort(self, names: Iterable[str]) -> None:
        """Aborts open transactions, and fences their producers."""
        for name in names:
            self.transactions.begin(name, timeout_ms=self.timeout_ms())

    def open_ids(self, prefix: str) -> list[str]:
        """Names of all open transactions with this prefix."""
        return self.transactions.open_names(prefix)

    # -- timeouts

    def timeout_ms(self) -> int:
        """Transaction timeout: as in the options, otherwise the longest that brokers allow."""
        if self._timeout_ms is None:
            found = self._retry(self._describe_timeout, "read the transaction timeout limit")
            if found < TIMEOUT_MS_SMALL:
                log.warning(
                    "the brokers abort transactions after %d s: if a query is down for longer "
                    "while it commits a batch, records of the batch are lost. Raise "
                    "transaction.timeout_ms_max of the brokers (%s in Kafka), or set option %s",
                    found // 1000,
                    _TIMEOUT_CONFIG,
                    TRANSACTION_TIMEOUT,
                )
            self._timeout_ms = found
        return self._timeout_ms

    def _describe_timeout(self) -> int:
        broker = self._client.any_broker()
        nodes = {(b.host, b.port): str(b.node_id) for b in self._client.metadata().brokers}
        resource = DescribeConfigsResource(
            resource_type=_BROKER,
            resource_name=nodes.get((broker.host, broker.port), ""),
            configuration_keys=[_TIMEOUT_CONFIG],
        )
        request = DescribeConfigsRequest(resources=[resource])
        for result in broker.request(request, DescribeConfigsResponse).results:
            for config in result.configs:
                if config.name == _TIMEOUT_CONFIG and config.value:
                    return min(int(config.value), TIMEOUT_MS_DEFAULT_MAX)
        return TIMEOUT_MS_KAFKA

    def seconds_left_min(self) -> float:
        """How long before its timeout a transaction must be decided."""
        return min(30.0, self.timeout_ms() / 1000 * 0.2)


def shared_client(options: WriteOptions) -> SinkClient:
    """The client of this process for these options, created on first use.

    It outlives tasks: Spark reuses worker processes, and for small batches connecting and reading
    the decisions would take longer than the work itself.
    """
    found = _shared(replace(options, topic=None, version=None))
    found.forget_coordinators()
    return found


_shared = cache(SinkClient)
