"""The small client against a scripted broker: leaders, retries, errors."""

import socket
from typing import Any

import pytest

from moldau.client.errors import ClientError, NotFoundError, RejectedError, UnreachableError
from moldau.client.wire.client import OFFSET_EARLIEST, KafkaClient
from moldau.model.errors import ErrorCode
from moldau.wire.messages.create_topics import CreatableTopicResult, CreateTopicsResponse
from moldau.wire.messages.fetch import FetchResponse, FetchResponsePartition, FetchResponseTopic
from moldau.wire.messages.list_offsets import (
    ListOffsetsResponse,
    ListOffsetsResponsePartition,
    ListOffsetsResponseTopic,
)
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

TOPIC_ID = b"0123456789abcdef"


class Script:
    """A cluster of one broker with one topic of two partitions."""

    def __init__(self, broker: Any) -> None:
        self.broker = broker
        self.topic_id = TOPIC_ID
        self.codes: list[int] = []
        """Error codes of the coming answers; none left means success."""
        self.dead_leader: tuple[int, int] | None = None
        """Port of a leader that is gone, and in how many answers it still is one."""
        broker.handlers |= {
            ApiKey.METADATA: self.metadata,
            ApiKey.PRODUCE: self.produce,
            ApiKey.FETCH: self.fetch,
            ApiKey.LIST_OFFSETS: self.list_offsets,
            ApiKey.CREATE_TOPICS: self.create_topics,
        }

    def code(self) -> int:
        return self.codes.pop(0) if self.codes else 0

    def asked(self, key: ApiKey) -> list[Any]:
        return [request for header, request in self.broker.requests if header.api_key == key]

    def metadata(self, request: Any, version: int) -> MetadataResponse:
        topics = []
        for asked in request.topics or []:
            known = asked.name == "known"
            partitions = [
                MetadataResponsePartition(
                    partition_index=i, leader_id=1, replica_nodes=[1], isr_nodes=[1]
                )
                for i in range(2 if known else 0)
            ]
            topics.append(
                MetadataResponseTopic(
                    error_code=0 if known else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                    name=asked.name,
                    topic_id=self.topic_id,
                    partitions=partitions,
                )
            )
        brokers = [MetadataBroker(node_id=1, host=self.broker.host, port=self.broker.port)]
        if self.dead_leader is not None and self.dead_leader[1]:
            port, times = self.dead_leader
            self.dead_leader = port, times - 1
            brokers.append(MetadataBroker(node_id=2, host="127.0.0.1", port=port))
            for topic in topics:
                for partition in topic.partitions:
                    partition.leader_id = 2
        return MetadataResponse(brokers=brokers, topics=topics, controller_id=1)

    def produce(self, request: Any, version: int) -> ProduceResponse | None:
        if request.acks == 0:
            return None
        part = ProduceResponsePartition(index=1, error_code=self.code(), base_offset=42)
        topic = ProduceResponseTopic(name="known", topic_id=TOPIC_ID, partitions=[part])
        return ProduceResponse(topics=[topic])

    def fetch(self, request: Any, version: int) -> FetchResponse:
        part = FetchResponsePartition(
            partition_index=1, error_code=self.code(), high_watermark=50, records=b"batches"
        )
        topic = FetchResponseTopic(topic="known", topic_id=TOPIC_ID, partitions=[part])
        return FetchResponse(topics=[topic])

    def list_offsets(self, request: Any, version: int) -> ListOffsetsResponse:
        part = ListOffsetsResponsePartition(partition_index=1, error_code=self.code(), offset=7)
        return ListOffsetsResponse(
            topics=[ListOffsetsResponseTopic(name="known", partitions=[part])]
        )

    def create_topics(self, request: Any, version: int) -> CreateTopicsResponse:
        result = CreatableTopicResult(
            name=request.topics[0].name, error_code=self.code(), error_message=None
        )
        return CreateTopicsResponse(topics=[result])


@pytest.fixture
def script(scripted_broker: Any) -> Script:
    return Script(scripted_broker)


