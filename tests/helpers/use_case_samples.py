"""Owns one or more calls of each use case of a session, with what it answers without a right."""

from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

from handler_calls import image
from operator_samples import OPERATOR_SAMPLES
from samples import CLUSTER as CLUSTER
from samples import GROUP as GROUP
from samples import NAMES as NAMES
from samples import NO_RIGHT_ON_TOPIC, ORDERS, one
from samples import PARTITION as PARTITION
from samples import PRODUCER as PRODUCER
from samples import QUEUE as QUEUE
from samples import TOPIC as TOPIC
from samples import TRANSACTION as TRANSACTION
from samples import Sample as Sample
from search_asks import LIVE, SEARCH, stays

from moldau.api.cluster_queries import GroupListing
from moldau.api.overview.group_lags import PositionLag
from moldau.api.search.types import LiveFeed
from moldau.api.session import Session
from moldau.api.topic_groups import GroupOfTopic, TopicGroupPage
from moldau.control.config_service import ResourceKind
from moldau.control.join_service import DecidedJoin
from moldau.data.fetch import PartitionFetch, PartitionFetchResult
from moldau.data.fetch_session import FetchSession, WantedPartition
from moldau.data.fetch_sessions import FetchSessions
from moldau.data.offsets import FoundOffset
from moldau.data.transactional_produce import TransactionalWrite
from moldau.groups.events import ConsumerHeartbeat, Heartbeat, Join, Leave, OffsetToCommit, Sync
from moldau.groups.results import (
    CommittedOffset,
    ConsumerGroupState,
    ConsumerHeartbeatResult,
    DescribedConsumer,
    DescribedConsumerGroup,
    DescribedGroup,
    FetchOffsetsResult,
    GroupState,
    ListedGroup,
)
from moldau.metadata.image import CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC
from moldau.metadata.leader_balance import ElectionType
from moldau.metadata.leaders import Leader
from moldau.metadata.queue_groups import QueueGroup, QueueSettings
from moldau.model.backup import (
    ClusterToRestore,
    QueueGroupCopy,
    QueueStateCopy,
    QueueToRestore,
    StartToRestore,
)
from moldau.model.delivery_tokens import DeliveryToken, TokenKind, encode_delivery_token
from moldau.model.errors import ErrorCode
from moldau.model.ids import (
    NO_EPOCH,
    BrokerId,
    Epoch,
    Offset,
    PartitionIndex,
    TimestampMs,
)
from moldau.model.topology import ProvenJoinRequest, SealedJoinReply, Topology, TopologyTopic
from moldau.queues.types import (
    AssignedPartition,
    Assignment,
    ConnectOptions,
    ConnectResult,
    GroupStats,
    HeartbeatReply,
    Mode,
    PartitionStats,
    PollOptions,
    PollResult,
)
from moldau.transactions.results import DescribedTransaction, ListedTransaction


def offset_to_commit() -> OffsetToCommit:
    return OffsetToCommit(partition=PARTITION, offset=Offset(1), leader_epoch=NO_EPOCH, metadata="")


def fetch(session: Session) -> list[PartitionFetchResult] | str:
    results: list[list[PartitionFetchResult]] = []
    wanted = [PartitionFetch("orders", 0, Offset(0), 100, -1)]
    session.fetch.fetch(wanted, bytes_min=1, bytes_max=100, wait_ms_max=10, on_ready=results.append)
    return results[0] if results else "parked"


def fetch_in_session(session: Session) -> list[PartitionFetchResult] | str:
    results: list[PartitionFetchResult] = []
    sessions = FetchSessions(lambda topic, index: None, lambda: 0.0)
    opened = FetchSession(1, "alice", sessions, lambda topic, index: None, uses_ids=False)
    opened.update([WantedPartition("orders", 0, Offset(0), 100, -1)], [])
    session.fetch.fetch_in_session(
        opened,
        name_of=lambda _: None,
        reads_committed=False,
        bytes_min=1,
        bytes_max=100,
        wait_ms_max=10,
        on_ready=lambda found: results.extend(result for _, result in found),
    )
    return results or "parked"


def nothing_to_read(requests: object, *, on_ready: Callable[[Any], None], **_: object) -> None:
    on_ready([PartitionFetchResult(ErrorCode.NONE, 0, 0, None, 0)])


def transactional_append(session: Session) -> Any:
    outcomes: list[Any] = []
    write = TransactionalWrite("payments", "orders", 0, memoryview(b""), -1, 11)
    session.transactional_produce.append(write, outcomes.append)
    if outcomes:
        raise outcomes[0]
    return "appended"


