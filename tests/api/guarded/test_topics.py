"""Topics by id: what a client may not describe is as unknown as what is missing. Who restores."""

from collections.abc import Callable
from typing import Any

import pytest
from guarded_calls import GuardedWorld, allow, outcome
from handler_calls import topic

from moldau.api.session import Session
from moldau.control.config_service import ResourceKind
from moldau.metadata.commands import ConfigChange, ConfigOperation
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import TopicId
from moldau.security.acl import Operation, ResourceType

TOPIC = ResourceKind.TOPIC
ORDERS = topic("orders", (1, 2)).topic_id
OTHER = TopicId(b"x" * 16)


def delete(world: GuardedWorld, **which: Any) -> RefusedError | None:
    found = outcome(lambda s: s.topics.delete(**which), world.session())
    assert (world.touched == []) == isinstance(found, RefusedError)
    return found if isinstance(found, RefusedError) else None


def world(*operations: Operation) -> GuardedWorld:
    made = GuardedWorld()
    made.grant(allow(each, ResourceType.TOPIC, "orders") for each in operations)
    return made


def test_a_hidden_topic_and_a_missing_one_get_the_same_answer() -> None:
    hidden, missing = delete(world(), topic_id=ORDERS), delete(world(), topic_id=OTHER)
    assert hidden is not None
    assert missing is not None
    assert hidden.code is missing.code is ErrorCode.UNKNOWN_TOPIC_ID
    assert str(hidden) == str(missing)


def test_a_topic_that_may_be_described_but_not_deleted() -> None:
    refused = delete(world(Operation.DESCRIBE), topic_id=ORDERS)
    assert refused is not None
    assert refused.code is ErrorCode.TOPIC_AUTHORIZATION_FAILED


def test_the_right_to_delete_holds_for_the_id_too() -> None:
    assert delete(world(Operation.DELETE), topic_id=ORDERS) is None


@pytest.mark.parametrize("which", [{}, {"name": "orders", "topic_id": OTHER}])
def test_a_call_that_names_no_topic_or_two_is_refused(which: dict[str, Any]) -> None:
    assert delete(world(Operation.DELETE), **which) is not None


@pytest.mark.parametrize("name", ["orders", "nowhere"])
def test_names_are_refused_whether_they_exist_or_not(name: str) -> None:
    found = outcome(lambda s: s.topics.find(name), world().session())
    assert isinstance(found, RefusedError)
    assert found.code is ErrorCode.TOPIC_AUTHORIZATION_FAILED


RESTORING = "moldau.restoring"


def change(operation: ConfigOperation, value: str | None) -> ConfigChange:
    return ConfigChange(name=RESTORING, operation=operation, value=value)


@pytest.mark.parametrize("may_restore", [False, True])
@pytest.mark.parametrize(
    "call",
    [
        lambda s: s.topics.create("orders", configs={RESTORING: "x/1"}),
        lambda s: s.configs.replace(TOPIC, "orders", {RESTORING: "x/1"}, validate_only=False),
        lambda s: s.configs.alter(
            TOPIC, "orders", [change(ConfigOperation.SET, "x/1")], validate_only=False
        ),
    ],
)
def test_only_who_may_restore_marks_a_topic_as_being_restored(
    call: Callable[[Session], Any], may_restore: bool
) -> None:
    made = GuardedWorld()
    rights = [
        allow(each, ResourceType.TOPIC, "orders")
        for each in (Operation.CREATE, Operation.ALTER_CONFIGS)
    ]
    if may_restore:
        rights.append(allow(Operation.ALTER, ResourceType.CLUSTER, "kafka-cluster"))
    made.grant(rights)
    found = outcome(call, made.session())
    assert isinstance(found, RefusedError) is not may_restore
    assert bool(made.touched) is may_restore


def test_who_may_alter_settings_may_end_a_restore() -> None:
    made = world(Operation.ALTER_CONFIGS)
    changes = [change(ConfigOperation.DELETE, None)]
    found = outcome(
        lambda s: s.configs.alter(TOPIC, "orders", changes, validate_only=False), made.session()
    )
    assert not isinstance(found, RefusedError)
    assert made.touched == ["configs.alter"]