def test_produce_sends_the_batch_to_the_leader_and_returns_its_offset(script: Script) -> None:
    with KafkaClient(script.broker.bootstrap) as client:
        assert client.produce("known", 1, b"batch", acks=1) == 42
    request = script.asked(ApiKey.PRODUCE)[0]
    assert request.acks == 1
    assert request.topics[0].topic_id == TOPIC_ID
    assert request.topics[0].partitions[0].index == 1
    assert request.topics[0].partitions[0].records == b"batch"


def test_produce_without_acks_waits_for_nothing(script: Script) -> None:
    with KafkaClient(script.broker.bootstrap) as client:
        assert client.produce("known", 1, b"batch", acks=0) == -1
        assert client.list_offset("known", 1) == 7
    assert len(script.asked(ApiKey.PRODUCE)) == 1


def test_fetch_returns_the_bytes_of_the_batches(script: Script) -> None:
    with KafkaClient(script.broker.bootstrap) as client:
        assert client.fetch("known", 1, 5, bytes_max=100, read_committed=True) == b"batches"
    request = script.asked(ApiKey.FETCH)[0]
    assert request.isolation_level == 1
    assert request.topics[0].partitions[0].fetch_offset == 5
    assert request.topics[0].partitions[0].partition_max_bytes == 100


def test_a_fetch_waits_for_less_than_the_timeout_of_the_client(script: Script) -> None:
    with KafkaClient(script.broker.bootstrap, timeout=4.0) as client:
        client.fetch("known", 1, 5, wait_ms_max=1000)
        client.fetch("known", 1, 5, wait_ms_max=60_000)
    assert [request.max_wait_ms for request in script.asked(ApiKey.FETCH)] == [1000, 2000]


def test_a_topic_without_id_is_asked_for_by_name(script: Script) -> None:
    script.topic_id = bytes(16)
    with KafkaClient(script.broker.bootstrap) as client:
        client.fetch("known", 1, 0)
        client.produce("known", 1, b"batch")
    versions = {h.api_key: h.api_version for h, _ in script.broker.requests}
    assert versions[ApiKey.FETCH] == 12
    assert versions[ApiKey.PRODUCE] == 12


def test_metadata_is_asked_once_for_a_known_topic(script: Script) -> None:
    with KafkaClient(script.broker.bootstrap) as client:
        for _ in range(3):
            assert client.list_offset("known", 1, OFFSET_EARLIEST) == 7
    assert len(script.asked(ApiKey.METADATA)) == 1
    assert script.asked(ApiKey.METADATA)[0].allow_auto_topic_creation is False
    assert script.asked(ApiKey.LIST_OFFSETS)[0].topics[0].partitions[0].timestamp == -2


def test_a_moved_leader_is_looked_up_again(script: Script) -> None:
    script.codes = [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.LEADER_NOT_AVAILABLE]
    with KafkaClient(script.broker.bootstrap) as client:
        assert client.produce("known", 1, b"batch") == 42
    assert len(script.asked(ApiKey.PRODUCE)) == 3
    assert len(script.asked(ApiKey.METADATA)) == 3


def test_reads_wait_for_a_leader_that_was_just_elected(script: Script) -> None:
    with KafkaClient(script.broker.bootstrap) as client:
        script.codes = [ErrorCode.OFFSET_NOT_AVAILABLE]
        assert client.list_offset("known", 1) == 7
        script.codes = [ErrorCode.OFFSET_NOT_AVAILABLE]
        assert client.fetch("known", 1, 5) == b"batches"


def test_a_leader_that_died_is_looked_up_again_also_for_writes(script: Script) -> None:
    with socket.socket() as bound:
        # Bound and not listening: connections are refused, and nobody else takes the port.
        bound.bind(("127.0.0.1", 0))
        script.dead_leader = bound.getsockname()[1], 3
        with KafkaClient(script.broker.bootstrap) as client:
            assert client.produce("known", 1, b"batch") == 42
    assert len(script.asked(ApiKey.PRODUCE)) == 1


