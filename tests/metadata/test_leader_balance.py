import pytest

from moldau.metadata.apply import apply_all
from moldau.metadata.commands import (
    Command,
    CreateTopic,
    DrainBroker,
    ReassignPartition,
    RegisterBroker,
)
from moldau.metadata.decide import decide
from moldau.metadata.image import EMPTY_IMAGE, Image
from moldau.metadata.leader_balance import (
    ElectionType,
    LeaderTransfer,
    balance_leaders,
    elect_leader,
    elections_due,
    preferred_leader,
)
from moldau.metadata.leaders import Leader, LeaderAnnouncement, Leaders
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import BrokerId, Epoch, PartitionIndex, TopicId

ID = TopicId(b"t" * 16)
ONE, TWO, THREE, FOUR = (BrokerId(number) for number in (1, 2, 3, 4))
ALL = {ONE, TWO, THREE, FOUR}


def after(image: Image, *commands: Command) -> Image:
    for command in commands:
        image = apply_all(image, decide(command, image))
    return image


def cluster(*partitions: tuple[int, ...]) -> Image:
    brokers = [
        RegisterBroker(id=BrokerId(number), host="h", port=1, incarnation=f"dir-{number}")
        for number in (1, 2, 3, 4)
    ]
    topic = CreateTopic(name="a", topic_id=ID, assignments=dict(enumerate(partitions)))
    return after(EMPTY_IMAGE, *brokers, topic)


def led(*brokers: int) -> Leaders:
    return Leaders().announced(
        LeaderAnnouncement(ID, PartitionIndex(index), Leader(BrokerId(broker), Epoch(1)))
        for index, broker in enumerate(brokers)
    )


def transfer(partition: int, source: int, target: int) -> LeaderTransfer:
    return LeaderTransfer(ID, PartitionIndex(partition), BrokerId(source), BrokerId(target))


def test_leadership_goes_back_to_the_preferred_leader() -> None:
    image = cluster((1, 2), (2, 1), (3, 1))
    assert balance_leaders(image, led(2, 2, 1), ALL) == [transfer(0, 2, 1), transfer(2, 1, 3)]
    assert balance_leaders(image, led(1, 2, 3), ALL) == []


def test_nothing_goes_to_a_dead_broker_nor_comes_from_an_unknown_leader() -> None:
    image = cluster((1, 2), (1, 2))
    assert balance_leaders(image, led(2, 2), {TWO}) == []
    assert balance_leaders(image, led(-1, 2), ALL) == [transfer(1, 2, 1)]


def test_a_small_imbalance_is_left_alone() -> None:
    image = cluster(*[(1, 2)] * 10)
    assert balance_leaders(image, led(2, *[1] * 9), ALL) == []
    assert len(balance_leaders(image, led(2, 2, *[1] * 8), ALL)) == 2
    assert len(balance_leaders(image, led(2, *[1] * 9), ALL, imbalance_percent_max=9)) == 1


def test_transfers_are_bounded() -> None:
    image = cluster(*[(1, 2)] * 10)
    assert len(balance_leaders(image, led(*[2] * 10), ALL, count_max=3)) == 3


def test_a_partition_on_the_move_keeps_its_leader() -> None:
    image = cluster((1, 2))
    move = ReassignPartition(topic="a", partition=PartitionIndex(0), replicas=(3, 2))
    assert balance_leaders(after(image, move), led(1), ALL) == []


def test_a_broker_that_leaves_hands_over_even_a_little() -> None:
    image = after(cluster(*[(1, 2)] * 20, (3, 1)), DrainBroker(broker_id=THREE))
    assert preferred_leader(image, image.topics["a"].partitions[20]) == ONE
    assert balance_leaders(image, led(*[1] * 20, 3), ALL) == [transfer(20, 3, 1)]


def code_of(
    image: Image,
    leaders: Leaders,
    alive: set[BrokerId],
    *,
    partition: int = 0,
    topic: str = "a",
    election: ElectionType = ElectionType.PREFERRED,
) -> ErrorCode:
    with pytest.raises(RefusedError) as caught:
        elect_leader(image, leaders, alive, topic=topic, partition=partition, election=election)
    assert caught.value.message
    return caught.value.code


def test_an_election_is_held_for_the_preferred_leader() -> None:
    image = cluster((1, 2), (2, 1))
    leaders = led(2, 2)
    elected = elect_leader(
        image, leaders, ALL, topic="a", partition=0, election=ElectionType.PREFERRED
    )
    assert elected == transfer(0, 2, 1)
    assert list(elections_due(image, leaders)) == [("a", 0)]


def test_no_election_is_held_for_a_broker_that_leaves() -> None:
    leaving = after(cluster((1, 2), (1, 2)), DrainBroker(broker_id=ONE))
    assert list(elections_due(leaving, led(2, 1))) == [("a", 1)]
    assert code_of(leaving, led(2, 1), ALL) is ErrorCode.ELECTION_NOT_NEEDED


def test_an_election_is_refused_with_the_code_that_tools_know() -> None:
    image = cluster((1, 2))
    assert code_of(image, led(1), ALL) is ErrorCode.ELECTION_NOT_NEEDED
    assert code_of(image, led(2), {TWO}) is ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
    assert code_of(image, led(-1), ALL) is ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
    for partition in (-1, 1):
        code = code_of(image, led(2), ALL, partition=partition)
        assert code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert code_of(image, led(2), ALL, topic="b") is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    move = ReassignPartition(topic="a", partition=PartitionIndex(0), replicas=(3, 2))
    moving = after(image, move)
    assert code_of(moving, led(1), ALL) is ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE


def test_an_election_that_forgets_records_is_never_held() -> None:
    image = cluster((1, 2))
    unclean = ElectionType.UNCLEAN
    assert code_of(image, led(2), ALL, election=unclean) is ErrorCode.ELECTION_NOT_NEEDED
    for leaders, alive in ((led(-1), ALL), (led(2), {ONE})):
        code = code_of(image, leaders, alive, election=unclean)
        assert code is ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
