"""Groups: results per topic where some are refused, and events that name another group."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from guarded_calls import GuardedWorld, allow, outcome
from handler_calls import brokers, image, topic
from msgspec import structs
from use_case_samples import CONSUMER_HEARTBEAT

from moldau.api.guard import ListenerAccess
from moldau.api.session import Session
from moldau.groups.events import ConsumerHeartbeat, Heartbeat, OffsetToCommit
from moldau.groups.results import ConsumerHeartbeatResult
from moldau.metadata.image import CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import (
    NO_EPOCH,
    Offset,
    PartitionIndex,
    ProducerEpoch,
    ProducerId,
    TopicPartition,
)
from moldau.security.acl import Operation, ResourceType

TOPIC, GROUP = ResourceType.TOPIC, ResourceType.GROUP
REFUSED = ErrorCode.TOPIC_AUTHORIZATION_FAILED
PRODUCER = ProducerId(1), ProducerEpoch(0)


def world(*topics: str) -> GuardedWorld:
    made = GuardedWorld()
    made.grant(
        [
            allow(Operation.ALL, GROUP, "billing"),
            allow(Operation.ALL, ResourceType.TRANSACTIONAL_ID, "payments"),
            *(allow(Operation.READ, TOPIC, name) for name in topics),
        ]
    )
    return made


def offset(name: str, at: int) -> OffsetToCommit:
    partition = TopicPartition(name, PartitionIndex(0))
    return OffsetToCommit(
        partition=partition, offset=Offset(at), leader_epoch=NO_EPOCH, metadata=""
    )


OFFSETS = [offset("a", 1), offset("b", 2), offset("a", 3), offset("c", 4)]
EXPECTED = [ErrorCode.NONE, REFUSED, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.NONE]


def test_only_offsets_of_allowed_topics_are_committed() -> None:
    made = world("a", "c")
    committed: list[OffsetToCommit] = []

    def commit(group_id: str, offsets: Sequence[OffsetToCommit], **_: object) -> list[ErrorCode]:
        committed.extend(offsets)
        return [ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.NONE]

    made.services["groups"].effects["commit_offsets"] = commit
    found = outcome(
        lambda s: s.groups.commit_offsets("billing", OFFSETS, generation=1), made.session()
    )
    assert found == EXPECTED
    assert committed == [OFFSETS[0], OFFSETS[2], OFFSETS[3]]


def test_the_same_in_a_transaction() -> None:
    made = world("a", "c")
    made.services["transactions"].answers["commit_offsets"] = [
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NONE,
    ]
    found = outcome(
        lambda s: s.transactions.commit_offsets(
            "payments", "billing", *PRODUCER, OFFSETS, adds=True
        ),
        made.session(),
    )
    assert found == EXPECTED


def test_partitions_beside_a_refused_one_are_not_added_to_a_transaction() -> None:
    made = world("a")
    made.grant(
        [
            allow(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, "payments"),
            allow(Operation.WRITE, TOPIC, "a"),
        ]
    )
    wanted = [offset("a", 0).partition, offset("b", 0).partition]
    found = outcome(
        lambda s: s.transactions.add_partitions("payments", *PRODUCER, wanted), made.session()
    )
    assert found == {wanted[0]: ErrorCode.OPERATION_NOT_ATTEMPTED, wanted[1]: REFUSED}
    assert made.touched == []


def test_only_allowed_groups_are_deleted() -> None:
    made = world()
    made.services["groups"].effects["delete_groups"] = lambda ids: dict.fromkeys(
        ids, ErrorCode.NONE
    )
    found = outcome(lambda s: s.groups.delete_groups(["other", "billing"]), made.session())
    assert found == {"other": ErrorCode.GROUP_AUTHORIZATION_FAILED, "billing": ErrorCode.NONE}
    ((_, (deleted,), _),) = made.services["groups"].calls
    assert deleted == ["billing"]


def test_an_event_cannot_be_for_another_group_than_the_checked_one() -> None:
    made = world()

    def event(request_id: int) -> Heartbeat:
        return Heartbeat(
            request_id=request_id, group_id="secret", member_id="m", generation=1, instance_id=None
        )

    with pytest.raises(ValueError, match="another group"):
        outcome(lambda s: s.groups.heartbeat("billing", event), made.session())
    assert made.touched == []


def test_a_pattern_does_not_show_topics_that_the_client_may_not_describe() -> None:
    made = world("orders")
    seen = image(brokers(1), topic("orders", (1,)), topic("secret", (1,)))
    made.seed(topics=seen.topics, topics_by_id=seen.topics_by_id)
    ids = {name: found.topic_id for name, found in seen.topics.items()}
    assignment = dict.fromkeys(ids.values(), frozenset({0}))
    made.services["groups"].answers["submit"] = ConsumerHeartbeatResult(
        error=ErrorCode.NONE, assignment=assignment
    )

    def event(request_id: int) -> ConsumerHeartbeat:
        return structs.replace(CONSUMER_HEARTBEAT(request_id), topics=None, pattern="orders|secret")

    found = outcome(lambda s: s.groups.consumer_heartbeat("billing", event), made.session())
    assert found.assignment == {ids["orders"]: frozenset({0})}


@pytest.mark.parametrize(
    ("find", "stored_in"),
    [
        (lambda session: session.groups.find_coordinator("billing"), CONSUMER_OFFSETS_TOPIC),
        (
            lambda session: session.transactions.find_coordinator("payments"),
            TRANSACTION_STATE_TOPIC,
        ),
    ],
    ids=["groups", "transactions"],
)
def test_a_read_only_listener_does_not_create_the_topic_of_coordinators(
    find: Callable[[Session], Any], stored_in: str
) -> None:
    made = world()
    listener = ListenerAccess(name="ro", read_only=True)
    assert isinstance(outcome(find, made.session(listener=listener)), RefusedError)
    assert made.touched == []
    assert not isinstance(outcome(find, made.session()), RefusedError)
    seen = image(brokers(1), topic(stored_in, (1,)))
    made.seed(topics=seen.topics)
    assert not isinstance(outcome(find, made.session(listener=listener)), RefusedError)


def test_a_group_is_shown_without_lags_while_too_many_ask_for_them() -> None:
    made = world()

    def refuse(name: str) -> None:
        raise RefusedError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"too many ask: {name}")

    made.services["group_lags"].effects["positions"] = refuse
    assert outcome(lambda s: s.queries.position_lags("billing"), made.session()) == {}
