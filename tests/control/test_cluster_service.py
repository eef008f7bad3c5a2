"""The cluster as one broker knows it: who leads, who is in sync, joining, electing."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from moldau.control.cluster_service import ALIVE_MS, ClusterService
from moldau.control.leader_announcements import LeaderAnnouncements, LedPartition
from moldau.data.disk_space import DiskGuard
from moldau.metadata.apply import apply_all
from moldau.metadata.commands import (
    Command,
    CreateCluster,
    CreateTopic,
    DrainBroker,
    KeepBroker,
    ReassignPartition,
    RegisterBroker,
)
from moldau.metadata.decide import decide
from moldau.metadata.image import EMPTY_IMAGE, Image
from moldau.metadata.leader_balance import ElectionType
from moldau.metadata.leaders import NO_LEADER, NO_LEADER_ID, Leader
from moldau.metadata.snapshot import decode_image
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import BrokerId, Epoch, PartitionIndex, TopicId
from moldau.model.topology import Endpoint, JoinRequest
from moldau.net.peers.methods import PeerMethod
from moldau.raft.errors import RaftRejection
from moldau.raft.membership import Members
from moldau.testing.replicas import ManualClock

ONE, TWO, THREE = BrokerId(1), BrokerId(2), BrokerId(3)
NOBODY = BrokerId(-1)
TOPIC_ID = TopicId(b"0123456789abcdef")
ZERO = PartitionIndex(0)
JOIN = JoinRequest(
    incarnation="d4",
    process="p1",
    kafka=Endpoint("h", 4),
    raft=Endpoint("h", 14),
    http=Endpoint("h", 24),
)


class FakeReplica:
    """As much of a replica as tells who leads."""

    def __init__(self, leader: BrokerId, epoch: int, *, is_ready: bool = False) -> None:
        self.topic_id = TOPIC_ID
        self.is_ready = is_ready
        self.is_leader = leader == ONE
        self.group = SimpleNamespace(core=SimpleNamespace(leader=leader, epoch=epoch))


class World:
    """Broker 1 of three; the topic `t` has one partition, on [2, 1, 3]."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.image: Image = EMPTY_IMAGE
        self.leader = ONE
        self.is_leading = True
        self.has_recent_leader = True
        self.submitted: list[Command] = []
        self.on_submit: Callable[[], None] = lambda: None
        self.replicas: dict[tuple[str, int], Any] = {}
        self.alive = {TWO, THREE}
        self.connected = {TWO, THREE}
        self.transfers: list[tuple[Any, BrokerId]] = []
        self.caught_up = [ONE, TWO, THREE]
        self.transfer_refusal: RaftRejection | None = None
        self.calls: list[tuple[BrokerId, int, bytes]] = []
        self.call_failure: RefusedError | None = None
        self.members = Members((ONE, TWO), (THREE,))
        self.announcements = LeaderAnnouncements(me=ONE, session=1, caller=self, peers=lambda: ())
        self.disk = DiskGuard()
        fake: Any = self
        self.service = ClusterService(
            me=ONE,
            cluster_id="c",
            clock=self.clock,
            metadata=fake,
            metadata_members=lambda: self.members,
            partitions=SimpleNamespace(get=self._get),  # type: ignore[arg-type]
            driver=SimpleNamespace(  # type: ignore[arg-type]
                alive=self._alive,
                transfer=self._transfer,
                in_sync=lambda group, lag_ms_max: self.caught_up,
            ),
            transport=fake,
            announcements=self.announcements,
            disk=self.disk,
        )
        self.apply(CreateCluster(cluster_id="c"))
        for number in (1, 2, 3):
            self.apply(
                RegisterBroker(
                    id=BrokerId(number),
                    host="h",
                    port=number,
                    incarnation=f"d{number}",
                    raft=Endpoint("h", 10 + number),
                    http=Endpoint("h", 20 + number),
                )
            )
        self.apply(CreateTopic(name="t", topic_id=TOPIC_ID, assignments={0: [2, 1, 3]}))

    def apply(self, command: Command) -> None:
        self.image = apply_all(self.image, decide(command, self.image))

    @property
    def topic(self) -> Any:
        return self.image.topics["t"]

    # as the metadata store

    async def submit(self, command: Command) -> None:
        await asyncio.sleep(0)
        self.submitted.append(command)
        self.apply(command)
        self.on_submit()

    # as the transport

    @property
    def links(self) -> dict[BrokerId, Any]:
        return {peer: SimpleNamespace(is_connected=peer in self.connected) for peer in (TWO, THREE)}

    async def call(
        self, peer: BrokerId, method: int, payload: bytes, timeout_seconds: float
    ) -> bytes:
        self.calls.append((peer, method, payload))
        if self.call_failure is not None:
            raise self.call_failure
        return b""

    # as partitions and driver

    def _get(self, topic: str, index: int) -> Any:
        replica = self.replicas.get((topic, index))
        return None if replica is None else SimpleNamespace(replica=replica)

    def _alive(self, within_ms: int) -> set[BrokerId]:
        assert within_ms == ALIVE_MS
        return self.alive

    def _transfer(self, group: Any, target: BrokerId) -> None:
        if self.transfer_refusal is not None:
            raise self.transfer_refusal
        self.transfers.append((group, target))

    def announce(self, broker: BrokerId, epoch: int, *in_sync: BrokerId) -> None:
        """As that broker says it."""
        if broker == ONE:
            self.announcements.lead((TOPIC_ID, ZERO), Epoch(epoch), in_sync)
        else:
            self.announcements._note(broker, [LedPartition(TOPIC_ID, 0, epoch, in_sync)])

    @property
    def said(self) -> Leader:
        """The leader of the only partition."""
        return self.service.leader_of(self.topic, 0)

    @property
    def in_sync(self) -> tuple[BrokerId, ...]:
        ((_, in_sync),) = self.service.leaders_and_in_sync(self.topic, self.topic.partitions)
        return in_sync


