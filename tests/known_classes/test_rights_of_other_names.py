"""Known class: rights on one name that are used on another.

The client has every right on topics and transactional ids whose names begin with `eve-`, on the
groups `vault…`, which are named like a topic of others, and may describe that topic. It has no way
to read, write or move anything of it.
"""

import zlib
from collections.abc import Iterator
from http.client import HTTPConnection
from typing import Any

import grpc
import pytest
from secured_broker import SECRET, TOPIC, SecuredBroker, secured_broker
from security_world import rule

from moldau.model.delivery_tokens import DeliveryToken, TokenKind, encode_delivery_token
from moldau.model.errors import ErrorCode
from moldau.model.ids import PartitionIndex, ProducerEpoch, ProducerId, TopicId
from moldau.proto.v1 import queue_pb2 as pb
from moldau.proto.v1 import queue_pb2_grpc as stubs
from moldau.records.record import build_batch
from moldau.security.acl import Operation, PatternType, ResourceType
from moldau.testing.waiting import wait_seconds_max, wait_until
from moldau.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
)
from moldau.wire.messages.end_txn import EndTxnRequest, EndTxnResponse
from moldau.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from moldau.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from moldau.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from moldau.wire.messages.produce import ProduceResponse
from raw_client import PRODUCE_BY_NAME, RawClient, batch, produce_request, record

pytestmark = pytest.mark.system

WHO = "powerless"
NAME = f"User:{WHO}"
PREFIXED = PatternType.PREFIXED
NO_TOPIC = ErrorCode.TOPIC_AUTHORIZATION_FAILED
INTERNAL = ("__consumer_offsets", "__queue_state", "__transaction_state")
OWN = "eve-topic"
SHARED = "shared"
"""Where it may write, beside others."""


@pytest.fixture(scope="module")
def secured() -> Iterator[SecuredBroker]:
    with secured_broker() as started:
        started.put_topic(OWN, "mine")
        started.put_topic(SHARED, "first")
        started.put_rules(
            rule(Operation.WRITE, name=SHARED, principal=NAME),
            rule(Operation.ALL, name="eve-", pattern=PREFIXED, principal=NAME),
            rule(
                Operation.ALL,
                name="eve-",
                pattern=PREFIXED,
                principal=NAME,
                kind=ResourceType.TRANSACTIONAL_ID,
            ),
            rule(
                Operation.ALL,
                name=TOPIC,
                pattern=PREFIXED,
                principal=NAME,
                kind=ResourceType.GROUP,
            ),
            rule(Operation.ALL, name="__", pattern=PREFIXED, principal=NAME),
            rule(Operation.DESCRIBE, name=TOPIC, principal=NAME),
        )
        yield started


@pytest.fixture
def client(secured: SecuredBroker) -> Iterator[RawClient]:
    with secured.kafka(WHO) as opened:
        yield opened


@pytest.fixture(scope="module")
def queue(secured: SecuredBroker) -> Iterator[Any]:
    with grpc.insecure_channel(secured.broker.grpc_address) as channel:
        yield stubs.QueueStub(channel)


def metadata(secured: SecuredBroker, who: str = WHO) -> dict[str, Any]:
    return {
        "metadata": tuple(secured.authorization(who).items()),
        "timeout": wait_seconds_max(),
    }


def topic_id(secured: SecuredBroker, topic: str = TOPIC) -> TopicId:
    return TopicId(bytes.fromhex(secured.read(f"/api/v1/topics/{topic}")["id"]))


def untouched(secured: SecuredBroker) -> bool:
    found = secured.read(f"/api/v1/topics/{TOPIC}/records")["records"]
    return [record["value"] for record in found] == [SECRET]


def test_its_own_topic_is_open(client):
    """The check of these tests."""
    assert client.fetch(OWN, 0).error_code == 0
    assert client.produce(OWN, batch([b"mine"])).error_code == 0


