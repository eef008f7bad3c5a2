from contextlib import suppress

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from security_world import credential, rule

from moldau.metadata.image import (
    EMPTY_IMAGE,
    Broker,
    BrokerState,
    Endpoint,
    Image,
    Partition,
    Topic,
)
from moldau.metadata.queue_groups import QueueGroup, QueueSettings
from moldau.metadata.security import JoinToken, User
from moldau.metadata.snapshot import SNAPSHOT_FORMAT, decode_image, encode_image
from moldau.model.errors import CorruptionError
from moldau.model.ids import BrokerId, PartitionIndex, ProducerId, TopicId
from moldau.security.acl import PatternType, Permission
from moldau.security.quotas import QuotaEntity
from moldau.security.scram import ScramMechanism

ID = TopicId(b"i" * 16)
TOPIC = Topic(
    name="a.b",
    topic_id=ID,
    partitions=(
        Partition(PartitionIndex(0), (BrokerId(1),)),
        Partition(
            PartitionIndex(1),
            (BrokerId(2), BrokerId(1)),
            target=(BrokerId(2),),
            origin=(BrokerId(1),),
            desired_version=3,
        ),
    ),
    configs={"retention.ms": "1"},
)
IMAGE = Image(
    cluster_id="c",
    brokers={
        BrokerId(1): Broker(id=BrokerId(1), host="h", port=1, incarnation="x"),
        BrokerId(2): Broker(
            id=BrokerId(2),
            host="h",
            port=2,
            rack="r",
            incarnation="y",
            process="p",
            raft=Endpoint("h", 3),
            http=Endpoint("h", 4),
            epoch=5,
            feature_level_max=1,
            state=BrokerState.DRAINING,
            grpc=Endpoint("h", 5),
            machine="m",
        ),
    },
    removed_brokers={
        BrokerId(3): Broker(
            id=BrokerId(3), host="h", port=1, incarnation="z", state=BrokerState.REMOVED
        )
    },
    topics={"a.b": TOPIC},
    topics_by_id={ID: TOPIC},
    collision_names={"a_b": "a.b"},
    broker_configs={BrokerId(-1): {"log.retention.ms": "5"}},
    next_producer_id=ProducerId(7000),
    feature_level=1,
    queue_groups={
        "q": QueueGroup(
            name="q", topics=("a.b",), settings=QueueSettings(dead_letter_topic="q.dead")
        )
    },
    users={"alice": User("alice", {ScramMechanism.SHA_512: credential(7)}, created=9)},
    acls=frozenset({rule(), rule(permission=Permission.DENY, host="10.0.0.0/8")}),
    quotas={
        QuotaEntity("alice", None): {"producer_byte_rate": 1024.5},
        QuotaEntity("", ""): {"request_percentage": 50},
    },
    join_tokens={"t": JoinToken("t", b"h" * 32, 99, "x")},
    version=42,
)


def test_an_image_comes_back_as_it_was() -> None:
    for image in (EMPTY_IMAGE, IMAGE):
        data = encode_image(image)
        assert decode_image(data) == image
        assert decode_image(memoryview(data)) == image


def test_a_snapshot_of_the_first_version_is_read() -> None:
    old = {
        "cluster_id": "c",
        "version": 3,
        "brokers": [{"id": 1, "host": "h", "port": 9092, "rack": None, "incarnation": "d"}],
        "topics": [
            {
                "name": "a",
                "topic_id": bytes(ID),
                "partitions": [{"index": 0, "replicas": [1]}],
                "configs": {},
                "internal": False,
            }
        ],
        "broker_configs": {},
        "next_producer_id": 0,
        "users": [{"name": "u", "credentials": {1: credential()}}],
        "a_field_of_a_later_version": [1, 2],
    }
    image = decode_image(b"\x01" + msgspec.msgpack.encode(old))
    assert image.brokers[BrokerId(1)] == Broker(
        id=BrokerId(1), host="h", port=9092, incarnation="d"
    )
    assert image.brokers[BrokerId(1)].machine is None
    assert image.topics["a"].partitions == (Partition(PartitionIndex(0), (BrokerId(1),)),)
    assert image.topics_by_id[ID] is image.topics["a"]
    assert image.version == 3
    assert image.users["u"] == User("u", {ScramMechanism.SHA_256: credential()})
    assert image.users["u"].created == 0
    assert not image.acls
    assert not image.quotas
    assert not image.join_tokens


