"""What consumers ask and hear, in the terms of the queues and in those of the API."""

from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from queue_worker import reason_of

from grpc_world import Door, opened
from moldau.metadata.queue_groups import QueueGroup, QueueSettings
from moldau.model.ids import BrokerId, Offset, PartitionIndex, TimestampMs
from moldau.proto.v1 import queue_pb2 as pb
from moldau.queues.types import (
    DONE,
    AssignedPartition,
    Assignment,
    ConnectOptions,
    ConnectResult,
    Delivery,
    ErrorReason,
    GroupStats,
    HeartbeatReply,
    InspectedMessage,
    MessageState,
    Mode,
    PartitionStats,
    PollOptions,
    PollResult,
    QueueRefusedError,
    StartAt,
    TokenResult,
)
from moldau.records.record import Record
from moldau.testing.waiting import wait_seconds_max

pytestmark = pytest.mark.inprocess

UNKNOWN: Any = 9
"""Of an enumeration."""

SETTINGS = QueueSettings(dead_letter_topic="g.dead", visibility_ms=1_000)
SHOWN = pb.QueueSettings(
    visibility_ms=1_000,
    attempts_max=5,
    backoff_ms=1_000,
    backoff_ms_max=60_000,
    dead_letter_topic="g.dead",
)
ASSIGNMENT = Assignment(
    epoch=3, partitions=(AssignedPartition("t", PartitionIndex(1), BrokerId(2), "h:8000"),)
)
ASSIGNED = pb.Assignment(
    epoch=3,
    partitions=[pb.AssignedPartition(topic="t", partition=1, leader=2, leader_address="h:8000")],
)


@pytest.fixture(scope="module")
def listening() -> Iterator[Door]:
    with opened() as door:
        yield door


@pytest.fixture
def door(listening: Door) -> Door:
    listening.queues.asked.clear()
    return listening


def record(offset: int, key: bytes | None, value: bytes | None, *headers: Any) -> Record:
    return Record(Offset(offset), TimestampMs(1_000), key, value, list(headers))


def test_connect_returns_everything_that_was_asked_for(door: Door) -> None:
    door.queues.answers["connect"] = ConnectResult(
        consumer="c-1",
        mode=Mode.QUEUE,
        heartbeat_interval_ms=500,
        session_timeout_ms=9_000,
        settings=SETTINGS,
        assignment=ASSIGNMENT,
    )
    answer = door.stub.Connect(
        pb.ConnectRequest(
            group="g",
            topics=["t", "u"],
            mode=pb.QUEUE,
            client_id="me",
            session_timeout_ms=9_000,
            settings=pb.QueueSettings(visibility_ms=1_000, dead_letter_topic="d"),
            start=pb.LATEST,
        ),
        timeout=wait_seconds_max(),
    )
    assert door.queues.asked == [
        (
            "connect",
            (
                ConnectOptions(
                    group="g",
                    topics=("t", "u"),
                    mode=Mode.QUEUE,
                    client_id="me",
                    session_timeout_ms=9_000,
                    visibility_ms=1_000,
                    dead_letter_topic="d",
                    start=StartAt.LATEST,
                ),
            ),
            {},
        )
    ]
    assert answer == pb.ConnectResponse(
        consumer_id="c-1",
        mode=pb.QUEUE,
        heartbeat_interval_ms=500,
        session_timeout_ms=9_000,
        settings=SHOWN,
        assignment=ASSIGNED,
    )


def test_an_ordered_group_has_no_settings(door: Door) -> None:
    door.queues.answers["connect"] = ConnectResult(
        consumer="c",
        mode=Mode.ORDERED,
        heartbeat_interval_ms=1,
        session_timeout_ms=2,
        settings=None,
        assignment=ASSIGNMENT,
    )
    answer = door.stub.Connect(
        pb.ConnectRequest(group="g", topics=["t"]), timeout=wait_seconds_max()
    )
    assert (answer.mode, answer.HasField("settings")) == (pb.ORDERED, False)
    assert door.queues.asked[0][1] == (ConnectOptions(group="g", topics=("t",)),)


