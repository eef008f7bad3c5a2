import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.metadata.image import BrokerState, Endpoint
from moldau.metadata.queue_groups import QueueGroup, QueueSettings
from moldau.metadata.records import (
    AclsAdded,
    AclsRemoved,
    BrokerConfigsSet,
    BrokerRegistered,
    BrokerStateSet,
    ClusterCreated,
    DesiredReplicasReached,
    DesiredReplicasSet,
    FeatureLevelSet,
    JoinTokenDropped,
    JoinTokenSet,
    MetadataRecord,
    PartitionsCreated,
    ProducerIdsAllocated,
    QueueGroupDropped,
    QueueGroupSet,
    QuotaSet,
    TopicConfigsSet,
    TopicCreated,
    TopicDeleted,
    UserDeleted,
    UserSet,
    decode_record,
    encode_record,
)
from moldau.metadata.security import JoinToken, User
from moldau.model.errors import CorruptionError
from moldau.model.ids import BrokerId, PartitionIndex, ProducerId, TopicId
from moldau.security.acl import Acl, Operation, PatternType, Permission, ResourceType
from moldau.security.quotas import QuotaEntity
from moldau.security.scram import ScramCredential, ScramMechanism

ACL = Acl(
    ResourceType.TOPIC,
    "a",
    PatternType.PREFIXED,
    "User:u",
    "*",
    Operation.READ,
    Permission.DENY,
)
CREATED = TopicCreated(
    name="a",
    topic_id=TopicId(b"i" * 16),
    partitions=((BrokerId(1), BrokerId(2)),),
    configs={"retention.ms": "1"},
)


def test_a_field_of_a_later_version_is_skipped() -> None:
    fields = {"type": "topic-deleted", "topic_id": b"i" * 16, "since_version_9": [1, {"x": 2}]}
    data = b"\x01" + msgspec.msgpack.encode(fields)
    assert decode_record(data) == TopicDeleted(topic_id=TopicId(b"i" * 16))


def test_a_later_format_is_refused_with_the_reason() -> None:
    with pytest.raises(CorruptionError, match="newer"):
        decode_record(b"\x02" + encode_record(CREATED)[1:])


@given(st.binary(max_size=60))
def test_arbitrary_bytes_are_corruption_or_a_record(data: bytes) -> None:
    try:
        record = decode_record(data)
    except CorruptionError:
        return
    assert isinstance(record, MetadataRecord)


def test_a_record_cut_anywhere_is_corruption() -> None:
    data = encode_record(CREATED)
    assert decode_record(data) == CREATED
    assert decode_record(memoryview(data)) == CREATED
    for length in range(len(data)):
        with pytest.raises(CorruptionError):
            decode_record(data[:length])


ID = TopicId(b"i" * 16)
ID_HEX = "69" * 16
OLD: list[tuple[str, MetadataRecord]] = [
    ("0182a474797065a7636c7573746572aa636c75737465725f6964a163", ClusterCreated(cluster_id="c")),
    (
        "0186a474797065a662726f6b6572a2696401a4686f7374a168a4706f7274cd2384a47261636ba172"
        "ab696e6361726e6174696f6ea164",
        BrokerRegistered(id=BrokerId(1), host="h", port=9092, rack="r", incarnation="d"),
    ),
    (
        f"0186a474797065a5746f706963a46e616d65a161a8746f7069635f6964c410{ID_HEX}"
        "aa706172746974696f6e7391920102a7636f6e6669677381ac726574656e74696f6e2e6d73a131"
        "a8696e7465726e616cc2",
        CREATED,
    ),
    (
        f"0182a474797065ad746f7069632d64656c65746564a8746f7069635f6964c410{ID_HEX}",
        TopicDeleted(topic_id=ID),
    ),
    (
        f"0184a474797065aa706172746974696f6e73a8746f7069635f6964c410{ID_HEX}"
        "a5666972737401aa706172746974696f6e7391920201",
        PartitionsCreated(topic_id=ID, first=1, partitions=((BrokerId(2), BrokerId(1)),)),
    ),
    (
        f"0183a474797065ad746f7069632d636f6e66696773a8746f7069635f6964c410{ID_HEX}"
        "a7636f6e6669677381a161a162",
        TopicConfigsSet(topic_id=ID, configs={"a": "b"}),
    ),
    (
        "0183a474797065ae62726f6b65722d636f6e66696773a962726f6b65725f6964ffa7636f6e6669677380",
        BrokerConfigsSet(broker_id=BrokerId(-1), configs={}),
    ),
    (
        "0183a474797065ac70726f64756365722d696473a5666972737400a5636f756e74cd03e8",
        ProducerIdsAllocated(first=ProducerId(0), count=1000),
    ),
    (
        # Of a cluster without gRPC.
        "018ba474797065a662726f6b6572a2696401a4686f7374a168a4706f727401a47261636bc0ab696e"
        "6361726e6174696f6ea164a770726f63657373a170a47261667492a16802a46874747092a16803a5"
        "65706f636804b1666561747572655f6c6576656c5f6d617801",
        BrokerRegistered(
            id=BrokerId(1),
            host="h",
            port=1,
            incarnation="d",
            process="p",
            raft=Endpoint("h", 2),
            http=Endpoint("h", 3),
            epoch=4,
            feature_level_max=1,
        ),
    ),
]


@pytest.mark.parametrize(("data", "record"), OLD)
def test_records_written_by_earlier_versions_are_read(data: str, record: MetadataRecord) -> None:
    assert decode_record(bytes.fromhex(data)) == record