async def test_without_a_replica_here_the_announcement_is_all_that_is_known() -> None:
    world = World()
    assert world.said == NO_LEADER
    assert not world.in_sync
    world.announce(TWO, 3, TWO, THREE)
    assert world.said == Leader(TWO, Epoch(3))
    assert world.in_sync == (TWO, THREE)


async def test_the_own_group_is_believed_before_an_older_announcement() -> None:
    world = World()
    world.announce(TWO, 3, TWO)
    world.replicas["t", 0] = FakeReplica(THREE, 4)
    assert world.said == Leader(THREE, Epoch(4))
    # Who is in sync was told by another leader: only of the new one it is certain.
    assert world.in_sync == (THREE,)


async def test_a_newer_announcement_is_believed_before_the_own_group() -> None:
    world = World()
    world.replicas["t", 0] = FakeReplica(THREE, 4)
    world.announce(TWO, 5, TWO)
    assert world.said == Leader(TWO, Epoch(5))


async def test_a_group_without_a_leader_knows_less_than_an_announcement() -> None:
    world = World()
    world.announce(TWO, 3, TWO)
    world.replicas["t", 0] = FakeReplica(NOBODY, 9)
    assert world.said == Leader(TWO, Epoch(3))


async def test_a_leader_here_is_named_once_it_is_ready() -> None:
    world = World()
    replica = world.replicas["t", 0] = FakeReplica(ONE, 4)
    assert world.said == NO_LEADER
    world.announce(TWO, 3, TWO)
    assert world.said == Leader(TWO, Epoch(3))
    replica.is_ready = True
    assert world.said == Leader(ONE, Epoch(4))


async def test_this_broker_is_not_named_for_what_it_led_once() -> None:
    world = World()
    world.announce(ONE, 4, ONE)
    world.replicas["t", 0] = FakeReplica(NOBODY, 4)
    assert world.said == NO_LEADER
    del world.replicas["t", 0]
    assert world.said == NO_LEADER


async def test_a_replica_of_a_deleted_topic_says_nothing_about_its_successor() -> None:
    world = World()
    replica = world.replicas["t", 0] = FakeReplica(THREE, 9)
    replica.topic_id = TopicId(bytes(16))
    assert world.said == NO_LEADER


async def test_a_broker_that_is_gone_leads_nothing() -> None:
    world = World()
    world.announce(BrokerId(9), 3, BrokerId(9))
    assert world.said == NO_LEADER
    assert world.in_sync == ()


async def test_a_broker_is_cut_off_when_no_peer_leads_although_all_are_alive() -> None:
    world = World()
    for seconds in (0, 3, 3, 3):
        world.clock.steady += seconds
        world.service.update_contact()
        assert not world.service.is_cut_off
    # However long ago the last look was.
    world.clock.steady += 60
    assert not world.service.is_cut_off
    world.service.starting = None
    world.leader, world.has_recent_leader = TWO, False
    assert world.service.health() == []
    world.clock.steady += 5
    assert world.service.is_cut_off
    (reason,) = world.service.health()
    assert "no heartbeat from the metadata leader" in reason
    world.has_recent_leader = True
    assert not world.service.is_cut_off
    assert world.service.health() == []


