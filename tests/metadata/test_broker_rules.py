import pytest

from moldau.metadata.apply import apply_all
from moldau.metadata.broker_rules import BROKERS_MAX, peer_refusal, replicas_on
from moldau.metadata.commands import (
    AlterBrokerConfigs,
    Command,
    ConfigChange,
    ConfigOperation,
    CreateCluster,
    CreateTopic,
    DrainBroker,
    KeepBroker,
    RaiseFeatureLevel,
    ReassignPartition,
    RegisterBroker,
    RemoveBroker,
    ReportReplicas,
)
from moldau.metadata.decide import decide
from moldau.metadata.image import (
    EMPTY_IMAGE,
    FEATURE_LEVEL_MAX,
    BrokerState,
    Endpoint,
    Image,
)
from moldau.metadata.records import encode_record
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import BrokerId, PartitionIndex, TopicId

ONE, TWO, THREE, FOUR = (BrokerId(number) for number in (1, 2, 3, 4))


def make_id(number: int) -> TopicId:
    return TopicId(number.to_bytes(16, "big"))


def after(image: Image, *commands: Command) -> Image:
    for command in commands:
        image = apply_all(image, decide(command, image))
    return image


def register(number: int | None, directory: str | None = None, **changes: object) -> RegisterBroker:
    fields: dict[str, object] = {
        "host": "h",
        "port": 9092,
        "raft": Endpoint("h", 19092),
        "http": Endpoint("h", 8080),
        "grpc": Endpoint("h", 8000),
        **changes,
    }
    return RegisterBroker(
        id=None if number is None else BrokerId(number),
        incarnation=directory or f"dir-{number}",
        **fields,  # type: ignore[arg-type]
    )


def refused(image: Image, command: Command) -> RefusedError:
    with pytest.raises(RefusedError) as caught:
        decide(command, image)
    assert caught.value.message
    return caught.value


def topic(name: str, *partitions: tuple[int, ...], number: int = 1) -> CreateTopic:
    return CreateTopic(name=name, topic_id=make_id(number), assignments=dict(enumerate(partitions)))


@pytest.fixture
def three() -> Image:
    return after(EMPTY_IMAGE, CreateCluster(cluster_id="c"), *map(register, (1, 2, 3)))


def test_a_broker_is_known_with_all_its_addresses(three: Image) -> None:
    broker = three.brokers[ONE]
    assert broker.raft == Endpoint("h", 19092)
    assert str(broker.http) == "h:8080"
    assert str(broker.grpc) == "h:8000"
    assert broker.state is BrokerState.ACTIVE
    assert broker.epoch == 1


def test_the_machine_of_a_broker_is_stored_where_it_is_known(three: Image) -> None:
    (record,) = decide(register(1, process="start-2"), three)
    assert b"machine" not in encode_record(record), "as an earlier version wrote it"
    assert three.brokers[ONE].machine is None
    image = after(three, register(1, process="start-2", machine="m"), register(2, machine="m"))
    assert [image.brokers[one].machine for one in (ONE, TWO, THREE)] == ["m", "m", None]
    assert [image.brokers[one].place for one in (ONE, TWO, THREE)] == ["m", "m", THREE]
    moved = after(image, register(1, process="start-3", machine="n"))
    assert moved.brokers[ONE].machine == "n"
    assert after(moved, register(1, process="start-4")).brokers[ONE].machine is None


def test_what_a_snapshot_of_an_earlier_version_lacks_is_stored_once_more(three: Image) -> None:
    drain = DrainBroker(broker_id=TWO)
    leader = after(three, register(1, machine="m"), register(2, machine="m"), drain)
    command = register(3, process="start-2", machine="n", lacking=(ONE, TWO, FOUR))
    records = decide(command, leader)
    behind = after(three, drain)
    assert apply_all(behind, records).brokers == apply_all(leader, records).brokers
    # The same request once more tells only what it asks for.
    assert len(decide(command, apply_all(leader, records))) == 2
    # What the leader does not know either, it cannot tell.
    assert decide(register(3, lacking=(ONE, TWO, FOUR)), three) == []


def test_every_start_of_a_broker_raises_its_epoch_but_a_repeated_request_does_not(
    three: Image,
) -> None:
    started = register(1, process="start-2")
    image = after(three, started)
    assert image.brokers[ONE].epoch == 2
    assert decide(started, image) == []
    moved = register(1, process="start-2", raft=Endpoint("other", 1))
    image = after(image, moved)
    assert image.brokers[ONE].epoch == 3
    assert image.brokers[ONE].raft == Endpoint("other", 1)


@pytest.mark.parametrize(
    "change",
    [
        {"host": "i"},
        {"port": 1},
        {"rack": "r"},
        {"machine": "m"},
        {"http": None},
        {"grpc": None},
        {"feature_level_max": 7},
    ],
)
def test_a_registration_that_differs_in_anything_is_a_new_one(
    three: Image, change: dict[str, object]
) -> None:
    assert after(three, register(1, None, **change)).brokers[ONE].epoch == 2


