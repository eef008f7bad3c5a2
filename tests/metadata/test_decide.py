import pytest

from moldau.metadata.apply import apply_all
from moldau.metadata.commands import (
    AllocateProducerIds,
    AlterBrokerConfigs,
    AlterTopicConfigs,
    Command,
    ConfigChange,
    ConfigOperation,
    CreateCluster,
    CreatePartitions,
    CreateTopic,
    DeleteTopic,
    RegisterBroker,
    ReplaceTopicConfigs,
)
from moldau.metadata.decide import decide
from moldau.metadata.image import CLUSTER_DEFAULT, EMPTY_IMAGE, Image
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import BrokerId, TopicId


def make_id(number: int) -> TopicId:
    return TopicId(number.to_bytes(16, "big"))


def after(image: Image, *commands: Command) -> Image:
    for command in commands:
        image = apply_all(image, decide(command, image))
    return image


def register(
    number: int, rack: str | None = None, incarnation: str | None = None
) -> RegisterBroker:
    return RegisterBroker(
        id=BrokerId(number),
        host="127.0.0.1",
        port=9091 + number,
        rack=rack,
        incarnation=incarnation or f"dir-{number}",
    )


def create(name: str, number: int = 1, **changes: object) -> CreateTopic:
    fields: dict[str, object] = {"partitions": 1, "replication_factor": 1, **changes}
    return CreateTopic(name=name, topic_id=make_id(number), **fields)  # type: ignore[arg-type]


def refused(image: Image, command: Command) -> RefusedError:
    with pytest.raises(RefusedError) as caught:
        decide(command, image)
    assert caught.value.message
    return caught.value


@pytest.fixture
def image() -> Image:
    return after(EMPTY_IMAGE, CreateCluster(cluster_id="c"), register(1))


@pytest.fixture
def three() -> Image:
    return after(EMPTY_IMAGE, register(1), register(2), register(3))


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a/b", "a b", "ä", "a\n", "a\0", "x" * 250, "../../etc", "x" * 100_000]
)
def test_a_bad_topic_name_is_refused_with_a_short_message(image: Image, name: str) -> None:
    error = refused(image, create(name))
    assert error.code is ErrorCode.INVALID_TOPIC_EXCEPTION
    assert len(error.message) < 300


@pytest.mark.parametrize("name", ["a", "...", "A-b_c.9", "x" * 249])
def test_a_good_topic_name_is_accepted(image: Image, name: str) -> None:
    assert after(image, create(name)).topic(name) is not None


def test_a_topic_exists_once(image: Image) -> None:
    image = after(image, create("a"))
    assert refused(image, create("a", 2)).code is ErrorCode.TOPIC_ALREADY_EXISTS


def test_a_creation_that_is_sent_again_is_done_already(image: Image) -> None:
    image = after(image, create("a", 1))
    assert decide(create("a", 1), image) == []


def test_names_that_differ_only_by_dot_and_underscore_collide(image: Image) -> None:
    image = after(image, create("a.b_c"))
    error = refused(image, create("a_b.c", 2))
    assert error.code is ErrorCode.INVALID_TOPIC_EXCEPTION
    assert "a_b.c" in error.message
    assert "a.b_c" not in error.message, "the client may have no right to describe it"
    image = after(image, DeleteTopic(name="a.b_c"), create("a_b.c", 2))
    assert image.topic("a_b.c") is not None


def test_a_topic_id_is_never_shared(image: Image) -> None:
    image = after(image, create("a", 1))
    assert refused(image, create("b", 1)).code is ErrorCode.INCONSISTENT_TOPIC_ID
    assert refused(image, create("b", 0)).code is ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("count", [0, -1, -5, 10_001, 2**31 - 1])
def test_an_impossible_number_of_partitions_is_refused(image: Image, count: int) -> None:
    error = refused(image, create("a", partitions=count))
    assert error.code is ErrorCode.INVALID_PARTITIONS
    assert str(count) in error.message


def test_more_replicas_than_brokers_are_refused_with_both_numbers(three: Image) -> None:
    error = refused(three, create("a", replication_factor=5))
    assert error.code is ErrorCode.INVALID_REPLICATION_FACTOR
    assert "5" in error.message
    assert "3 brokers" in error.message
    assert refused(three, create("a", replication_factor=0)).code is (
        ErrorCode.INVALID_REPLICATION_FACTOR
    )


def test_an_explicit_assignment_is_taken_as_given(three: Image) -> None:
    image = after(
        three, create("a", partitions=-1, replication_factor=-1, assignments={1: [3, 1], 0: [2, 3]})
    )
    topic = image.topics["a"]
    assert [(p.index, p.replicas) for p in topic.partitions] == [(0, (2, 3)), (1, (3, 1))]
    assert topic.replication_factor == 2


@pytest.mark.parametrize(
    "assignments",
    [{0: []}, {0: [1, 1]}, {0: [9]}, {0: [1], 2: [2]}, {1: [1]}, {0: [1, 2], 1: [3]}, {-1: [1]}],
)
def test_a_broken_assignment_is_refused(three: Image, assignments: dict[int, list[int]]) -> None:
    command = create("a", partitions=-1, replication_factor=-1, assignments=assignments)
    assert refused(three, command).code is ErrorCode.INVALID_REPLICA_ASSIGNMENT