def test_each_heartbeat_is_answered_and_carries_what_changed(door: Door) -> None:
    door.queues.answers["heartbeat"] = HeartbeatReply(
        heartbeat_interval_ms=5, assignment=ASSIGNMENT
    )
    beats = [
        pb.HeartbeatRequest(group="g", consumer_id="c", epoch=2),
        pb.HeartbeatRequest(
            group="g",
            consumer_id="c",
            epoch=3,
            owned=[
                pb.TopicPartitions(topic="t", partitions=[0, 2]),
                pb.TopicPartitions(topic="t", partitions=[1]),
            ],
        ),
    ]
    answers = list(door.stub.Heartbeat(iter(beats), timeout=wait_seconds_max()))
    assert answers == [pb.HeartbeatResponse(heartbeat_interval_ms=5, assignment=ASSIGNED)] * 2
    assert [asked for _, asked, _ in door.queues.asked] == [
        ("g", "c", 2, {}),
        ("g", "c", 3, {"t": frozenset({0, 1, 2})}),
    ]


def test_a_heartbeat_without_change_has_no_assignment_and_an_eviction_ends_the_stream(
    door: Door,
) -> None:
    door.queues.answers["heartbeat"] = HeartbeatReply(heartbeat_interval_ms=5, assignment=None)
    beat = pb.HeartbeatRequest(group="g", consumer_id="c")
    (answer,) = door.stub.Heartbeat(iter([beat]), timeout=wait_seconds_max())
    assert not answer.HasField("assignment")
    door.queues.answers["heartbeat"] = QueueRefusedError(ErrorReason.UNKNOWN_CONSUMER)
    with pytest.raises(grpc.RpcError) as caught:
        list(door.stub.Heartbeat(iter([beat]), timeout=wait_seconds_max()))
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    assert reason_of(caught.value) == "UNKNOWN_CONSUMER"


def test_disconnect_and_delete_name_whom_they_mean(door: Door) -> None:
    door.queues.answers |= {"disconnect": None, "delete_group": None}
    door.stub.Disconnect(
        pb.DisconnectRequest(group="g", consumer_id="c"), timeout=wait_seconds_max()
    )
    door.stub.DeleteGroup(pb.DeleteGroupRequest(group="g"), timeout=wait_seconds_max())
    assert door.queues.asked == [("disconnect", ("g", "c"), {}), ("delete_group", ("g",), {})]


def test_groups_are_listed_with_their_topics_and_settings(door: Door) -> None:
    door.queues.answers["list_groups"] = [
        QueueGroup(
            name="g",
            topics=("s", "t"),
            settings=QueueSettings(visibility_ms=7, dead_letter_topic="d"),
        )
    ]
    (group,) = door.stub.ListGroups(pb.ListGroupsRequest(), timeout=wait_seconds_max()).groups
    assert (group.group, list(group.topics)) == ("g", ["s", "t"])
    assert (group.settings.visibility_ms, group.settings.dead_letter_topic) == (7, "d")
    door.stub.ListGroups(pb.ListGroupsRequest(topic="t"), timeout=wait_seconds_max())
    assert [asked for _, asked, _ in door.queues.asked] == [(None,), ("t",)]


def test_polled_messages_are_returned_in_full(door: Door) -> None:
    door.queues.answers["poll"] = PollResult(
        deliveries=[
            Delivery(
                "t",
                PartitionIndex(1),
                record(5, b"k", b"v", ("h", b"1"), ("n", None), ("\udcff", b"")),
                b"token",
                2,
                TimestampMs(9_000),
            ),
            Delivery("t", PartitionIndex(0), record(6, None, None), b"u", 1, TimestampMs(0)),
            Delivery("t", PartitionIndex(0), record(7, b"", b""), b"w", 1, TimestampMs(0)),
        ],
        is_full=True,
    )
    answer = door.stub.Poll(
        pb.PollRequest(
            group="g",
            consumer_id="c",
            max_messages=3,
            wait_ms=10,
            visibility_ms=400,
            partitions=[pb.TopicPartitions(topic="t", partitions=[1])],
        )
    )
    assert door.queues.asked[0][1] == (
        PollOptions(
            group="g",
            consumer="c",
            count_max=3,
            wait_ms=10,
            visibility_ms=400,
            partitions={"t": frozenset({1})},
        ),
    )
    first, second, third = answer.messages
    assert answer.is_full
    assert first == pb.Message(
        topic="t",
        partition=1,
        offset=5,
        timestamp_ms=1_000,
        key=b"k",
        value=b"v",
        headers=[pb.Header(key="h", value=b"1"), pb.Header(key="n"), pb.Header(key="?", value=b"")],
        token=b"token",
        attempt=2,
        lease_until_ms=9_000,
    )
    assert (second.HasField("key"), second.HasField("value")) == (False, False)
    assert (third.HasField("key"), third.HasField("value")) == (True, True)