def test_an_id_is_never_given_to_another_data_directory(three: Image) -> None:
    error = refused(three, register(1, "wiped"))
    assert error.code is ErrorCode.DUPLICATE_BROKER_REGISTRATION
    gone = after(
        three, DrainBroker(broker_id=ONE), RemoveBroker(broker_id=ONE, metadata_members=())
    )
    for directory in ("wiped", "dir-1"):
        error = refused(gone, register(1, directory))
        assert error.code is ErrorCode.DUPLICATE_BROKER_REGISTRATION
        assert "removed" in error.message


def test_a_copied_data_directory_is_no_second_broker(three: Image) -> None:
    error = refused(three, register(4, "dir-2"))
    assert error.code is ErrorCode.DUPLICATE_BROKER_REGISTRATION
    assert "broker 2" in error.message
    gone = after(
        three, DrainBroker(broker_id=TWO), RemoveBroker(broker_id=TWO, metadata_members=())
    )
    assert refused(gone, register(4, "dir-2")).code is ErrorCode.DUPLICATE_BROKER_REGISTRATION


def test_a_broker_without_an_id_gets_one_that_was_never_used(three: Image) -> None:
    gone = after(
        three, DrainBroker(broker_id=THREE), RemoveBroker(broker_id=THREE, metadata_members=())
    )
    image = after(gone, register(None, "new"))
    assert sorted(image.brokers) == [1, 2, 4]
    assert decide(register(None, "new"), image) == []
    assert after(EMPTY_IMAGE, register(None, "first")).brokers[ONE].incarnation == "first"


@pytest.mark.parametrize(
    "wrong",
    [
        {"host": ""},
        {"port": 0},
        {"raft": Endpoint("", 1)},
        {"raft": Endpoint("h", 65536)},
        {"http": Endpoint("h" * 256, 1)},
        {"grpc": Endpoint("h", 0)},
        {"rack": "r" * 256},
        {"machine": "m" * 256},
        {"process": "p" * 256},
        {"feature_level_max": -1},
    ],
)
def test_a_registration_that_makes_no_sense_is_refused(wrong: dict[str, object]) -> None:
    error = refused(EMPTY_IMAGE, register(1, None, **wrong))
    assert error.code is ErrorCode.INVALID_REGISTRATION
    assert len(error.message) < 300


def test_ids_and_directories_have_bounds() -> None:
    for number in (-1, 2**31):
        assert refused(EMPTY_IMAGE, register(number)).code is ErrorCode.INVALID_REGISTRATION
    nameless = RegisterBroker(id=ONE, host="h", port=1, incarnation="")
    assert refused(EMPTY_IMAGE, nameless).code is ErrorCode.INVALID_REGISTRATION
    full = after(EMPTY_IMAGE, *(register(number) for number in range(BROKERS_MAX)))
    assert refused(full, register(BROKERS_MAX)).code is ErrorCode.INVALID_REGISTRATION
    assert after(full, register(0, process="again")).brokers[BrokerId(0)].epoch == 2


def test_a_draining_broker_gets_nothing_new_and_stays_draining_over_a_restart(three: Image) -> None:
    image = after(three, DrainBroker(broker_id=ONE), register(1, process="again"))
    assert image.brokers[ONE].state is BrokerState.DRAINING
    assert decide(DrainBroker(broker_id=ONE), image) == []
    error = refused(
        image, CreateTopic(name="a", topic_id=make_id(1), partitions=1, replication_factor=3)
    )
    assert error.code is ErrorCode.INVALID_REPLICATION_FACTOR
    assert "is 3" in error.message
    assert "2 brokers" in error.message
    assert refused(image, topic("a", (1, 2))).code is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    image = after(
        image, CreateTopic(name="a", topic_id=make_id(1), partitions=9, replication_factor=2)
    )
    assert replicas_on(image, ONE) == 0
    kept = after(image, KeepBroker(broker_id=ONE))
    assert kept.brokers[ONE].active
    assert decide(KeepBroker(broker_id=ONE), kept) == []


def test_a_drain_that_cannot_end_is_refused_with_the_numbers(three: Image) -> None:
    image = after(three, topic("wide", (1, 2, 3)))
    error = refused(image, DrainBroker(broker_id=THREE))
    assert error.code is ErrorCode.INVALID_REPLICATION_FACTOR
    assert "'wide' has 3 replicas" in error.message
    assert "2 without broker 3" in error.message
    assert after(image, register(4), DrainBroker(broker_id=THREE)).brokers[THREE].active is False


def test_two_drains_at_once_are_judged_together(three: Image) -> None:
    image = after(three, topic("a", (1, 2)), DrainBroker(broker_id=ONE))
    error = refused(image, DrainBroker(broker_id=TWO))
    assert error.code is ErrorCode.INVALID_REPLICATION_FACTOR


