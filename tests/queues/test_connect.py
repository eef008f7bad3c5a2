"""How somebody becomes a consumer: of which kind of group, with which settings, by which name."""

import uuid
from typing import Any, cast

import pytest

from moldau.metadata.apply import apply_all
from moldau.metadata.commands import (
    Command,
    CreateTopic,
    DefineQueueGroup,
    DropQueueGroup,
    RegisterBroker,
)
from moldau.metadata.decide import decide
from moldau.metadata.image import EMPTY_IMAGE, Image
from moldau.metadata.leaders import NO_LEADER
from moldau.metadata.queue_groups import QueueGroup
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import BrokerId, TopicId
from moldau.queues.assignments import Assignments
from moldau.queues.connect import ConnectHandler, starts_at_end
from moldau.queues.group_rpc_messages import (
    GroupDescription,
    MemberDescription,
    MemberHeartbeatRequest,
    MemberHeartbeatResponse,
)
from moldau.queues.types import ConnectOptions, ErrorReason, Mode, QueueRefusedError, StartAt
from moldau.testing.replicas import ManualClock


class World:
    """Metadata and a coordinator in one."""

    def __init__(self) -> None:
        self.image: Image = EMPTY_IMAGE
        self.unheard: list[Command] = []
        """Decided elsewhere, and not known here until a fresh image is asked for."""
        self.submitted: list[Command] = []
        self.refusal: RefusedError | None = None
        self.faster: list[Command] = []
        """Of other brokers: each is decided just before one that is submitted here."""
        self.told = GroupDescription(members=[], classic_members=0, has_offsets=False)
        self.beats: list[MemberHeartbeatRequest] = []
        self.join_refusal: QueueRefusedError | None = None
        self.defined: list[QueueGroup] = []
        self._apply(RegisterBroker(id=BrokerId(1), host="h", port=1, incarnation="i"))
        self.create("t")
        self.connecting = ConnectHandler(
            new_uuid=uuid.uuid4,
            metadata=cast(Any, self),
            calls=cast(Any, self),
            assignments=Assignments(
                clock=ManualClock(), image=lambda: self.image, leader_of=lambda *_: NO_LEADER
            ),
            session_timeout_ms=45_000,
            session_timeout_ms_min=6_000,
            session_timeout_ms_max=60_000,
            on_defined=self.defined.append,
        )

    def create(self, name: str, *, internal: bool = False, restoring: str = "") -> None:
        number = len(self.image.topics) + 1
        self._apply(
            CreateTopic(
                name=name,
                topic_id=TopicId(number.to_bytes(16, "big")),
                partitions=2,
                replication_factor=1,
                internal=internal,
                configs={"moldau.restoring": restoring} if restoring else {},
            )
        )

    def _apply(self, command: Command) -> None:
        self.image = apply_all(self.image, decide(command, self.image))

    # ---- in place of the metadata

    async def fresh(self) -> Image:
        if self.refusal is not None:
            raise self.refusal
        for command in self.unheard:
            self._apply(command)
        self.unheard = []
        return self.image

    def preview(self, command: Command) -> Image:
        return apply_all(self.image, decide(command, self.image))

    async def submit(self, command: Command) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.submitted.append(command)
        self.unheard += [self.faster.pop(0)] if self.faster else []
        leaders = self.image
        for other in self.unheard:
            leaders = apply_all(leaders, decide(other, leaders))
        self.image = apply_all(leaders, decide(command, leaders))
        self.unheard = []

    # ---- in place of the coordinator

    async def describe(self, group: str) -> GroupDescription:
        return self.told

    async def heartbeat(self, asked: MemberHeartbeatRequest) -> MemberHeartbeatResponse:
        if self.join_refusal is not None:
            raise self.join_refusal
        self.beats.append(asked)
        told = MemberDescription(
            member=asked.member,
            topics=asked.topics,
            is_queue=asked.is_queue,
            assigned=[(self.image.topics["t"].topic_id, [1])],
            revoking=[],
        )
        return MemberHeartbeatResponse(interval_ms=2_000, member=told)

    async def connect(self, mode: Mode | None = None, **asked: Any) -> Any:
        grant = {"group": "g", "topics": ("t",), **asked}
        return await self.connecting.connect(ConnectOptions(mode=mode, **grant))

    async def reason(self, mode: Mode | None = None, **asked: Any) -> ErrorReason:
        with pytest.raises(QueueRefusedError) as caught:
            await self.connect(mode, **asked)
        return caught.value.reason


def member(*, is_queue: bool) -> MemberDescription:
    return MemberDescription(member="m", topics=(), is_queue=is_queue, assigned=[], revoking=[])


