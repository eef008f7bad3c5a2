"""What a broker knows of the members of groups: newer if need be, and who is gone is told."""

import asyncio
from typing import cast

import pytest

from moldau.model.ids import TopicId
from moldau.queues import members as members_module
from moldau.queues.group_rpc_client import GroupRpcClient
from moldau.queues.group_rpc_messages import GroupDescription, MemberDescription
from moldau.queues.members import Members
from moldau.queues.types import ErrorReason, QueueRefusedError
from moldau.testing.replicas import ManualClock
from moldau.testing.waiting import until

TOPIC = TopicId(b"t" * 16)


class Coordinator:
    """Knows who is a member; the test says who, and may keep it from answering."""

    def __init__(self) -> None:
        self.members: dict[str, list[int]] = {}
        self.asked = 0
        self.is_queue = False
        self.refusal: QueueRefusedError | None = None
        self.answering = asyncio.Event()
        self.answering.set()

    async def describe(self, group: str) -> GroupDescription:
        self.asked += 1
        names = dict(self.members)
        await self.answering.wait()
        if self.refusal is not None:
            raise self.refusal
        return GroupDescription(
            members=[
                MemberDescription(
                    member=name,
                    topics=("t",),
                    is_queue=self.is_queue,
                    assigned=[(TOPIC, owned)],
                    revoking=[(TOPIC, [9])] if 1 in owned else [],
                )
                for name, owned in names.items()
            ],
            classic_members=0,
            has_offsets=False,
        )


class World:
    def __init__(self) -> None:
        self.coordinator = Coordinator()
        self.clock = ManualClock()
        self.gone: list[tuple[str, str]] = []
        self.members = Members(
            clock=self.clock,
            calls=cast(GroupRpcClient, self.coordinator),
            on_member_left=lambda group, name: self.gone.append((group, name)),
        )


async def test_a_member_is_asked_for_once_and_then_known() -> None:
    world = World()
    world.coordinator.members = {"a": [0, 1]}
    found = await world.members.member("g", "a")
    assert found.topics == ("t",)
    # What it must let go of it has until it has done so.
    assert all(found.is_assigned(TOPIC, index) for index in (0, 1, 9))
    assert not found.is_assigned(TOPIC, 2)
    assert not found.is_assigned(TopicId(b"x" * 16), 0)
    await world.members.member("g", "a")
    assert world.coordinator.asked == 1


async def test_who_is_unknown_is_looked_for_at_once() -> None:
    world = World()
    world.coordinator.members = {"a": []}
    await world.members.member("g", "a")
    world.coordinator.members = {"a": [], "b": []}
    assert (await world.members.member("g", "b")).name == "b"
    with pytest.raises(QueueRefusedError) as caught:
        await world.members.member("g", "c")
    assert caught.value.reason is ErrorReason.UNKNOWN_CONSUMER
    assert world.coordinator.asked == 3


async def test_a_response_from_before_the_request_is_not_enough() -> None:
    world = World()
    world.coordinator.answering.clear()
    early = asyncio.create_task(world.members.refresh("g"))
    await asyncio.sleep(0)
    # The coordinator has been asked, and knows nobody; now somebody joins, and polls.
    world.coordinator.members = {"a": []}
    late = [asyncio.create_task(world.members.member("g", "a")) for _ in range(5)]
    await asyncio.sleep(0)
    world.coordinator.answering.set()
    await early
    assert {(await one).name for one in late} == {"a"}
    # All of them are content with one more question.
    assert world.coordinator.asked == 2


async def test_who_is_missing_in_the_next_view_is_gone() -> None:
    world = World()
    world.coordinator.members = {"a": [], "b": []}
    await world.members.member("g", "a")
    world.coordinator.members = {"b": []}
    await world.members.refresh("g")
    assert world.gone == [("g", "a")]
    with pytest.raises(QueueRefusedError):
        await world.members.member("g", "a")
    assert world.members.known("g", "b") is not None
    assert world.members.known("g", "a") is None
    assert await world.members.count("g") == 1


async def test_who_says_that_it_leaves_is_gone_at_once() -> None:
    world = World()
    world.coordinator.members = {"a": []}
    await world.members.member("g", "a")
    world.members.left("g", "a")
    assert world.gone == [("g", "a")]
    assert world.members.known("g", "a") is None
    # Also where nobody of the group was heard of yet.
    world.members.left("h", "b")
    assert world.gone[-1] == ("h", "b")


async def test_while_no_coordinator_answers_what_is_known_does_for_a_while() -> None:
    world = World()
    world.coordinator.members = {"a": []}
    await world.members.member("g", "a")
    world.coordinator.refusal = QueueRefusedError(ErrorReason.UNAVAILABLE)
    world.clock.steady += 5
    await world.members.member("g", "a")
    world.clock.steady += 6
    with pytest.raises(QueueRefusedError) as caught:
        await world.members.member("g", "a")
    assert caught.value.reason is ErrorReason.UNAVAILABLE
    world.coordinator.refusal = None
    await world.members.member("g", "a")


async def test_views_are_renewed_while_they_are_used_and_forgotten_after(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(members_module, "REFRESH_SECONDS", 0.001)
    world = World()
    world.coordinator.members = {"a": []}
    running = asyncio.create_task(world.members.run())

    def later() -> bool:
        world.clock.steady += 1
        return True

    asked = world.coordinator
    with world.members.using("g"):
        await world.members.member("g", "a")
        await until(lambda: later() and asked.asked >= 3, "the view is renewed")
        asked.members = {}
        await until(lambda: later() and world.gone == [("g", "a")], "the member is gone")
        # It is kept, although there is nobody in it, for the one who waits.
        before = asked.asked
        await until(lambda: later() and asked.asked > before + 2, "the view is renewed again")
    await until(lambda: later() and "g" not in world.members._views, "the view is forgotten")
    running.cancel()


async def test_a_queue_is_followed_while_it_has_members_also_without_requests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(members_module, "REFRESH_SECONDS", 0.001)
    world = World()
    world.coordinator.is_queue = True
    world.coordinator.members = {"a": []}
    running = asyncio.create_task(world.members.run())
    await world.members.member("g", "a")
    # It may have messages, and be gone any time.
    for _ in range(20):
        world.clock.steady += 20
        await asyncio.sleep(0.002)
    world.coordinator.members = {}

    def is_forgotten() -> bool:
        world.clock.steady += 20
        return bool(world.gone) and "g" not in world.members._views

    await until(is_forgotten, "the queue is forgotten")
    assert world.gone == [("g", "a")]
    running.cancel()