NEW: list[tuple[str, MetadataRecord]] = [
    (
        "018ca474797065a662726f6b6572a2696401a4686f7374a168a4706f727401a47261636bc0ab696e"
        "6361726e6174696f6ea164a770726f63657373a170a47261667492a16802a46874747092a16803a5"
        "65706f636804b1666561747572655f6c6576656c5f6d617801a46772706392a16805",
        BrokerRegistered(
            id=BrokerId(1),
            host="h",
            port=1,
            incarnation="d",
            process="p",
            raft=Endpoint("h", 2),
            http=Endpoint("h", 3),
            epoch=4,
            feature_level_max=1,
            grpc=Endpoint("h", 5),
        ),
    ),
    (
        "0183a474797065ac62726f6b65722d7374617465a962726f6b65725f696401a5737461746502",
        BrokerStateSet(broker_id=BrokerId(1), state=BrokerState.REMOVED),
    ),
    ("0182a474797065ad666561747572652d6c6576656ca56c6576656c01", FeatureLevelSet(level=1)),
    (
        "0187a474797065af7265706c696361732d776973686564a8746f7069635f6964c410696969696969"
        "69696969696969696969a9706172746974696f6e00a87265706c69636173920201a6746172676574"
        "9102a66f726967696e9101a47769736803",
        DesiredReplicasSet(
            topic_id=ID,
            partition=PartitionIndex(0),
            replicas=(BrokerId(2), BrokerId(1)),
            target=(BrokerId(2),),
            origin=(BrokerId(1),),
            desired_version=3,
        ),
    ),
    (
        "0185a474797065b07265706c696361732d72656163686564a8746f7069635f6964c4106969696969"
        "6969696969696969696969a9706172746974696f6e00a87265706c696361739102a47769736803",
        DesiredReplicasReached(
            topic_id=ID, partition=PartitionIndex(0), replicas=(BrokerId(2),), desired_version=3
        ),
    ),
    (
        "0183a474797065ab71756575652d67726f7570a567726f757083a46e616d65a171a6746f70696373"
        "91a161a873657474696e677386ad7669736962696c6974795f6d7301ac617474656d7074735f6d61"
        "7802aa6261636b6f66665f6d7303ae6261636b6f66665f6d735f6d617804b1646561645f6c657474"
        "65725f746f706963a164ad7374617274735f61745f656e64c3a9746f7069635f69647391c4106969"
        "6969696969696969696969696969",
        QueueGroupSet(
            group=QueueGroup(
                name="q",
                topics=("a",),
                settings=QueueSettings(
                    dead_letter_topic="d",
                    visibility_ms=1,
                    attempts_max=2,
                    backoff_ms=3,
                    backoff_ms_max=4,
                    starts_at_end=True,
                ),
            ),
            topic_ids=(ID,),
        ),
    ),
    (
        "0182a474797065b371756575652d67726f75702d64726f70706564a46e616d65a171",
        QueueGroupDropped(name="q"),
    ),
    (
        "0182a474797065a475736572a47573657282a46e616d65a175ab63726564656e7469616c73810184"
        "a473616c74c40173aa697465726174696f6e73cd1000aa73746f7265645f6b6579c4016baa736572"
        "7665725f6b6579c40176",
        UserSet(user=User("u", {ScramMechanism.SHA_256: ScramCredential(b"s", 4096, b"k", b"v")})),
    ),
    (
        "0182a474797065a475736572a47573657283a46e616d65a175ab63726564656e7469616c7380a763"
        "72656174656407",
        UserSet(user=User("u", {}, created=7)),
    ),
    ("0182a474797065ac757365722d64656c65746564a46e616d65a175", UserDeleted(name="u")),
    (
        "0182a474797065a461636c73a461636c739187ad7265736f757263655f7479706502ad7265736f75"
        "7263655f6e616d65a161ac7061747465726e5f7479706504a97072696e636970616ca6557365723a"
        "75a4686f7374a12aa96f7065726174696f6e03aa7065726d697373696f6e02",
        AclsAdded(acls=(ACL,)),
    ),
    (
        "0182a474797065ac61636c732d72656d6f766564a461636c739187ad7265736f757263655f747970"
        "6502ad7265736f757263655f6e616d65a161ac7061747465726e5f7479706504a97072696e636970"
        "616ca6557365723a75a4686f7374a12aa96f7065726174696f6e03aa7065726d697373696f6e02",
        AclsRemoved(acls=(ACL,)),
    ),
    (
        "0183a474797065a571756f7461a6656e7469747992a175c0a66c696d69747381b270726f64756365"
        "725f627974655f72617465cb3ff8000000000000",
        QuotaSet(entity=QuotaEntity("u", None), limits={"producer_byte_rate": 1.5}),
    ),
    (
        "0182a474797065aa6a6f696e2d746f6b656ea5746f6b656e84a26964a174a468617368c40168aa65"
        "7870697265735f6d7305a7757365645f6279a164",
        JoinTokenSet(token=JoinToken("t", b"h", 5, "d")),
    ),
    (
        "0182a474797065b26a6f696e2d746f6b656e2d64726f70706564a26964a174",
        JoinTokenDropped(id="t"),
    ),
]


@pytest.mark.parametrize(("data", "record"), NEW)
def test_the_bytes_of_cluster_records_stay_as_they_are(data: str, record: MetadataRecord) -> None:
    assert encode_record(record).hex() == data
    assert decode_record(bytes.fromhex(data)) == record
