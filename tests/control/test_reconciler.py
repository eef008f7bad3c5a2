"""The reconciler brings groups where the metadata wishes them: one safe step at a time."""

import asyncio
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from fakes import Fake

from moldau.control import reconciler as steward_module
from moldau.control.reconciler import Reconciler
from moldau.metadata.apply import apply_all
from moldau.metadata.commands import (
    Command,
    CreateCluster,
    CreateTopic,
    DrainBroker,
    ReassignPartition,
    RegisterBroker,
    RemoveBroker,
    ReportReplicas,
)
from moldau.metadata.decide import decide
from moldau.metadata.image import EMPTY_IMAGE, Image
from moldau.metadata.leaders import Leader, LeaderAnnouncement, Leaders
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import BrokerId, Epoch, PartitionIndex, TopicId
from moldau.raft.errors import RaftRejection
from moldau.raft.membership import Members, check_change
from moldau.testing.waiting import until

ME = BrokerId(1)
NOW = 1_000_000
TOPIC_ID = TopicId(b"0123456789abcdef")


def ids(*numbers: int) -> tuple[BrokerId, ...]:
    return tuple(BrokerId(number) for number in numbers)


class FakeCore(SimpleNamespace):
    @property
    def progress(self) -> dict[BrokerId, Any]:
        found: dict[BrokerId, Any] = self.follow()
        return found


class FakeReplica(Fake):
    """A group that this broker leads; a change of members is committed when the test says so."""

    def __init__(self, index: int, voters: tuple[int, ...], learners: tuple[int, ...] = ()) -> None:
        self.topic_id = TOPIC_ID
        self.partition = SimpleNamespace(topic="t", partition=PartitionIndex(index))
        self.core: Any = FakeCore(
            follow=self.follow,
            members=Members(ids(*voters), ids(*learners)),
            members_index=5,
            commit=10,
            epoch_start=7,
            may_propose=True,
            replaced_voters=lambda: self.replaced,
        )
        self.replaced: list[BrokerId] = []
        """Voters that came back without their logs."""
        self.group = SimpleNamespace(core=self.core, name=f"t-{index}", replica=self)
        self.is_ready = self.is_leader = True
        self.epoch = Epoch(3)
        self.behind: set[BrokerId] = set()
        self.refreshed = 0

    def follow(self) -> dict[BrokerId, Any]:
        """How far each follower has come."""
        return {
            broker: SimpleNamespace(
                caught_up_at=NOW - (60_000 if broker in self.behind else 10),
                match=self.core.epoch_start + 1,
            )
            for broker in self.core.members.everyone
            if broker != ME
        }

    @property
    def members(self) -> Members:
        members: Members = self.core.members
        return members

    def in_sync(self, lag_ms_max: int) -> tuple[BrokerId, ...]:
        self.refreshed += 1
        return tuple(voter for voter in self.members.voters if voter not in self.behind)

    def commit(self) -> None:
        """What was changed is committed."""
        self.core.commit = self.core.members_index + 1