async def test_a_controller_that_is_not_heard_of_is_not_known() -> None:
    world = World()
    cases = [(TWO, True, True), (TWO, False, False), (NO_LEADER_ID, True, False)]
    for leader, is_recent, is_known in cases:
        world.leader, world.has_recent_leader = leader, is_recent
        assert world.service.is_controller_known == is_known


async def test_after_a_start_a_broker_is_ready_when_its_replicas_are_in_sync() -> None:
    world = World()
    world.members = Members((ONE, TWO, THREE))
    world.service.starting = None
    (reason,) = world.service.readiness()
    assert "1 replicas here are not in sync" in reason, "its leader is not known yet"
    world.announce(TWO, 3, TWO, THREE)
    assert world.service.readiness() == [reason]
    assert world.service.health() == [], "it serves clients all the same"
    world.announce(TWO, 3, ONE, TWO, THREE)
    assert world.service.readiness() == []
    # A replica that is behind later is a matter of metrics and alerts.
    world.announce(TWO, 3, TWO, THREE)
    assert world.service.readiness() == []


async def test_a_partition_without_a_leader_does_not_keep_a_broker_from_being_ready() -> None:
    world = World()
    world.members = Members((ONE, TWO, THREE))
    world.service.starting = None
    assert world.service.readiness()
    world.clock.steady += 11
    assert world.service.readiness() == []


async def test_a_leader_that_died_does_not_keep_a_broker_from_being_ready() -> None:
    world = World()
    world.members = Members((ONE, TWO, THREE))
    world.service.starting = None
    world.announce(TWO, 3, TWO, THREE)
    world.clock.steady += 11
    assert world.service.readiness()
    world.alive = {THREE}
    world.clock.steady += 11
    assert world.service.readiness() == []


async def test_a_broker_is_not_ready_before_it_has_its_vote_on_the_metadata() -> None:
    world = World()
    world.announce(TWO, 3, ONE, TWO, THREE)
    world.members = Members((TWO, THREE), (ONE,))
    world.service.starting = None
    (reason,) = world.service.readiness()
    assert "not yet a voter" in reason
    world.members = Members((ONE, TWO, THREE))
    assert world.service.readiness() == []


async def test_brokers_with_contact_both_ways_and_this_one_are_alive() -> None:
    world = World()
    assert world.service.alive == {ONE, TWO, THREE}
    world.alive = {TWO}
    assert world.service.alive == {ONE, TWO}
    world.alive, world.connected = {TWO, THREE, BrokerId(9)}, {THREE}
    assert world.service.alive == {ONE, THREE}


async def test_the_topology_is_all_of_it() -> None:
    world = World()
    world.announce(TWO, 3, TWO, THREE)
    world.alive = {TWO}
    world.leader = TWO
    found = world.service.topology()
    assert (found.cluster_id, found.version) == ("c", world.image.version)
    assert (found.controller, found.answered_by) == (2, 1)
    assert found.voters == (ONE, TWO)
    assert [(b.id, b.alive, b.leaders, b.replicas) for b in found.brokers] == [
        (1, True, 0, 1),
        (2, True, 1, 1),
        (3, False, 0, 1),
    ]
    assert [b.is_controller for b in found.brokers] == [False, True, False]
    assert [b.is_me for b in found.brokers] == [True, False, False]
    assert found.brokers[1].kafka == Endpoint("h", 2)
    assert found.brokers[1].raft == Endpoint("h", 12)
    assert found.brokers[1].http == Endpoint("h", 22)
    (topic,) = found.topics
    assert (topic.name, topic.id) == ("t", TOPIC_ID.hex())
    (partition,) = topic.partitions
    assert (partition.leader, partition.leader_epoch) == (2, 3)
    assert (partition.replicas, partition.in_sync) == ((2, 1, 3), (2,)), "3 is dead"
    assert (found.under_replicated, found.leaderless) == (1, 0)


async def test_a_new_controller_that_does_not_know_all_yet_does_not_answer_as_one() -> None:
    world = World()
    assert world.service.topology().controller == ONE
    world.is_leading = False
    assert world.service.topology().controller == NOBODY
    world.leader = TWO
    assert world.service.topology().controller == TWO