def test_a_poll_asks_for_one_message_and_does_not_wait_by_default(door: Door) -> None:
    door.queues.answers["poll"] = PollResult()
    door.stub.Poll(pb.PollRequest(group="g", consumer_id="c"), timeout=wait_seconds_max())
    huge = pb.PollRequest(group="g", consumer_id="c", max_messages=2**31 - 1, wait_ms=2**31 - 1)
    door.stub.Poll(huge)
    (_, (usual,), _), (_, (bounded,), _) = door.queues.asked
    assert usual == PollOptions(group="g", consumer="c")
    assert (bounded.count_max, bounded.wait_ms) == (1_000, 60_000)


def test_a_long_reason_is_cut_and_the_nack_carried_out(door: Door) -> None:
    door.queues.answers["nack"] = [DONE]
    nack = pb.NackRequest(group="g", consumer_id="c", tokens=[b"t"], reason="a" + "ž" * 5_000)
    assert door.stub.Nack(nack, timeout=wait_seconds_max()).done == 1
    ((_, _, named),) = door.queues.asked
    assert named["reason"] == "a" + "ž" * 2_047


def test_results_are_returned_token_by_token(door: Door) -> None:
    verdicts = [
        DONE,
        TokenResult(ErrorReason.EXPIRED, "late"),
        DONE,
        TokenResult(ErrorReason.BAD_TOKEN),
    ]
    told = pb.SettleResponse(
        done=2,
        refused=[
            pb.RefusedToken(index=1, reason=pb.EXPIRED, message="late"),
            pb.RefusedToken(index=3, reason=pb.BAD_TOKEN, message=ErrorReason.BAD_TOKEN.value),
        ],
    )
    door.queues.answers |= dict.fromkeys(("ack", "nack", "extend"), verdicts)
    who: Any = {"group": "g", "consumer_id": "c", "tokens": [b"a", b"b", b"c", b"d"]}
    assert door.stub.Ack(pb.AckRequest(**who), timeout=wait_seconds_max()) == told
    nack = pb.NackRequest(**who, delay_ms=0, reason="broken")
    assert door.stub.Nack(nack, timeout=wait_seconds_max()) == told
    assert door.stub.Nack(pb.NackRequest(**who), timeout=wait_seconds_max()) == told
    assert (
        door.stub.Extend(pb.ExtendRequest(**who, visibility_ms=7), timeout=wait_seconds_max())
        == told
    )
    asked = ("g", "c", [b"a", b"b", b"c", b"d"])
    assert door.queues.asked == [
        ("ack", asked, {}),
        ("nack", asked, {"delay_ms": 0, "reason": "broken"}),
        ("nack", asked, {"delay_ms": None, "reason": ""}),
        ("extend", asked, {"visibility_ms": 7}),
    ]


def test_stats_show_each_partition(door: Door) -> None:
    door.queues.answers["stats"] = GroupStats(
        group="g",
        settings=SETTINGS,
        consumers=2,
        partitions=(
            PartitionStats(
                topic="t",
                partition=PartitionIndex(0),
                leader=BrokerId(1),
                is_here=True,
                ready=1,
                leased=2,
                delayed=3,
                dead=4,
                floor=5,
                end=6,
            ),
        ),
    )
    assert door.stub.Stats(
        pb.StatsRequest(group="g"), timeout=wait_seconds_max()
    ) == pb.StatsResponse(
        group="g",
        settings=SHOWN,
        consumers=2,
        partitions=[
            pb.PartitionStats(
                topic="t",
                partition=0,
                leader=1,
                is_here=True,
                ready=1,
                leased=2,
                delayed=3,
                dead=4,
                floor=5,
                end=6,
            )
        ],
    )


