"""A cluster in small: metadata, and groups that follow its wishes one step at a time."""

from contextlib import suppress
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
    SpreadInternalTopics,
)
from moldau.metadata.decide import decide
from moldau.metadata.due_commands import due_commands
from moldau.metadata.image import EMPTY_IMAGE, Image
from moldau.metadata.voters import desired_members, next_members
from moldau.model.errors import RefusedError
from moldau.model.ids import BrokerId, PartitionIndex, TopicId
from moldau.raft.membership import Members, check_change

ONE = BrokerId(1)
OFFSETS = TopicId(b"o" * 16)
TOPIC = TopicId(b"t" * 16)
Key = tuple[TopicId, PartitionIndex]


def register(number: int) -> RegisterBroker:
    return RegisterBroker(id=BrokerId(number), host="h", port=1, incarnation=f"dir-{number}")


def step(members: Members, desired: Members) -> Members:
    """One change of a group whose members always keep up."""
    leader = members.voters[0]
    changed = next_members(members, desired, leader=leader, ready=members.everyone)
    if changed is None:
        return members
    check_change(members, changed)
    return changed


@dataclass
class Cluster:
    image: Image = EMPTY_IMAGE
    metadata: Members = field(default_factory=lambda: Members((ONE,)))
    groups: dict[Key, Members] = field(default_factory=dict)

    def submit(self, command: Command) -> None:
        self.image = apply_all(self.image, decide(command, self.image))
        for topic in self.image.topics.values():
            for p in topic.partitions:
                first = Members(tuple(sorted(p.replicas)))
                self.groups.setdefault((topic.topic_id, p.index), first)

    def turn(self, moves_max: int = 100) -> bool:
        """One round of everybody's work; False when there is none left."""
        before = (self.image, self.metadata, dict(self.groups))
        self.metadata = step(self.metadata, desired_members(self.image, self.metadata))
        for (topic_id, index), members in self.groups.items():
            partition = self.image.topics_by_id[topic_id].partitions[index]
            after = step(members, Members(tuple(sorted(partition.desired))))
            self.groups[(topic_id, index)] = after
            assert set(after.everyone) <= set(partition.replicas)
            self.submit(
                ReportReplicas(
                    topic_id=topic_id,
                    partition=index,
                    desired_version=partition.desired_version,
                    voters=after.voters,
                    learners=after.learners,
                )
            )
        for command in due_commands(
            self.image, metadata_members=self.metadata.everyone, moves_max=moves_max
        ):
            self.submit(command)
        return (self.image, self.metadata, self.groups) != before

    def settle(self) -> None:
        for _ in range(200):
            if not self.turn():
                self.check_settled()
                return
        pytest.fail("the cluster does not come to rest")

    def check_settled(self) -> None:
        known = set(self.image.brokers)
        assert set(self.metadata.everyone) == known
        for topic in self.image.topics.values():
            for p in topic.partitions:
                assert not p.moving
                group = self.groups[(topic.topic_id, p.index)]
                assert group == Members(tuple(sorted(p.replicas)))
                assert set(p.replicas) <= known


def start() -> Cluster:
    cluster = Cluster()
    cluster.submit(CreateCluster(cluster_id="c"))
    cluster.submit(register(1))
    cluster.submit(
        CreateTopic(
            name="__consumer_offsets",
            topic_id=OFFSETS,
            partitions=5,
            replication_factor=1,
            internal=True,
        )
    )
    return cluster


def test_brokers_join_and_the_first_one_goes() -> None:
    cluster = start()
    for number in (2, 3, 4):
        cluster.submit(register(number))
        cluster.settle()
    assert cluster.metadata == Members((1, 2, 3), (4,))  # type: ignore[arg-type]
    offsets = cluster.image.topics["__consumer_offsets"]
    assert {len(p.replicas) for p in offsets.partitions} == {3}
    cluster.submit(CreateTopic(name="a", topic_id=TOPIC, partitions=8, replication_factor=3))
    cluster.submit(DrainBroker(broker_id=ONE))
    cluster.settle()
    assert sorted(cluster.image.brokers) == [2, 3, 4]
    assert list(cluster.image.removed_brokers) == [ONE]
    assert cluster.metadata.voters == (2, 3, 4)
    assert cluster.image.topics["a"].replication_factor == 3