def member_event(kind: type[Any], **fields: Any) -> Callable[[int], Any]:
    return lambda request_id: kind(request_id=request_id, group_id="billing", **fields)


JOIN = member_event(
    Join,
    member_id="",
    instance_id=None,
    client_id="",
    client_host="",
    session_timeout_ms=1,
    rebalance_timeout_ms=1,
    protocol_type="consumer",
    protocols=(),
    member_id_required=False,
    can_skip_assignment=False,
)
CONSUMER_HEARTBEAT: Callable[[int], ConsumerHeartbeat] = member_event(
    ConsumerHeartbeat,
    member_id="m",
    member_epoch=0,
    instance_id=None,
    rack=None,
    client_id="",
    client_host="",
    rebalance_timeout_ms=1,
    topics=("orders",),
    pattern=None,
    assignor=None,
    owned=None,
    makes_member_id=True,
)
SYNC = member_event(
    Sync,
    member_id="m",
    generation=1,
    instance_id=None,
    protocol_type=None,
    protocol_name=None,
    assignments=(),
)
HEARTBEAT = member_event(Heartbeat, member_id="m", generation=1, instance_id=None)
LEAVE = member_event(Leave, members=())
CONSUMER = DescribedConsumer(
    member_id="m",
    instance_id=None,
    rack=None,
    epoch=1,
    client_id="",
    client_host="",
    topics=("orders",),
    pattern=None,
    assigned={},
    target={},
    is_classic=False,
)
COMMITTED = CommittedOffset(
    offset=Offset(3), leader_epoch=NO_EPOCH, metadata="", commit_timestamp=TimestampMs(0)
)
NO_MEMBERS = {
    "groups.describe": DescribedGroup(error=ErrorCode.GROUP_ID_NOT_FOUND),
    "groups.describe_consumers": DescribedConsumerGroup(error=ErrorCode.GROUP_ID_NOT_FOUND),
}
LISTED = ListedGroup(group_id="billing", protocol_type="consumer", state=GroupState.EMPTY)
HIDDEN_SETTINGS = QueueSettings(dead_letter_topic="")
HIDDEN_QUEUE = QueueGroup(name="billing", topics=(), settings=HIDDEN_SETTINGS)
CONNECTED = ConnectResult(
    consumer="c",
    mode=Mode.ORDERED,
    heartbeat_interval_ms=1,
    session_timeout_ms=1,
    settings=None,
    assignment=Assignment(epoch=1, partitions=()),
)
STATS = GroupStats(
    group="billing",
    settings=QUEUE.settings,
    consumers=1,
    partitions=(
        PartitionStats(
            topic="orders", partition=PartitionIndex(0), leader=BrokerId(1), is_here=True
        ),
    ),
)
PROVEN = ProvenJoinRequest(request=b"{}", challenge=b"c", nonce=b"n", proof=b"p")
JOINED = DecidedJoin(SealedJoinReply(sealed=b"s"), broker_id=3)
TOPOLOGY = Topology(
    cluster_id="a-cluster",
    version=1,
    controller=1,
    answered_by=1,
    brokers=(),
    topics=(TopologyTopic(name="orders", id="00", internal=False, partitions=()),),
)
ASSIGNED = AssignedPartition("orders", PartitionIndex(0), BrokerId(1), "")


def page_of_groups(
    found: object, names: list[str], silent: list[BrokerId], *, has_more: bool
) -> TopicGroupPage:
    return TopicGroupPage([GroupOfTopic(name, "Empty", 0, ()) for name in names], None, silent)


def heartbeat_reply(*partitions: AssignedPartition) -> HeartbeatReply:
    assignment = Assignment(epoch=1, partitions=partitions)
    return HeartbeatReply(heartbeat_interval_ms=1, assignment=assignment)


QUEUE_STATE = QueueToRestore(
    group="billing", topic="orders", state=QueueStateCopy(partition=0, records=()), end=0
)
QUEUE_COPY = QueueGroupCopy(
    name="billing",
    topics=("orders",),
    visibility_ms=1,
    attempts_max=1,
    backoff_ms=1,
    backoff_ms_max=1,
    dead_letter_topic="dead",
    starts_at_end=False,
)


def of_consumer(call: Callable[[Session], Any], *topics: str) -> Sample:
    """Of the topics of a consumer, whose names the client may not know."""
    answers = {"queues.topics_of": frozenset(topics), "queues.poll": PollResult()}
    return Sample(call=call, answers=answers, reads_first=True, refused_as={TOPIC: GROUP})