def group_told(
    *members: MemberDescription, classic: int = 0, offsets: bool = False
) -> GroupDescription:
    return GroupDescription(members=list(members), classic_members=classic, has_offsets=offsets)


async def test_a_new_group_is_ordered_by_default() -> None:
    world = World()
    connected = await world.connect(client_id="me", session_timeout_ms=10_000)
    assert connected.mode is Mode.ORDERED
    assert connected.settings is None
    assert [(one.topic, one.partition) for one in connected.assignment.partitions] == [("t", 1)]
    assert world.submitted == []
    (heartbeat,) = world.beats
    assert not heartbeat.is_queue
    assert (heartbeat.client_id, heartbeat.session_timeout_ms) == ("me", 10_000)
    assert connected.consumer.startswith("me-")
    connected = await world.connect(Mode.QUEUE, attempts_max=2)
    assert connected.mode is Mode.QUEUE
    assert connected.settings.attempts_max == 2
    assert connected.session_timeout_ms == 45_000
    assert len(connected.assignment.partitions) == 2
    assert world.beats[-1].is_queue
    assert [group.name for group in world.defined] == ["g"]


async def test_only_what_changes_a_group_is_written() -> None:
    world = World()
    for _ in range(3):
        await world.connect(Mode.QUEUE)
    assert len(world.submitted) == 1
    await world.connect(visibility_ms=5_000)
    await world.connect(visibility_ms=5_000)
    assert len(world.submitted) == 2
    world.create("u")
    await world.connect(topics=("u", "t"))
    assert world.image.queue_groups["g"].topics == ("t", "u")


async def test_names_are_unique_short_and_say_where_an_ordered_consumer_begins() -> None:
    world = World()
    names = [(await world.connect(client_id="ü" * 500)).consumer for _ in range(3)]
    assert len(set(names)) == 3
    assert all(len(name.encode()) <= 120 for name in names)
    assert not starts_at_end(names[0])
    assert starts_at_end((await world.connect(start=StartAt.LATEST)).consumer)
    assert (await world.connect()).consumer.startswith("consumer-")
    # Also if the client's own name looks like it.
    assert not starts_at_end((await world.connect(client_id="a-l1")).consumer)


async def test_what_another_broker_knows_is_asked_for_before_it_is_refused() -> None:
    world = World()
    world.unheard = [DefineQueueGroup(name="g")]
    assert (await world.connect()).mode is Mode.QUEUE
    topic = CreateTopic(name="new", topic_id=TopicId(b"n" * 16), partitions=1, replication_factor=1)
    world.unheard = [topic]
    await world.connect(topics=("new",))
    assert await world.reason(topics=("missing",)) is ErrorReason.UNKNOWN_TOPIC
    world.refusal = RefusedError(ErrorCode.NOT_CONTROLLER)
    assert await world.reason(topics=("missing",)) is ErrorReason.UNAVAILABLE


async def test_a_name_is_of_one_kind() -> None:
    world = World()
    world.told = group_told(member(is_queue=False))
    assert await world.reason(Mode.QUEUE) is ErrorReason.OTHER_MODE
    assert (await world.connect()).mode is Mode.ORDERED
    world.told = group_told(offsets=True)
    assert await world.reason(Mode.QUEUE) is ErrorReason.OTHER_MODE
    assert (await world.connect(Mode.ORDERED)).mode is Mode.ORDERED
    world.told = group_told(classic=1)
    assert await world.reason(Mode.QUEUE) is ErrorReason.OTHER_MODE
    assert await world.reason() is ErrorReason.OTHER_MODE
    world.told = group_told(member(is_queue=True))
    assert await world.reason(Mode.ORDERED) is ErrorReason.OTHER_MODE
    assert world.image.queue_groups == {}
    assert (await world.connect()).mode is Mode.QUEUE
    # From now on the name stands in the metadata.
    world.told = group_told()
    assert await world.reason(Mode.ORDERED) is ErrorReason.OTHER_MODE


async def test_a_name_that_another_client_took_first_is_given_back() -> None:
    world = World()
    world.join_refusal = QueueRefusedError(ErrorReason.OTHER_MODE)
    assert await world.reason(Mode.QUEUE) is ErrorReason.OTHER_MODE
    assert world.image.queue_groups == {}
    assert isinstance(world.submitted[-1], DropQueueGroup)
    # Not so one that was there before, or that could not be asked.
    world.join_refusal = QueueRefusedError(ErrorReason.UNAVAILABLE)
    assert await world.reason(Mode.QUEUE) is ErrorReason.UNAVAILABLE
    world.join_refusal = QueueRefusedError(ErrorReason.OTHER_MODE)
    assert await world.reason(Mode.QUEUE) is ErrorReason.OTHER_MODE
    assert "g" in world.image.queue_groups
    assert world.defined == []