async def test_a_broker_is_ready_when_it_serves_and_there_is_a_controller() -> None:
    world = World()
    assert world.service.health() == ["the broker is starting"]
    world.service.starting = None
    assert world.service.health() == []
    world.leader = NOBODY
    (reason,) = world.service.health()
    assert "no leader" in reason


async def test_a_broker_that_refuses_writes_says_so() -> None:
    world = World()
    world.service.starting = None
    world.disk.is_full = True
    assert world.service.health() == ["the disk is full: writes are rejected until there is space"]


async def test_a_joiner_gets_a_number_and_all_that_it_needs() -> None:
    world = World()
    reply = await world.service.join(JOIN)
    assert (reply.cluster_id, reply.broker_id, reply.epoch) == ("c", 4, 1)
    assert (reply.voters, reply.learners) == ((1, 2), (3,))
    image = decode_image(reply.image)
    assert image.brokers[BrokerId(4)].raft == Endpoint("h", 14)


async def test_a_join_that_is_repeated_is_the_same_one_and_a_new_start_is_another() -> None:
    world = World()
    first = await world.service.join(JOIN)
    version = world.image.version
    again = await world.service.join(JOIN)
    assert (again.broker_id, again.epoch) == (first.broker_id, first.epoch)
    assert world.image.version == version
    restarted = await world.service.join(msgspec.structs.replace(JOIN, process="p2"))
    assert (restarted.broker_id, restarted.epoch) == (first.broker_id, first.epoch + 1)


async def test_two_that_join_at_once_get_two_numbers() -> None:
    world = World()
    other = msgspec.structs.replace(JOIN, incarnation="d5")
    replies = await asyncio.gather(world.service.join(JOIN), world.service.join(other))
    assert [reply.broker_id for reply in replies] == [4, 5]


async def test_a_directory_of_another_cluster_is_not_taken_in() -> None:
    world = World()
    await world.service.join(msgspec.structs.replace(JOIN, cluster_id="c"))
    with pytest.raises(RefusedError, match="cluster x, not to c") as caught:
        await world.service.join(msgspec.structs.replace(JOIN, cluster_id="x"))
    assert caught.value.code is ErrorCode.INCONSISTENT_CLUSTER_ID


@pytest.mark.parametrize("is_named", [False, True])
async def test_one_that_is_itself_not_registered_accepts_no_broker_yet(is_named: bool) -> None:
    # Founding: a joiner would get its number. Or started again: it knows nothing yet.
    world = World()
    world.image = EMPTY_IMAGE
    if is_named:
        world.apply(CreateCluster(cluster_id="c"))
    with pytest.raises(RefusedError) as caught:
        await world.service.join(msgspec.structs.replace(JOIN, cluster_id="c"))
    # This one is tried again, over HTTP too; "another cluster" would not be.
    assert caught.value.code is ErrorCode.BROKER_NOT_AVAILABLE
    assert world.submitted == []


async def test_one_that_was_removed_again_at_once_is_refused_as_such() -> None:
    world = World()

    def lose() -> None:
        world.image = World().image

    world.on_submit = lose
    with pytest.raises(RefusedError) as caught:
        await world.service.join(JOIN)
    assert caught.value.code is ErrorCode.BROKER_ID_NOT_REGISTERED


async def test_what_is_asked_about_brokers_and_replicas_becomes_a_command() -> None:
    world = World()
    await world.service.join(JOIN)
    await world.service.drain(3)
    await world.service.keep(3)
    await world.service.reassign("t", 0, [4, 1, 2])
    assert world.submitted[1:] == [
        DrainBroker(broker_id=THREE),
        KeepBroker(broker_id=THREE),
        ReassignPartition(topic="t", partition=ZERO, replicas=[4, 1, 2]),
    ]
    ((topic, move),) = world.service.reassignments(None)
    assert (topic, move.adding, move.removing) == ("t", (4,), (3,))
    assert world.service.reassignments([("t", 0), ("t", 7), ("u", 0)]) == [("t", move)]
    assert world.service.reassignments([]) == []


