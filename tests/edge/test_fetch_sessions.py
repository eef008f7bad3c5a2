"""Fetch sessions over the wire, at every version that has them, and each of their errors."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from scrape import scrape

from moldau.client.wire.client import KafkaClient
from moldau.client.wire.connection import KafkaConnection
from moldau.model.errors import ErrorCode
from moldau.testing.broker import Broker
from moldau.testing.waiting import wait_until
from moldau.wire.messages.delete_topics import (
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from moldau.wire.messages.fetch import (
    FetchForgottenTopic,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchResponsePartition,
    FetchTopic,
)

pytestmark = pytest.mark.system

Produce = Callable[[str, int], None]
TopicIdOf = Callable[[str], bytes]
VERSIONS = range(7, 19)
IDS_FROM = 13
BYTES = 1 << 20


class Fetcher:
    """A client that says itself what session and epoch it names."""

    def __init__(self, connection: KafkaConnection, version: int, topic_id_of: TopicIdOf) -> None:
        self.connection = connection
        self.version = version
        self._topic_id_of = topic_id_of
        self._ids: dict[str, bytes] = {}
        self.id = 0
        self.epoch = 0

    def _named(self, topic: str) -> dict[str, Any]:
        if self.version < IDS_FROM:
            return {"topic": topic}
        if topic not in self._ids:
            self._ids[topic] = self._topic_id_of(topic)
        return {"topic_id": self._ids[topic]}

    def ask(
        self,
        wanted: dict[str, dict[int, int]] | None = None,
        *,
        forgotten: dict[str, Sequence[int]] | None = None,
        wait_ms: int = 0,
        bytes_max: int = BYTES,
    ) -> FetchResponse:
        """`wanted`: offsets by topic and partition."""
        request = FetchRequest(
            max_wait_ms=wait_ms,
            min_bytes=1,
            max_bytes=bytes_max,
            session_id=self.id,
            session_epoch=self.epoch,
            topics=[
                FetchTopic(
                    **self._named(topic),
                    partitions=[
                        FetchPartition(
                            partition=index, fetch_offset=offset, partition_max_bytes=BYTES
                        )
                        for index, offset in offsets.items()
                    ],
                )
                for topic, offsets in (wanted or {}).items()
            ],
            forgotten_topics=[
                FetchForgottenTopic(**self._named(topic), partitions=list(partitions))
                for topic, partitions in (forgotten or {}).items()
            ],
        )
        return self.connection.request(request, FetchResponse, self.version)

    def open(self, wanted: dict[str, dict[int, int]]) -> list[FetchResponsePartition]:
        response = self.ask(wanted)
        assert response.error_code == 0
        assert response.session_id > 0
        self.id = response.session_id
        self.epoch = 1
        return partitions_of(response)

    def go_on(self, *args: Any, **options: Any) -> list[FetchResponsePartition]:
        response = self.ask(*args, **options)
        assert (response.error_code, response.session_id) == (0, self.id)
        self.epoch += 1
        return partitions_of(response)


def partitions_of(response: FetchResponse) -> list[FetchResponsePartition]:
    return [partition for topic in response.topics for partition in topic.partitions]


@pytest.fixture(params=VERSIONS)
def fetcher(
    request: pytest.FixtureRequest, connection: KafkaConnection, topic_id_of: TopicIdOf
) -> Fetcher:
    return Fetcher(connection, request.param, topic_id_of)


@pytest.fixture
def newest(connection: KafkaConnection, topic_id_of: TopicIdOf) -> Fetcher:
    return Fetcher(connection, VERSIONS[-1], topic_id_of)


def test_a_session_lists_what_is_new(
    fetcher: Fetcher, moldau_topic: str, produce: Produce, topic_id_of: TopicIdOf
) -> None:
    (first,) = fetcher.open({moldau_topic: {0: 0}})
    assert (first.error_code, first.high_watermark) == (0, 0)
    assert fetcher.go_on() == []
    produce(moldau_topic, 1)
    response = fetcher.ask()
    fetcher.epoch += 1
    named = response.topics[0]
    if fetcher.version < IDS_FROM:
        assert named.topic == moldau_topic
    else:
        assert named.topic_id == topic_id_of(moldau_topic)
    (partition,) = named.partitions
    assert (partition.partition_index, partition.high_watermark) == (0, 1)
    assert partition.records
    assert fetcher.go_on({moldau_topic: {0: 1}}) == []
    assert fetcher.go_on(wait_ms=20) == []


def test_what_is_forgotten_is_not_listed_any_more_and_an_empty_session_ends(
    fetcher: Fetcher, moldau_topic: str, produce: Produce
) -> None:
    fetcher.open({moldau_topic: {0: 0, 5: 0}})
    (missing,) = fetcher.go_on()
    assert (missing.partition_index, missing.error_code) == (
        5,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    )
    assert fetcher.go_on(forgotten={moldau_topic: [5]}) == []
    produce(moldau_topic, 1)
    response = fetcher.ask(forgotten={moldau_topic: [0]}, wait_ms=60_000)
    assert (response.error_code, response.session_id, response.topics) == (0, 0, [])
    fetcher.epoch += 1
    assert fetcher.ask().error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_a_request_that_does_not_continue_its_session_is_refused(
    fetcher: Fetcher, moldau_topic: str
) -> None:
    fetcher.open({moldau_topic: {0: 0}})
    fetcher.epoch = 3
    refused = fetcher.ask()
    assert (refused.error_code, refused.session_id) == (ErrorCode.INVALID_FETCH_SESSION_EPOCH, 0)
    assert refused.topics == []
    fetcher.id += 1
    fetcher.epoch = 1
    assert fetcher.ask().error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    fetcher.id -= 1
    assert fetcher.go_on() == []


@pytest.mark.parametrize(("before", "after"), [(12, 13), (13, 12)])
def test_a_session_keeps_to_names_or_to_ids(
    newest: Fetcher, moldau_topic: str, before: int, after: int
) -> None:
    newest.version = before
    newest.open({moldau_topic: {0: 0}})
    newest.version = after
    assert newest.ask().error_code == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR


def test_a_session_ends_when_its_client_says_so(fetcher: Fetcher, moldau_topic: str) -> None:
    fetcher.open({moldau_topic: {0: 0}})
    fetcher.epoch = -1
    closed = fetcher.ask(wait_ms=60_000)
    assert (closed.error_code, closed.session_id, closed.topics) == (0, 0, [])
    fetcher.epoch = 1
    assert fetcher.ask().error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_open_sessions_and_their_partitions_are_counted(
    newest: Fetcher, moldau_topic: str, moldau_session_broker: Broker
) -> None:
    names = ("fetch_sessions", "fetch_session_partitions", "fetch_sessions_evicted_total")

    def counts() -> list[float]:
        found = scrape(moldau_session_broker.http_address)
        return [found.get(f"moldau_kafka_{name}") for name in names]

    # Those of earlier connections may still end.
    wait_until(lambda: counts() == [0, 0, 0], "no session is open", describe=counts)
    newest.open({moldau_topic: {0: 0}})
    assert counts() == [1, 1, 0]
    newest.epoch = -1
    newest.ask()
    assert counts() == [0, 0, 0]


def test_a_full_fetch_opens_another_session_in_place_of_the_first(
    fetcher: Fetcher, moldau_topic: str
) -> None:
    fetcher.open({moldau_topic: {0: 0}})
    first, fetcher.epoch = fetcher.id, 0
    fetcher.open({moldau_topic: {0: 0}})
    assert fetcher.id != first
    assert fetcher.go_on() == []
    fetcher.id = first
    fetcher.epoch = 1
    assert fetcher.ask().error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_names_that_no_topic_can_have_are_not_kept(
    connection: KafkaConnection, topic_id_of: TopicIdOf, moldau_topic: str
) -> None:
    fetcher = Fetcher(connection, IDS_FROM - 1, topic_id_of)
    refused = fetcher.ask({"x" * 30_000: {0: 0}})
    assert (refused.error_code, refused.session_id) == (0, 0)
    fetcher.open({moldau_topic: {0: 0}})
    assert fetcher.ask({"x" * 30_000: {0: 0}}).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    # It has ended: the client starts again.
    assert fetcher.ask().error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_a_session_without_room_for_a_byte_waits_and_goes_on(
    fetcher: Fetcher, moldau_session_broker: Broker, moldau_topic: str, produce: Produce
) -> None:
    topic = f"{moldau_topic}-three"
    with KafkaClient(moldau_session_broker.bootstrap) as client:
        client.create_topic(topic, partitions=3)
    fetcher.open({topic: {0: 0, 1: 0, 2: 0}})
    for bytes_max in (0, -1):
        # All are read again, and wait.
        assert fetcher.go_on({topic: {0: 0, 1: 0, 2: 0}}, wait_ms=20, bytes_max=bytes_max) == []
    produce(topic, 1)
    (found,) = fetcher.go_on(wait_ms=1_000, bytes_max=0)
    assert found.records


def test_without_an_epoch_there_is_no_session(fetcher: Fetcher, moldau_topic: str) -> None:
    fetcher.epoch = -1
    response = fetcher.ask({moldau_topic: {0: 0}})
    assert (response.error_code, response.session_id) == (0, 0)
    assert len(partitions_of(response)) == 1


def test_a_session_of_another_connection_is_not_found_and_ends_with_its_own(
    moldau_session_broker: Broker, newest: Fetcher, moldau_topic: str, topic_id_of: TopicIdOf
) -> None:
    newest.open({moldau_topic: {0: 0}})
    broker = moldau_session_broker
    with KafkaConnection(broker.host, broker.port, client_id="other") as connection:
        other = Fetcher(connection, newest.version, topic_id_of)
        other.id, other.epoch = newest.id, 1
        assert other.ask().error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        other.epoch = -1
        assert other.ask().error_code == 0
    assert newest.go_on() == []


@pytest.mark.parametrize("version", [12, 18])
def test_a_topic_that_is_made_again_is_another_one(
    moldau_session_broker: Broker,
    newest: Fetcher,
    moldau_topic: str,
    produce: Produce,
    version: int,
) -> None:
    newest.version = version
    produce(moldau_topic, 2)
    newest.open({moldau_topic: {0: 2}})
    assert newest.go_on() == []
    state = DeleteTopicState(name=moldau_topic, topic_id=bytes(16))
    deletion = DeleteTopicsRequest(topics=[state], timeout_ms=10_000)
    newest.connection.request(deletion, DeleteTopicsResponse)
    by_name = version < IDS_FROM
    gone = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if by_name else ErrorCode.UNKNOWN_TOPIC_ID

    def errors() -> list[int]:
        return [each.error_code for each in newest.go_on()]

    wait_until(lambda: errors() == [gone], "the session learns that the topic is gone")
    with KafkaClient(moldau_session_broker.bootstrap) as client:
        client.create_topic(moldau_topic, partitions=1)
    again = ErrorCode.OFFSET_OUT_OF_RANGE if by_name else ErrorCode.UNKNOWN_TOPIC_ID
    wait_until(lambda: errors() == [again], "the session learns of the other topic")


def test_a_fetch_that_waits_is_woken_by_what_is_produced(
    moldau_session_broker: Broker, newest: Fetcher, moldau_topic: str, produce: Produce
) -> None:
    broker = moldau_session_broker
    with KafkaConnection(broker.host, broker.port, client_id="waiting") as connection:
        waiting = Fetcher(connection, 12, lambda _: b"")
        waiting.open({moldau_topic: {0: 0}})
        request = FetchRequest(
            max_wait_ms=10 * int(connection.timeout_seconds * 1000),
            min_bytes=1,
            session_id=waiting.id,
            session_epoch=1,
            topics=[],
        )
        connection.post(request, 12)
        produce(moldau_topic, 1)
        response = connection.receive()
        assert isinstance(response, FetchResponse)
        assert [each.high_watermark for each in partitions_of(response)] == [1]