class World:
    """Broker 1, which leads the metadata group of brokers 1 to n, and the partitions of `t`."""

    def __init__(self, brokers: int = 3) -> None:
        self.image: Image = EMPTY_IMAGE
        self.submitted: list[Command] = []
        self.failure: RefusedError | None = None
        self.on_submit: Callable[[Command], None] = lambda _: None
        self.on_fresh: Callable[[], None] = lambda: None
        self.hosted: dict[tuple[str, int], FakeReplica] = {}
        self.alive = set(ids(*range(1, brokers + 1)))
        self.leaders = Leaders()
        self.changes: list[Members] = []
        self.transfers: list[tuple[str, BrokerId]] = []
        self.on_transfer: Callable[[FakeReplica, BrokerId], None] = lambda *_: None
        self.refusal: RaftRejection | None = None
        self.announced: list[tuple[int, str, tuple[int, ...]]] = []
        self.readiness_noted = 0
        self.apply(CreateCluster(cluster_id="c"))
        for number in range(1, brokers + 1):
            self.join(number)
        self.metadata = FakeReplica(99, tuple(range(1, brokers + 1)))
        fake: Any = self
        self.reconciler = Reconciler(
            me=ME,
            metadata=fake,
            metadata_replica=self.metadata,
            partitions=fake,
            cluster=fake,
            announcements=fake,
            driver=fake,
        )

    def apply(self, command: Command) -> None:
        self.image = apply_all(self.image, decide(command, self.image))

    def join(self, number: int) -> None:
        self.apply(
            RegisterBroker(id=BrokerId(number), host="h", port=number, incarnation=f"d{number}")
        )

    def create(self, *replicas: list[int]) -> None:
        """The topic, and this broker as the leader of all of it."""
        self.apply(CreateTopic(name="t", topic_id=TOPIC_ID, assignments=dict(enumerate(replicas))))
        for index, voters in enumerate(replicas):
            self.hosted["t", index] = FakeReplica(index, tuple(sorted(voters)))

    def move(self, index: int, *replicas: int) -> None:
        self.apply(ReassignPartition(topic="t", partition=PartitionIndex(index), replicas=replicas))

    # as the metadata store

    async def submit(self, command: Command) -> None:
        await asyncio.sleep(0)
        if self.failure is not None:
            raise self.failure
        self.submitted.append(command)
        self.apply(command)
        self.on_submit(command)

    async def fresh(self) -> Image:
        await asyncio.sleep(0)
        self.on_fresh()
        return self.image

    # as the partitions

    def get(self, topic: str, index: int) -> Any:
        replica = self.hosted.get((topic, index))
        return None if replica is None else SimpleNamespace(replica=replica)

    def __iter__(self) -> Iterator[Any]:
        return iter([SimpleNamespace(replica=replica) for replica in self.hosted.values()])

    # as the cluster

    def update_contact(self) -> None: ...

    def readiness(self) -> list[str]:
        self.readiness_noted += 1
        return []

    # as the announcements

    def lead(self, key: tuple[TopicId, int], epoch: Epoch, in_sync: tuple[BrokerId, ...]) -> None:
        self.announced.append((key[1], "leads", in_sync))

    def unlead(self, key: tuple[TopicId, int]) -> None:
        self.announced.append((key[1], "leads no more", ()))

    # as the driver

    now = NOW

    def change_members(self, group: Any, members: Members) -> None:
        if self.refusal is not None:
            raise self.refusal
        check_change(group.core.members, members)
        self.changes.append(members)
        group.core.members = members
        group.core.members_index = group.core.commit

    def transfer(self, group: Any, target: BrokerId) -> None:
        if self.refusal is not None:
            raise self.refusal
        assert target in group.core.members.voters
        self.transfers.append((group.name, target))
        self.on_transfer(group.replica, target)


async def test_a_broker_that_joined_learns_before_it_votes() -> None:
    world = World(2)
    world.join(3)
    world.metadata.behind = set(ids(3))
    await world.reconciler._step_metadata()
    assert world.changes == [Members(ids(1, 2), ids(3))]
    # Nothing more before that is committed, and before it has caught up.
    await world.reconciler._step_metadata()
    world.metadata.commit()
    await world.reconciler._step_metadata()
    assert len(world.changes) == 1
    world.metadata.behind.clear()
    await world.reconciler._step_metadata()
    assert world.changes[1:] == [Members(ids(1, 2, 3))]


async def test_who_does_not_lead_the_metadata_group_leaves_it_alone() -> None:
    world = World(2)
    world.join(3)
    world.metadata.is_ready = False
    await world.reconciler._step_metadata()
    assert (world.changes, world.submitted) == ([], [])


async def test_a_learner_without_the_leaders_first_entry_is_not_made_a_voter() -> None:
    world = World(2)
    world.join(3)
    world.metadata.core.members = Members(ids(1, 2), ids(3))
    world.metadata.core.epoch_start = 7
    behind = SimpleNamespace(caught_up_at=NOW, match=7)
    world.metadata.core.follow = lambda: dict.fromkeys(ids(2, 3), behind)
    await world.reconciler._step_metadata()
    assert world.changes == []


async def test_a_voter_without_its_log_learns_before_it_votes_again() -> None:
    world = World(3)
    world.create([1, 2, 3])
    replica = world.hosted["t", 0]
    replica.replaced = list(ids(3))
    await world.reconciler._step_partitions()
    assert world.changes == []
    world.reconciler.repair(replica)
    for _ in range(3):
        await world.reconciler._step_partitions()
        replica.replaced = []
        replica.commit()
    assert world.changes == [Members(ids(1, 2), ids(3)), Members(ids(1, 2, 3))]
    await world.reconciler._step_partitions()
    assert (len(world.changes), world.submitted) == (2, [])


