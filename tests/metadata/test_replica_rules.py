from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.metadata.apply import apply_all
from moldau.metadata.commands import (
    Command,
    CreateTopic,
    DeleteTopic,
    DrainBroker,
    ReassignPartition,
    RegisterBroker,
    ReportReplicas,
    SpreadInternalTopics,
)
from moldau.metadata.decide import decide
from moldau.metadata.image import EMPTY_IMAGE, Image, Partition
from moldau.metadata.replica_rules import (
    default_replication,
    drain_moves,
    reassignments,
)
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import BrokerId, PartitionIndex, TopicId

ZERO = PartitionIndex(0)
ID = TopicId(b"t" * 16)


def after(image: Image, *commands: Command) -> Image:
    for command in commands:
        image = apply_all(image, decide(command, image))
    return image


def register(number: int, rack: str | None = None) -> RegisterBroker:
    return RegisterBroker(
        id=BrokerId(number), host="h", port=9092, rack=rack, incarnation=f"dir-{number}"
    )


def cluster(brokers: int) -> Image:
    return after(EMPTY_IMAGE, *(register(number) for number in range(1, brokers + 1)))


def move(*replicas: int, partition: int = 0, **changes: bool) -> ReassignPartition:
    return ReassignPartition(
        topic="a", partition=PartitionIndex(partition), replicas=replicas, **changes
    )


CANCEL = ReassignPartition(topic="a", partition=ZERO, replicas=None)


def report(desired_version: int, *voters: int, learners: tuple[int, ...] = ()) -> ReportReplicas:
    return ReportReplicas(
        topic_id=ID,
        partition=ZERO,
        desired_version=desired_version,
        voters=[BrokerId(number) for number in voters],
        learners=[BrokerId(number) for number in learners],
    )


def refused(image: Image, command: Command) -> RefusedError:
    with pytest.raises(RefusedError) as caught:
        decide(command, image)
    assert caught.value.message
    return caught.value


def first(image: Image) -> Partition:
    return image.topics["a"].partitions[0]


def ids(*numbers: int) -> tuple[BrokerId, ...]:
    return tuple(BrokerId(number) for number in numbers)


@pytest.fixture
def image() -> Image:
    return after(cluster(6), CreateTopic(name="a", topic_id=ID, assignments={0: (1, 2, 3)}))


def test_a_move_is_desired_until_the_group_has_reached_it(image: Image) -> None:
    image = after(image, move(4, 5, 1))
    partition = first(image)
    assert partition.replicas == (4, 5, 1, 2, 3)
    assert (partition.adding, partition.removing) == ((4, 5), (2, 3))
    assert partition.desired == (4, 5, 1)
    assert reassignments(image) == [("a", partition)]
    image = after(image, report(1, 1, 4, 5))
    assert first(image) == Partition(ZERO, ids(4, 5, 1), desired_version=1)
    assert reassignments(image) == []


@pytest.mark.parametrize(
    "early",
    [
        report(1, 1, 2, 3),
        report(1, 1, 2, 3, 4),
        report(1, 4, 5, 6, learners=(1,)),
        report(0, 4, 5, 6),
        report(2, 4, 5, 6),
    ],
)
def test_a_report_of_other_than_the_desired_replicas_ends_nothing(
    image: Image, early: ReportReplicas
) -> None:
    image = after(image, move(4, 5, 6))
    assert decide(early, image) == []


def test_a_report_about_something_gone_is_passed_over(image: Image) -> None:
    assert decide(report(0, 1, 2, 3), image) == []
    assert decide(report(0, 4), image) == []
    moving = after(image, move(4, 5, 6))
    beyond = ReportReplicas(topic_id=ID, partition=PartitionIndex(1), desired_version=1, voters=())
    assert decide(beyond, moving) == []
    assert decide(report(1, 4, 5, 6), after(moving, DeleteTopic(name="a"))) == []


def test_a_late_report_of_the_same_replicas_for_an_older_desired_state_does_not_count(
    image: Image,
) -> None:
    image = after(image, move(4, 5, 6), move(1, 2, 4), move(4, 5, 6))
    assert first(image).desired_version == 3
    assert decide(report(1, 4, 5, 6), image) == []
    assert first(after(image, report(3, 4, 5, 6))).replicas == (4, 5, 6)