def test_an_empty_assignment_has_no_partitions(three: Image) -> None:
    command = create("a", partitions=-1, replication_factor=-1, assignments={})
    assert refused(three, command).code is ErrorCode.INVALID_PARTITIONS


def test_an_assignment_beside_counts_is_refused(three: Image) -> None:
    assert refused(three, create("a", assignments={0: [1]})).code is ErrorCode.INVALID_REQUEST


def test_a_bad_config_names_key_and_value(image: Image) -> None:
    error = refused(image, create("a", configs={"retention.ms": "soon"}))
    assert error.code is ErrorCode.INVALID_CONFIG
    assert "retention.ms" in error.message
    assert "soon" in error.message
    assert refused(image, create("a", configs={"no.such": "1"})).code is ErrorCode.INVALID_CONFIG
    assert refused(image, create("a", configs={"segment.ms": None})).code is (
        ErrorCode.INVALID_CONFIG
    )


def test_an_unknown_topic_is_refused_everywhere(image: Image) -> None:
    for command in (
        DeleteTopic(name="a"),
        CreatePartitions(topic="a", count=2),
        AlterTopicConfigs(topic="a", changes=()),
        ReplaceTopicConfigs(topic="a", configs={}),
    ):
        assert refused(image, command).code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert refused(image, DeleteTopic(topic_id=make_id(7))).code is ErrorCode.UNKNOWN_TOPIC_ID


def test_a_topic_is_deleted_by_name_or_by_id(image: Image) -> None:
    image = after(image, create("a", 1), create("b", 2))
    image = after(image, DeleteTopic(name="a"), DeleteTopic(topic_id=make_id(2)))
    assert not image.topics
    assert not image.topics_by_id


def test_a_delete_whose_name_and_id_disagree_is_refused(image: Image) -> None:
    image = after(image, create("a", 1), create("b", 2))
    command = DeleteTopic(name="a", topic_id=make_id(2))
    assert refused(image, command).code is ErrorCode.UNKNOWN_TOPIC_ID


def test_internal_topics_can_be_neither_made_grown_nor_deleted_by_clients(image: Image) -> None:
    assert refused(image, create("__consumer_offsets")).code is ErrorCode.INVALID_TOPIC_EXCEPTION
    image = after(image, create("__consumer_offsets", partitions=50, internal=True))
    for command in (
        DeleteTopic(name="__consumer_offsets"),
        CreatePartitions(topic="__consumer_offsets", count=51),
    ):
        assert refused(image, command).code is ErrorCode.INVALID_TOPIC_EXCEPTION


def test_partitions_grow_and_never_shrink(three: Image) -> None:
    image = after(three, create("a", partitions=3, replication_factor=2))
    for count in (3, 2, 0, 10_001):
        error = refused(image, CreatePartitions(topic="a", count=count))
        assert error.code is ErrorCode.INVALID_PARTITIONS
    before = image.topics["a"].partitions
    image = after(image, CreatePartitions(topic="a", count=5))
    partitions = image.topics["a"].partitions
    assert partitions[:3] == before
    assert [p.index for p in partitions] == [0, 1, 2, 3, 4]
    assert all(len(set(p.replicas)) == 2 for p in partitions)


def test_added_partitions_go_where_the_topic_has_the_fewest(three: Image) -> None:
    image = after(
        three,
        create("a", partitions=-1, replication_factor=-1, assignments={0: [1], 1: [1], 2: [2]}),
        CreatePartitions(topic="a", count=6),
    )
    replicas = [partition.replicas[0] for partition in image.topics["a"].partitions]
    assert sorted(replicas) == [1, 1, 2, 2, 3, 3]


def test_new_partitions_use_a_broker_that_joined(three: Image) -> None:
    image = after(three, *(create(f"t{number}", number, partitions=3) for number in range(1, 4)))
    image = after(image, register(4), create("new", 9))
    assert image.topics["new"].partitions[0].replicas == (4,)
    image = after(image, register(5), CreatePartitions(topic="new", count=2))
    assert image.topics["new"].partitions[1].replicas == (5,)
    image = after(image, create("wide", 10, partitions=5, replication_factor=3))
    counts = [b for p in image.topics["wide"].partitions for b in p.replicas]
    assert sorted(counts) == sorted([1, 2, 3, 4, 5] * 3)


def test_added_partitions_follow_a_given_assignment(three: Image) -> None:
    image = after(three, create("a", replication_factor=2))
    for wrong in ([], [[1]], [[1, 2], [2, 3]], [[1, 9]]):
        command = CreatePartitions(topic="a", count=2, assignments=wrong)
        assert refused(image, command).code is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    image = after(image, CreatePartitions(topic="a", count=2, assignments=[[3, 1]]))
    assert image.topics["a"].partitions[1].replicas == (3, 1)