def settling(call: Callable[[Session, bytes], Any]) -> list[Sample]:
    """Of the topics of a consumer, and of those that tokens name: a consumer may have got them
    just now, and a token may be made up."""
    token = encode_delivery_token(
        DeliveryToken(TokenKind.ORDERED, ORDERS.topic_id, PartitionIndex(0), b"")
    )
    return [
        of_consumer(lambda session: call(session, b"t"), "orders"),
        of_consumer(lambda session: call(session, token)),
    ]


SAMPLES: dict[str, list[Sample]] = {
    **OPERATOR_SAMPLES,
    "topics.find": one(lambda s: s.topics.find("orders")),
    "topics.get": one(lambda s: s.topics.get("orders")),
    "topics.find_by_id": one(lambda s: s.topics.find_by_id(ORDERS.topic_id), without={TOPIC: None}),
    "topics.name_of": one(lambda s: s.topics.name_of(ORDERS.topic_id), without={TOPIC: None}),
    "topics.all": one(lambda s: s.topics.all(), without={TOPIC: []}),
    "topics.config_of": one(lambda s: s.topics.config_of(ORDERS), without={TOPIC: None}),
    "topics.create": one(lambda s: s.topics.create("orders")),
    "topics.ensure": one(lambda s: s.topics.ensure("orders")),
    "topics.delete": one(lambda s: s.topics.delete(name="orders")),
    "topics.add_partitions": one(
        lambda s: s.topics.add_partitions("orders", 3, None, validate_only=True)
    ),
    "topics.delete_records": one(lambda s: s.topics.delete_records("orders", 0, 1)),
    "topics.trim": one(lambda s: s.topics.trim(ORDERS, {0: 1})),
    "topics.await_leaders": one(lambda s: s.topics.await_leaders(["nowhere"])),
    "configs.describe": [
        Sample(call=lambda s: s.configs.describe(ResourceKind.TOPIC, "orders"), kinds=(TOPIC,)),
        Sample(call=lambda s: s.configs.describe(ResourceKind.BROKER, "1"), kinds=(CLUSTER,)),
        Sample(
            call=lambda s: s.configs.describe(ResourceKind.BROKER_LOGGER, "1"), kinds=(CLUSTER,)
        ),
    ],
    "configs.describe_topic": one(lambda s: s.configs.describe_topic(ORDERS)),
    "configs.alter": [
        Sample(
            call=lambda s: s.configs.alter(ResourceKind.TOPIC, "orders", [], validate_only=False),
            kinds=(TOPIC,),
        ),
        Sample(
            call=lambda s: s.configs.alter(ResourceKind.BROKER, "1", [], validate_only=True),
            kinds=(CLUSTER,),
        ),
        Sample(
            call=lambda s: s.configs.alter(
                ResourceKind.BROKER_LOGGER, "1", [], validate_only=False
            ),
            kinds=(CLUSTER,),
        ),
    ],
    "configs.alter_topic": one(
        lambda s: s.configs.alter_topic("orders", [], validate_only=False),
        answers={"configs.alter": image({}, ORDERS)},
    ),
    "configs.topic_settings": one(lambda s: s.configs.topic_settings()),
    "configs.replace": [
        Sample(
            call=lambda s: s.configs.replace(ResourceKind.TOPIC, "orders", {}, validate_only=True),
            kinds=(TOPIC,),
        ),
        Sample(
            call=lambda s: s.configs.replace(ResourceKind.BROKER, "", {}, validate_only=False),
            kinds=(CLUSTER,),
        ),
    ],
    "produce.append": one(lambda s: s.produce.append("orders", 0, memoryview(b""), -1)),
    "transactional_produce.append": one(transactional_append),
    "appends.check": one(lambda s: s.appends.check(ORDERS.name)),
    "appends.partitions_for": one(lambda s: s.appends.partitions_for(ORDERS, [(None, b"k")])),
    "appends.store": one(
        lambda s: s.appends.store(ORDERS, [], [], acks=-1, timeout_seconds=1.0),
    ),
    "fetch.fetch": one(
        fetch, without={TOPIC: [PartitionFetchResult(NO_RIGHT_ON_TOPIC, -1, -1, None, 0)]}
    ),
    "fetch.fetch_in_session": one(
        fetch_in_session,
        without={TOPIC: [PartitionFetchResult(NO_RIGHT_ON_TOPIC, -1, -1, None, 0)]},
    ),
    "fetch.read_page": one(
        lambda s: s.fetch.read_page("orders", 0, 0, limit=1),
        effects={"fetch.fetch": nothing_to_read},
    ),
    "search.page": one(lambda s: s.search.page(ORDERS, SEARCH, stays)),
    "search.live": one(lambda s: s.search.live(ORDERS, LIVE)),
    "search.next_live": one(lambda s: s.search.next_live(ORDERS, Mock(spec=LiveFeed), 0)),
    "offsets.list_offset": one(lambda s: s.offsets.list_offset("orders", 0, -1)),
    "offsets.at": one(
        lambda s: s.offsets.at("orders", 0, -1),
        answers={"offsets.list_offset": FoundOffset(3, 0, 0)},
    ),
    "offsets.epoch_end": one(lambda s: s.offsets.epoch_end("orders", 0, 1)),
    "offsets.producers": one(lambda s: s.offsets.producers("orders", 0)),
    "groups.join": one(lambda s: s.groups.join("billing", JOIN)),
    "groups.sync": one(lambda s: s.groups.sync("billing", SYNC)),
    "groups.heartbeat": one(lambda s: s.groups.heartbeat("billing", HEARTBEAT)),
    "groups.leave": one(lambda s: s.groups.leave("billing", LEAVE)),
    "groups.consumer_heartbeat": one(
        lambda s: s.groups.consumer_heartbeat("billing", CONSUMER_HEARTBEAT),
        answers={"groups.submit": ConsumerHeartbeatResult(error=ErrorCode.NONE)},
    ),
    "groups.commit_offsets": one(
        lambda s: s.groups.commit_offsets("billing", [offset_to_commit()]),
        without={TOPIC: [NO_RIGHT_ON_TOPIC]},
        answers={"groups.commit_offsets": [ErrorCode.NONE], **NO_MEMBERS},
    ),
    "groups.reset": one(
        lambda s: s.groups.reset(
            "billing", ORDERS, {0: 7}, removes_members=True, validate_only=False
        ),
        answers={"groups.reset_offsets": {PARTITION: Offset(3)}},
    ),
    "groups.fetch_offsets": one(
        lambda s: s.groups.fetch_offsets("billing", None),
        without={TOPIC: FetchOffsetsResult(error=ErrorCode.NONE, offsets={})},
        reads_first=True,
        answers={
            "groups.fetch_offsets": FetchOffsetsResult(
                error=ErrorCode.NONE,
                offsets={PARTITION: COMMITTED},
                unstable=frozenset({PARTITION}),
            )
        },
    ),
    "groups.delete_offsets": one(
        lambda s: s.groups.delete_offsets("billing", [PARTITION]),
        without={TOPIC: [NO_RIGHT_ON_TOPIC]},
        answers={"groups.delete_offsets": [ErrorCode.NONE]},
    ),
    "groups.describe": one(lambda s: s.groups.describe("billing")),
    "groups.describe_consumers": one(
        lambda s: s.groups.describe_consumers("billing"),
        without={
            TOPIC: DescribedConsumerGroup(
                error=NO_RIGHT_ON_TOPIC,
                message="The group has topics that the client may not describe",
            )
        },
        reads_first=True,
        answers={
            "groups.describe_consumers": DescribedConsumerGroup(
                error=ErrorCode.NONE, state=ConsumerGroupState.STABLE, members=(CONSUMER,)
            )
        },
    ),
    "groups.list_groups": one(
        lambda s: s.groups.list_groups((), ()),
        without={GROUP: (ErrorCode.NONE, [])},
        reads_first=True,
        answers={"groups.list_groups": (ErrorCode.NONE, [LISTED])},
    ),
    "groups.delete_groups": one(
        lambda s: s.groups.delete_groups(["billing"]),
        without={GROUP: {"billing": ErrorCode.GROUP_AUTHORIZATION_FAILED}},
        answers={"groups.delete_groups": {"billing": ErrorCode.NONE}},
    ),
    "groups.find_coordinator": one(
        lambda s: s.groups.find_coordinator("billing"), topics=(CONSUMER_OFFSETS_TOPIC,)
    ),
    "groups.are_stored": one(lambda s: s.groups.are_stored),
    "queries.groups": one(
        lambda s: s.queries.groups(),
        without={GROUP: ([], [])},
        reads_first=True,
        answers={
            "queries.groups": (
                [(GroupListing("billing", "consumer", "Empty", "classic"), BrokerId(1))],
                [],
            )
        },
    ),
    "queries.offsets_at": one(lambda s: s.queries.offsets_at(ORDERS, [0], 1)),
    "queries.groups_of_topic": one(
        lambda s: s.queries.groups_of_topic(ORDERS, None, 10),
        without={GROUP: TopicGroupPage([], None, [])},
        reads_first=True,
        answers={"topic_groups.names": (["billing"], [])},
        effects={"topic_groups.page": page_of_groups},
    ),
    "queries.extents": one(lambda s: s.queries.extents([PARTITION]), without={TOPIC: {}}),
    "queries.topic_figures": one(lambda s: s.queries.topic_figures([ORDERS]), without={TOPIC: {}}),
    "queries.group_lags": one(
        lambda s: s.queries.group_lags([("billing", BrokerId(1))]), without={GROUP: {}}
    ),
    "queries.position_lags": one(
        lambda s: s.queries.position_lags("billing"),
        without={TOPIC: {}},
        reads_first=True,
        answers={"group_lags.positions": {PARTITION: PositionLag(9, 1.5)}},
    ),
    "producer_ids.take": one(lambda s: s.producer_ids.take()),
    "transactions.init_producer": one(lambda s: s.transactions.init_producer("payments", 1)),
    "transactions.end": one(lambda s: s.transactions.end("payments", *PRODUCER, is_commit=True)),
    "transactions.add_partitions": one(
        lambda s: s.transactions.add_partitions("payments", *PRODUCER, [PARTITION]),
        without={TOPIC: {PARTITION: NO_RIGHT_ON_TOPIC}},
    ),
    "transactions.add_offsets": one(
        lambda s: s.transactions.add_offsets("payments", *PRODUCER, "billing")
    ),
    "transactions.commit_offsets": one(
        lambda s: s.transactions.commit_offsets(
            "payments", "billing", *PRODUCER, [offset_to_commit()], adds=True
        ),
        without={TOPIC: [NO_RIGHT_ON_TOPIC]},
        answers={"transactions.commit_offsets": [ErrorCode.NONE]},
    ),
    "transactions.abort_hanging": one(lambda s: s.transactions.abort_hanging(PARTITION, *PRODUCER)),
    "transactions.describe": one(
        lambda s: s.transactions.describe("payments"),
        without={TOPIC: DescribedTransaction(error=ErrorCode.NONE, state="Ongoing")},
        reads_first=True,
        answers={
            "transactions.describe": DescribedTransaction(
                error=ErrorCode.NONE, state="Ongoing", partitions=frozenset({PARTITION})
            )
        },
    ),
    "transactions.list_transactions": one(
        lambda s: s.transactions.list_transactions((), (), -1),
        without={TRANSACTION: (ErrorCode.NONE, [])},
        reads_first=True,
        answers={
            "transactions.list_transactions": (
                ErrorCode.NONE,
                [
                    ListedTransaction(
                        transactional_id="payments", producer_id=PRODUCER[0], state="Ongoing"
                    )
                ],
            )
        },
    ),
    "transactions.find_coordinator": one(
        lambda s: s.transactions.find_coordinator("payments"), topics=(TRANSACTION_STATE_TOPIC,)
    ),
    "cluster.cluster_id": one(lambda s: s.cluster.cluster_id),
    "cluster.controller_id": one(lambda s: s.cluster.controller_id),
    "cluster.brokers": one(lambda s: s.cluster.brokers),
    "cluster.alive": one(lambda s: s.cluster.alive),
    "cluster.is_cut_off": one(lambda s: s.cluster.is_cut_off),
    "cluster.health": one(lambda s: s.cluster.health()),
    "cluster.topology": [
        Sample(
            call=lambda s: s.cluster.topology().topics,
            without={TOPIC: ()},
            reads_first=True,
            answers={"cluster.topology": TOPOLOGY},
        ),
        Sample(
            call=lambda s: s.cluster.topology(["orders"]).topics,
            answers={"cluster.topology": TOPOLOGY},
        ),
    ],
    "cluster.leader_of": one(lambda s: s.cluster.leader_of(ORDERS, 0)),
    "cluster.leaders_and_in_sync": one(
        lambda s: s.cluster.leaders_and_in_sync(ORDERS, ORDERS.partitions)
    ),
    "cluster.remote_leader": one(
        lambda s: s.cluster.remote_leader(ORDERS, 0),
        answers={"cluster.leader_of": Leader(BrokerId(2), Epoch(1))},
    ),
    "cluster.join_challenge": one(lambda s: s.cluster.join_challenge()),
    "cluster.join_proven": one(
        lambda s: s.cluster.join_proven(PROVEN), answers={"joins.join": JOINED}
    ),
    "cluster.drain": one(lambda s: s.cluster.drain(2)),
    "cluster.keep": one(lambda s: s.cluster.keep(2)),
    "cluster.reassign": one(lambda s: s.cluster.reassign("orders", 0, [1])),
    "cluster.recover": one(lambda s: s.cluster.recover([2], None, dry_run=True)),
    "cluster.reassignments": one(lambda s: s.cluster.reassignments(None)),
    "cluster.elections_due": one(lambda s: s.cluster.elections_due()),
    "cluster.elect": one(lambda s: s.cluster.elect("orders", 0, ElectionType.PREFERRED)),
    "cluster.log_dirs": one(lambda s: s.cluster.log_dirs()),
    "cluster.metrics": one(lambda s: s.cluster.metrics().list_groups()),
    "cluster.connections": one(lambda s: s.cluster.connections(2)),
    "cluster.raft_groups": one(lambda s: s.cluster.raft_groups("", None, 10)),
    "cluster.report": one(lambda s: s.cluster.report().list_groups()),
    "cluster.overview": one(lambda s: s.cluster.overview()),
    "backup.cluster": one(lambda s: s.backup.cluster()),
    "backup.queues": one(lambda s: s.backup.queues("billing", "orders")),
    "backup.append": one(lambda s: s.backup.append("orders", 0, 0, bytearray())),
    "backup.trim": one(
        lambda s: s.backup.trim(StartToRestore(topic="orders", partition=0, start=7))
    ),
    "backup.restore_cluster": one(
        lambda s: s.backup.restore_cluster(ClusterToRestore(producer_id_min=0))
    ),
    "backup.restore_queue": one(lambda s: s.backup.restore_queue(QUEUE_STATE)),
    "backup.define_queue": one(lambda s: s.backup.define_queue(QUEUE_COPY)),
    "queues.connect": one(
        lambda s: s.queues.connect(ConnectOptions(group="billing", topics=("orders",))),
        answers={"queues.connect": CONNECTED},
    ),
    "queues.heartbeat": one(
        lambda s: s.queues.heartbeat("billing", "c", 0, {}),
        without={TOPIC: heartbeat_reply()},
        reads_first=True,
        answers={"queues.heartbeat": heartbeat_reply(ASSIGNED)},
    ),
    "queues.disconnect": one(lambda s: s.queues.disconnect("billing", "c")),
    "queues.poll": [
        of_consumer(lambda s: s.queues.poll(PollOptions(group="billing", consumer="c")), "orders"),
        Sample(
            call=lambda s: s.queues.poll(
                PollOptions(group="billing", consumer="c", partitions={"orders": frozenset({0})})
            ),
            answers={"queues.topics_of": frozenset(), "queues.poll": PollResult()},
        ),
    ],
    "queues.ack": settling(lambda s, token: s.queues.ack("billing", "c", [token])),
    "queues.nack": settling(
        lambda s, token: s.queues.nack("billing", "c", [token], delay_ms=None, reason="")
    ),
    "queues.extend": settling(
        lambda s, token: s.queues.extend("billing", "c", [token], visibility_ms=1)
    ),
    "queues.stats": one(
        lambda s: s.queues.stats("billing"),
        without={
            TOPIC: GroupStats(group="billing", settings=HIDDEN_SETTINGS, consumers=1, partitions=())
        },
        reads_first=True,
        answers={"queues.stats": STATS},
    ),
    "queues.peek": one(lambda s: s.queues.peek("billing", "orders", count_max=1)),
    "queues.list_groups": [
        Sample(
            call=lambda s: s.queues.list_groups(),
            without={GROUP: [], TOPIC: [HIDDEN_QUEUE]},
            reads_first=True,
            answers={"queues.list_groups": [QUEUE]},
        ),
        Sample(
            call=lambda s: s.queues.list_groups("orders"),
            kinds=(TOPIC,),
            answers={"queues.list_groups": [QUEUE]},
        ),
    ],
    "queues.known_groups": one(
        lambda s: s.queues.known_groups(), without={GROUP: [], TOPIC: [HIDDEN_QUEUE]}
    ),
    "queues.delete_group": one(lambda s: s.queues.delete_group("billing")),
}
