from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from moldau.metadata.apply import apply, apply_all
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
    ReplaceBrokerConfigs,
    ReplaceTopicConfigs,
)
from moldau.metadata.decide import decide
from moldau.metadata.image import EMPTY_IMAGE, Image, collision_key
from moldau.metadata.records import (
    BrokerRegistered,
    MetadataRecord,
    TopicCreated,
    TopicDeleted,
    decode_record,
    encode_record,
)
from moldau.model.errors import RefusedError
from moldau.model.ids import BrokerId, TopicId

names = st.sampled_from(["a", "b", "a.b", "a_b", "..", "", "x/y", "__consumer_offsets"])
topic_ids = st.integers(0, 12).map(lambda n: TopicId(n.to_bytes(16, "big")))
brokers = st.integers(-1, 4).map(BrokerId)
config_names = st.sampled_from(
    ["retention.ms", "cleanup.policy", "segment.bytes", "log.retention.hours", "bogus"]
)
config_values = st.sampled_from([None, "1", "100", "-1", "delete", "compact,delete", "x", ""])
configs = st.dictionaries(config_names, config_values, max_size=2)
replicas = st.lists(st.integers(0, 4), max_size=3)
changes = st.lists(
    st.builds(
        ConfigChange,
        name=config_names,
        operation=st.sampled_from(ConfigOperation),
        value=config_values,
    ),
    max_size=3,
)
commands: st.SearchStrategy[Command] = st.one_of(
    st.builds(CreateCluster, cluster_id=st.sampled_from(["", "c", "d"])),
    st.builds(
        RegisterBroker,
        id=brokers,
        host=st.sampled_from(["h", "i", ""]),
        port=st.sampled_from([1, 9092, 70_000]),
        rack=st.sampled_from([None, "r", "s"]),
        incarnation=st.sampled_from(["x", "y"]),
    ),
    st.builds(
        CreateTopic,
        name=names,
        topic_id=topic_ids,
        partitions=st.integers(-1, 5),
        replication_factor=st.integers(-1, 3),
        assignments=st.one_of(
            st.none(), st.none(), st.dictionaries(st.integers(-1, 3), replicas, max_size=3)
        ),
        configs=configs,
        internal=st.booleans(),
    ),
    st.builds(DeleteTopic, name=st.none() | names, topic_id=st.none() | topic_ids),
    st.builds(
        CreatePartitions,
        topic=names,
        count=st.integers(-1, 8),
        assignments=st.none() | st.lists(replicas, max_size=3),
    ),
    st.builds(AlterTopicConfigs, topic=names, changes=changes),
    st.builds(ReplaceTopicConfigs, topic=names, configs=configs),
    st.builds(AlterBrokerConfigs, broker_id=brokers, changes=changes),
    st.builds(ReplaceBrokerConfigs, broker_id=brokers, configs=configs),
    st.builds(AllocateProducerIds, count=st.integers(-1, 2**63)),
)


def check(image: Image) -> None:
    assert {t.topic_id: t for t in image.topics.values()} == image.topics_by_id
    assert len(image.topics) == len(image.topics_by_id) == len(image.collision_names)
    for name, topic in image.topics.items():
        assert topic.name == name
        assert image.collision_names[collision_key(name)] == name
        assert [p.index for p in topic.partitions] == list(range(len(topic.partitions)))
        for partition in topic.partitions:
            assert len(partition.replicas) == topic.replication_factor > 0
            assert set(partition.replicas) <= set(image.brokers)


def run(sequence: list[Command]) -> tuple[Image, list[MetadataRecord]]:
    image, log = EMPTY_IMAGE, []
    for command in sequence:
        try:
            records = decide(command, image)
        except RefusedError:
            continue
        image = apply_all(image, records)
        log += records
        check(image)
    return image, log


@given(st.lists(commands, max_size=40))
def test_any_commands_lead_to_a_sound_image_that_replay_restores(sequence: list[Command]) -> None:
    image, log = run(sequence)
    assert apply_all(EMPTY_IMAGE, log) == image
    stored = [decode_record(encode_record(record)) for record in log]
    assert stored == log
    assert apply_all(EMPTY_IMAGE, stored) == image


@given(st.lists(commands, max_size=40), st.data())
def test_reading_the_end_of_the_log_twice_changes_nothing(
    sequence: list[Command], data: st.DataObject
) -> None:
    image, log = run(sequence)
    since = data.draw(st.integers(0, len(log)))
    again = apply_all(image, log[since:])
    check(again)
    assert replace(again, version=0) == replace(image, version=0)


def create_record(name: str, number: int) -> TopicCreated:
    return TopicCreated(
        name=name,
        topic_id=TopicId(number.to_bytes(16, "big")),
        partitions=((BrokerId(1),),),
    )


def test_a_recreated_topic_has_the_new_id() -> None:
    first, second = create_record("a", 1), create_record("a", 2)
    image = apply_all(EMPTY_IMAGE, [first, TopicDeleted(topic_id=first.topic_id), second])
    assert image.topics["a"].topic_id == second.topic_id
    assert image.topic_by_id(first.topic_id) is None
    # The deletion of the first, met again, leaves the second alone.
    assert apply(image, TopicDeleted(topic_id=first.topic_id)) is image


def test_an_image_held_by_a_handler_never_changes() -> None:
    held = apply(EMPTY_IMAGE, create_record("a", 1))
    later = apply(held, create_record("b", 2))
    assert list(held.topics) == ["a"]
    assert list(later.topics) == ["a", "b"]
    assert later.version == held.version + 1


def test_maps_that_a_record_does_not_touch_are_shared() -> None:
    image = apply_all(EMPTY_IMAGE, [create_record(f"t{n}", n) for n in range(1, 1001)])
    broker = BrokerRegistered(id=BrokerId(1), host="h", port=1)
    after = apply(image, broker)
    assert after.topics is image.topics
    assert after.topics_by_id is image.topics_by_id


def test_a_long_life_read_again_from_anywhere_ends_the_same() -> None:
    def create(name: str, number: int) -> CreateTopic:
        topic_id = TopicId(number.to_bytes(16, "big"))
        return CreateTopic(name=name, topic_id=topic_id, partitions=1, replication_factor=1)

    image, log = run(
        [
            RegisterBroker(id=BrokerId(1), host="h", port=1, incarnation="x"),
            create("a.b", 1),
            AllocateProducerIds(count=10),
            CreatePartitions(topic="a.b", count=3),
            DeleteTopic(name="a.b"),
            create("a_b", 2),
            CreatePartitions(topic="a_b", count=2),
            AllocateProducerIds(count=5),
            CreatePartitions(topic="a_b", count=4),
            ReplaceTopicConfigs(topic="a_b", configs={"retention.ms": "1"}),
            ReplaceTopicConfigs(topic="a_b", configs={"retention.ms": "2"}),
        ]
    )
    assert len(log) == 11
    for since in range(len(log)):
        for until in range(since, len(log) + 1):
            again = apply_all(image, log[since:until])
            check(again)
            assert len(again.topics) == 1
            assert len(again.topics["a_b"].partitions) == 4
            assert again.next_producer_id == 15
        assert replace(again, version=0) == replace(image, version=0)
