from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from security_world import acl_filters, acls, credentials, rule

from moldau.metadata.apply import apply, apply_all
from moldau.metadata.commands import (
    AllocateProducerIds,
    AlterBrokerConfigs,
    AlterQuotas,
    AlterTopicConfigs,
    Command,
    ConfigChange,
    ConfigOperation,
    CreateAcls,
    CreateCluster,
    CreateJoinToken,
    CreatePartitions,
    CreateTopic,
    DefineQueueGroup,
    DeleteAcls,
    DeleteJoinToken,
    DeleteScramCredential,
    DeleteTopic,
    DeleteUser,
    DrainBroker,
    DropQueueGroup,
    KeepBroker,
    PutScramCredentials,
    RaiseFeatureLevel,
    ReassignPartition,
    RegisterBroker,
    RemoveBroker,
    ReplaceBrokerConfigs,
    ReplaceTopicConfigs,
    ReportReplicas,
    SpreadInternalTopics,
)
from moldau.metadata.decide import decide
from moldau.metadata.due_commands import due_commands
from moldau.metadata.image import EMPTY_IMAGE, BrokerState, Endpoint, Image, collision_key
from moldau.metadata.records import (
    BrokerConfigsSet,
    BrokerRegistered,
    BrokerStateSet,
    DesiredReplicasReached,
    FeatureLevelSet,
    MetadataRecord,
    TopicCreated,
    TopicDeleted,
    decode_record,
    encode_record,
)
from moldau.metadata.snapshot import decode_image, encode_image
from moldau.model.errors import RefusedError
from moldau.model.ids import BrokerId, PartitionIndex, TopicId
from moldau.security.acl_checks import check_acl
from moldau.security.principal import authenticated_user
from moldau.security.quotas import QuotaEntity
from moldau.security.scram import ScramMechanism

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
users = st.sampled_from(["", "alice", "bob", "*", "ANONYMOUS"])
partitions = st.integers(-1, 3).map(PartitionIndex)
proper_registrations = st.integers(0, 4).map(
    lambda number: RegisterBroker(
        id=BrokerId(number), host="h", port=1, incarnation=f"dir-{number}"
    )
)
commands: st.SearchStrategy[Command] = st.one_of(
    st.builds(CreateCluster, cluster_id=st.sampled_from(["", "c", "d"])),
    st.builds(
        RegisterBroker,
        id=brokers,
        host=st.sampled_from(["h", "i", ""]),
        port=st.sampled_from([1, 9092, 70_000]),
        rack=st.sampled_from([None, "r", "s"]),
        machine=st.sampled_from([None, "", "m", "n"]),
        incarnation=st.sampled_from(["x", "y"]),
        process=st.sampled_from(["", "p", "q"]),
        raft=st.sampled_from([None, Endpoint("h", 1), Endpoint("", 0)]),
        feature_level_max=st.integers(-1, 3),
        join_token_id=st.sampled_from(["", "", "t", "u"]),
        now_ms=st.integers(0, 3),
    ),
    proper_registrations,
    proper_registrations,
    st.builds(DrainBroker, broker_id=brokers),
    st.builds(KeepBroker, broker_id=brokers),
    st.builds(RemoveBroker, broker_id=brokers, metadata_members=st.lists(brokers, max_size=1)),
    st.builds(RaiseFeatureLevel, level=st.integers(-1, 3)),
    st.builds(
        ReassignPartition,
        topic=names,
        partition=partitions,
        replicas=st.none() | replicas | replicas,
        allow_replication_factor_change=st.booleans(),
    ),
    st.builds(
        ReportReplicas,
        topic_id=topic_ids,
        partition=partitions,
        desired_version=st.integers(0, 3),
        voters=st.lists(brokers, max_size=3),
        learners=st.lists(brokers, max_size=1),
    ),
    st.just(SpreadInternalTopics()),
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
    st.builds(
        DefineQueueGroup,
        name=st.sampled_from(["", "q", "r"]),
        topics=st.lists(names, max_size=2),
        visibility_ms=st.sampled_from([None, 0, 1, 5_000]),
        attempts_max=st.sampled_from([None, 0, 1]),
        backoff_ms=st.sampled_from([None, -1, 0, 70_000]),
        backoff_ms_max=st.sampled_from([None, 10, 100_000]),
        dead_letter_topic=st.none() | names,
        starts_at_end=st.booleans(),
    ),
    st.builds(
        DefineQueueGroup, name=st.sampled_from(["q", "r"]), topics=st.just(("a",)) | st.just(())
    ),
    st.builds(DropQueueGroup, name=st.sampled_from(["q", "r", "s"])),
    st.builds(
        PutScramCredentials,
        user=users,
        credentials=st.dictionaries(st.sampled_from(ScramMechanism), credentials),
        replace_all=st.booleans(),
    ),
    st.builds(DeleteScramCredential, user=users, mechanism=st.sampled_from(ScramMechanism)),
    st.builds(DeleteUser, user=users),
    st.builds(CreateAcls, acls=st.lists(acls, max_size=3)),
    st.builds(CreateAcls, acls=st.lists(st.builds(rule, name=names), max_size=3)),
    st.builds(DeleteAcls, filters=st.lists(acl_filters, max_size=2)),
    st.builds(
        AlterQuotas,
        entity=st.builds(QuotaEntity, st.none() | users, st.none() | users),
        limits=st.dictionaries(
            st.sampled_from(["producer_byte_rate", "request_percentage", "bogus"]),
            st.none() | st.floats(),
        ),
    ),
    st.builds(
        CreateJoinToken,
        id=st.sampled_from(["", "t", "u"]),
        hash=st.sampled_from([b"", bytes(32), b"1" * 32]),
        expires_ms=st.integers(0, 3),
        now_ms=st.integers(0, 3),
    ),
    st.builds(DeleteJoinToken, id=st.sampled_from(["t", "u"])),
)


