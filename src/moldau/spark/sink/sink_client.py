"""Responsible for what the protocol asks of real brokers: the topic of decisions, transactions.

Each call waits out elections for as long as the options allow. It may fail, and may have been done.
"""

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Final, TypeVar

from moldau.client.errors import NotFoundError, RejectedError
from moldau.client.retry import retry
from moldau.client.wire.client import OFFSET_EARLIEST, KafkaClient
from moldau.client.wire.transactions import ONGOING, FencedError, TransactionClient
from moldau.client.wire.transactions import TransactionalProducer as Transaction
from moldau.model.errors import ErrorCode
from moldau.model.ids import Offset, TimestampMs
from moldau.records.compression import Codec
from moldau.records.record import Record, build_batch
from moldau.spark.compacted_topic import batches_to_end, create_compacted
from moldau.spark.sink.decisions import Entry, Ledger, encode_entry
from moldau.spark.sink.write_options import DECISIONS, TRANSACTION_TIMEOUT, WriteOptions
from moldau.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from moldau.wire.messages.describe_transactions import DescribedTransaction

log = logging.getLogger(__name__)

ANSWER_SECONDS_MAX: Final = 20.0
TIMEOUT_MS_DEFAULT_MAX: Final = 24 * 3_600_000
"""Brokers may allow longer transactions; one that nobody ends holds readers up for as long."""
TIMEOUT_MS_SMALL: Final = 5 * 60_000
TIMEOUT_MS_KAFKA: Final = 900_000
"""What brokers allow if nobody changed it."""
_LEDGERS_MAX: Final = 64
_REPLICAS_MAX: Final = 3
_BROKER: Final = 4
_TIMEOUT_CONFIG: Final = "transaction.max.timeout.ms"

T = TypeVar("T")
Place = tuple[str, int]
"""A topic and the number of a partition."""


