"""Transactions over the wire, at every version: as clients of any age speak it."""

import uuid

import pytest
from transaction_client import LOADING, RISING, Client, Producer

from moldau.client.wire.connection import KafkaConnection
from moldau.model.errors import ErrorCode
from moldau.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from moldau.wire.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
)
from moldau.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from moldau.wire.messages.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
)
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
from moldau.wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

pytestmark = pytest.mark.system


@pytest.fixture
def client(connection: KafkaConnection, moldau_topic: str) -> Client:
    return Client(connection, moldau_topic)


@pytest.fixture
def name() -> str:
    return f"tx-{uuid.uuid4()}"


# ---- one transaction, at every version


@pytest.mark.parametrize("version", range(6))
def test_a_producer_gets_its_id_and_locks_the_one_before_out(
    client: Client, name: str, version: int
) -> None:
    first = client.init(name, version)
    second = client.init(name, version)
    assert (first.epoch, second.id, second.epoch) == (0, first.id, 1)
    late = InitProducerIdRequest(
        transactional_id=name,
        transaction_timeout_ms=60_000,
        producer_id=first.id,
        producer_epoch=first.epoch,
    )
    if version >= 3:
        answer = client.connection.request(late, InitProducerIdResponse, version)
        wanted = ErrorCode.PRODUCER_FENCED if version >= 4 else ErrorCode.INVALID_PRODUCER_EPOCH
        assert (answer.error_code, answer.producer_id) == (wanted, -1)


def test_a_timeout_above_the_maximum_is_refused(client: Client, name: str) -> None:
    request = InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=2**31 - 1)
    answer = client.connection.request(request, InitProducerIdResponse)
    assert answer.error_code == ErrorCode.INVALID_TRANSACTION_TIMEOUT


@pytest.mark.parametrize("version", range(5))
@pytest.mark.parametrize("commit", [True, False])
def test_what_is_committed_is_read_and_what_is_aborted_is_not(
    client: Client, name: str, version: int, commit: bool
) -> None:
    producer = client.init(name)
    assert client.add(producer, min(version, 3)) == 0
    assert client.produce(producer, b"one") == 0
    assert client.produce(producer, b"two", sequence=1) == 0
    assert client.committed() == []
    ended = client.end(producer, commit=commit, version=version)
    assert (ended.error_code, ended.producer_id) == (0, -1)
    # The next transaction begins when the end of this one is everywhere.
    while client.add(producer) == ErrorCode.CONCURRENT_TRANSACTIONS:
        pass
    assert client.committed() == ([b"one", b"two"] if commit else [])


@pytest.mark.parametrize("version", range(4))
def test_who_was_locked_out_cannot_add_partitions(client: Client, name: str, version: int) -> None:
    first = client.init(name)
    client.init(name)
    fenced = ErrorCode.PRODUCER_FENCED if version >= 2 else ErrorCode.INVALID_PRODUCER_EPOCH
    assert client.add(first, version) == fenced
    assert client.add(first._replace(id=10**9), version) == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert client.add(first, version, "no-such-topic") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize("version", range(6))
def test_who_was_locked_out_cannot_end_the_transaction(
    client: Client, name: str, version: int
) -> None:
    first = client.init(name)
    second = client.init(name)
    client.add(second)
    fenced = ErrorCode.PRODUCER_FENCED if version >= 2 else ErrorCode.INVALID_PRODUCER_EPOCH
    assert client.end(first, version=version).error_code == fenced
    assert client.end(second).error_code == 0


def test_a_batch_of_a_transaction_that_does_not_know_the_partition_is_refused(
    client: Client, name: str
) -> None:
    producer = client.init(name)
    assert client.produce(producer, b"x", version=9) == ErrorCode.INVALID_TXN_STATE
    assert client.produce(producer, b"x", version=11) == ErrorCode.TRANSACTION_ABORTABLE


# ---- version 2 of transactions: the epoch rises with each


def test_with_version_2_partitions_are_added_by_the_write_and_the_epoch_rises(
    client: Client, name: str
) -> None:
    producer = client.init(name)
    for number in range(3):
        value = b"%d" % number
        while (code := client.produce(producer, value, version=12)) != 0:
            assert code == ErrorCode.CONCURRENT_TRANSACTIONS
        ended = client.end(producer, commit=number != 1, version=RISING)
        assert (ended.error_code, ended.producer_id) == (0, producer.id)
        assert ended.producer_epoch == producer.epoch + 1
        producer = producer._replace(epoch=ended.producer_epoch)
    client.init(name)
    assert client.committed() == [b"0", b"2"]


def test_with_version_2_what_was_held_up_hits_no_later_transaction(
    client: Client, name: str
) -> None:
    first = client.init(name)
    assert client.produce(first, b"first", version=12) == 0
    second = first._replace(epoch=client.end(first, version=RISING).producer_epoch)
    while client.produce(second, b"second", version=12) != 0:
        pass
    for commit in (True, False):
        late = client.end(first, commit=commit, version=RISING)
        assert late.error_code == ErrorCode.PRODUCER_FENCED
    late_write = client.produce(first, b"late", sequence=1, version=12)
    assert late_write == ErrorCode.INVALID_PRODUCER_EPOCH
    assert client.end(second, version=RISING).error_code == 0
    client.init(name)
    assert client.committed() == [b"first", b"second"]