async def test_what_is_out_of_bounds_is_refused() -> None:
    world = World()
    world.create("__consumer_offsets", internal=True)
    for asked in (
        {"group": ""},
        {"topics": ()},
        {"topics": tuple(str(number) for number in range(101))},
        {"topics": ("__consumer_offsets",)},
        {"session_timeout_ms": 5_999},
        {"session_timeout_ms": 60_001},
        {"attempts_max": 3},
        {"dead_letter_topic": "d"},
    ):
        assert await world.reason(**asked) is ErrorReason.INVALID_ARGUMENT
    for settings in (
        {"visibility_ms": 0},
        {"dead_letter_topic": "t"},
        {"dead_letter_topic": "no/name"},
        {"group": "not a topic's name"},
        {"backoff_ms": 5, "backoff_ms_max": 4},
    ):
        assert await world.reason(Mode.QUEUE, **settings) is ErrorReason.INVALID_ARGUMENT
    assert world.beats == []
    assert world.submitted == []


async def test_metadata_that_cannot_be_written_are_no_mistake_of_the_asker() -> None:
    world = World()
    world.told = group_told(member(is_queue=True))
    world.refusal = RefusedError(ErrorCode.REQUEST_TIMED_OUT, "nobody leads")
    assert await world.reason(Mode.QUEUE) is ErrorReason.UNAVAILABLE


class Checks:
    """What a definition check is asked; it refuses groups that have the topic `secret`."""

    def __init__(self) -> None:
        self.asked: list[tuple[QueueGroup | None, QueueGroup]] = []

    def __call__(self, known: QueueGroup | None, desired: QueueGroup) -> None:
        self.asked.append((known, desired))
        if known is not None and "secret" in known.topics:
            raise RefusedError(ErrorCode.GROUP_AUTHORIZATION_FAILED, "no")


def queue_options(**asked: Any) -> ConnectOptions:
    return ConnectOptions(**{"group": "g", "topics": ("t",), "mode": Mode.QUEUE, **asked})


async def test_a_definition_is_checked_as_often_as_it_changes() -> None:
    world, checks = World(), Checks()
    await world.connecting.connect(queue_options(), checks)
    assert [(known, desired.topics) for known, desired in checks.asked] == [(None, ("t",))]
    await world.connecting.connect(queue_options(), checks)
    assert len(checks.asked) == 1
    await world.connecting.connect(queue_options(visibility_ms=7), checks)
    known, desired = checks.asked[-1]
    assert known is not None
    assert (known.settings.visibility_ms, desired.settings.visibility_ms) == (30_000, 7)


async def test_a_queue_that_another_broker_defines_at_the_same_time_is_checked_again() -> None:
    """Otherwise who may define a new queue could change one that reads other topics."""
    world, checks = World(), Checks()
    world.create("secret")
    world.faster = [DefineQueueGroup(name="g", topics=("secret",))]
    with pytest.raises(RefusedError) as caught:
        await world.connecting.connect(queue_options(dead_letter_topic="mine"), checks)
    assert caught.value.code is ErrorCode.GROUP_AUTHORIZATION_FAILED
    assert [known and known.topics for known, _ in checks.asked] == [None, ("secret",)]
    assert world.image.queue_groups["g"].settings.dead_letter_topic == "g.dead"
    assert world.beats == []


async def test_a_change_at_the_same_time_that_is_allowed_does_not_fail_a_consumer() -> None:
    world, checks = World(), Checks()
    world.faster = [DefineQueueGroup(name="g", topics=("t",), attempts_max=3)]
    connected = await world.connecting.connect(queue_options(visibility_ms=7), checks)
    assert connected.settings is not None
    assert (connected.settings.attempts_max, connected.settings.visibility_ms) == (3, 7)


async def test_a_queue_that_changes_all_the_time_is_given_up_on() -> None:
    world, checks = World(), Checks()
    world.faster = [
        DefineQueueGroup(name="g", topics=("t",), attempts_max=number) for number in range(1, 100)
    ]
    with pytest.raises(QueueRefusedError) as caught:
        await world.connecting.connect(queue_options(visibility_ms=7), checks)
    assert caught.value.reason is ErrorReason.UNAVAILABLE
    assert len(checks.asked) == 5


async def test_nobody_connects_to_a_topic_that_is_being_restored() -> None:
    world = World()
    world.create("back", restoring="chain/1")
    for mode in Mode:
        assert await world.reason(mode, topics=("t", "back")) is ErrorReason.UNAVAILABLE
    assert world.submitted == []
    assert world.beats == []