async def test_nothing_is_computed_again_while_nothing_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(3)
    looks: list[Image] = []

    def due(image: Image, **_: object) -> list[Command]:
        looks.append(image)
        return []

    monkeypatch.setattr("moldau.control.reconciler.due_commands", due)
    for _ in range(3):
        await world.reconciler._step_metadata()
    assert len(looks) == 1
    world.join(4)
    await world.reconciler._step_metadata()
    assert len(looks) == 2


async def test_a_move_goes_step_by_step_and_is_reported_when_its_last_step_is_committed() -> None:
    world = World(4)
    world.create([1, 2, 3])
    world.move(0, 4, 1, 2)
    replica = world.hosted["t", 0]
    for _ in range(10):
        await world.reconciler._step_partitions()
        if world.submitted:
            break
        # A second look before the commit changes nothing.
        before = len(world.changes)
        await world.reconciler._step_partitions()
        assert len(world.changes) == before
        assert world.submitted == []
        replica.commit()
    assert world.changes == [
        Members(ids(1, 2, 3), ids(4)),
        Members(ids(1, 2, 3, 4)),
        Members(ids(1, 2, 4)),
    ]
    assert world.submitted == [
        ReportReplicas(
            topic_id=TOPIC_ID, partition=PartitionIndex(0), desired_version=1, voters=ids(1, 2, 4)
        )
    ]
    assert world.image.topics["t"].partitions[0].replicas == (4, 1, 2)
    await world.reconciler._step_partitions()
    assert len(world.submitted) == 1


async def test_a_leader_that_shall_go_hands_over_to_one_that_stays() -> None:
    world = World(4)
    world.create([1, 2, 3, 4])
    world.move(0, 2, 3, 4)
    replica = world.hosted["t", 0]
    replica.behind = set(ids(2))
    await world.reconciler._step_partitions()
    assert world.changes == []
    assert world.transfers == [("t-0", 3)]
    # Nobody could take it: it stays until somebody can.
    replica.behind = set(ids(2, 3))
    await world.reconciler._step_partitions()
    assert len(world.transfers) == 1


async def test_a_new_leader_announces_again_until_its_voters_are_in_sync() -> None:
    world = World()
    world.create([1, 2, 3], [1, 2, 3], [1, 2, 3])
    replica: Any
    for replica in world.hosted.values():
        # It is ready with a majority: the third voter has not responded yet.
        replica.behind.add(BrokerId(3))
        world.reconciler.took_over(replica)
    world.hosted["t", 1].is_ready = False
    await world.reconciler._announce_taken_over()
    world.hosted["t", 0].behind.clear()
    for _ in range(20):
        await world.reconciler._announce_taken_over()
    found = [(index, in_sync) for index, _, in_sync in world.announced]
    # Nothing of the one that lost its leadership; the last one stays behind, and it gives up.
    assert sorted(found) == [(0, ids(1, 2)), (0, ids(1, 2, 3)), *[(2, ids(1, 2))] * 5]


async def test_one_change_that_is_refused_does_not_end_the_reconciler() -> None:
    world = World(4)
    world.create([1, 2, 3])
    world.move(0, 1, 2, 4)
    world.refusal = RaftRejection("not now")
    await world.reconciler._step_partitions()
    world.refusal = None
    await world.reconciler._step_partitions()
    assert len(world.changes) == 1


async def test_desired_replicas_that_changed_meanwhile_are_followed_as_they_are_now() -> None:
    world = World(4)
    world.create([1, 2], [1, 2])
    # The first only has to be reported; meanwhile the second is called off, and nothing is left.
    world.move(0, 1, 3)
    world.hosted["t", 0].core.members = Members(ids(1, 3))
    world.move(1, 1, 4)

    def call_off(_: Command) -> None:
        world.apply(ReassignPartition(topic="t", partition=PartitionIndex(1), replicas=None))
        world.apply(
            ReportReplicas(
                topic_id=TOPIC_ID, partition=PartitionIndex(1), desired_version=2, voters=ids(1, 2)
            )
        )

    world.on_submit = call_off
    await world.reconciler._step_partitions()
    assert not world.image.topics["t"].partitions[1].moving
    assert world.changes == []