@pytest.mark.parametrize("state", list(MessageState))
def test_peeked_messages_say_what_they_wait_for(door: Door, state: MessageState) -> None:
    door.queues.answers["peek"] = [
        InspectedMessage(
            topic="t",
            partition=PartitionIndex(0),
            record=record(3, b"k", b"v"),
            state=state,
            attempt=2,
            consumer="c",
            reason="why",
            due=99,
        )
    ]
    answer = door.stub.Peek(pb.PeekRequest(group="g", topic="t"), timeout=wait_seconds_max())
    (peeked,) = answer.messages
    assert pb.PeekedMessage.State.Name(peeked.state) == state.name
    assert (peeked.message.offset, peeked.message.value, peeked.message.attempt) == (3, b"v", 2)
    assert (peeked.consumer_id, peeked.reason, peeked.due_ms) == ("c", "why", 99)
    assert door.queues.asked == [("peek", ("g", "t"), {"count_max": 10})]


WHO: Any = {"group": "g", "consumer_id": "c"}
LONG = "x" * 2_000


@pytest.mark.parametrize(
    ("method", "request_"),
    [
        ("Connect", pb.ConnectRequest(topics=["t"])),
        ("Connect", pb.ConnectRequest(group="g")),
        ("Connect", pb.ConnectRequest(group="g", topics=[""])),
        ("Connect", pb.ConnectRequest(group=LONG, topics=["t"])),
        ("Connect", pb.ConnectRequest(group="g", topics=["t"] * 2_000)),
        ("Connect", pb.ConnectRequest(group="g", topics=["t"], mode=UNKNOWN)),
        ("Connect", pb.ConnectRequest(group="g", topics=["t"], start=UNKNOWN)),
        ("Connect", pb.ConnectRequest(group="g", topics=["t"], session_timeout_ms=-1)),
        ("Connect", pb.ConnectRequest(group="g", topics=["t"], client_id=LONG)),
        (
            "Connect",
            pb.ConnectRequest(group="g", topics=["t"], settings=pb.QueueSettings(visibility_ms=-1)),
        ),
        ("Disconnect", pb.DisconnectRequest(group="g")),
        ("Poll", pb.PollRequest(consumer_id="c")),
        ("Poll", pb.PollRequest(group="g")),
        ("Poll", pb.PollRequest(**WHO, max_messages=-1)),
        ("Poll", pb.PollRequest(**WHO, wait_ms=-1)),
        ("Poll", pb.PollRequest(**WHO, visibility_ms=-1)),
        ("Poll", pb.PollRequest(**WHO, partitions=[pb.TopicPartitions(partitions=[0])])),
        (
            "Poll",
            pb.PollRequest(**WHO, partitions=[pb.TopicPartitions(topic="t", partitions=[-1])]),
        ),
        ("Ack", pb.AckRequest(**WHO)),
        ("Ack", pb.AckRequest(**WHO, tokens=[b""] * 10_001)),
        ("Ack", pb.AckRequest(**WHO, tokens=[b"x" * 1_001])),
        ("Nack", pb.NackRequest(**WHO, tokens=[b"t"], delay_ms=-1)),
        ("Extend", pb.ExtendRequest(**WHO, tokens=[b"t"])),
        ("Extend", pb.ExtendRequest(**WHO, tokens=[b"t"], visibility_ms=-1)),
        ("Stats", pb.StatsRequest()),
        ("Peek", pb.PeekRequest(group="g")),
        ("Peek", pb.PeekRequest(group="g", topic="t", max_messages=-1)),
        ("DeleteGroup", pb.DeleteGroupRequest()),
    ],
)
def test_what_is_out_of_bounds_is_refused_before_anybody_is_asked(
    door: Door, method: str, request_: Any
) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        getattr(door.stub, method)(request_, timeout=wait_seconds_max())
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert reason_of(caught.value) == "INVALID_ARGUMENT"
    assert door.queues.asked == []