def test_with_version_2_an_end_that_is_repeated_is_answered_alike(
    client: Client, name: str
) -> None:
    producer = client.init(name)
    assert client.produce(producer, b"x", version=12) == 0
    first = client.end(producer, version=RISING)
    again = client.end(producer, version=RISING)
    assert (again.error_code, again.producer_epoch) == (0, first.producer_epoch)


# ---- offsets of groups


def commit_offset(client: Client, producer: Producer, group: str, offset: int, version: int) -> int:
    request = TxnOffsetCommitRequest(
        transactional_id=producer.name,
        group_id=group,
        producer_id=producer.id,
        producer_epoch=producer.epoch,
        topics=[
            TxnOffsetCommitRequestTopic(
                name=client.topic,
                partitions=[
                    TxnOffsetCommitRequestPartition(
                        partition_index=0, committed_offset=offset, committed_metadata="m"
                    )
                ],
            )
        ],
    )
    answer = client.connection.request(request, TxnOffsetCommitResponse, version)
    return answer.topics[0].partitions[0].error_code


def offset_of(client: Client, group: str, *, stable: bool) -> tuple[int, int]:
    topic = OffsetFetchRequestTopic(name=client.topic, partition_indexes=[0])
    request = OffsetFetchRequest(group_id=group, topics=[topic], require_stable=stable)
    (answer,) = client.connection.request(request, OffsetFetchResponse, 7).topics
    return answer.partitions[0].error_code, answer.partitions[0].committed_offset


@pytest.mark.parametrize("version", range(6))
@pytest.mark.parametrize("commit", [True, False])
def test_offsets_count_once_the_transaction_is_committed(
    client: Client, name: str, version: int, commit: bool
) -> None:
    producer = client.init(name)
    group = f"g-{name}"
    if version < 5:
        request = AddOffsetsToTxnRequest(
            transactional_id=name,
            producer_id=producer.id,
            producer_epoch=producer.epoch,
            group_id=group,
        )
        answer = client.connection.request(request, AddOffsetsToTxnResponse, min(version, 4))
        assert answer.error_code == 0
    # A client looks for the coordinator of its group first; this one is impatient.
    while (code := commit_offset(client, producer, group, 7, version)) in LOADING:
        pass
    assert code == 0
    assert offset_of(client, group, stable=False) == (0, -1)
    assert offset_of(client, group, stable=True) == (ErrorCode.UNSTABLE_OFFSET_COMMIT, -1)
    assert client.end(producer, commit=commit).error_code == 0
    client.init(name)
    assert offset_of(client, group, stable=True) == (0, 7 if commit else -1)


@pytest.mark.parametrize("version", range(5))
def test_offsets_that_were_not_entered_into_the_transaction_are_refused(
    client: Client, name: str, version: int
) -> None:
    producer = client.init(name)
    wanted = ErrorCode.TRANSACTION_ABORTABLE if version >= 4 else ErrorCode.INVALID_TXN_STATE
    while (code := commit_offset(client, producer, f"g-{name}", 7, version)) in LOADING:
        pass
    assert code == wanted


@pytest.mark.parametrize("version", range(6))
def test_who_was_locked_out_cannot_commit_offsets(client: Client, name: str, version: int) -> None:
    producer = client.init(name)
    client.init(name)
    while (code := commit_offset(client, producer, f"g-{name}", 7, version)) in LOADING:
        pass
    assert code == ErrorCode.INVALID_PRODUCER_EPOCH


# ---- looking at transactions, and ending those that hang


def test_transactions_are_listed_and_described(client: Client, name: str) -> None:
    producer = client.init(name)
    client.add(producer)
    ask = client.connection.request
    for version in range(2):
        listed = ask(
            ListTransactionsRequest(
                state_filters=["Ongoing", "Nonsense"], producer_id_filters=[producer.id]
            ),
            ListTransactionsResponse,
            version,
        )
        assert listed.unknown_state_filters == ["Nonsense"]
        (found,) = listed.transaction_states
        assert (found.transactional_id, found.transaction_state) == (name, "Ongoing")
    request = DescribeTransactionsRequest(transactional_ids=[name, "no-such-id"])
    mine, nobody = ask(request, DescribeTransactionsResponse).transaction_states
    assert (mine.error_code, mine.producer_id, mine.producer_epoch) == (0, producer.id, 0)
    assert [(topic.topic, topic.partitions) for topic in mine.topics] == [(client.topic, [0])]
    assert mine.transaction_timeout_ms == 60_000
    assert nobody.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    nothing = ask(
        ListTransactionsRequest(state_filters=["Nonsense"], producer_id_filters=[]),
        ListTransactionsResponse,
    )
    assert nothing.transaction_states == []


@pytest.mark.parametrize("version", [1, 2])
def test_an_administrator_aborts_what_hangs_and_commits_nothing(
    client: Client, name: str, version: int
) -> None:
    producer = client.init(name)
    client.add(producer)
    assert client.produce(producer, b"hangs") == 0

    def mark(*, commit: bool) -> int:
        marker = WritableTxnMarker(
            producer_id=producer.id,
            producer_epoch=producer.epoch,
            transaction_result=commit,
            topics=[WritableTxnMarkerTopic(name=client.topic, partition_indexes=[0])],
            coordinator_epoch=10**6,
        )
        answer = client.connection.request(
            WriteTxnMarkersRequest(markers=[marker]), WriteTxnMarkersResponse, version
        )
        return answer.markers[0].topics[0].partitions[0].error_code

    assert mark(commit=True) == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert mark(commit=False) == 0
    assert client.committed() == []
