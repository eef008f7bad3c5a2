"""Requests of transactions, sent by our own connections at any version, to the right broker.

Client libraries send what is proper at that moment; faults of transactions need what is late, too.
The bytes are those of the package's own client; what came of it is judged by others.
"""

import random
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from faults.clients import payload
from faults.login import properties
from moldau.client.errors import ClientError, RejectedError
from moldau.client.security import parse_security
from moldau.client.wire.connection import KafkaConnection
from moldau.model.errors import ErrorCode
from moldau.model.ids import Offset, ProducerEpoch, ProducerId, TimestampMs
from moldau.records.record import Record, build_batch
from moldau.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
)
from moldau.wire.messages.end_txn import EndTxnRequest, EndTxnResponse
from moldau.wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from moldau.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from moldau.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from moldau.wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
from moldau.wire.messages.produce import (
    ProducePartition,
    ProduceRequest,
    ProduceResponse,
    ProduceTopic,
)

_Address = tuple[str, int]
ANSWER_SECONDS_MAX: Final = 3.0
TIMEOUT_MS: Final = 15_000
"""Of a transaction that nobody ends."""
RISING: Final = 5
"""EndTxn from here on: the epoch rises with each transaction."""
_TRANSACTION: Final = 1
_LATEST: Final = -1
_PAUSE_SECONDS: Final = 0.05
RETRIABLE: Final = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.KAFKA_STORAGE_ERROR,
    }
)
"""Clients try again after these."""


class GaveUpError(Exception):
    """Nothing but retriable errors, for too long."""


class Producer(NamedTuple):
    """A transactional producer as brokers know it."""

    name: str
    id: int
    epoch: int


class Answer(NamedTuple):
    """An error code, and what else was returned."""

    code: int
    number: int = -1