async def test_the_leader_here_hands_over_and_the_new_one_is_waited_for() -> None:
    world = World()
    replica = world.replicas["t", 0] = FakeReplica(ONE, 4, is_ready=True)
    world.announce(ONE, 4, ONE, TWO)
    electing = asyncio.create_task(world.service.elect("t", 0, ElectionType.PREFERRED))
    await asyncio.sleep(0.05)
    assert world.transfers == [(replica.group, TWO)]
    assert not electing.done()
    world.replicas["t", 0] = FakeReplica(TWO, 5)
    await asyncio.wait_for(electing, 30)


async def test_nothing_is_handed_over_to_a_broker_that_lags() -> None:
    world = World()
    world.replicas["t", 0] = FakeReplica(ONE, 4, is_ready=True)
    world.announce(ONE, 4, ONE, TWO)
    world.caught_up.remove(TWO)
    with pytest.raises(RefusedError) as refusal:
        await world.service.elect("t", 0, ElectionType.PREFERRED)
    assert refusal.value.code is ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
    assert world.transfers == []


async def test_a_leader_on_another_broker_is_asked_to_hand_over() -> None:
    world = World()
    world.announce(THREE, 4, THREE, TWO)
    electing = asyncio.create_task(world.service.elect("t", 0, ElectionType.PREFERRED))
    await asyncio.sleep(0.05)
    ((peer, method, payload),) = world.calls
    assert (peer, method) == (THREE, PeerMethod.TRANSFER_LEADERSHIP)
    world.announce(TWO, 5, TWO)
    await asyncio.wait_for(electing, 30)
    # What it was asked is what the other side understands.
    other = World()
    replica = other.replicas["t", 0] = FakeReplica(ONE, 4, is_ready=True)
    await other.service.on_transfer_request(TWO, payload)
    assert other.transfers == [(replica.group, TWO)]


async def test_a_preferred_leader_that_does_not_come_is_a_refusal() -> None:
    world = World()
    world.announce(THREE, 4, THREE)
    electing = asyncio.create_task(world.service.elect("t", 0, ElectionType.PREFERRED))
    await asyncio.sleep(0.01)
    world.clock.steady = 100.0
    with pytest.raises(RefusedError, match="did not become leader") as caught:
        await asyncio.wait_for(electing, 30)
    assert caught.value.code is ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE


async def test_what_the_sender_refuses_is_returned_as_it_is() -> None:
    world = World()
    world.announce(THREE, 4, THREE)
    world.call_failure = RefusedError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    with pytest.raises(RefusedError) as caught:
        await world.service.elect("t", 0, ElectionType.PREFERRED)
    assert caught.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    world.replicas["t", 0] = FakeReplica(ONE, 5, is_ready=True)
    world.announce(ONE, 5, ONE)
    world.transfer_refusal = RaftRejection("a transfer is under way")
    with pytest.raises(RefusedError, match="under way") as caught:
        await world.service.elect("t", 0, ElectionType.PREFERRED)
    assert caught.value.code is ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE


async def test_no_election_is_held_where_none_is_needed_or_possible() -> None:
    world = World()
    world.announce(TWO, 4, TWO)
    with pytest.raises(RefusedError) as caught:
        await world.service.elect("t", 0, ElectionType.PREFERRED)
    assert caught.value.code is ErrorCode.ELECTION_NOT_NEEDED
    world.announce(THREE, 5, THREE)
    world.alive = {THREE}
    with pytest.raises(RefusedError) as caught:
        await world.service.elect("t", 0, ElectionType.PREFERRED)
    assert caught.value.code is ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
    assert (world.calls, world.transfers) == ([], [])
    assert list(world.service.elections_due()) == [("t", 0)]


@pytest.mark.parametrize(
    ("payload", "code"),
    [
        (b"\xc1", ErrorCode.INVALID_REQUEST),
        (msgspec.msgpack.encode((TOPIC_ID, 0)), ErrorCode.INVALID_REQUEST),
        (msgspec.msgpack.encode((bytes(16), 0, 2)), ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (msgspec.msgpack.encode((TOPIC_ID, 7, 2)), ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (msgspec.msgpack.encode((TOPIC_ID, 0, 2)), ErrorCode.NOT_LEADER_OR_FOLLOWER),
    ],
)
async def test_only_what_is_led_here_can_be_handed_over(payload: bytes, code: ErrorCode) -> None:
    world = World()
    world.replicas["t", 0] = FakeReplica(TWO, 4)
    with pytest.raises(RefusedError) as caught:
        await world.service.on_transfer_request(THREE, payload)
    assert caught.value.code is code
    assert world.transfers == []