async def test_desired_replicas_reached_before_this_leader_led_are_not_followed_again() -> None:
    world = World(4)
    world.create([1, 2, 3])
    world.move(0, 1, 2, 4)
    # This desired version is the last known one. In truth it was cancelled, and is over:
    # broker 4 has no log any more, and must not become a voter.

    def catch_up() -> None:
        world.move(0, 1, 2, 3)
        world.apply(
            ReportReplicas(
                topic_id=TOPIC_ID,
                partition=PartitionIndex(0),
                desired_version=2,
                voters=ids(1, 2, 3),
            )
        )
        world.on_fresh = lambda: None

    world.on_fresh = catch_up
    await world.reconciler._step_partitions()
    assert (world.changes, world.submitted) == ([], [])


async def test_members_do_not_change_in_an_epoch_that_began_after_the_image_was_fresh() -> None:
    world = World(4)
    world.create([1, 2, 3])
    world.move(0, 1, 2, 4)
    replica = world.hosted["t", 0]

    def elect_again() -> None:
        replica.epoch = Epoch(replica.epoch + 1)
        world.on_fresh = lambda: None

    world.on_fresh = elect_again
    await world.reconciler._step_partitions()
    assert world.changes == []
    await world.reconciler._step_partitions()
    assert world.changes == [Members(ids(1, 2, 3), ids(4))]


async def test_a_deleted_topic_is_passed_over() -> None:
    world = World(4)
    world.create([1, 2], [1, 2])
    world.move(0, 1, 3)
    world.hosted["t", 0].core.members = Members(ids(1, 3))
    world.move(1, 1, 4)

    def delete(_: Command) -> None:
        world.image = World(4).image

    world.on_submit = delete
    await world.reconciler._step_partitions()
    assert world.changes == []


async def test_a_broker_that_leaves_is_removed_when_it_is_out_of_everything() -> None:
    world = World(4)
    world.metadata.core.members = Members(ids(1, 2, 3), ids(4))
    world.create([1, 2, 3])
    world.apply(DrainBroker(broker_id=BrokerId(3)))
    replica = world.hosted["t", 0]
    for _ in range(20):
        if BrokerId(3) in world.image.removed_brokers:
            break
        await world.reconciler._step_metadata()
        await world.reconciler._step_partitions()
        world.metadata.commit()
        replica.commit()
    assert BrokerId(3) in world.image.removed_brokers
    assert world.metadata.members == Members(ids(1, 2, 4))
    assert replica.members == Members(ids(1, 2, 4))
    assert isinstance(world.submitted[-1], RemoveBroker)


async def test_a_broker_is_not_removed_before_the_group_without_it_is_committed() -> None:
    world = World(3)
    world.apply(DrainBroker(broker_id=BrokerId(3)))
    await world.reconciler._step_metadata()
    assert world.metadata.members == Members(ids(1, 2))
    await world.reconciler._step_metadata()
    assert world.submitted == []
    world.metadata.commit()
    await world.reconciler._step_metadata()
    assert [type(command) for command in world.submitted] == [RemoveBroker]


async def test_what_cannot_be_submitted_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_STEP_SECONDS", "_IN_SYNC_SECONDS", "_BALANCE_SECONDS"):
        monkeypatch.setattr(steward_module, name, 0.001)
    world = World(3)
    world.create([1, 2])
    world.move(0, 1, 3)
    world.hosted["t", 0].core.members = Members(ids(1, 3))
    world.failure = RefusedError(ErrorCode.REQUEST_TIMED_OUT, "no leader")
    running = asyncio.create_task(world.reconciler.run())
    await asyncio.sleep(0.05)
    assert not running.done()
    world.failure = None
    await until(lambda: world.submitted, "it is submitted")
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_an_internal_error_ends_the_reconciler_and_is_reported() -> None:
    world = World(3)

    async def broken() -> None:
        raise ZeroDivisionError

    world.reconciler._announce_in_sync = broken  # type: ignore[method-assign]
    with pytest.raises(ExceptionGroup) as caught:
        await asyncio.wait_for(world.reconciler.run(), 30)
    assert caught.group_contains(ZeroDivisionError)