def test_another_error_is_raised_with_its_code(script: Script) -> None:
    script.codes = [ErrorCode.MESSAGE_TOO_LARGE]
    with (
        KafkaClient(script.broker.bootstrap) as client,
        pytest.raises(RejectedError, match="produce to known-1: MESSAGE_TOO_LARGE") as caught,
    ):
        client.produce("known", 1, b"batch")
    assert caught.value.code == ErrorCode.MESSAGE_TOO_LARGE
    assert len(script.asked(ApiKey.PRODUCE)) == 1


def test_a_code_that_is_not_known_is_shown_as_a_number(script: Script) -> None:
    script.codes = [4321]
    with (
        KafkaClient(script.broker.bootstrap) as client,
        pytest.raises(RejectedError, match="4321"),
    ):
        client.produce("known", 1, b"batch")


def test_a_missing_topic_or_partition_is_not_found(script: Script) -> None:
    with KafkaClient(script.broker.bootstrap) as client:
        with pytest.raises(NotFoundError, match="find topic other"):
            client.fetch("other", 0, 0)
        with pytest.raises(NotFoundError, match="partitions 0 to 1, not 5"):
            client.fetch("known", 5, 0)


def test_a_stale_connection_is_opened_again_for_reads(script: Script) -> None:
    with KafkaClient(script.broker.bootstrap) as client:
        assert client.list_offset("known", 1) == 7
        script.broker.hang_up()
        assert client.list_offset("known", 1) == 7


def test_a_lost_connection_is_not_tried_again_for_writes(script: Script) -> None:
    with KafkaClient(script.broker.bootstrap) as client:
        assert client.produce("known", 1, b"batch") == 42
        script.broker.hang_up()
        with pytest.raises(UnreachableError):
            client.produce("known", 1, b"batch")
        assert client.produce("known", 1, b"batch") == 42


def test_create_topic_sends_the_given_settings(script: Script) -> None:
    with KafkaClient(script.broker.bootstrap) as client:
        client.create_topic("new", 6, replication_factor=3, configs={"retention.ms": "5"})
    topic = script.asked(ApiKey.CREATE_TOPICS)[0].topics[0]
    assert (topic.name, topic.num_partitions, topic.replication_factor) == ("new", 6, 3)
    assert [(c.name, c.value) for c in topic.configs] == [("retention.ms", "5")]


def test_creating_a_topic_that_exists_is_rejected(script: Script) -> None:
    script.codes = [ErrorCode.TOPIC_ALREADY_EXISTS]
    with KafkaClient(script.broker.bootstrap) as client, pytest.raises(RejectedError) as caught:
        client.create_topic("known")
    assert caught.value.name == "TOPIC_ALREADY_EXISTS"


def test_the_second_bootstrap_address_is_used_if_the_first_is_dead(script: Script) -> None:
    with KafkaClient(f"127.0.0.1:1,{script.broker.bootstrap}") as client:
        assert client.list_offset("known", 1) == 7


def test_the_second_bootstrap_address_is_used_if_the_first_hangs(
    script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("moldau.client.wire.client.CONNECT_TRY_SECONDS_MAX", 0.1)
    # Its machine accepts connections, its process never responds.
    with socket.create_server(("127.0.0.1", 0)) as hung:
        host, port = hung.getsockname()
        with KafkaClient(f"{host}:{port},{script.broker.bootstrap}") as client:
            # Writes too: nothing was sent to the first.
            assert client.produce("known", 1, b"batch") == 42
            assert client.responsive_broker() == 1


def test_a_cluster_that_cannot_be_reached_is_said() -> None:
    with (
        KafkaClient("127.0.0.1:1") as client,
        pytest.raises(UnreachableError, match=r"127\.0\.0\.1:1"),
    ):
        client.metadata()


def test_what_is_no_address_is_refused() -> None:
    with pytest.raises(ClientError, match="invalid broker address"):
        KafkaClient("localhost:port")
