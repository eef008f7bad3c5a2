"""Records of internal topics and of the metadata, and what clients store in groups.

An input is a key and a value. What decodes is encoded and decoded again, and must stay the same.
"""

import struct
from collections.abc import Iterator
from typing import Any, Final

from fuzz.parts import join, pair, split
from fuzz.target import REFUSALS, Target, check
from moldau.groups import records as group_records
from moldau.groups.consumer import records as consumer_records
from moldau.groups.consumer_protocol import (
    assignment_bytes,
    read_assignment,
    read_subscription,
    subscribed_topics,
)
from moldau.groups.results import CommittedOffset
from moldau.leases import records as lease_records
from moldau.leases.state import Dead, Leased, QueueId, QueueRecord, QueueState, Waiting
from moldau.metadata import commands
from moldau.metadata.apply import apply
from moldau.metadata.command_codec import decode_command, encode_command
from moldau.metadata.decide import decide
from moldau.metadata.image import EMPTY_IMAGE, Image
from moldau.metadata.records import decode_record, encode_record
from moldau.metadata.snapshot import decode_image, encode_image
from moldau.model.errors import CorruptionError, RefusedError
from moldau.model.ids import (
    BrokerId,
    Epoch,
    Offset,
    PartitionIndex,
    ProducerEpoch,
    ProducerId,
    TimestampMs,
    TopicId,
    TopicPartition,
)
from moldau.replica.producer_snapshot import decode_producers, encode_producers
from moldau.replica.producers import ProducerTable
from moldau.transactions import records as transaction_records
from moldau.transactions.records import StoredTransaction, TransactionRecord, TransactionState

_TOPIC_ID: Final = TopicId(bytes(range(16)))


def _again(what: str, module: Any, record: Any) -> None:
    key, value = module.encode(record)
    check(module.decode(key, value) == record, f"a {what} record changes when it is written again")


def _decode_group(data: bytes) -> None:
    key, value = pair(data)
    record = group_records.decode(key, value or None)
    if isinstance(record, group_records.OffsetRecord | group_records.GroupRecord):
        _again("group", group_records, record)
    elif record is not None:
        again = consumer_records.encode(record)
        check(group_records.decode(*again) == record, "a record of a consumer group changes")


def _decode_transaction(data: bytes) -> None:
    key, value = pair(data)
    record = transaction_records.decode(key, value or None)
    if record is not None:
        _again("transaction", transaction_records, record)


def _decode_lease(data: bytes) -> None:
    key, value = pair(data)
    record = lease_records.decode(key, value or None)
    if isinstance(record, QueueRecord):
        _again("queue", lease_records, record)
        state = QueueState()
        state.apply(record)
        for offset in state.open:
            check(state.get(offset) is not None, "an open offset has no state")


def _read_protocol(data: bytes) -> None:
    """Other bytes are no error: they mean nothing."""
    subscription = read_subscription(data)
    topics = subscribed_topics(data)
    check(subscription is None or subscription.topics == topics, "two readers disagree on topics")
    assignment = read_assignment(data)
    if assignment is not None:
        again = read_assignment(assignment_bytes(assignment.partitions))
        check(
            again is not None and again.partitions == assignment.partitions,
            "an assignment changes when it is written again",
        )


def _image() -> Image:
    image = EMPTY_IMAGE
    for command in _commands():
        for record in decide(command, image):
            image = apply(image, record)
    return image


def _commands() -> Iterator[commands.Command]:
    yield commands.CreateCluster(cluster_id="c")
    for number in (1, 2, 3):
        yield commands.RegisterBroker(
            id=BrokerId(number), host="h", port=number, incarnation=f"i{number}"
        )
    yield commands.CreateTopic(
        name="t", topic_id=_TOPIC_ID, partitions=2, replication_factor=2, configs={"flush.ms": "9"}
    )


