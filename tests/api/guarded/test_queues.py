"""Dead letters: the broker writes them, so who makes it do so needs the right to write there."""

from typing import Any

import pytest
from guarded_calls import GuardedWorld, allow, outcome
from handler_calls import brokers, image, topic
from msgspec.structs import replace
from use_case_samples import CONNECTED

from moldau.metadata.queue_groups import QueueGroup, QueueSettings
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import Offset, PartitionIndex, TimestampMs
from moldau.queues.connect import DefinitionCheck
from moldau.queues.types import (
    ConnectOptions,
    ConnectResult,
    Delivery,
    GroupStats,
    Mode,
    PollOptions,
    PollResult,
)
from moldau.records.record import Record
from moldau.security.acl import CLUSTER_NAME, Acl, Operation, ResourceType

TOPIC, GROUP = ResourceType.TOPIC, ResourceType.GROUP
CONSUME = [
    allow(Operation.READ, GROUP, "billing"),
    allow(Operation.READ, TOPIC, "orders"),
    allow(Operation.READ, TOPIC, "refunds"),
]


def connect(
    world: GuardedWorld, *topics: str, mode: Mode | None = Mode.QUEUE, dead: str | None = None
) -> ErrorCode | None:
    """The refusal; None if the consumer was let in."""
    options = ConnectOptions(
        group="billing", topics=topics or ("orders",), mode=mode, dead_letter_topic=dead
    )
    found = outcome(lambda session: session.queues.connect(options), world.session())
    return found.code if isinstance(found, RefusedError) else None


def world(*, defined: QueueGroup | None = None, dead: tuple[str, ...] = ()) -> GuardedWorld:
    made = GuardedWorld()
    names = ("orders", "refunds", *dead)
    seen = image(brokers(1), *(topic(name, (1,)) for name in names))
    made.seed(topics=seen.topics, topics_by_id=seen.topics_by_id)

    def define(options: ConnectOptions, check: DefinitionCheck) -> ConnectResult:
        if defined is None and options.mode is not Mode.QUEUE:
            return CONNECTED
        known = defined or queue()
        settings = known.settings
        if options.dead_letter_topic is not None:
            settings = replace(settings, dead_letter_topic=options.dead_letter_topic)
        if options.visibility_ms is not None:
            settings = replace(settings, visibility_ms=options.visibility_ms)
        topics = tuple(dict.fromkeys((*known.topics, *options.topics)))
        desired = QueueGroup(name="billing", topics=topics, settings=settings)
        if desired != defined:
            check(defined, desired)
        return replace(CONNECTED, mode=Mode.QUEUE, settings=settings)

    made.services["queues"].effects["connect"] = define
    return made


def queue(*topics: str, dead: str = "billing.dead") -> QueueGroup:
    return QueueGroup(name="billing", topics=topics, settings=QueueSettings(dead_letter_topic=dead))


REFUSED = ErrorCode.TOPIC_AUTHORIZATION_FAILED


@pytest.mark.parametrize("dead", [None, "elsewhere"])
def test_who_defines_a_queue_must_be_allowed_to_write_its_dead_letters(dead: str | None) -> None:
    name = dead or "billing.dead"
    made = world(dead=(name,))
    made.grant(CONSUME)
    assert connect(made, dead=dead) is REFUSED
    made.grant([*CONSUME, allow(Operation.WRITE, TOPIC, name)])
    assert connect(made, dead=dead) is None


def test_a_dead_letter_topic_that_is_missing_must_be_creatable() -> None:
    made = world()
    writes = allow(Operation.WRITE, TOPIC, "billing.dead")
    made.grant([*CONSUME, writes])
    assert connect(made) is REFUSED
    made.grant([*CONSUME, writes, allow(Operation.CREATE, TOPIC, "billing.dead")])
    assert connect(made) is None
    made = world()
    on_cluster = allow(Operation.CREATE, ResourceType.CLUSTER, CLUSTER_NAME)
    made.grant([*CONSUME, writes, on_cluster])
    assert connect(made) is None


@pytest.mark.parametrize("mode", [None, Mode.QUEUE])
def test_who_joins_a_queue_as_it_is_needs_no_right_on_dead_letters(mode: Mode | None) -> None:
    made = world(defined=queue("orders", "refunds"))
    made.grant(CONSUME)
    assert connect(made, mode=mode) is None


@pytest.mark.parametrize("mode", [None, Mode.QUEUE])
def test_who_adds_a_topic_to_a_queue_lets_its_messages_be_copied(mode: Mode | None) -> None:
    made = world(defined=queue("orders"), dead=("billing.dead",))
    made.grant(CONSUME)
    assert connect(made, "orders", "refunds", mode=mode) is REFUSED
    made.grant([*CONSUME, allow(Operation.WRITE, TOPIC, "billing.dead")])
    assert connect(made, "orders", "refunds", mode=mode) is None