def test_no_password_and_no_token_is_in_a_repr() -> None:
    assert "hhhh" not in repr(IMAGE)
    assert repr(credential(65).stored_key) not in repr(replace(IMAGE, version=1))


def test_a_snapshot_cut_anywhere_is_corruption() -> None:
    data = encode_image(IMAGE)
    for length in range(len(data)):
        with pytest.raises(CorruptionError):
            decode_image(data[:length])


@given(st.binary(max_size=80), st.integers(0, 400))
def test_arbitrary_bytes_are_corruption_or_an_image(junk: bytes, at: int) -> None:
    data = encode_image(IMAGE)
    for damaged in (bytes([SNAPSHOT_FORMAT]) + junk, data[:at] + junk + data[at + len(junk) :]):
        with suppress(CorruptionError):
            assert isinstance(decode_image(damaged), Image)


def test_a_length_that_is_only_announced_allocates_nothing() -> None:
    head = msgspec.msgpack.encode("topics")
    for bomb in (b"\xdd\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff"):
        with pytest.raises(CorruptionError):
            decode_image(b"\x01\x81" + head + bomb)
    nested = b"\x01\x81" + msgspec.msgpack.encode("unknown") + b"\x91" * 100_000
    with pytest.raises(CorruptionError):
        decode_image(nested)


def test_a_snapshot_beyond_the_bound_is_refused_unread() -> None:
    data = encode_image(IMAGE)
    assert decode_image(data, len(data)) == IMAGE
    with pytest.raises(CorruptionError, match="the limit is"):
        decode_image(data, len(data) - 1)


def test_a_later_format_is_refused_with_the_reason() -> None:
    with pytest.raises(CorruptionError, match="newer"):
        decode_image(b"\x02" + encode_image(IMAGE)[1:])


BROKER = IMAGE.brokers[BrokerId(1)]
FIRST = TOPIC.partitions[0]
GROUP = IMAGE.queue_groups["q"]
ALICE = IMAGE.users["alice"]
TOKEN = IMAGE.join_tokens["t"]


@pytest.mark.parametrize(
    "broken",
    [
        # Each map has a key that its value does not carry: written, the value is there twice.
        {"brokers": {BrokerId(1): BROKER, BrokerId(2): BROKER}},
        {"brokers": {BrokerId(1): BROKER}, "removed_brokers": {BrokerId(1): BROKER}},
        {"brokers": {BrokerId(1): replace(BROKER, state=BrokerState.REMOVED)}},
        {"topics": {"a.b": TOPIC, "b": TOPIC}},
        {"topics": {"a.b": TOPIC, "b": replace(TOPIC, name="b")}},
        {"topics": {"a.b": TOPIC, "b": replace(TOPIC, name="a_b", topic_id=TopicId(b"j" * 16))}},
        {"topics": {"a": replace(TOPIC, topic_id=TopicId(b"short"))}},
        {"queue_groups": {"q": GROUP, "r": GROUP}},
        {"queue_groups": {"q": msgspec.structs.replace(GROUP, topics=("gone",))}},
        {"users": {"alice": ALICE, "bob": ALICE}},
        {"users": {"alice": User("alice", {})}},
        {"quotas": {QuotaEntity("alice", None): {}}},
        {"quotas": {QuotaEntity("alice", None): {"producer_byte_rate": float("nan")}}},
        {"join_tokens": {"t": TOKEN, "u": TOKEN}},
        # A rule that cannot be understood may be a deny.
        {"acls": frozenset({rule(host="nowhere", permission=Permission.DENY)})},
        {"acls": frozenset({rule(pattern=PatternType.MATCH)})},
        {"topics": {"a": replace(TOPIC, partitions=TOPIC.partitions[1:])}},
        {"topics": {"a": replace(TOPIC, partitions=(replace(FIRST, replicas=()),))}},
    ],
)
def test_an_image_that_contradicts_itself_is_corruption(broken: dict[str, object]) -> None:
    image = replace(IMAGE, removed_brokers={})
    decode_image(encode_image(image))
    with pytest.raises(CorruptionError):
        decode_image(encode_image(replace(image, **broken)))


def test_a_topic_without_settings_can_be_stored_again() -> None:
    plain = Topic(name="t", topic_id=ID, partitions=TOPIC.partitions)
    image = replace(IMAGE, topics={"t": plain}, topics_by_id={ID: plain}, queue_groups={})
    assert decode_image(encode_image(image)).topics == {"t": plain}