def test_an_id_gives_no_more_than_the_name(secured, client):
    """Also if both are in one request, and where the name would be allowed."""
    wanted = [FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)]
    hidden = topic_id(secured)
    for version in (12, 13, 16):
        by_name = version <= 12
        request = FetchRequest(
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=1 << 20,
            topics=[
                FetchTopic(topic=TOPIC if by_name else OWN, topic_id=hidden, partitions=wanted),
                FetchTopic(topic=OWN, topic_id=topic_id(secured, OWN), partitions=wanted),
            ],
        )
        response = client.request(request, FetchResponse, version)
        refused, allowed = (each.partitions[0] for each in response.topics)
        assert (refused.error_code, allowed.error_code) == (NO_TOPIC, 0)
        assert SECRET.encode() not in bytes(refused.records or b"")
        assert SECRET.encode() not in bytes(allowed.records or b"")


@pytest.mark.parametrize("topic", ["eve", "Eve-topic", " eve-topic", "eve_topic", "eVe-", "vault"])
def test_names_beside_the_prefix_are_not_of_it(client, topic):
    assert client.fetch(topic, 0).error_code == NO_TOPIC
    assert client.produce(topic, batch([b"x"])).error_code == NO_TOPIC
    assert client.create(topic).error_code == NO_TOPIC


@pytest.mark.parametrize(
    "path",
    [
        "{}",
        "%76ault",
        "%2576ault",
        "vaul%74",
        "VAULT",
        "vault%00",
        "vault%20",
        "vault%2f",
        "./vault",
        "eve-topic/../vault",
        "eve-topic%2f..%2fvault",
        "eve-topic%2f%2e%2e%2fvault",
        "eve-topic;/../vault",
        "%EF%BD%96ault",
        "vault%3fx",
        "eve-topic%23/../vault",
        "/vault",
    ],
)
def test_no_spelling_of_a_path_reads_or_writes_it(secured, path):
    """Sent as it is: a library would tidy it up."""
    connection = HTTPConnection(secured.broker.http_address, timeout=wait_seconds_max())
    headers = {"content-type": "application/json", **secured.authorization(WHO)}
    target = f"/api/v1/topics/{path.format(TOPIC)}/records"
    try:
        for method, body in (("GET", None), ("POST", '{"records": [{"value": "from eve"}]}')):
            connection.putrequest(method, target, skip_host=False)
            for name, value in headers.items():
                connection.putheader(name, value)
            if body:
                connection.putheader("content-length", str(len(body)))
            connection.endheaders(None if body is None else body.encode())
            response = connection.getresponse()
            text = response.read().decode()
            assert response.status in (400, 403, 404, 405), (method, text)
            assert SECRET not in text
    finally:
        connection.close()
    assert untouched(secured)


@pytest.mark.parametrize("who", [WHO, "admin"])
@pytest.mark.parametrize("topic", INTERNAL)
def test_internal_topics_are_written_by_nobody(secured, queue, topic, who):
    """Not even by who has every right on them: their records are state of the broker."""
    wanted = pb.ConnectRequest(group="admins", topics=[TOPIC], mode=pb.QUEUE)
    queue.Connect(wanted, **metadata(secured, "admin"))
    path, body = f"/api/v1/topics/{topic}/records", {"records": [{"value": "x", "partition": 0}]}

    def by_kafka() -> int | None:
        """None while a new topic has no leader."""
        with secured.kafka(who) as client:
            code = client.produce(topic, batch([b"x"])).error_code
        return None if code == ErrorCode.NOT_LEADER_OR_FOLLOWER else code

    def by_http() -> int | None:
        status = secured.ask(who, "POST", path, body)[0]
        return None if status == 503 else status

    code = wait_until(by_kafka, "the partition is ready")
    assert code in (ErrorCode.INVALID_TOPIC_EXCEPTION, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    assert wait_until(by_http, "the partition is ready") in (400, 404)


def test_a_transaction_of_ones_own_holds_nothing_of_others(secured, client):
    request = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id="eve-transaction",
        v3_and_below_producer_id=1,
        v3_and_below_producer_epoch=0,
        v3_and_below_topics=[AddPartitionsToTxnTopic(name=TOPIC, partitions=[0])],
    )
    response = client.request(request, AddPartitionsToTxnResponse, 3)
    found = response.results_by_topic_v3_and_below[0].results_by_partition[0]
    assert found.partition_error_code == NO_TOPIC
    assert untouched(secured)