def test_who_moves_dead_letters_must_be_allowed_to_write_to_the_new_topic() -> None:
    made = world(defined=queue("orders"), dead=("billing.dead", "secret"))
    made.grant([*CONSUME, allow(Operation.WRITE, TOPIC, "billing.dead")])
    assert connect(made, dead="secret") is REFUSED
    assert connect(made, dead="billing.dead") is None


@pytest.mark.parametrize("change", [{"dead_letter_topic": "mine"}, {"visibility_ms": 1}])
def test_who_changes_a_queue_must_be_allowed_to_read_all_of_its_topics(change) -> None:
    """Dead letters of a topic that the client may not read would come to one that it reads."""
    made = world(defined=queue("orders", "salaries"), dead=("mine", "billing.dead"))
    writes = [allow(Operation.WRITE, TOPIC, name) for name in ("mine", "billing.dead")]
    made.grant([*CONSUME, *writes])
    options = ConnectOptions(group="billing", topics=("orders",), mode=Mode.QUEUE, **change)
    found = outcome(lambda session: session.queues.connect(options), made.session())
    assert isinstance(found, RefusedError)
    assert found.code is ErrorCode.GROUP_AUTHORIZATION_FAILED
    assert "salaries" not in found.message
    made.grant([*CONSUME, *writes, allow(Operation.READ, TOPIC, "salaries")])
    found = outcome(lambda session: session.queues.connect(options), made.session())
    assert isinstance(found, ConnectResult)


def test_an_ordered_group_has_no_dead_letters() -> None:
    made = world()
    made.grant(CONSUME)
    assert connect(made, mode=None) is None


def delivery(name: str) -> Delivery:
    record = Record(Offset(0), TimestampMs(0), None, b"", [])
    return Delivery(name, PartitionIndex(0), record, b"token", 1, TimestampMs(0))


def polled(made: GuardedWorld, *topics: str, rights: list[Acl]) -> Any:
    """What a poll returns whose rights are these when its messages come."""

    def poll(options: PollOptions) -> PollResult:
        made.grant(rights)
        return PollResult(deliveries=[delivery(name) for name in topics])

    made.services["queues"].answers["topics_of"] = frozenset({"orders"})
    made.services["queues"].effects["poll"] = poll
    made.grant(CONSUME)
    options = PollOptions(group="billing", consumer="c")
    return outcome(lambda session: session.queues.poll(options), made.session())


@pytest.mark.parametrize("kept", range(2), ids=["group", "topic"])
def test_rights_that_end_while_a_poll_waits_count_when_it_answers(kept: int) -> None:
    found = polled(world(), "orders", rights=[CONSUME[kept]])
    assert isinstance(found, RefusedError)
    assert found.code is ErrorCode.GROUP_AUTHORIZATION_FAILED
    assert len(polled(world(), "orders", "refunds", rights=CONSUME).deliveries) == 2


def test_a_refusal_names_no_topic_that_the_client_may_not_know_of() -> None:
    found = polled(world(), "orders", "salaries", rights=CONSUME)
    assert isinstance(found, RefusedError)
    assert "salaries" not in found.message
    describes = allow(Operation.DESCRIBE, TOPIC, "salaries")
    found = polled(world(), "orders", "salaries", rights=[*CONSUME, describes])
    assert isinstance(found, RefusedError)
    assert found.code is REFUSED
    assert "salaries" in found.message


def test_a_dead_letter_topic_is_shown_to_those_who_may_know_of_it() -> None:
    made = world(defined=queue("orders"), dead=("billing.dead",))
    made.seed(queue_groups={"billing": queue("orders")})
    made.services["queues"].answers["list_groups"] = [queue("orders")]
    stats = GroupStats(group="billing", settings=queue().settings, consumers=0, partitions=())
    made.services["queues"].answers["stats"] = stats
    options = ConnectOptions(group="billing", topics=("orders",), mode=Mode.QUEUE)

    def shown() -> list[str]:
        session = made.session()
        return [
            each.settings.dead_letter_topic
            for each in (
                outcome(lambda s: s.queues.connect(options), session),
                outcome(lambda s: s.queues.stats("billing"), session),
                *outcome(lambda s: s.queues.list_groups(), session),
                *session.queues.known_groups(),
            )
        ]

    made.grant(CONSUME)
    assert shown() == [""] * 4
    made.grant([*CONSUME, allow(Operation.DESCRIBE, TOPIC, "billing.dead")])
    assert shown() == ["billing.dead"] * 4
