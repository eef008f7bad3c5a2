"""Rounds of batches against a scripted broker: what is sent again, in which order, what is not."""

from collections.abc import Iterator
from typing import Any

import pytest

from moldau.client.errors import RejectedError, TimedOutError
from moldau.client.wire.batch_sender import BatchSender, OutgoingBatch
from moldau.client.wire.client import KafkaClient
from moldau.client.wire.transactions import FencedError
from moldau.model.errors import ErrorCode
from moldau.testing.waiting import wait_seconds_max
from moldau.wire.messages.metadata import (
    MetadataBroker,
    MetadataResponse,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from moldau.wire.messages.produce import (
    ProduceResponse,
    ProduceResponsePartition,
    ProduceResponseTopic,
)
from moldau.wire.registry import ApiKey

pytestmark = pytest.mark.inprocess

HANG_UP = -1


class Leader:
    """Leads both partitions of a topic; answers as told, then with success."""

    def __init__(self, broker: Any) -> None:
        self._broker = broker
        self.codes: dict[bytes, list[int]] = {}
        """Of the coming answers, by what a batch holds."""
        self.stored: list[bytes] = []
        self.requests: list[list[bytes]] = []
        broker.handlers |= {ApiKey.METADATA: self.metadata, ApiKey.PRODUCE: self.produce}

    def metadata(self, request: Any, version: int) -> MetadataResponse:
        partitions = [
            MetadataResponsePartition(
                partition_index=i, leader_id=1, replica_nodes=[1], isr_nodes=[1]
            )
            for i in range(2)
        ]
        topic = MetadataResponseTopic(name="t", topic_id=b"0" * 16, partitions=partitions)
        brokers = [MetadataBroker(node_id=1, host=self._broker.host, port=self._broker.port)]
        return MetadataResponse(brokers=brokers, controller_id=1, topics=[topic])

    def produce(self, request: Any, version: int) -> ProduceResponse | None:
        answers = []
        self.requests.append([bytes(part.records) for part in request.topics[0].partitions])
        for part in request.topics[0].partitions:
            data = bytes(part.records)
            codes = self.codes.get(data, [])
            code = codes.pop(0) if codes else 0
            if code == HANG_UP:
                self._broker.hang_up()
                return None
            if not code:
                self.stored.append(data)
            answers.append(
                ProduceResponsePartition(index=part.index, error_code=code, base_offset=0)
            )
        assert request.acks == -1
        return ProduceResponse(topics=[ProduceResponseTopic(name="t", partitions=answers)])


@pytest.fixture
def leader(scripted_broker: Any) -> Leader:
    return Leader(scripted_broker)


@pytest.fixture
def client(scripted_broker: Any) -> Iterator[KafkaClient]:
    with KafkaClient(scripted_broker.bootstrap, timeout=wait_seconds_max()) as opened:
        yield opened


def send(client: KafkaClient, *batches: OutgoingBatch, **options: Any) -> None:
    sender = BatchSender(client, **{"seconds_max": 10.0, **options})
    sender.post(batches)
    sender.settle()


def test_batches_of_one_partition_go_in_requests_of_their_own(
    leader: Leader, client: KafkaClient
) -> None:
    batches = [
        OutgoingBatch("t", 0, b"a"),
        OutgoingBatch("t", 1, b"b"),
        OutgoingBatch("t", 0, b"c"),
    ]
    send(client, *batches)
    assert leader.requests == [[b"a", b"b"], [b"c"]]


def test_a_request_is_no_larger_than_allowed(leader: Leader, client: KafkaClient) -> None:
    batches = [OutgoingBatch("t", 0, b"a" * 60), OutgoingBatch("t", 1, b"b" * 60)]
    send(client, *batches, request_bytes_max=100)
    assert [len(request) for request in leader.requests] == [1, 1]


def test_what_was_refused_for_a_while_is_sent_again_in_order(
    leader: Leader, client: KafkaClient
) -> None:
    leader.codes = {
        b"a": [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_ENOUGH_REPLICAS],
        b"b": [ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER],
    }
    send(
        client,
        OutgoingBatch("t", 0, b"a"),
        OutgoingBatch("t", 0, b"b"),
        OutgoingBatch("t", 0, b"c"),
    )
    assert [data for data in leader.stored if data != b"c"] == [b"a", b"b"]


def test_a_lost_answer_is_asked_for_again_and_a_duplicate_is_stored(
    leader: Leader, client: KafkaClient
) -> None:
    leader.codes = {b"a": [HANG_UP, ErrorCode.DUPLICATE_SEQUENCE_NUMBER]}
    send(client, OutgoingBatch("t", 0, b"a"), OutgoingBatch("t", 0, b"b"))
    # What was behind it on the connection comes again, too, whether it was stored or not.
    assert set(leader.stored) == {b"b"}
    assert leader.requests.count([b"a"]) == 2


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (ErrorCode.INVALID_PRODUCER_EPOCH, FencedError),
        (ErrorCode.PRODUCER_FENCED, FencedError),
        (ErrorCode.MESSAGE_TOO_LARGE, RejectedError),
        (ErrorCode.CORRUPT_MESSAGE, RejectedError),
    ],
)
def test_what_is_refused_permanently_is_reported_at_once(
    leader: Leader, client: KafkaClient, code: ErrorCode, error: type[RejectedError]
) -> None:
    leader.codes = {b"a": [code]}
    with pytest.raises(error, match="cannot write to t-0"):
        send(client, OutgoingBatch("t", 0, b"a"))
    assert leader.requests == [[b"a"]]


def test_retries_end_at_the_deadline(leader: Leader, client: KafkaClient) -> None:
    leader.codes = {b"a": [ErrorCode.NOT_LEADER_OR_FOLLOWER] * 1000}
    with pytest.raises(TimedOutError, match=r"timed out after 0\.3 s"):
        send(client, OutgoingBatch("t", 0, b"a"), seconds_max=0.3)


def test_the_version_is_one_that_enters_no_partition_by_itself(
    leader: Leader, client: KafkaClient, scripted_broker: Any
) -> None:
    send(client, OutgoingBatch("t", 0, b"a"), transactional_id="x")
    versions = {h.api_version for h, _ in scripted_broker.requests if h.api_key == ApiKey.PRODUCE}
    assert versions == {11}
