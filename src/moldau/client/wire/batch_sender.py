"""Sends record batches to their leaders, one round in flight while the next is built.

A batch with a producer id and a sequence is stored once, however often it is sent. So every batch
without a response is sent again, in order, until it is stored or the deadline has passed.
"""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Final, NamedTuple

from moldau.client.errors import ClientError, NotFoundError, RejectedError, code_name
from moldau.client.retry import is_retriable, retry
from moldau.client.wire.client import KafkaClient
from moldau.client.wire.connection import KafkaConnection
from moldau.client.wire.transactions import PRODUCE_VERSION_MAX, check
from moldau.model.errors import ErrorCode
from moldau.wire.messages.produce import (
    ProducePartition,
    ProduceRequest,
    ProduceResponse,
    ProduceTopic,
)

BATCHES_PER_PARTITION_MAX: Final = 4
"""In one round. Brokers recognise duplicates among the last five batches of a producer."""

STORE_SECONDS_MAX: Final = 10.0
"""How long a leader waits for its followers before it responds REQUEST_TIMED_OUT."""

_LARGE: Final = frozenset({ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE})
_RETRIABLE_WRITES: Final = frozenset(
    # A broker that has just started does not know all topics yet. Batches sent after a failed one
    # are out of order until that one is stored.
    {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER}
)


class OutgoingBatch(NamedTuple):
    """A record batch for one partition."""

    topic: str
    partition: int
    data: bytes


_InFlight = tuple[KafkaConnection, list[OutgoingBatch]]
"""The batches of one request, and where its response arrives."""


class BatchSender:
    """Sends rounds of batches; each is acknowledged when a majority has stored it.

    Not thread-safe. The client's connections must not have other requests in flight.
    """

    def __init__(
        self,
        client: KafkaClient,
        *,
        transactional_id: str | None = None,
        request_bytes_max: int = 1024 * 1024,
        seconds_max: float = 60.0,
    ) -> None:
        self._client = client
        self._transactional_id = transactional_id
        self._request_bytes_max = request_bytes_max
        self._seconds_max = seconds_max
        self._in_flight: list[_InFlight] = []
        self._unsent: list[OutgoingBatch] = []

    def post(self, batches: Iterable[OutgoingBatch]) -> None:
        """Send a round, after all batches of the previous one are stored."""
        self.settle()
        for connection, sent in self._by_request(batches):
            request = self._request(sent)
            version = min(connection.version_for(request), PRODUCE_VERSION_MAX)
            try:
                connection.post(request, version)
            except ClientError as error:
                if not is_retriable(error):
                    raise
                self._unsent += sent
            else:
                self._in_flight.append((connection, sent))

    def settle(self) -> None:
        """Wait until all posted batches are stored. Raises ClientError, FencedError."""
        in_flight, self._in_flight = self._in_flight, []
        unsent, self._unsent = self._unsent, []
        failed = [batch for each in in_flight for batch in self._failed(*each)]
        # In this order: batches that could not be sent follow those that were.
        for batch in [*failed, *unsent]:
            retry(
                partial(self._send_again, batch),
                forget=partial(self._client.forget, batch.topic),
                seconds_max=self._seconds_max,
                doing=f"write to {batch.topic}-{batch.partition}",
            )

    def drop(self) -> None:
        """Give up all posted batches; connections with outstanding responses are closed."""
        for connection, _ in self._in_flight:
            connection.close()
        self._in_flight, self._unsent = [], []

    # -- requests

    def _by_request(self, batches: Iterable[OutgoingBatch]) -> list[_InFlight]:
        """The batches of each request to a leader, at most one per partition."""
        made: list[_InFlight] = []
        open_at: dict[int, int] = {}
        behind: set[tuple[str, int]] = set()
        for batch in batches:
            place = (batch.topic, batch.partition)
            try:
                if place in behind:
                    raise RejectedError("behind", ErrorCode.LEADER_NOT_AVAILABLE)
                leader = self._client.leader(batch.topic, batch.partition)
                leader.version_for(ProduceRequest)
            except ClientError as error:
                # A broker that has just started may not know the topic yet.
                if not is_retriable(error) and not isinstance(error, NotFoundError):
                    raise
                behind.add(place)
                self._unsent.append(batch)
                continue
            at = open_at.get(id(leader))
            if at is None or not self._fits(made[at][1], batch):
                at = open_at[id(leader)] = len(made)
                made.append((leader, []))
            made[at][1].append(batch)
        return made

    def _fits(self, sent: Sequence[OutgoingBatch], batch: OutgoingBatch) -> bool:
        if any((s.topic, s.partition) == (batch.topic, batch.partition) for s in sent):
            return False
        return sum(len(s.data) for s in sent) + len(batch.data) <= self._request_bytes_max

    def _request(self, batches: Iterable[OutgoingBatch]) -> ProduceRequest:
        topics: dict[str, list[ProducePartition]] = {}
        for batch in batches:
            part = ProducePartition(index=batch.partition, records=batch.data)
            topics.setdefault(batch.topic, []).append(part)
        return ProduceRequest(
            transactional_id=self._transactional_id,
            acks=-1,
            timeout_ms=int(min(self._seconds_max, STORE_SECONDS_MAX) * 1000),
            topics=[ProduceTopic(name=name, partitions=parts) for name, parts in topics.items()],
        )

    # -- responses

    def _failed(
        self, connection: KafkaConnection, batches: list[OutgoingBatch]
    ) -> list[OutgoingBatch]:
        """The batches of a request that must be sent again."""
        try:
            response = connection.receive()
        except ClientError as error:
            if not is_retriable(error):
                raise
            for batch in batches:
                self._client.forget(batch.topic)
            return batches
        if not isinstance(response, ProduceResponse):
            raise ClientError(f"unexpected response to a write: {type(response).__name__}")
        codes = {
            (topic.name, each.index): each.error_code
            for topic in response.topics
            for each in topic.partitions
        }
        failed = []
        for batch in batches:
            try:
                self._check(batch, codes.get((batch.topic, batch.partition)))
            except ClientError as error:
                if not is_retriable(error):
                    raise
                self._client.forget(batch.topic)
                failed.append(batch)
        return failed

    def _send_again(self, batch: OutgoingBatch) -> None:
        request = self._request([batch])
        try:
            connection = self._client.leader(batch.topic, batch.partition)
        except NotFoundError as error:
            raise RejectedError(str(error), ErrorCode.LEADER_NOT_AVAILABLE) from error
        version = min(connection.version_for(request), PRODUCE_VERSION_MAX)
        response = connection.request(request, ProduceResponse, version)
        self._check(batch, response.topics[0].partitions[0].error_code)

    def _check(self, batch: OutgoingBatch, code: int | None) -> None:
        """Raises unless the batch is stored; a retriable RejectedError if it may be sent again."""
        if code is None:
            raise ClientError(f"no result for the write to {batch.topic}-{batch.partition}")
        if code in (0, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
            return
        doing = f"write to {batch.topic}-{batch.partition}"
        if code in _LARGE:
            raise RejectedError(
                f"cannot {doing}: the batch of {len(batch.data)} bytes exceeds the topic's limit",
                code,
                hint="lower kafka.batch.size; if a single record is that large, raise the topic's "
                "max.message.bytes",
            )
        if code in _RETRIABLE_WRITES:
            raise RejectedError(
                f"cannot {doing}: {code_name(code)}", ErrorCode.LEADER_NOT_AVAILABLE
            )
        check(code, doing)