def change(name: str, operation: ConfigOperation, value: str | None = None) -> ConfigChange:
    return ConfigChange(name=name, operation=operation, value=value)


def test_configs_change_one_by_one(image: Image) -> None:
    image = after(image, create("a", configs={"retention.ms": "1", "segment.ms": "2"}))
    image = after(
        image,
        AlterTopicConfigs(
            topic="a",
            changes=(
                change("retention.ms", ConfigOperation.SET, " 5 "),
                change("segment.ms", ConfigOperation.DELETE),
                change("cleanup.policy", ConfigOperation.APPEND, "compact"),
            ),
        ),
    )
    assert image.topics["a"].configs == {"retention.ms": "5", "cleanup.policy": "delete,compact"}
    assert image.topics_by_id[make_id(1)].configs == image.topics["a"].configs
    subtract = change("cleanup.policy", ConfigOperation.SUBTRACT, "delete")
    image = after(image, AlterTopicConfigs(topic="a", changes=(subtract,)))
    assert image.topics["a"].configs["cleanup.policy"] == "compact"


def test_a_full_replace_forgets_what_is_not_named(image: Image) -> None:
    image = after(image, create("a", configs={"retention.ms": "1", "segment.ms": "2"}))
    image = after(image, ReplaceTopicConfigs(topic="a", configs={"segment.ms": "3"}))
    assert image.topics["a"].configs == {"segment.ms": "3"}


def test_only_lists_can_be_appended_to(image: Image) -> None:
    image = after(image, create("a"))
    append = change("retention.ms", ConfigOperation.APPEND, "1")
    error = refused(image, AlterTopicConfigs(topic="a", changes=(append,)))
    assert error.code is ErrorCode.INVALID_CONFIG


def test_the_last_cleanup_policy_cannot_be_subtracted(image: Image) -> None:
    image = after(image, create("a"))
    subtract = change("cleanup.policy", ConfigOperation.SUBTRACT, "delete")
    error = refused(image, AlterTopicConfigs(topic="a", changes=(subtract,)))
    assert error.code is ErrorCode.INVALID_CONFIG


def test_a_key_is_changed_once_per_request(image: Image) -> None:
    image = after(image, create("a"))
    twice = (
        change("retention.ms", ConfigOperation.SET, "1"),
        change("retention.ms", ConfigOperation.DELETE),
    )
    error = refused(image, AlterTopicConfigs(topic="a", changes=twice))
    assert error.code is ErrorCode.INVALID_REQUEST


def test_broker_configs_change_at_run_time_for_one_or_all(image: Image) -> None:
    hours = (change("log.retention.hours", ConfigOperation.SET, "2"),)
    image = after(image, AlterBrokerConfigs(broker_id=CLUSTER_DEFAULT, changes=hours))
    image = after(image, AlterBrokerConfigs(broker_id=BrokerId(1), changes=hours))
    assert image.broker_overrides(CLUSTER_DEFAULT) == {"log.retention.hours": "2"}
    assert image.broker_overrides(BrokerId(1)) == {"log.retention.hours": "2"}
    assert refused(image, AlterBrokerConfigs(broker_id=BrokerId(9), changes=hours)).code is (
        ErrorCode.INVALID_REQUEST
    )
    port = (change("port", ConfigOperation.SET, "1"),)
    assert refused(image, AlterBrokerConfigs(broker_id=BrokerId(1), changes=port)).code is (
        ErrorCode.INVALID_CONFIG
    )
    drop = (change("log.retention.hours", ConfigOperation.DELETE),)
    image = after(image, AlterBrokerConfigs(broker_id=BrokerId(1), changes=drop))
    assert BrokerId(1) not in image.broker_configs


def test_a_broker_may_move_but_not_change_its_data_directory(image: Image) -> None:
    moved = RegisterBroker(id=BrokerId(1), host="other", port=1, incarnation="dir-1")
    assert after(image, moved).brokers[BrokerId(1)].host == "other"
    error = refused(image, register(1, incarnation="wiped"))
    assert error.code is ErrorCode.DUPLICATE_BROKER_REGISTRATION
    bad = RegisterBroker(id=BrokerId(2), host="", port=70_000, incarnation="x")
    assert refused(image, bad).code is ErrorCode.INVALID_REGISTRATION


def test_what_is_already_so_needs_no_record(image: Image) -> None:
    image = after(image, create("a", configs={"segment.ms": "3"}))
    for command in (
        CreateCluster(cluster_id="c"),
        register(1),
        ReplaceTopicConfigs(topic="a", configs={"segment.ms": "3"}),
    ):
        assert decide(command, image) == []
    assert refused(image, CreateCluster(cluster_id="d")).code is ErrorCode.INCONSISTENT_CLUSTER_ID


def test_producer_ids_are_given_out_once(image: Image) -> None:
    first = decide(AllocateProducerIds(count=1000), image)
    image = apply_all(image, first)
    second = decide(AllocateProducerIds(count=1), image)
    assert [record.first for record in first + second] == [0, 1000]  # type: ignore[union-attr]
    assert refused(image, AllocateProducerIds(count=0)).code is ErrorCode.INVALID_REQUEST