async def test_replicas_in_sync_are_reported_by_ready_leaders_only() -> None:
    world = World(3)
    world.create([1, 2, 3], [2, 1, 3])
    world.hosted["t", 0].behind = set(ids(3))
    world.hosted["t", 1].is_ready = False
    await world.reconciler._announce_in_sync()
    assert world.announced == [(0, "leads", (1, 2))]
    assert world.readiness_noted == 1, "that all are in sync counts also if nobody asks for it"
    world.reconciler.announce(world.hosted["t", 1])
    assert world.announced[1:] == [(1, "leads no more", ())]


def led_by_me(world: World, count: int) -> None:
    world.leaders = Leaders().announced(
        LeaderAnnouncement(TOPIC_ID, PartitionIndex(index), Leader(ME, Epoch(0)))
        for index in range(count)
    )


async def test_leadership_goes_to_preferred_leaders_that_are_there_and_caught_up() -> None:
    world = World(3)
    world.create([2, 1], [3, 1], [1, 2], [2, 1])
    led_by_me(world, 4)
    world.alive = set(ids(1, 2))
    world.hosted["t", 3].behind = set(ids(2))
    await world.reconciler._balance()
    assert world.transfers == [("t-0", 2)]


async def test_nothing_is_balanced_by_who_does_not_lead_it_or_stops() -> None:
    world = World(3)
    world.create([2, 1])
    led_by_me(world, 1)
    world.hosted["t", 0].is_ready = False
    await world.reconciler._balance()
    world.hosted["t", 0].is_ready = True
    world.reconciler._is_stopping = True
    await world.reconciler._balance()
    assert world.transfers == []


def obey(replica: FakeReplica, _: BrokerId) -> None:
    """The target leads from now on."""
    replica.is_leader = replica.is_ready = False


async def test_before_a_stop_others_lead_everything_and_share_it() -> None:
    world = World(3)
    world.create(*[[1, 2, 3] for _ in range(10)])
    world.on_transfer = obey
    await asyncio.wait_for(world.reconciler.hand_over(), 30)
    takers = [target for _, target in world.transfers]
    # The metadata group as well.
    assert len(takers) == 11
    assert abs(takers.count(BrokerId(2)) - takers.count(BrokerId(3))) <= 1


async def test_leadership_that_no_replica_can_take_does_not_delay_the_stop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(steward_module, "_HAND_OVER_SECONDS_MAX", 1e9)
    world = World(3)
    world.create([1, 2], [1, 2])
    world.hosted["t", 0].core.members = Members(ids(1))
    world.hosted["t", 1].behind = set(ids(2))
    world.metadata.behind = set(ids(2, 3))
    await asyncio.wait_for(world.reconciler.hand_over(), 30)
    world.hosted["t", 1].behind.clear()
    world.alive = set(ids(1))
    await asyncio.wait_for(world.reconciler.hand_over(), 30)
    assert world.transfers == []


async def test_a_transfer_that_fails_is_tried_again_with_the_rest_of_the_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(steward_module, "_HAND_OVER_SECONDS_MAX", 1e9)
    world = World(3)
    world.create([1, 2, 3])
    world.metadata.is_leader = False
    tries = 0

    def third_time(replica: FakeReplica, target: BrokerId) -> None:
        nonlocal tries
        tries += 1
        if tries == 3:
            obey(replica, target)

    world.on_transfer = third_time
    await asyncio.wait_for(world.reconciler.hand_over(), 30)
    assert len(world.transfers) == 3


async def test_a_transfer_that_never_succeeds_ends_with_the_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(steward_module, "_HAND_OVER_SECONDS_MAX", 0.1)
    world = World(3)
    world.create([1, 2, 3])
    await asyncio.wait_for(world.reconciler.hand_over(), 30)
    assert world.transfers


async def test_members_do_not_change_once_the_broker_stops() -> None:
    world = World(4)
    world.create([1, 2, 3])
    world.move(0, 1, 2, 4)
    world.reconciler._is_stopping = True
    await world.reconciler._step_partitions()
    await world.reconciler._step_metadata()
    assert world.changes == []