def _more_commands() -> Iterator[commands.Command]:
    yield commands.CreateTopic(
        name="u", topic_id=TopicId(b"u" * 16), assignments={0: [1, 2], 1: [2, 3]}
    )
    yield commands.DeleteTopic(name="t")
    yield commands.CreatePartitions(topic="t", count=3, assignments=[[1, 2]])
    yield commands.ReassignPartition(topic="t", partition=PartitionIndex(0), replicas=[2, 3])
    yield commands.ReportReplicas(
        topic_id=_TOPIC_ID, partition=PartitionIndex(0), desired_version=0, voters=[BrokerId(1)]
    )
    change = commands.ConfigChange(
        name="retention.ms", operation=commands.ConfigOperation.SET, value="5"
    )
    yield commands.AlterTopicConfigs(topic="t", changes=[change])
    yield commands.ReplaceTopicConfigs(topic="t", configs={"cleanup.policy": "compact"})
    yield commands.AlterBrokerConfigs(broker_id=BrokerId(1), changes=[change])
    yield commands.AllocateProducerIds(count=10)
    yield commands.DefineQueueGroup(name="g", topics=["t"], visibility_ms=1000)
    yield commands.DropQueueGroup(name="g")
    yield commands.DrainBroker(broker_id=BrokerId(3))
    yield commands.RemoveBroker(broker_id=BrokerId(3), metadata_members=[BrokerId(1)])


def _decide_command(data: bytes) -> None:
    """What a broker is asked by another. Whatever is decided, the image can be stored."""
    image = _IMAGE
    for part in split(data)[:8]:
        command = decode_command(part)
        for record in decide(command, image):
            image = apply(image, decode_record(encode_record(record)))
    check(decode_image(encode_image(image)) == image, "an image changes when it is stored")


_IMAGE: Final = _image()


def _decode_metadata(data: bytes) -> None:
    record = decode_record(data)
    check(decode_record(encode_record(record)) == record, "a metadata record changes")


def _decode_image(data: bytes) -> None:
    image = decode_image(data)
    check(decode_image(encode_image(image)) == image, "an image changes when it is stored again")


def _decode_producers(data: bytes) -> None:
    encoded = encode_producers(decode_producers(data))
    check(encode_producers(decode_producers(encoded)) == encoded, "a table of producers changes")


def _keyed(key: bytes, value: bytes | None) -> bytes:
    return join((key, value or b""))


def _group_seeds() -> Iterator[tuple[str, bytes]]:
    committed = CommittedOffset(
        offset=Offset(5),
        leader_epoch=Epoch(1),
        metadata="m",
        commit_timestamp=TimestampMs(9),
    )
    offset = group_records.OffsetRecord(
        group_id="g", partition=TopicPartition("t", PartitionIndex(0)), value=committed
    )
    member = group_records.StoredMember(
        member_id="m",
        instance_id=None,
        client_id="c",
        client_host="h",
        rebalance_timeout_ms=1,
        session_timeout_ms=2,
        subscription=_SUBSCRIPTION,
        assignment=assignment_bytes({"t": [0]}),
    )
    group = group_records.StoredGroup(
        protocol_type="consumer",
        generation=1,
        protocol_name="range",
        leader="m",
        state_timestamp=TimestampMs(3),
        members=(member,),
    )
    yield "offset", _keyed(*group_records.encode(offset))
    yield (
        "group",
        _keyed(*group_records.encode(group_records.GroupRecord(group_id="g", value=group))),
    )
    for name, record in _consumer_records():
        yield name, _keyed(*consumer_records.encode(record))


def _consumer_records() -> Iterator[tuple[str, consumer_records.ConsumerRecord]]:
    assigned = {_TOPIC_ID: frozenset({0, 1})}
    current = consumer_records.CurrentAssignment(epoch=2, previous_epoch=1, assigned=assigned)
    member = consumer_records.ConsumerMember(
        topics=("t",),
        classic=consumer_records.ClassicClient(
            session_timeout_ms=1, protocols=(("range", _SUBSCRIPTION),)
        ),
    )
    epoch = consumer_records.GroupEpoch(epoch=2, topics_hash=5)
    yield "epoch", consumer_records.EpochRecord(group_id="g", value=epoch)
    yield "member", consumer_records.MemberRecord(group_id="g", member_id="m", value=member)
    yield "target-epoch", consumer_records.TargetEpochRecord(group_id="g", value=3)
    yield (
        "target",
        consumer_records.TargetAssignmentRecord(group_id="g", member_id="m", value=assigned),
    )
    yield (
        "current",
        consumer_records.CurrentAssignmentRecord(group_id="g", member_id="m", value=current),
    )