def test_internal_topics_shrink_with_the_cluster_and_grow_again() -> None:
    cluster = start()
    for number in (2, 3):
        cluster.submit(register(number))
    cluster.settle()
    cluster.submit(DrainBroker(broker_id=ONE))
    cluster.settle()
    offsets = cluster.image.topics["__consumer_offsets"]
    assert {frozenset(p.replicas) for p in offsets.partitions} == {frozenset({2, 3})}
    cluster.submit(register(4))
    cluster.settle()
    offsets = cluster.image.topics["__consumer_offsets"]
    assert {len(p.replicas) for p in offsets.partitions} == {3}


def test_a_drain_moves_a_few_partitions_at_a_time() -> None:
    cluster = Cluster()
    for number in (1, 2, 3):
        cluster.submit(register(number))
    cluster.submit(
        CreateTopic(name="a", topic_id=TOPIC, assignments=dict.fromkeys(range(9), (1, 2)))
    )
    cluster.submit(DrainBroker(broker_id=ONE))
    most = 0
    while cluster.turn(moves_max=2):
        moving = sum(p.moving for p in cluster.image.topics["a"].partitions)
        most = max(most, moving)
    assert most == 2
    cluster.check_settled()
    assert list(cluster.image.removed_brokers) == [ONE]


def test_nothing_is_due_in_a_cluster_at_rest() -> None:
    cluster = start()
    assert due_commands(cluster.image, metadata_members=(ONE,), moves_max=5) == []


def test_a_broker_is_removed_only_after_it_left_the_metadata_group() -> None:
    cluster = start()
    cluster.submit(register(2))
    cluster.submit(DrainBroker(broker_id=BrokerId(2)))
    removal = RemoveBroker(broker_id=BrokerId(2), metadata_members=(ONE,))
    due = due_commands(cluster.image, metadata_members=(ONE, BrokerId(2)), moves_max=5)
    assert removal not in due
    assert due_commands(cluster.image, metadata_members=(ONE,), moves_max=5) == [removal]


def test_a_broker_that_still_holds_something_is_not_removed() -> None:
    cluster = start()
    cluster.submit(register(2))
    cluster.submit(DrainBroker(broker_id=ONE))
    due = due_commands(cluster.image, metadata_members=(BrokerId(2),), moves_max=5)
    assert [type(command) for command in due] == [ReassignPartition] * 5


def test_internal_topics_are_spread_as_soon_as_a_broker_joins() -> None:
    cluster = start()
    cluster.submit(register(2))
    due = due_commands(cluster.image, metadata_members=(ONE,), moves_max=5)
    assert due == [SpreadInternalTopics()]


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["join", "drain", "move", "cancel", "turn", "turn"]),
            st.integers(1, 6),
            st.lists(st.integers(1, 6), min_size=1, max_size=3, unique=True),
        ),
        max_size=25,
    )
)
def test_whatever_is_asked_on_the_way_the_cluster_comes_to_rest(
    asked: list[tuple[str, int, list[int]]],
) -> None:
    cluster = start()
    for number in (2, 3):
        cluster.submit(register(number))
    cluster.submit(CreateTopic(name="a", topic_id=TOPIC, partitions=3, replication_factor=2))
    for what, number, replicas in asked:
        index = PartitionIndex(number % 3)
        command: Command
        match what:
            case "join":
                command = register(number)
            case "drain":
                command = DrainBroker(broker_id=BrokerId(number))
            case "move":
                command = ReassignPartition(topic="a", partition=index, replicas=replicas)
            case "cancel":
                command = ReassignPartition(topic="a", partition=index, replicas=None)
            case _:
                cluster.turn(moves_max=2)
                continue
        with suppress(RefusedError):
            cluster.submit(command)
    for _ in range(300):
        if not cluster.turn(moves_max=2):
            break
    # A drain may wait for a broker to join, when partitions were widened after it was allowed.
    cluster.submit(RegisterBroker(id=None, host="h", port=1, incarnation="one more"))
    cluster.submit(RegisterBroker(id=None, host="h", port=1, incarnation="and another"))
    cluster.settle()
    assert all(broker.active for broker in cluster.image.brokers.values())