def check(image: Image) -> None:
    assert {t.topic_id: t for t in image.topics.values()} == image.topics_by_id
    assert len(image.topics) == len(image.topics_by_id) == len(image.collision_names)
    for name, topic in image.topics.items():
        assert topic.name == name
        assert image.collision_names[collision_key(name)] == name
        assert [p.index for p in topic.partitions] == list(range(len(topic.partitions)))
        for partition in topic.partitions:
            held, target = partition.replicas, partition.target
            assert len(set(held)) == len(held) > 0
            assert set(held) <= set(image.brokers)
            assert bool(target) == bool(partition.origin) == partition.moving
            if partition.moving:
                # Whoever may be a voter keeps the log: before the move, after it, on the way.
                assert held[: len(target)] == target
                assert set(partition.origin) <= set(held)
                assert set(partition.adding) == set(target) - set(partition.origin)
    assert not set(image.brokers) & set(image.removed_brokers)
    directories = [
        b.incarnation for b in (*image.brokers.values(), *image.removed_brokers.values())
    ]
    assert len(set(directories)) == len(directories)
    for broker in image.brokers.values():
        assert broker.state is not BrokerState.REMOVED
        assert broker.feature_level_max >= image.feature_level
    assert set(image.broker_configs) <= {BrokerId(-1), *image.brokers}
    for name, group in image.queue_groups.items():
        assert name == group.name
        assert list(group.topics) == sorted(set(group.topics))
        assert set(group.topics) <= set(image.topics)
        assert group.settings.dead_letter_topic not in group.topics
        assert group.settings.backoff_ms <= group.settings.backoff_ms_max
        assert image.feature_level >= 2
    check_security(image)


def check_security(image: Image) -> None:
    if image.users or image.acls or image.quotas or image.join_tokens:
        assert image.feature_level >= 3
    for name, one in image.users.items():
        assert name == one.name
        assert one.credentials
        assert authenticated_user(name)
        for mechanism, stored in one.credentials.items():
            assert len(stored.stored_key) == len(stored.server_key) == mechanism.hash_bytes
    for acl in image.acls:
        check_acl(acl)
    for entity, limits in image.quotas.items():
        assert entity != (None, None)
        assert limits
        assert all(0 < limit < float("inf") for limit in limits.values())
    directories = [token.used_by for token in image.join_tokens.values() if token.used_by]
    assert {token.id for token in image.join_tokens.values()} == set(image.join_tokens)
    known = {one.incarnation for one in (*image.brokers.values(), *image.removed_brokers.values())}
    assert set(directories) <= known


Step = Command | Callable[[Image], Command]


def reach(image: Image) -> Command:
    """The group of the first partition that moves has arrived."""
    for topic in image.topics.values():
        for partition in topic.partitions:
            if partition.moving:
                return ReportReplicas(
                    topic_id=topic.topic_id,
                    partition=partition.index,
                    desired_version=partition.desired_version,
                    voters=partition.target,
                )
    return SpreadInternalTopics()


