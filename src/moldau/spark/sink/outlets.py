"""Owns where batches of a task go: into its transaction, or to the topics as they come."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import TypeVar

from moldau.client.errors import ClientError, NotFoundError, RejectedError
from moldau.client.kafka.client import KafkaClient
from moldau.client.kafka.retrying import patiently
from moldau.client.kafka.sending import BatchSender, Outgoing
from moldau.client.kafka.transactions import TransactionClient, check
from moldau.model.errors import ErrorCode
from moldau.spark.sink.broker_port import producer_of
from moldau.spark.sink.decisions import Transaction
from moldau.spark.sink.protocol import Begin
from moldau.spark.sink.write_options import WriteOptions
from moldau.spark.sink.writing import Producer
from moldau.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse

T = TypeVar("T")


class _Outlet:
    """What both kinds have in common."""

    def __init__(self, options: WriteOptions, client: KafkaClient) -> None:
        self._options = options
        self._client = client
        self._sender: BatchSender | None = None
        self._created: set[str] = set()
        """Topics that were not there."""

    def partition_count(self, topic: str) -> int:
        return self._patiently(lambda: self._look_for(topic), topic, f"find topic {topic}")

    def _look_for(self, topic: str) -> int:
        """How many partitions. A topic that is not there is created, if brokers do that."""
        try:
            return len(self._client.layout(topic).leaders)
        except NotFoundError:
            if topic not in self._created:
                (answer,) = self._client.metadata(topic, create=True).topics
                if answer.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    raise
                if answer.error_code != ErrorCode.LEADER_NOT_AVAILABLE:
                    check(answer.error_code, f"create topic {topic}")
                self._created.add(topic)
            raise self._not_yet(topic) from None

    @staticmethod
    def _not_yet(topic: str) -> RejectedError:
        """Brokers hear of a new topic one after the other."""
        return RejectedError(f"{topic} was just created", ErrorCode.LEADER_NOT_AVAILABLE)

    def _patiently(self, attempt: Callable[[], T], topic: str, doing: str) -> T:
        return patiently(
            attempt,
            forget=lambda: self._client.forget(topic),
            seconds_max=self._options.timeout_seconds,
            doing=doing,
        )

    def settle(self) -> None:
        if self._sender is not None:
            self._sender.settle()

    def drop(self) -> None:
        """After a failure: leave no answers on their way in connections that others use."""
        if self._sender is not None:
            self._sender.drop()

    def _new_sender(self, transactional_id: str | None) -> BatchSender:
        return BatchSender(
            self._client,
            transactional_id=transactional_id,
            acks=self._options.acks,
            request_bytes_max=self._options.request_bytes_max,
            seconds_max=self._options.timeout_seconds,
        )


class TransactionOutlet(_Outlet):
    """Writes in the transaction that `begin` gives, and enters each partition into it first."""

    def __init__(
        self,
        options: WriteOptions,
        client: KafkaClient,
        transactions: TransactionClient,
        begin: Begin,
    ) -> None:
        super().__init__(options, client)
        self._transactions = transactions
        self._begin = begin
        self._begun: Transaction | None = None
        self._entered: set[tuple[str, int]] = set()

    def producer(self, topic: str, partition: int) -> Producer:
        if self._begun is None:
            self._begun = self._begin((topic, partition))
        return Producer(self._begun.producer_id, self._begun.epoch, is_transactional=True)

    def post(self, batches: list[Outgoing]) -> None:
        begun = self._begun
        if begun is None:
            raise ClientError("batches of no transaction cannot be sent in one")
        self._enter(begun, batches)
        if self._sender is None:
            self._sender = self._new_sender(begun.id)
        self._sender.post(batches)

    def _enter(self, begun: Transaction, batches: Iterable[Outgoing]) -> None:
        places = {(batch.topic, batch.partition) for batch in batches} - self._entered
        if not places:
            return
        by_topic: dict[str, list[int]] = {}
        for topic, partition in sorted(places):
            by_topic.setdefault(topic, []).append(partition)
        for topic, partitions in by_topic.items():
            self._patiently(
                partial(self._enter_topic, begun, topic, partitions), topic, f"write to {topic}"
            )
        self._entered |= places

    def _enter_topic(self, begun: Transaction, topic: str, partitions: list[int]) -> None:
        try:
            self._transactions.add_partitions(producer_of(begun), {topic: partitions})
        except RejectedError as error:
            is_unknown = error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            if is_unknown and topic in self._created:
                raise self._not_yet(topic) from error
            raise


class PlainOutlet(_Outlet):
    """Writes at once. A batch whose answer is lost is stored once all the same, with acks=all."""

    def __init__(self, options: WriteOptions, client: KafkaClient) -> None:
        super().__init__(options, client)
        self._producer: Producer | None = None

    def producer(self, topic: str, partition: int) -> Producer | None:
        if self._producer is None and self._options.acks == -1:
            self._producer = patiently(
                self._ask,
                forget=lambda: None,
                seconds_max=self._options.timeout_seconds,
                doing="get a producer id",
            )
        return self._producer

    def _ask(self) -> Producer:
        # Batches may be on their way over the connection that is asked.
        self.settle()
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=-1)
        found = self._client.any_broker().ask(request, InitProducerIdResponse)
        check(found.error_code, "get a producer id")
        return Producer(found.producer_id, found.producer_epoch, is_transactional=False)

    def post(self, batches: list[Outgoing]) -> None:
        if self._sender is None:
            self._sender = self._new_sender(None)
        self._sender.post(batches)