class Wire:
    """Asks the leader or the coordinator of the moment, again and again while that is proper."""

    def __init__(self, bootstrap: str, topic: str, name: str) -> None:
        pairs = (address.rpartition(":") for address in bootstrap.split(","))
        self._bootstrap = [(host, int(port)) for host, _, port in pairs]
        self._topic = topic
        self._name = name
        self._security = parse_security(properties())
        self._rng = random.Random(name)
        self._connections: dict[_Address, KafkaConnection] = {}
        self._leaders: dict[int, _Address] = {}
        self._coordinates: _Address | None = None

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def persist(self, attempt: Callable[[], Answer], seconds_max: float) -> Answer:
        """Until the answer is final. Raises GaveUpError."""
        deadline = time.monotonic() + seconds_max
        while True:
            try:
                answer = attempt()
            except RejectedError as error:
                answer = Answer(error.code)
            except ClientError:
                answer = Answer(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            if answer.code not in RETRIABLE:
                return answer
            if time.monotonic() > deadline:
                raise GaveUpError(f"still {ErrorCode(answer.code).name}")
            if answer.code != ErrorCode.CONCURRENT_TRANSACTIONS:
                self._forget()
            time.sleep(_PAUSE_SECONDS)

    def _forget(self) -> None:
        """Leaders and coordinators are looked up again, at another broker."""
        self.close()
        self._leaders.clear()
        self._coordinates = None

    def _connection(self, address: _Address) -> KafkaConnection:
        found = self._connections.get(address)
        if found is None or found.closed:
            found = KafkaConnection(
                *address,
                client_id=self._name,
                timeout=ANSWER_SECONDS_MAX,
                security=self._security,
            )
            self._connections[address] = found
        return found

    def _any(self) -> KafkaConnection:
        for known in self._connections.values():
            if not known.closed:
                return known
        return self._connection(self._rng.choice(self._bootstrap))

    def _leader(self, partition: int) -> KafkaConnection:
        if partition not in self._leaders:
            request = MetadataRequest(
                topics=[MetadataRequestTopic(name=self._topic)], allow_auto_topic_creation=False
            )
            reported = self._any().request(request, MetadataResponse, 9)
            brokers = {broker.node_id: (broker.host, broker.port) for broker in reported.brokers}
            for entry in reported.topics[0].partitions:
                if entry.leader_id in brokers:
                    self._leaders[entry.partition_index] = brokers[entry.leader_id]
        if partition not in self._leaders:
            raise RejectedError("no leader", ErrorCode.LEADER_NOT_AVAILABLE)
        return self._connection(self._leaders[partition])

    def _coordinator(self) -> KafkaConnection:
        if self._coordinates is None:
            request = FindCoordinatorRequest(coordinator_keys=[self._name], key_type=_TRANSACTION)
            (found,) = self._any().request(request, FindCoordinatorResponse, 4).coordinators
            if found.error_code:
                raise RejectedError("no coordinator", found.error_code)
            self._coordinates = (found.host, found.port)
        return self._connection(self._coordinates)

    def init(self, seconds_max: float) -> Producer:
        request = InitProducerIdRequest(
            transactional_id=self._name, transaction_timeout_ms=TIMEOUT_MS
        )
        found: list[Producer] = []

        def attempt() -> Answer:
            answer = self._coordinator().request(request, InitProducerIdResponse, 5)
            found.append(Producer(self._name, answer.producer_id, answer.producer_epoch))
            return Answer(answer.error_code)

        answer = self.persist(attempt, seconds_max)
        if answer.code:
            raise GaveUpError(f"a producer could not begin: {ErrorCode(answer.code).name}")
        return found[-1]

    def add(self, producer: Producer, partition: int, seconds_max: float) -> Answer:
        """As clients do it before version 2 of transactions."""
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=producer.name,
            v3_and_below_producer_id=producer.id,
            v3_and_below_producer_epoch=producer.epoch,
            v3_and_below_topics=[AddPartitionsToTxnTopic(name=self._topic, partitions=[partition])],
        )

        def attempt() -> Answer:
            answer = self._coordinator().request(request, AddPartitionsToTxnResponse, 3)
            (result,) = answer.results_by_topic_v3_and_below
            return Answer(result.results_by_partition[0].partition_error_code)

        return self.persist(attempt, seconds_max)

    def produce(
        self,
        producer: Producer,
        partition: int,
        names: list[str],
        *,
        sequence: int,
        size: int,
        version: int,
        seconds_max: float,
    ) -> Answer:
        """Its number is the offset of the first record."""
        batch = build_batch(
            [
                Record(Offset(index), TimestampMs(time.time_ns() // 1_000_000), None, value, [])
                for index, value in enumerate(payload(name, size) for name in names)
            ],
            producer_id=ProducerId(producer.id),
            producer_epoch=ProducerEpoch(producer.epoch),
            base_sequence=sequence,
            transactional=True,
        )
        topic = ProduceTopic(
            name=self._topic, partitions=[ProducePartition(index=partition, records=batch)]
        )
        request = ProduceRequest(
            transactional_id=producer.name, acks=-1, timeout_ms=2_000, topics=[topic]
        )

        def attempt() -> Answer:
            answer = self._leader(partition).request(request, ProduceResponse, version)
            reported = answer.topics[0].partitions[0]
            return Answer(reported.error_code, reported.base_offset)

        return self.persist(attempt, seconds_max)

    def end(
        self, producer: Producer, *, is_commit: bool, version: int, seconds_max: float
    ) -> Answer:
        """Its number is the epoch of the next transaction, from version 5 on."""
        request = EndTxnRequest(
            transactional_id=producer.name,
            producer_id=producer.id,
            producer_epoch=producer.epoch,
            committed=is_commit,
        )

        def attempt() -> Answer:
            answer = self._coordinator().request(request, EndTxnResponse, version)
            return Answer(answer.error_code, answer.producer_epoch)

        return self.persist(attempt, seconds_max)

    def end_offset(self, partition: int, *, stable: bool, seconds_max: float) -> int:
        """The high watermark, or how far those get that read committed."""
        wanted = ListOffsetsPartition(partition_index=partition, timestamp=_LATEST)
        request = ListOffsetsRequest(
            isolation_level=int(stable),
            topics=[ListOffsetsTopic(name=self._topic, partitions=[wanted])],
        )

        def attempt() -> Answer:
            answer = self._leader(partition).request(request, ListOffsetsResponse, 7)
            reported = answer.topics[0].partitions[0]
            return Answer(reported.error_code, reported.offset)

        answer = self.persist(attempt, seconds_max)
        if answer.code:
            raise GaveUpError(f"no end of {partition}: {ErrorCode(answer.code).name}")
        return answer.number