CLUSTER: list[Step] = [
    CreateCluster(cluster_id="c"),
    *(
        RegisterBroker(id=BrokerId(number), host="h", port=1, incarnation=f"dir-{number}")
        for number in range(4)
    ),
    CreateTopic(name="a", topic_id=TopicId(b"\1" * 16), partitions=3, replication_factor=2),
    CreateTopic(
        name="__consumer_offsets",
        topic_id=TopicId(b"\2" * 16),
        partitions=2,
        replication_factor=1,
        internal=True,
    ),
]
steps: st.SearchStrategy[Step] = st.one_of(commands, st.just(reach))
sequences = st.one_of(
    st.lists(steps, max_size=40), st.lists(steps, max_size=40).map(lambda drawn: CLUSTER + drawn)
)


def run(sequence: list[Step]) -> tuple[Image, list[MetadataRecord]]:
    image, log = EMPTY_IMAGE, []
    for step in sequence:
        command = step(image) if callable(step) else step
        try:
            records = decide(command, image)
        except RefusedError:
            continue
        image = apply_all(image, records)
        log += records
        check(image)
    return image, log


@given(sequences)
def test_any_commands_lead_to_a_sound_image_that_replay_restores(sequence: list[Step]) -> None:
    image, log = run(sequence)
    assert apply_all(EMPTY_IMAGE, log) == image
    stored = [decode_record(encode_record(record)) for record in log]
    assert stored == log
    assert apply_all(EMPTY_IMAGE, stored) == image


@given(sequences)
def test_a_snapshot_and_the_records_after_it_are_as_good_as_the_whole_log(
    sequence: list[Step],
) -> None:
    image, log = run(sequence)
    for count in {0, len(log) // 2, len(log)}:
        restored = decode_image(encode_image(apply_all(EMPTY_IMAGE, log[:count])))
        assert apply_all(restored, log[count:]) == image


@given(sequences)
def test_what_the_leader_plans_in_the_background_is_never_refused(sequence: list[Step]) -> None:
    image, _ = run(sequence)
    for command in due_commands(image, metadata_members=(), moves_max=3):
        records = decide(command, image)
        assert records
        check(apply_all(image, records))


@given(sequences, st.data())
def test_reading_the_end_of_the_log_twice_changes_nothing(
    sequence: list[Step], data: st.DataObject
) -> None:
    image, log = run(sequence)
    since = data.draw(st.integers(0, len(log)))
    again = apply_all(image, log[since:])
    check(again)
    assert replace(again, version=0) == replace(image, version=0)


def create_record(name: str, number: int) -> TopicCreated:
    return TopicCreated(
        name=name, topic_id=TopicId(number.to_bytes(16, "big")), partitions=((BrokerId(1),),)
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


def test_records_about_what_is_gone_or_older_change_nothing() -> None:
    one = BrokerId(1)

    def registered(epoch: int) -> BrokerRegistered:
        return BrokerRegistered(id=one, host="h", port=epoch, incarnation="x", epoch=epoch)

    image = apply_all(EMPTY_IMAGE, [registered(1), registered(2), FeatureLevelSet(level=1)])
    draining = apply(image, BrokerStateSet(broker_id=one, state=BrokerState.DRAINING))
    assert apply(draining, registered(2)) is draining
    assert apply(image, registered(1)) is image
    assert apply(image, FeatureLevelSet(level=0)) is image
    unknown = BrokerStateSet(broker_id=BrokerId(2), state=BrokerState.DRAINING)
    assert apply(image, unknown) is image
    image = apply(image, BrokerStateSet(broker_id=one, state=BrokerState.REMOVED))
    for record in (
        registered(2),
        registered(3),
        BrokerStateSet(broker_id=one, state=BrokerState.ACTIVE),
        BrokerConfigsSet(broker_id=one, configs={"log.retention.ms": "1"}),
    ):
        assert apply(image, record) is image
    image = apply(image, create_record("a", 1))
    topic_id = image.topics["a"].topic_id
    for partition in (-1, 1):
        reached = DesiredReplicasReached(
            topic_id=topic_id,
            partition=PartitionIndex(partition),
            replicas=(one,),
            desired_version=1,
        )
        assert apply(image, reached) is image


def test_a_queue_group_does_not_take_to_a_later_topic_of_the_same_name() -> None:
    first, second = create_record("a", 1), create_record("a", 2)
    one = BrokerRegistered(id=BrokerId(1), host="h", port=1, feature_level_max=2)
    image = apply_all(EMPTY_IMAGE, [one, first])
    records = decide(DefineQueueGroup(name="q", topics=("a",)), image)
    log = [*records, TopicDeleted(topic_id=first.topic_id), second]
    image = apply_all(image, log)
    assert image.queue_groups["q"].topics == ()
    assert apply_all(image, log).queue_groups["q"].topics == ()
