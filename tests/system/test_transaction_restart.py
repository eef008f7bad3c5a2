"""One broker, killed after any step of a transaction: when it is back, the producer goes on.

A client that did not get the answer repeats the step. What it may hear meanwhile is only what
librdkafka and the Java client try again after: anything else ends the transaction, or the producer.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
from transaction_client import LOADING, Client, Producer

from moldau.client.wire.connection import KafkaConnection
from moldau.model.errors import ErrorCode
from moldau.testing.broker import Broker
from moldau.testing.ports import free_ports
from moldau.testing.waiting import wait_seconds_max, wait_until
from moldau.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from moldau.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from moldau.wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from moldau.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestTopic,
    OffsetFetchResponse,
)
from moldau.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)

pytestmark = pytest.mark.system

TOPIC, NAME, GROUP = "restarted", "restarted-tx", "restarted-group"
GROUPS, TRANSACTIONS = 0, 1
COORDINATING = frozenset({*LOADING, ErrorCode.CONCURRENT_TRANSACTIONS})
STORING = frozenset(LOADING)
WRITING = frozenset({ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_ENOUGH_REPLICAS})
UNSTABLE = frozenset({*LOADING, ErrorCode.UNSTABLE_OFFSET_COMMIT})

Step = tuple[Callable[[Client], int], frozenset[ErrorCode]]


def connect(broker: Broker) -> KafkaConnection:
    return KafkaConnection(
        broker.host, broker.port, client_id="restarts", timeout=wait_seconds_max()
    )


def patiently(broker: Broker, ask: Callable[[Client], int], passing: frozenset[ErrorCode]) -> None:
    """Again while that is what clients do; then there is no error."""
    code = -1

    def is_decided() -> bool:
        nonlocal code
        code = ask(Client(connection, TOPIC))
        return code not in passing

    with connect(broker) as connection:
        wait_until(is_decided, "the answer is final", describe=lambda: ErrorCode(code).name)
    assert code == 0, ErrorCode(code).name


def find(client: Client, key: str, key_type: int) -> int:
    request = FindCoordinatorRequest(coordinator_keys=[key], key_type=key_type)
    answer = client.connection.request(request, FindCoordinatorResponse, 4)
    return answer.coordinators[0].error_code


def add_offsets(client: Client, producer: Producer) -> int:
    request = AddOffsetsToTxnRequest(
        transactional_id=producer.name,
        producer_id=producer.id,
        producer_epoch=producer.epoch,
        group_id=GROUP,
    )
    return client.connection.request(request, AddOffsetsToTxnResponse, 3).error_code


def commit_offset(client: Client, producer: Producer, offset: int) -> int:
    stored = TxnOffsetCommitRequestPartition(
        partition_index=0, committed_offset=offset, committed_metadata=""
    )
    request = TxnOffsetCommitRequest(
        transactional_id=producer.name,
        group_id=GROUP,
        producer_id=producer.id,
        producer_epoch=producer.epoch,
        topics=[TxnOffsetCommitRequestTopic(name=TOPIC, partitions=[stored])],
    )
    answer = client.connection.request(request, TxnOffsetCommitResponse, 3)
    return answer.topics[0].partitions[0].error_code


def committed_offset(client: Client) -> tuple[int, int]:
    """The error, and the position that no open transaction may still change."""
    request = OffsetFetchRequest(
        group_id=GROUP,
        topics=[OffsetFetchRequestTopic(name=TOPIC, partition_indexes=[0])],
        require_stable=True,
    )
    answer = client.connection.request(request, OffsetFetchResponse, 7)
    found = answer.topics[0].partitions[0]
    return answer.error_code or found.error_code, found.committed_offset


def steps_of(producer: Producer, number: int) -> list[Step]:
    """Of a transaction that writes one record and one position, as those before version 2 do it."""
    value = b"%d" % number
    return [
        (lambda client: find(client, NAME, TRANSACTIONS), STORING),
        (lambda client: client.add(producer), COORDINATING),
        (lambda client: client.produce(producer, value, sequence=number), WRITING),
        (lambda client: add_offsets(client, producer), COORDINATING),
        (lambda client: find(client, GROUP, GROUPS), STORING),
        (lambda client: commit_offset(client, producer, number + 1), STORING),
        (lambda client: client.end(producer).error_code, COORDINATING),
    ]


def check_outcome(broker: Broker, count: int) -> None:
    """Records and positions of so many transactions are there, and none is open."""
    offsets: list[int] = []

    def look(client: Client) -> int:
        code, offset = committed_offset(client)
        offsets.append(offset)
        return code

    patiently(broker, look, UNSTABLE)
    assert offsets[-1] == count, "a position is lost"
    wanted = [b"%d" % number for number in range(count)]
    with connect(broker) as connection:
        client = Client(connection, TOPIC)
        wait_until(
            lambda: client.committed() == wanted,
            "the last stable offset advances",
            describe=client.committed,
        )


def begin(broker: Broker) -> Producer:
    with connect(broker) as connection:
        topic = CreatableTopic(name=TOPIC, num_partitions=1, replication_factor=1)
        connection.send(CreateTopicsRequest(topics=[topic], timeout_ms=60_000), 4)
    patiently(broker, lambda client: find(client, NAME, TRANSACTIONS), STORING)
    patiently(broker, lambda client: find(client, GROUP, GROUPS), STORING)
    with connect(broker) as connection:
        return Client(connection, TOPIC).init(NAME)


@pytest.mark.safety
@pytest.mark.parametrize("is_answer_lost", [False, True])
def test_a_producer_goes_on_with_its_transaction_when_its_only_broker_is_back(
    tmp_path: Path, is_answer_lost: bool
) -> None:
    with Broker(data_dir=tmp_path / "data", port=free_ports(1)[0]) as broker:
        producer = begin(broker)
        for transaction in range(len(steps_of(producer, 0))):
            for number, (ask, passing) in enumerate(steps_of(producer, transaction)):
                patiently(broker, ask, passing)
                if number == transaction:
                    broker.kill()
                    broker.start()
                    if is_answer_lost:
                        patiently(broker, ask, passing)
            check_outcome(broker, transaction + 1)
