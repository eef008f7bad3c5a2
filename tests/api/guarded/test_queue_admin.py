"""Who may look after a queue: rights on its dead-letter topic, and what is shown without them."""

from typing import Any

import pytest
from guarded_calls import GuardedWorld, allow, outcome
from handler_calls import topic
from use_case_samples import GROUP, QUEUE, TOPIC

from moldau.model.errors import ErrorCode, RefusedError
from moldau.queues.admin import DeadLetterPage, DeadLetterPosition, QueueView
from moldau.queues.admin_messages import Purged
from moldau.security.acl import Operation
from moldau.security.principal import user

VIEW = QueueView(group=QUEUE, partitions=[], in_flight=[], dead_letters=3, silent=[])
USES = [allow(Operation.READ, GROUP, "billing"), allow(Operation.ALL, TOPIC, "orders")]
DESCRIBES_DEAD = allow(Operation.DESCRIBE, TOPIC, "dead")


@pytest.fixture
def made() -> GuardedWorld:
    world = GuardedWorld()
    topics = {**world.broker.image.topics, "dead": topic("dead", (1,))}
    world.seed(queue_groups={"billing": QUEUE}, topics=topics)
    answers = world.services["queue_admin"].answers
    answers["show"] = VIEW
    answers["dead_letters"] = DeadLetterPage(topic="dead", records=[], next=None, silent=[])
    return world


def read(session: Any) -> Any:
    return session.queue_admin.dead_letters("billing", "orders", DeadLetterPosition(0, -1), 1)


def redrive(session: Any, target: str | None = None) -> Any:
    return session.queue_admin.redrive(
        "billing", "orders", None, target=target, validate_only=False
    )


def purge(session: Any, confirm: str = "billing") -> Any:
    return session.queue_admin.purge("billing", "orders", Purged.DEAD, confirm=confirm)


def test_a_dead_letter_topic_that_the_client_may_not_know_of_is_not_shown(
    made: GuardedWorld,
) -> None:
    made.grant(USES)
    seen = outcome(lambda s: s.queue_admin.show("billing", "orders"), made.session())
    assert (seen.group.settings.dead_letter_topic, seen.dead_letters) == ("", None)
    made.grant([*USES, DESCRIBES_DEAD])
    seen = outcome(lambda s: s.queue_admin.show("billing", "orders"), made.session())
    assert (seen.group.settings.dead_letter_topic, seen.dead_letters) == ("dead", 3)


@pytest.mark.parametrize(
    ("call", "right"),
    [(read, Operation.READ), (redrive, Operation.READ), (purge, Operation.DELETE)],
)
def test_dead_letters_need_the_right_on_their_topic(
    made: GuardedWorld, call: Any, right: Operation
) -> None:
    made.grant(USES)
    hidden = outcome(call, made.session())
    assert isinstance(hidden, RefusedError)
    assert hidden.code is ErrorCode.GROUP_AUTHORIZATION_FAILED
    assert "dead" not in hidden.message.replace("dead-letter", "")
    made.grant([*USES, DESCRIBES_DEAD])
    seen = outcome(call, made.session())
    assert isinstance(seen, RefusedError)
    assert seen.code is ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert made.touched == []
    made.grant([*USES, allow(right, TOPIC, "dead")])
    assert not isinstance(outcome(call, made.session()), RefusedError)


def test_a_redrive_to_another_topic_needs_the_right_to_write_there(made: GuardedWorld) -> None:
    made.grant([*USES, allow(Operation.READ, TOPIC, "dead")])
    refused = outcome(lambda s: redrive(s, "elsewhere"), made.session())
    assert isinstance(refused, RefusedError)
    assert refused.code is ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert made.touched == []


def test_a_purge_without_the_name_of_the_group_removes_nothing(made: GuardedWorld) -> None:
    refused = outcome(lambda s: purge(s, "orders"), made.session(user("root")))
    assert isinstance(refused, RefusedError)
    assert (refused.code, made.touched) == (ErrorCode.INVALID_REQUEST, [])
    assert refused.hint