def test_internal_topics_do_not_hold_a_broker_back(three: Image) -> None:
    offsets = CreateTopic(
        name="__consumer_offsets",
        topic_id=make_id(1),
        partitions=3,
        replication_factor=3,
        internal=True,
    )
    assert decide(DrainBroker(broker_id=ONE), after(three, offsets))


def test_the_last_active_broker_stays(three: Image) -> None:
    image = after(three, DrainBroker(broker_id=ONE), DrainBroker(broker_id=TWO))
    assert refused(image, DrainBroker(broker_id=THREE)).code is ErrorCode.INVALID_REQUEST


def test_a_broker_is_removed_only_when_nothing_is_left_on_it(three: Image) -> None:
    def remove(*members: BrokerId) -> RemoveBroker:
        return RemoveBroker(broker_id=ONE, metadata_members=members)

    image = after(three, topic("a", (1, 2)))
    assert refused(image, remove()).code is ErrorCode.INVALID_REQUEST
    image = after(image, DrainBroker(broker_id=ONE))
    error = refused(image, remove())
    assert error.code is ErrorCode.REASSIGNMENT_IN_PROGRESS
    assert "1 replica" in error.message
    moving = ReassignPartition(topic="a", partition=PartitionIndex(0), replicas=(3, 2))
    image = after(image, moving)
    # Still a voter of the group, perhaps: the desired state alone is not enough.
    assert refused(image, remove()).code is ErrorCode.REASSIGNMENT_IN_PROGRESS
    reached = ReportReplicas(
        topic_id=make_id(1), partition=PartitionIndex(0), desired_version=1, voters=(TWO, THREE)
    )
    image = after(image, reached)
    assert refused(image, remove(ONE, TWO)).code is ErrorCode.REASSIGNMENT_IN_PROGRESS
    image = after(image, remove(TWO, THREE))
    assert sorted(image.brokers) == [2, 3]
    assert image.removed_brokers[ONE].state is BrokerState.REMOVED
    assert decide(remove(TWO, THREE), image) == []
    for command in (DrainBroker(broker_id=ONE), KeepBroker(broker_id=ONE)):
        assert refused(image, command).code is ErrorCode.BROKER_ID_NOT_REGISTERED


def test_the_settings_of_a_removed_broker_go_with_it(three: Image) -> None:
    change = ConfigChange(name="log.retention.ms", operation=ConfigOperation.SET, value="1")
    image = after(
        three,
        AlterBrokerConfigs(broker_id=ONE, changes=(change,)),
        AlterBrokerConfigs(broker_id=TWO, changes=(change,)),
        DrainBroker(broker_id=ONE),
        RemoveBroker(broker_id=ONE, metadata_members=()),
    )
    assert list(image.broker_configs) == [TWO]


def test_the_feature_level_rises_when_every_broker_knows_it() -> None:
    image = after(EMPTY_IMAGE, register(1), register(2, feature_level_max=0))
    error = refused(image, RaiseFeatureLevel(level=1))
    assert error.code is ErrorCode.FEATURE_UPDATE_FAILED
    assert "Broker 2" in error.message
    image = after(image, register(2, process="upgraded"))
    image = after(image, RaiseFeatureLevel(level=1))
    assert image.feature_level == 1
    assert decide(RaiseFeatureLevel(level=1), image) == []
    for level in (0, -1, FEATURE_LEVEL_MAX + 1):
        assert refused(image, RaiseFeatureLevel(level=level)).code is (
            ErrorCode.INVALID_UPDATE_VERSION
        )
    error = refused(image, register(3, feature_level_max=0))
    assert error.code is ErrorCode.UNSUPPORTED_VERSION


def test_a_removed_broker_does_not_hold_the_feature_level_back() -> None:
    image = after(
        EMPTY_IMAGE,
        register(1),
        register(2, feature_level_max=0),
        DrainBroker(broker_id=TWO),
        RemoveBroker(broker_id=TWO, metadata_members=()),
    )
    assert after(image, RaiseFeatureLevel(level=2)).feature_level == 2


def test_a_peer_is_known_by_directory_and_registration(three: Image) -> None:
    image = after(three, register(1, process="again"))

    def reason(broker_id: int = 1, incarnation: str = "dir-1", epoch: int = 2) -> str | None:
        return peer_refusal(
            image,
            broker_id=BrokerId(broker_id),
            incarnation=incarnation,
            epoch=epoch,
        )

    assert reason() is None
    assert reason(epoch=3) is None
    assert "registered with 2 since" in str(reason(epoch=1))
    assert "another data directory" in str(reason(incarnation="wiped"))
    assert "not registered" in str(reason(broker_id=9))
    image = after(
        image, DrainBroker(broker_id=ONE), RemoveBroker(broker_id=ONE, metadata_members=())
    )
    assert "removed" in str(reason())