def begin(client: RawClient, name: str) -> tuple[int, int]:
    """Producer id and epoch."""

    def attempt() -> InitProducerIdResponse | None:
        request = InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=60_000)
        answer = client.request(request, InitProducerIdResponse)
        return answer if answer.error_code == ErrorCode.NONE else None

    answer = wait_until(attempt, "the coordinator is ready")
    return answer.producer_id, answer.producer_epoch


def write(
    client: RawClient, name: str | None, producer: tuple[int, int], sequence: int, value: bytes
) -> ErrorCode:
    """`name` None: not in a transaction."""
    data = build_batch(
        [record(value)],
        producer_id=ProducerId(producer[0]),
        producer_epoch=ProducerEpoch(producer[1]),
        base_sequence=sequence,
        transactional=name is not None,
    )
    request = produce_request(SHARED, data)
    request.transactional_id = name
    found = client.request(request, ProduceResponse, PRODUCE_BY_NAME).topics[0].partitions[0]
    return ErrorCode(found.error_code)


@pytest.mark.safety
def test_who_may_write_beside_a_transaction_can_neither_join_nor_block_it(secured, client):
    """Producer ids are small numbers, epochs and sequences can be guessed."""
    forged = b"forged"
    with secured.kafka("admin") as owner:
        producer = begin(owner, "owners")
        own = begin(client, "eve-transaction")
        assert write(owner, "owners", producer, 0, b"one") is ErrorCode.NONE
        for epoch in (producer[1], producer[1] + 1, 32767):
            for sequence in (0, 1):
                as_owner = (producer[0], epoch)
                # The first one repeats what is there: it may be told so, and is not stored.
                if (epoch, sequence) == (producer[1], 0):
                    continue
                refusal = write(client, None, as_owner, sequence, forged)
                assert refusal is ErrorCode.INVALID_TXN_STATE
                refusal = write(client, "eve-transaction", as_owner, sequence, forged)
                assert refusal is ErrorCode.INVALID_PRODUCER_ID_MAPPING
        assert write(client, "eve-transaction", own, 0, b"own") is ErrorCode.NONE
        assert write(owner, "owners", producer, 1, b"two") is ErrorCode.NONE
        for who, name, (number, epoch) in (
            (owner, "owners", producer),
            (client, "eve-transaction", own),
        ):
            end = EndTxnRequest(
                transactional_id=name, producer_id=number, producer_epoch=epoch, committed=True
            )
            assert who.request(end, EndTxnResponse, 3).error_code == ErrorCode.NONE
        wait_until(
            lambda: (
                owner.list_offset(SHARED, -1, isolation=1).offset
                == owner.list_offset(SHARED, -1).offset
            ),
            "everything is stable",
        )
    found = secured.read(f"/api/v1/topics/{SHARED}/records")["records"]
    assert [each["value"] for each in found] == ["first", "one", "own", "two"]


