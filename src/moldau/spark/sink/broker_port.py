"""Owns the way of the protocol to real brokers: the topic of decisions, and the transactions."""

import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final, TypeVar

from moldau.client.errors import ClientError, NotFoundError, RejectedError
from moldau.client.kafka.client import OFFSET_EARLIEST, KafkaClient
from moldau.client.kafka.retrying import patiently
from moldau.client.kafka.transactions import (
    ONGOING,
    FencedError,
    TransactionalProducer,
    TransactionClient,
)
from moldau.model.errors import ErrorCode
from moldau.model.ids import Offset, TimestampMs
from moldau.records.batch import BatchFormatError
from moldau.records.compression import Codec
from moldau.records.record import Record, build_batch, read_records
from moldau.spark.sink.clients import Clients
from moldau.spark.sink.decisions import Entry, Ledger, Transaction, encode_entry
from moldau.spark.sink.protocol import Place
from moldau.spark.sink.write_options import DECISIONS, TRANSACTION_TIMEOUT, WriteOptions
from moldau.spark.source.bodies import whole_batches
from moldau.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from moldau.wire.messages.describe_transactions import DescribedTransaction

log = logging.getLogger(__name__)

TIMEOUT_MS_DEFAULT_MAX: Final = 24 * 3_600_000
"""Brokers may allow longer transactions; one that nobody ends holds readers up for as long."""
TIMEOUT_MS_SMALL: Final = 5 * 60_000
TIMEOUT_MS_KAFKA: Final = 900_000
"""What brokers allow if nobody changed it."""
SECONDS_LEFT_MIN: Final = 30.0
_LEDGERS_MAX: Final = 64
_REPLICAS_MAX: Final = 3
_SEGMENT_BYTES: Final = 4 * 1024 * 1024
_FETCH_BYTES: Final = 4 * 1024 * 1024
_BROKER: Final = 4
_TIMEOUT_CONFIG: Final = "transaction.max.timeout.ms"

T = TypeVar("T")