class SinkClient:
    """A cluster, as far as the sink needs it. Not for two threads.

    Data and coordination have connections of their own: while batches are on their way, nothing
    else can be asked over the same one.
    """

    def __init__(self, options: WriteOptions) -> None:
        self._options = options
        self._topic = options.decisions_topic
        self.data = _client(options)
        self._client = _client(options)
        self.forget_coordinators()
        self._ledgers: dict[tuple[bytes, str], Ledger] = {}
        """What is known of the decisions, by topic and query."""
        self._timeout_ms = options.transaction_timeout_ms

    def forget_coordinators(self) -> None:
        """They are known by transaction, and tables that are written once have ever new ones."""
        self.transactions = TransactionClient(
            self._client, seconds_max=max(self._options.timeout_seconds, 1.0)
        )

    def close(self) -> None:
        self.data.close()
        self._client.close()

    # -- decisions

    def read(self, query: str) -> Ledger:
        """What was decided about a query until now; a copy that nobody changes."""
        doing = f"read what was decided about query {query}"
        return self._patiently(partial(self._read, query), doing).copy()

    def _read(self, query: str) -> Ledger:
        """From where it was read before, or as it is found."""
        layout = self._client.layout(self._topic)
        key = (layout.topic_id, query)
        known = self._ledgers.pop(key, None)
        if len(self._ledgers) >= _LEDGERS_MAX:
            self._ledgers.clear()
        ledger = self._find(query, len(layout.leaders)) if known is None else self._read_on(known)
        self._ledgers[key] = ledger
        return ledger

    def _find(self, query: str, partition_count: int) -> Ledger:
        """Entries stand in the first partition, however many there are.

        Earlier versions chose one by their number, so that some stand elsewhere, and, if the topic
        grew, in several: what was decided last counts.
        """
        partitions = range(partition_count)
        found = [self._read_on(Ledger(query=query, partition=number)) for number in partitions]
        newest = max(found, key=lambda ledger: (ledger.last_batch, ledger.next_number))
        newest.claim_floor = max(each.next_number for each in found) - 1
        return newest

    def _read_on(self, ledger: Ledger) -> Ledger:
        """What is new; another ledger if what was known of it is gone."""
        place = (self._topic, ledger.partition)
        while True:
            try:
                for end, records in batches_to_end(self._client, *place, ledger.position):
                    for record in records:
                        if record.key is not None:
                            ledger.apply(record.key.decode("utf-8", "replace"), record.value)
                    ledger.position = end
                return ledger
            except RejectedError as error:
                if error.code != ErrorCode.OFFSET_OUT_OF_RANGE:
                    raise
                # Deleted, or made again: what was known of it is worth nothing.
                first = self._client.list_offset(*place, OFFSET_EARLIEST)
                ledger = Ledger(query=ledger.query, partition=ledger.partition, position=first)

    def append(self, ledger: Ledger, entries: Sequence[Entry], deleted: Sequence[str] = ()) -> None:
        """Make entries durable, all or none, and delete others."""
        now = TimestampMs(time.time_ns() // 1_000_000)
        pairs = [(entry.key(ledger.query), encode_entry(entry)) for entry in entries]
        records = [
            Record(Offset(0), now, key.encode(), value, [])
            for key, value in [*pairs, *((key, None) for key in deleted)]
        ]
        batch = build_batch(records, codec=Codec.GZIP)
        # Once too often does no harm: an entry that is there twice says nothing new.
        self._patiently(
            partial(self._client.produce, self._topic, ledger.partition, batch),
            f"write a decision about query {ledger.query}",
        )

    def _create_topic(self) -> None:
        replicas = min(_REPLICAS_MAX, len(self._client.metadata().brokers))
        # By the broker's clock: a driver whose clock is off may write, too.
        configs = {"message.timestamp.type": "LogAppendTime", "segment.bytes": str(4 * 1024 * 1024)}
        if replicas >= _REPLICAS_MAX:
            configs["min.insync.replicas"] = str(_REPLICAS_MAX - 1)
        try:
            create_compacted(self._client, self._topic, configs, replication_factor=replicas)
        except RejectedError as error:
            if error.code == ErrorCode.LEADER_NOT_AVAILABLE:
                raise
            raise RejectedError(
                f"cannot create the topic {self._topic} for what is decided about batches: {error}",
                error.code,
                hint=f"create it with cleanup.policy=compact, or name another: option {DECISIONS}",
            ) from error

    def _patiently(self, attempt: Callable[[], T], doing: str) -> T:
        def try_it() -> T:
            try:
                return attempt()
            except NotFoundError as error:
                try:
                    self._client.layout(self._topic)
                except NotFoundError:
                    self._create_topic()
                # It is there by now, but not every broker knows at once.
                raise RejectedError(str(error), ErrorCode.LEADER_NOT_AVAILABLE) from error

        return retry(
            try_it,
            forget=partial(self._client.forget, self._topic),
            seconds_max=self._options.timeout_seconds,
            doing=doing,
        )

    # -- transactions

    def begin(self, name: str) -> Transaction:
        """A new transaction of that name; one that is open is aborted."""
        return self.transactions.begin(name, timeout_ms=self.timeout_ms())

    def go_on(self, before: Transaction, nonce: int) -> Transaction | None:
        """The transaction that follows one that has ended; None if it has a follower already.

        Whoever asks before the follower was entered gets the same one, and only the last nonce is
        stored.
        """
        # The one thing that is stored with an epoch and is ours to choose is the timeout.
        try:
            return self.transactions.go_on(before, timeout_ms=self._timeout_with(nonce))
        except FencedError:
            return None

    def enter(self, transaction: Transaction, place: Place) -> None:
        """Open the transaction, by entering a partition into it."""
        topic, partition = place
        self.transactions.add_partitions(transaction, {topic: [partition]})

    def has_nonce(self, transaction: Transaction, nonce: int) -> bool:
        """Whether this is the one that is stored for an open transaction."""
        told = self._open_ones([transaction]).get(transaction.name)
        return told is not None and told.transaction_timeout_ms == self._timeout_with(nonce)

    def _timeout_with(self, nonce: int) -> int:
        longest = self.timeout_ms()
        return longest - nonce % (longest // 10)

    def expiring(self, transactions: Iterable[Transaction]) -> dict[str, bool]:
        """Whether they have too little time left to be decided for, by name, as their coordinators
        judge; those that are not open any more are left out."""
        still_open = self._open_ones(transactions)
        found = self.transactions.expiring(still_open, self.seconds_left_min())
        return {name: name in found for name in still_open}

    def _open_ones(self, transactions: Iterable[Transaction]) -> dict[str, DescribedTransaction]:
        asked = {each.name: each for each in transactions}
        found = self.transactions.describe(asked) if asked else {}
        return {
            name: told
            for name, told in found.items()
            if told.transaction_state == ONGOING
            and (name, told.producer_id, told.producer_epoch) == asked[name]
        }

    def commit(self, transactions: Iterable[Transaction]) -> list[Transaction]:
        """End them, also if they were before; which of them were aborted by someone else."""
        lost = list(self.transactions.end_all(transactions, commit=True))
        if lost and not self._options.fail_on_data_loss:
            log.warning(
                "transactions of a decided batch were aborted by others, their records are "
                "missing, and failOnDataLoss is false: %s",
                ", ".join(each.name for each in lost),
            )
            return []
        return lost

    def abort(self, names: Iterable[str]) -> None:
        """Abort what is open, and lock out whoever writes in it."""
        for name in names:
            self.transactions.begin(name, timeout_ms=self.timeout_ms())

    def open_ids(self, prefix: str) -> list[str]:
        """Names of all open transactions that begin like that."""
        return self.transactions.open_names(prefix)

    # -- how long

    def timeout_ms(self) -> int:
        """Of transactions: as long as can be, unless the options say."""
        if self._timeout_ms is None:
            found = self._patiently(self._ask_timeout, "ask for the longest transaction")
            if found < TIMEOUT_MS_SMALL:
                log.warning(
                    "the brokers end transactions after %d s: a query that is down for longer "
                    "while a batch is committed loses records of it. Raise "
                    "transaction.timeout_ms_max of the brokers (%s in Kafka), or set option %s",
                    found // 1000,
                    _TIMEOUT_CONFIG,
                    TRANSACTION_TIMEOUT,
                )
            self._timeout_ms = found
        return self._timeout_ms

    def _ask_timeout(self) -> int:
        asked = self._client.any_broker()
        nodes = {(b.host, b.port): str(b.node_id) for b in self._client.metadata().brokers}
        resource = DescribeConfigsResource(
            resource_type=_BROKER,
            resource_name=nodes.get((asked.host, asked.port), ""),
            configuration_keys=[_TIMEOUT_CONFIG],
        )
        request = DescribeConfigsRequest(resources=[resource])
        for result in asked.ask(request, DescribeConfigsResponse).results:
            for config in result.configs:
                if config.name == _TIMEOUT_CONFIG and config.value:
                    return min(int(config.value), TIMEOUT_MS_DEFAULT_MAX)
        return TIMEOUT_MS_KAFKA

    def seconds_left_min(self) -> float:
        """What a transaction must have left when it is decided for."""
        return min(30.0, self.timeout_ms() / 1000 * 0.2)


def port_of(options: WriteOptions) -> SinkClient:
    """That of this process, opened when first used.

    It outlives tasks, as the process does: Spark uses workers again and again for small batches,
    so that connecting and learning what was decided would take longer than the work.
    """
    found = _port(replace(options, topic=None, version=None))
    found.forget_coordinators()
    return found


_port = cache(SinkClient)


def _client(options: WriteOptions) -> KafkaClient:
    return KafkaClient(
        options.bootstrap,
        client_id=options.client_id,
        # A broker that hangs must not use up all the patience there is for finding its successor.
        timeout=min(options.timeout_seconds, ANSWER_SECONDS_MAX),
        security=options.security,
    )