@pytest.mark.safety
def test_what_others_wrote_under_its_producer_id_is_not_taken_for_a_retry(secured, client):
    """Before the transaction is open in the partition. It is refused, so its producer knows."""
    with secured.kafka("admin") as owner:
        producer = begin(owner, "owners-late")
        assert write(client, None, producer, 0, b"forged") is ErrorCode.NONE
        refusal = write(owner, "owners-late", producer, 0, b"lost")
        assert refusal is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_group_of_the_same_name_is_no_topic(secured, client):
    """Its offsets of the topic are not moved, though the group may be used."""
    request = OffsetCommitRequest(
        group_id=TOPIC,
        member_id="",
        topics=[
            OffsetCommitRequestTopic(
                name=each,
                partitions=[
                    OffsetCommitRequestPartition(
                        partition_index=0, committed_offset=1, committed_metadata=None
                    )
                ],
            )
            for each in (TOPIC, OWN)
        ],
    )
    response = client.request(request, OffsetCommitResponse, 8)
    codes = {each.name: each.partitions[0].error_code for each in response.topics}
    assert codes[TOPIC] == NO_TOPIC
    # It may be that the coordinator still loads; it is not refused.
    assert codes[OWN] not in (NO_TOPIC, ErrorCode.GROUP_AUTHORIZATION_FAILED)


def refused(secured: SecuredBroker, call: Any, request: Any) -> grpc.StatusCode:
    with pytest.raises(grpc.RpcError) as caught:
        # A list: of a stream.
        list(call(request, **metadata(secured)))
    assert SECRET not in str(caught.value)
    code: grpc.StatusCode = caught.value.code()
    return code


@pytest.mark.parametrize("mode", [pb.QUEUE, pb.ORDERED])
def test_a_queue_of_ones_own_delivers_nothing_of_others(secured, queue, mode):
    denied = grpc.StatusCode.PERMISSION_DENIED
    for request in (
        pb.ConnectRequest(group=TOPIC, topics=[TOPIC], mode=mode),
        pb.ConnectRequest(group=TOPIC, topics=[OWN, TOPIC], mode=mode),
    ):
        assert refused(secured, queue.Connect, request) is denied
    assert refused(secured, queue.Peek, pb.PeekRequest(group=TOPIC, topic=TOPIC)) is denied
    assert refused(secured, queue.ReadFrom, pb.ReadFromRequest(topic=TOPIC)) is denied


def test_dead_letters_are_not_written_to_topics_of_others(secured, queue):
    """The broker writes them; who makes it do so must be allowed to."""
    settings = pb.QueueSettings(dead_letter_topic=TOPIC)
    request = pb.ConnectRequest(group="vault-dead", topics=[OWN], mode=pb.QUEUE, settings=settings)
    assert refused(secured, queue.Connect, request) is grpc.StatusCode.PERMISSION_DENIED
    assert untouched(secured)


def test_a_made_up_token_settles_no_message_of_others(secured, queue):
    """Tokens are no secrets: they name topic, partition and offset. Consumers of one group may
    have rights on different topics."""
    group = "vault-tokens"
    other, mine = (
        queue.Connect(
            pb.ConnectRequest(group=group, mode=pb.ORDERED, topics=[topic]),
            **metadata(secured, who),
        )
        for who, topic in (("admin", TOPIC), (WHO, OWN))
    )
    rest = (0).to_bytes(8, "big") + zlib.crc32(group.encode()).to_bytes(4, "big")
    token = encode_delivery_token(
        DeliveryToken(TokenKind.ORDERED, topic_id(secured), PartitionIndex(0), rest)
    )
    asked = pb.AckRequest(group=group, consumer_id=mine.consumer_id, tokens=[token])
    # As the other consumer, whose id is no secret, too.
    as_other = pb.AckRequest(group=group, consumer_id=other.consumer_id, tokens=[token])
    polled = pb.PollRequest(group=group, consumer_id=other.consumer_id)
    for call, request in ((queue.Ack, asked), (queue.Ack, as_other), (queue.Poll, polled)):
        assert refused(secured, call, request) is grpc.StatusCode.PERMISSION_DENIED
    for each in (other, mine):
        left = pb.DisconnectRequest(group=group, consumer_id=each.consumer_id)
        queue.Disconnect(left, **metadata(secured, "admin"))