def test_cancelling_leads_back_and_removes_no_replica_before_the_group_is_back(
    image: Image,
) -> None:
    image = after(image, move(4, 5, 6), CANCEL)
    partition = first(image)
    assert partition.desired == (1, 2, 3)
    assert set(partition.replicas) == {1, 2, 3, 4, 5, 6}
    assert (partition.adding, partition.removing) == ((), (4, 5, 6))
    assert decide(CANCEL, image) == []
    image = after(image, report(2, 1, 2, 3))
    assert first(image) == Partition(ZERO, ids(1, 2, 3), desired_version=2)
    assert refused(image, CANCEL).code is ErrorCode.NO_REASSIGNMENT_IN_PROGRESS


def test_desired_replicas_may_change_during_a_move(image: Image) -> None:
    image = after(image, move(4, 5, 6), move(5, 2))
    partition = first(image)
    assert partition.desired == (5, 2)
    assert partition.origin == (1, 2, 3)
    assert set(partition.replicas) == {1, 2, 3, 4, 5, 6}
    assert partition.adding == (5,)
    assert decide(move(5, 2), image) == []
    assert first(after(image, CANCEL)).desired == (1, 2, 3)


def test_a_new_order_of_the_same_brokers_only_changes_the_preferred_leader(image: Image) -> None:
    image = after(image, move(3, 1, 2))
    assert first(image) == Partition(ZERO, ids(3, 1, 2), desired_version=1)
    assert decide(move(3, 1, 2), image) == []


def test_a_new_order_on_the_way_does_not_end_the_move(image: Image) -> None:
    image = after(image, move(1, 2, 3, 4), move(4, 3, 2, 1))
    assert first(image).moving
    assert first(image).desired == (4, 3, 2, 1)


def test_the_number_of_replicas_may_change_unless_the_client_says_no(image: Image) -> None:
    error = refused(image, move(1, allow_replication_factor_change=False))
    assert error.code is ErrorCode.INVALID_REPLICATION_FACTOR
    image = after(image, move(1, 2))
    assert image.topics["a"].replication_factor == 2
    # The number to keep is the one from before the move.
    assert decide(move(4, 5, 6, allow_replication_factor_change=False), image)
    away = after(image, move(4, 5, 6))
    assert decide(move(2, 5, 6, allow_replication_factor_change=False), away)
    image = after(image, report(1, 1, 2))
    assert refused(image, move(1, allow_replication_factor_change=False)).code is (
        ErrorCode.INVALID_REPLICATION_FACTOR
    )


@pytest.mark.parametrize("replicas", [(), (1, 1), (9,), (-1,)])
def test_a_broken_reassignment_is_refused(image: Image, replicas: tuple[int, ...]) -> None:
    assert refused(image, move(*replicas)).code is ErrorCode.INVALID_REPLICA_ASSIGNMENT


def test_an_unknown_partition_is_refused(image: Image) -> None:
    for partition in (-1, 1):
        command = move(1, partition=partition)
        assert refused(image, command).code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    command = ReassignPartition(topic="b", partition=ZERO, replicas=(1,))
    assert refused(image, command).code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_nothing_is_moved_to_a_broker_that_leaves_but_it_may_stay_for_now(image: Image) -> None:
    image = after(image, DrainBroker(broker_id=BrokerId(3)), DrainBroker(broker_id=BrokerId(6)))
    assert refused(image, move(1, 2, 6)).code is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert first(after(image, move(4, 2, 3))).desired == (4, 2, 3)


def test_moves_are_listed_for_the_partitions_asked_for(image: Image) -> None:
    image = after(image, move(4))
    assert len(reassignments(image, [("a", 0), ("a", 7), ("a", -1), ("b", 0)])) == 1
    assert reassignments(image, []) == []
    assert reassignments(cluster(1), [("a", 0)]) == []


def offsets(partitions: int, factor: int) -> CreateTopic:
    return CreateTopic(
        name="__consumer_offsets",
        topic_id=ID,
        partitions=partitions,
        replication_factor=factor,
        internal=True,
    )


def reach_all(image: Image) -> Image:
    reports = [
        ReportReplicas(
            topic_id=topic.topic_id,
            partition=p.index,
            desired_version=p.desired_version,
            voters=p.target,
        )
        for topic in image.topics.values()
        for p in topic.partitions
        if p.moving
    ]
    return after(image, *reports)