_SUBSCRIPTION: Final = (
    struct.pack(">hi", 3, 1) + b"\0\1t" + struct.pack(">iiih", -1, 0, 5, 1) + b"r"
)


def _transaction_seeds() -> Iterator[tuple[str, bytes]]:
    for state in (TransactionState.EMPTY, TransactionState.ONGOING):
        value = StoredTransaction(
            producer_id=ProducerId(7),
            producer_epoch=ProducerEpoch(3),
            next_producer_id=ProducerId(9),
            timeout_ms=60_000,
            state=state,
            partitions=frozenset({TopicPartition("t", PartitionIndex(1))}),
            updated_at=TimestampMs(6),
            client_version=2,
        )
        record = TransactionRecord(transactional_id="x", value=value)
        yield state.name.lower(), _keyed(*transaction_records.encode(record))


def _lease_seeds() -> Iterator[tuple[str, bytes]]:
    opened = (
        (Offset(10), Leased(1, "ann", TimestampMs(1_005), Epoch(7))),
        (Offset(12), Waiting(2, TimestampMs(1_000))),
        (Offset(13), Dead(3, "bad")),
    )
    queue = QueueId("g", _TOPIC_ID, PartitionIndex(0))
    for is_snapshot in (False, True):
        record = QueueRecord(
            queue=queue,
            sequence=130,
            epoch=Epoch(7),
            next=Offset(20),
            settled=() if is_snapshot else (Offset(3), Offset(4)),
            opened=opened,
            is_snapshot=is_snapshot,
        )
        name = "snapshot" if is_snapshot else "change"
        yield name, _keyed(*lease_records.encode(record))


def _command_seeds() -> Iterator[tuple[str, bytes]]:
    for command in (*_commands(), *_more_commands()):
        yield type(command).__name__, join([encode_command(command)])


def _metadata_seeds() -> Iterator[tuple[str, bytes]]:
    image = EMPTY_IMAGE
    for command in (*_commands(), *_more_commands()):
        try:
            records = decide(command, image)
        except RefusedError:
            continue
        for record in records:
            image = apply(image, record)
            yield type(record).__name__, encode_record(record)


TARGETS: Final = [
    Target(
        name="stored-groups",
        about="records of consumer groups",
        run=_decode_group,
        allowed=(CorruptionError,),
        seeds=_group_seeds,
    ),
    Target(
        name="stored-transactions",
        about="records of transactions",
        run=_decode_transaction,
        allowed=(CorruptionError,),
        seeds=_transaction_seeds,
    ),
    Target(
        name="stored-queues",
        about="records of work queues",
        run=_decode_lease,
        allowed=(CorruptionError,),
        seeds=_lease_seeds,
    ),
    Target(
        name="stored-protocol",
        about="subscriptions and assignments of consumers",
        run=_read_protocol,
        allowed=(),
        seeds=lambda: {"subscription": _SUBSCRIPTION, "assignment": assignment_bytes({"t": [0]})},
    ),
    Target(
        name="stored-commands",
        about="commands to the metadata, and what they decide",
        run=_decide_command,
        allowed=REFUSALS,
        seeds=_command_seeds,
    ),
    Target(
        name="stored-metadata",
        about="records of the metadata",
        run=_decode_metadata,
        allowed=(CorruptionError,),
        seeds=_metadata_seeds,
    ),
    Target(
        name="stored-images",
        about="snapshots of the metadata",
        run=_decode_image,
        allowed=(CorruptionError,),
        seeds=lambda: {"image": encode_image(_IMAGE)},
    ),
    Target(
        name="stored-producers",
        about="snapshots of producers",
        run=_decode_producers,
        allowed=(CorruptionError,),
        seeds=lambda: {"empty": encode_producers(ProducerTable())},
    ),
]