class BrokerPort:
    """A `Port` over sockets. It waits out elections for as long as the options allow."""

    def __init__(self, options: WriteOptions, clients: Clients) -> None:
        self._options = options
        self._clients = clients
        self._client: KafkaClient = clients.coordination
        self._topic = options.decisions_topic
        self.transactions = TransactionClient(
            self._client, seconds_max=max(options.timeout_seconds, 1.0)
        )

    # -- decisions

    def read(self, query: str) -> Ledger:
        self._patiently(self._ensure_topic, "find the topic of decisions")
        return self._patiently(
            partial(self._read, query), f"read what was decided about query {query}"
        ).copy()

    def _read(self, query: str) -> Ledger:
        """From where it was read before, or as it is found."""
        layout = self._client.layout(self._topic)
        key = (layout.topic_id, query)
        known = self._clients.ledgers.pop(key, None)
        ledger = self._find(query, len(layout.leaders)) if known is None else self._read_on(known)
        # The last one used is the last one forgotten.
        self._clients.ledgers[key] = ledger
        if len(self._clients.ledgers) > _LEDGERS_MAX:
            del self._clients.ledgers[next(iter(self._clients.ledgers))]
        return ledger

    def _find(self, query: str, partition_count: int) -> Ledger:
        """Entries stand in the first partition, however many there are.

        Earlier versions chose one by their number, so that some stand elsewhere, and, if the topic
        grew, in several: what was decided last counts.
        """
        found = [
            self._read_on(Ledger(query=query, partition=partition))
            for partition in range(partition_count)
        ]
        ledger = max(found, key=_newest)
        ledger.claim_floor = max(each.next_number for each in found) - 1
        return ledger

    def _read_on(self, ledger: Ledger) -> Ledger:
        """What is new; another ledger if what was known of it is gone."""
        partition = ledger.partition
        end = self._client.list_offset(self._topic, partition)
        while ledger.position < end:
            try:
                fetched = self._client.fetch_partition(
                    self._topic, partition, ledger.position, bytes_max=_FETCH_BYTES, wait_ms_max=100
                )
            except RejectedError as error:
                if error.code != ErrorCode.OFFSET_OUT_OF_RANGE:
                    raise
                # Deleted, or made again: what was known of it is worth nothing.
                first = self._client.list_offset(self._topic, partition, OFFSET_EARLIEST)
                ledger = Ledger(query=ledger.query, partition=partition, position=first)
                end = self._client.list_offset(self._topic, partition)
                continue
            records = fetched.records
            before = ledger.position
            if isinstance(records, memoryview):
                self._take(ledger, records)
            if ledger.position == before:
                # Nothing may be passed over: who leads may have changed just now.
                raise RejectedError(
                    f"nothing came of {self._topic}-{partition} from {before} on",
                    ErrorCode.LEADER_NOT_AVAILABLE,
                )
        return ledger

    def _take(self, ledger: Ledger, fetched: memoryview) -> None:
        """Apply all whole batches."""
        try:
            for position, header in whole_batches(fetched):
                if not header.is_control:
                    for record in read_records(fetched[position : position + header.size]):
                        if record.offset >= ledger.position and record.key is not None:
                            ledger.apply(record.key.decode("utf-8", "replace"), record.value)
                ledger.position = max(ledger.position, header.next_offset)
        except BatchFormatError as error:
            raise ClientError(
                f"the topic of decisions {self._topic} cannot be read: {error}"
            ) from error

    def append(self, ledger: Ledger, entries: Sequence[Entry], deleted: Sequence[str] = ()) -> None:
        pairs: list[tuple[str, bytes | None]] = [
            (entry.key(ledger.query), encode_entry(entry)) for entry in entries
        ]
        pairs += [(key, None) for key in deleted]
        now = TimestampMs(self._clients.now_ms())
        batch = build_batch(
            [Record(Offset(0), now, key.encode(), value, []) for key, value in pairs],
            codec=Codec.GZIP,
        )
        # Once too often does no harm: an entry that is there twice says nothing new.
        self._patiently(
            partial(self._client.produce, self._topic, ledger.partition, batch),
            f"write a decision about query {ledger.query}",
        )

    def _ensure_topic(self) -> None:
        try:
            self._client.layout(self._topic)
        except NotFoundError:
            self._create_topic()

    def _create_topic(self) -> None:
        replicas = min(_REPLICAS_MAX, len(self._client.metadata().brokers))
        configs = {
            "cleanup.policy": "compact",
            # A driver whose clock is off may write, too.
            "message.timestamp.type": "LogAppendTime",
            "segment.bytes": str(_SEGMENT_BYTES),
            "min.cleanable.dirty.ratio": "0.1",
        }
        if replicas >= _REPLICAS_MAX:
            configs["min.insync.replicas"] = str(_REPLICAS_MAX - 1)
        try:
            self._client.create_topic(self._topic, 1, replication_factor=replicas, configs=configs)
        except RejectedError as error:
            if error.code == ErrorCode.TOPIC_ALREADY_EXISTS:
                # By another task, just now; brokers hear of it one after the other.
                raise RejectedError(str(error), ErrorCode.LEADER_NOT_AVAILABLE) from error
            raise RejectedError(
                f"cannot create the topic {self._topic} for what is decided about batches: {error}",
                error.code,
                hint=f"create it with cleanup.policy=compact, or name another: option {DECISIONS}",
            ) from error
        # It is there, but perhaps not yet for the broker that is asked next.
        self._client.forget(self._topic)
        raise RejectedError(f"{self._topic} was just created", ErrorCode.LEADER_NOT_AVAILABLE)

    # -- transactions

    def begin(self, transactional_id: str) -> Transaction:
        begun = self.transactions.begin(transactional_id, timeout_ms=self.timeout_ms())
        return Transaction(id=begun.name, producer_id=begun.producer_id, epoch=begun.epoch)

    def go_on(self, before: Transaction, nonce: int) -> Transaction | None:
        # The one thing that is stored with an epoch and is ours to choose is the timeout.
        try:
            begun = self.transactions.go_on(
                producer_of(before), timeout_ms=self._timeout_with(nonce)
            )
        except FencedError:
            return None
        return Transaction(id=begun.name, producer_id=begun.producer_id, epoch=begun.epoch)

    def enter(self, transaction: Transaction, place: Place) -> None:
        topic, partition = place
        self.transactions.add_partitions(producer_of(transaction), {topic: [partition]})

    def has_nonce(self, transaction: Transaction, nonce: int) -> bool:
        told = self._open_ones([transaction]).get(transaction.id)
        return told is not None and told.transaction_timeout_ms == self._timeout_with(nonce)

    def _timeout_with(self, nonce: int) -> int:
        longest = self.timeout_ms()
        return longest - nonce % (longest // 10)

    def expiring(self, transactions: Iterable[Transaction], seconds: float) -> dict[str, bool]:
        still_open = self._open_ones(transactions)
        found = self.transactions.expiring(still_open, seconds)
        return {name: name in found for name in still_open}

    def _open_ones(self, transactions: Iterable[Transaction]) -> dict[str, DescribedTransaction]:
        asked = {each.id: each for each in transactions}
        found = self.transactions.describe(asked) if asked else {}
        return {
            name: told
            for name, told in found.items()
            if told.transaction_state == ONGOING
            and (told.producer_id, told.producer_epoch)
            == (asked[name].producer_id, asked[name].epoch)
        }

    def commit(self, transactions: Iterable[Transaction]) -> list[Transaction]:
        asked = {producer_of(each): each for each in transactions}
        fenced = self.transactions.end_all(asked, commit=True)
        lost = [asked[producer] for producer in fenced]
        if lost and not self._options.fail_on_data_loss:
            log.warning(
                "transactions of a decided batch were aborted by others, their records are "
                "missing, and failOnDataLoss is false: %s",
                ", ".join(each.id for each in lost),
            )
            return []
        return lost

    def abort(self, transactional_ids: Iterable[str]) -> None:
        for name in transactional_ids:
            self.transactions.begin(name, timeout_ms=self.timeout_ms())

    def open_ids(self, prefix: str) -> list[str]:
        return self.transactions.open_names(prefix)

    # -- how long

    def timeout_ms(self) -> int:
        """Of transactions: as long as can be, unless the options say."""
        if self._options.transaction_timeout_ms is not None:
            return self._options.transaction_timeout_ms
        if self._clients.timeout_ms is None:
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
            self._clients.timeout_ms = found
        return self._clients.timeout_ms

    def _ask_timeout(self) -> int:
        broker = self._client.any_broker()
        for node in self._client.metadata().brokers:
            if (node.host, node.port) == (broker.host, broker.port):
                request = DescribeConfigsRequest(
                    resources=[
                        DescribeConfigsResource(
                            resource_type=_BROKER,
                            resource_name=str(node.node_id),
                            configuration_keys=[_TIMEOUT_CONFIG],
                        )
                    ]
                )
                answer = broker.ask(request, DescribeConfigsResponse)
                for result in answer.results:
                    for config in result.configs:
                        if config.name == _TIMEOUT_CONFIG and config.value:
                            return min(int(config.value), TIMEOUT_MS_DEFAULT_MAX)
        return TIMEOUT_MS_KAFKA

    def seconds_left_min(self) -> float:
        """What a transaction must have left when it is decided for."""
        return min(SECONDS_LEFT_MIN, self.timeout_ms() / 1000 * 0.2)

    def _patiently(self, attempt: Callable[[], T], doing: str) -> T:
        def try_it() -> T:
            try:
                return attempt()
            except NotFoundError as error:
                # The topic of decisions is there by now, but not every broker knows at once.
                raise RejectedError(str(error), ErrorCode.LEADER_NOT_AVAILABLE) from error

        return patiently(
            try_it,
            forget=partial(self._client.forget, self._topic),
            seconds_max=self._options.timeout_seconds,
            doing=doing,
        )


def _newest(ledger: Ledger) -> tuple[int, int, int]:
    return (
        -1 if ledger.decision is None else ledger.decision.batch,
        0 if ledger.owner is None else ledger.owner.number,
        -ledger.partition,
    )


def producer_of(transaction: Transaction) -> TransactionalProducer:
    return TransactionalProducer(transaction.id, transaction.producer_id, transaction.epoch)