def test_internal_topics_rise_to_three_replicas_as_brokers_join() -> None:
    image = after(cluster(1), offsets(50, default_replication(cluster(1))))
    assert decide(SpreadInternalTopics(), image) == []
    for brokers, factor in ((2, 2), (3, 3), (4, 3)):
        image = reach_all(after(image, register(brokers), SpreadInternalTopics()))
        assert default_replication(image) == factor
        partitions = image.topics["__consumer_offsets"].partitions
        assert {len(set(p.replicas)) for p in partitions} == {factor}
        if brokers < 4:
            replicas = Counter(b for p in partitions for b in p.replicas)
            leaders = Counter(p.replicas[0] for p in partitions)
            assert set(replicas.values()) == {50}
            assert max(leaders.values()) - min(leaders.values()) <= 1
    assert decide(SpreadInternalTopics(), image) == []


def test_topics_of_users_do_not_rise(image: Image) -> None:
    assert decide(SpreadInternalTopics(), after(image, move(1), report(1, 1))) == []


def test_an_internal_topic_on_the_move_is_left_alone() -> None:
    image = after(cluster(1), offsets(1, 1), register(2), SpreadInternalTopics(), register(3))
    assert decide(SpreadInternalTopics(), image) == []
    assert decide(SpreadInternalTopics(), reach_all(image))


@given(
    brokers=st.integers(3, 6),
    partitions=st.integers(1, 12),
    factor=st.integers(1, 2),
    racks=st.sampled_from([(None,), ("a", "b"), ("a", "b", "c")]),
    leaving=st.integers(1, 3),
)
def test_a_drain_moves_every_replica_away_and_touches_no_other(
    brokers: int, partitions: int, factor: int, racks: tuple[str | None, ...], leaving: int
) -> None:
    image = EMPTY_IMAGE
    for number in range(1, brokers + 1):
        image = after(image, register(number, racks[number % len(racks)]))
    image = after(
        image,
        CreateTopic(name="a", topic_id=ID, partitions=partitions, replication_factor=factor),
        CreateTopic(
            name="__consumer_offsets",
            topic_id=TopicId(b"o" * 16),
            partitions=3,
            replication_factor=3,
            internal=True,
        ),
        DrainBroker(broker_id=BrokerId(leaving)),
    )
    before = {t.name: t.partitions for t in image.topics.values()}
    for _ in range(partitions + 4):
        moves = drain_moves(image, 2)
        assert len(moves) <= 2
        if not moves:
            break
        image = reach_all(after(image, *moves))
    for topic in image.topics.values():
        for old, new in zip(before[topic.name], topic.partitions, strict=True):
            assert leaving not in new.replicas
            wanted = min(len(old.replicas), brokers - 1)
            assert len(set(new.replicas)) == wanted
            assert set(old.replicas) - {leaving} <= set(new.replicas)


def test_a_drain_waits_for_a_broker_rather_than_take_replicas_away() -> None:
    image = after(
        cluster(3),
        CreateTopic(name="a", topic_id=ID, assignments={0: (3, 1)}),
        DrainBroker(broker_id=BrokerId(3)),
        move(3, 1, 2),
    )
    assert drain_moves(image, 5) == []
    (planned,) = drain_moves(after(image, register(4)), 5)
    assert planned.replicas == (4, 1, 2)


def test_two_leaving_brokers_of_one_partition_are_replaced_at_once(image: Image) -> None:
    image = after(image, DrainBroker(broker_id=BrokerId(1)), DrainBroker(broker_id=BrokerId(3)))
    (planned,) = drain_moves(image, 5)
    assert planned.replicas is not None
    assert len(set(planned.replicas)) == 3
    assert planned.replicas[1] == 2
    assert {planned.replicas[0], planned.replicas[2]} < {4, 5, 6}


def test_a_drain_plans_nothing_without_a_leaving_broker_or_room(image: Image) -> None:
    assert drain_moves(image, 10) == []
    image = after(image, DrainBroker(broker_id=BrokerId(1)))
    assert drain_moves(image, 0) == []
    (planned,) = drain_moves(image, 10)
    assert planned.replicas is not None
    # The replacement takes the place of the preferred leader that goes.
    assert tuple(planned.replicas[1:]) == (2, 3)
    assert planned.replicas[0] in (4, 5, 6)
