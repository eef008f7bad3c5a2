"""The decision of a recovery: who continues with what, and what no plan is made of."""

import random
import uuid
from collections.abc import Sequence

import msgspec
import pytest
from effort import seeds
from recovery_surveys import TOPIC_ID, ids, known, log, replica, survey, topic

from moldau.metadata.apply import apply_all
from moldau.metadata.image import Broker, BrokerState, Image
from moldau.metadata.records import DesiredReplicasReached
from moldau.model.cluster_ids import is_named
from moldau.model.ids import BrokerId, ProducerId, TimestampMs
from moldau.replica.only_voter import EPOCH_DISTANCE
from moldau.server.recovery.apply import decode_plan
from moldau.server.recovery.plan import Plan, PlanError, make_plan
from moldau.server.recovery.survey import Survey, SurveyedLog

CHANCE = uuid.UUID(int=0x1234567890ABCDEF1234567890ABCDEF, version=4)


def plan(surveys: Sequence[Survey], *lost: int) -> Plan:
    return make_plan(surveys, set(ids(*lost)), chance=CHANCE, now_ms=TimestampMs(5))


def refusal(surveys: Sequence[Survey], *lost: int) -> str:
    with pytest.raises(PlanError) as refused:
        plan(surveys, *lost)
    assert refused.value.hint
    return f"{refused.value} / {refused.value.hint}"


def test_the_one_that_is_left_gets_the_metadata_and_the_cluster_another_id() -> None:
    made = plan([survey(1, log(epoch=3, end=20, voted=5))], 2, 3)
    assert made.metadata_broker == 1
    assert made.metadata.end_index == 20
    assert made.metadata.epoch == 5 + EPOCH_DISTANCE
    assert made.new_cluster_id != made.cluster_id
    assert is_named(made.new_cluster_id, "prod")
    assert decode_plan(msgspec.json.encode(made)) == made


def test_a_cluster_without_a_name_gets_another_number() -> None:
    old = str(uuid.UUID(int=7))
    made = plan([survey(1, cluster_id=old)], 2, 3)
    assert made.new_cluster_id == str(CHANCE)


def test_the_metadata_knows_the_new_id_and_drains_the_lost_brokers() -> None:
    made = plan([survey(1)], 2, 3)
    brokers = {number: Broker(id=number, host="h", port=1) for number in ids(1, 2, 3)}
    before = Image(cluster_id=made.cluster_id, brokers=brokers, next_producer_id=ProducerId(7000))
    image = apply_all(before, made.records())
    assert image.cluster_id == made.new_cluster_id
    assert [broker.id for broker in image.active_brokers()] == [1]
    assert image.brokers[BrokerId(2)].state is BrokerState.DRAINING
    assert image.next_producer_id > 1_000_000_000


@pytest.mark.parametrize(
    ("better", "worse"),
    [
        pytest.param(log(epoch=4, end=5), log(epoch=3, end=50), id="a later epoch"),
        pytest.param(log(epoch=3, end=6), log(epoch=3, end=5), id="a longer log"),
    ],
)
def test_the_best_metadata_is_chosen(better: SurveyedLog, worse: SurveyedLog) -> None:
    brokers = (1, 2, 3, 4, 5)
    voters = {"voters": ids(*brokers)}
    one = survey(1, msgspec.structs.replace(worse, **voters), brokers=brokers)
    two = survey(2, msgspec.structs.replace(better, **voters), brokers=brokers)
    for order in ([one, two], [two, one]):
        assert plan(order, 3, 4, 5).metadata_broker == 2


def test_of_equal_logs_that_of_a_voter_is_chosen() -> None:
    brokers = (1, 2, 3, 4)
    found = log(voters=(2, 3, 4))
    surveys = [survey(each, found, brokers=brokers) for each in (1, 2)]
    assert plan(surveys, 3, 4).metadata_broker == 2


def test_a_learner_that_has_more_than_the_voter_is_chosen() -> None:
    brokers = (1, 2, 3, 4)
    surveys = [
        survey(1, log(end=11, voters=(2, 3, 4)), brokers=brokers),
        survey(2, log(end=10, voters=(2, 3, 4)), brokers=brokers),
    ]
    assert plan(surveys, 3, 4).metadata_broker == 1


# ---- no plan


def test_the_files_must_be_of_one_cluster() -> None:
    other = survey(2, cluster_id="test.0123456789abcdef")
    assert "test.0123456789abcdef" in refusal([survey(1), other], 3)


def test_a_broker_has_one_file() -> None:
    assert "two files of broker 1" in refusal([survey(1), survey(1)], 2, 3)


def test_a_survivor_is_not_lost() -> None:
    assert "broker 2 is named as lost" in refusal([survey(1), survey(2)], 2, 3)


def test_each_broker_is_a_survivor_or_lost() -> None:
    text = refusal([survey(1)], 2)
    assert "nothing is known of broker 3 (h:3)" in text


def test_only_brokers_of_the_cluster_can_be_lost() -> None:
    assert "broker 9 (--lost) is not a broker" in refusal([survey(1)], 2, 3, 9)


def test_a_broker_that_the_metadata_does_not_know_cannot_take_part() -> None:
    surveys = [survey(1, log(end=20)), survey(4, brokers=(1, 2, 3, 4))]
    assert "does not know broker 4" in refusal(surveys, 2, 3)


def test_a_majority_that_is_left_is_not_replaced() -> None:
    text = refusal([survey(1), survey(2)], 3)
    assert "has a majority of its voters" in text
    assert "moldau partition recover" in text


def test_a_voter_with_another_log_is_none_of_the_majority() -> None:
    again = log(end=8, log_id=77)
    assert plan([survey(1), survey(2, again)], 3).metadata_broker == 1


# ---- partitions


def test_a_partition_with_a_majority_is_left_alone() -> None:
    brokers = (1, 2, 3, 4, 5)
    metadata = log(voters=brokers)
    parts = [replica(log(voters=(1, 2, 3)))]
    topics = [topic(known(1, 2, 3))]
    made = plan(
        [
            survey(each, metadata, partitions=parts, topics=topics, brokers=brokers)
            for each in (1, 2)
        ],
        3, 4, 5,
    )  # fmt: skip
    assert made.topics[0].whole == (0,)
    assert not made.replicas
    assert all(not one.forced for one in made.survivors)


def test_the_best_replica_of_a_partition_without_a_majority_continues() -> None:
    brokers = (1, 2, 3, 4, 5)
    metadata = log(voters=brokers)
    topics = [topic(known(1, 2, 3, 4, 5))]
    made = plan(
        [
            survey(
                each,
                metadata,
                partitions=[replica(log(epoch, end, brokers, voted=voted))],
                topics=topics,
                brokers=brokers,
            )
            for each, epoch, end, voted in ((1, 6, 90, 9), (2, 7, 80, 7))
        ],
        3, 4, 5,
    )  # fmt: skip
    assert made.topics[0].recovered == (0,)
    first, second = made.survivors
    assert not first.forced
    (forced,) = second.forced
    assert (forced.topic, forced.partition, forced.end_index) == ("t", 0, 80)
    assert forced.epoch == 9 + EPOCH_DISTANCE


def test_a_log_without_members_has_those_of_the_metadata() -> None:
    made = plan([survey(1, partitions=[replica(log(voters=()))], topics=[topic(known(1))])], 2, 3)
    assert made.topics[0].whole == (0,)


def test_a_partition_without_a_replica_begins_empty_on_a_survivor() -> None:
    made = plan([survey(1, topics=[topic(known(2, 3), known(3, 2))])], 2, 3)
    assert made.topics[0].empty == (0, 1)
    assert [one.is_new for one in made.survivors[0].forced] == [True, True]
    assert [one.replicas[0] for one in made.replicas] == [1, 1]
    assert all(len(one.replicas) == 2 for one in made.replicas)


def test_a_partition_with_only_corrupt_replicas_stays_as_it_is() -> None:
    made = plan([survey(1, partitions=[replica("torn")], topics=[topic(known(1, 2, 3))])], 2, 3)
    assert made.topics[0].damaged == (0,)
    assert not made.survivors[0].forced
    assert "torn" in made.warnings[0]


def test_a_replica_that_the_metadata_does_not_know_of_is_added_to_it() -> None:
    found = log(voters=(1, 2))
    made = plan([survey(1, partitions=[replica(found)], topics=[topic(known(2, 3))])], 2, 3)
    (moved,) = made.replicas
    assert moved.replicas == (1, 2)
    (record,) = [one for one in made.records() if isinstance(one, DesiredReplicasReached)]
    assert record.topic_id.hex() == TOPIC_ID
    assert record.desired_version == 1


def test_a_move_to_a_lost_broker_is_cancelled() -> None:
    moving = known(3, 1, target=(3,), origin=(1,))
    found = log(voters=(1,))
    made = plan([survey(1, partitions=[replica(found)], topics=[topic(moving)])], 2, 3)
    assert made.topics[0].whole == (0,)
    assert [one.replicas for one in made.replicas] == [(1,)]


@pytest.mark.safety
@pytest.mark.parametrize(
    ("origin", "target"),
    [
        # An entry of 1, 4 and 5 is not committed for 2 and 3 alone.
        pytest.param((1, 2, 3, 4, 5), (1, 2, 3), id="to fewer"),
        # 3 has nothing yet, and must not be a voter: an entry of 1 and 4 is not on 2.
        pytest.param((1, 2, 4), (4, 1, 2, 3, 5), id="to more"),
    ],
)
def test_a_cancelled_move_leaves_the_voters_of_logs_that_name_none(
    origin: tuple[int, ...], target: tuple[int, ...]
) -> None:
    brokers = (1, 2, 3, 4, 5, 6, 7)
    metadata = log(voters=(3, 4, 5, 6, 7))
    moving = known(*dict.fromkeys((*target, *origin)), target=target, origin=origin)
    made = plan(
        [
            survey(
                each,
                metadata,
                partitions=[replica(log(voters=()))] if each in origin else [],
                topics=[topic(moving)],
                brokers=brokers,
            )
            for each in (1, 2, 3)
        ],
        4, 5, 6, 7,
    )  # fmt: skip
    assert made.topics[0].whole == (0,)
    (one,) = made.replicas
    assert set(one.replicas) == set(origin)


def test_a_failed_disk_is_a_warning() -> None:
    assert "EIO" in plan([survey(1, disk_failure="EIO")], 2, 3).warnings[0]


# ---- the property that all rests on


class _Group:
    """A group as Raft runs it, without messages: logs are lists of (epoch, number of the entry).

    Leaders that were replaced go on until they learn it.
    """

    def __init__(self, rng: random.Random, brokers: int) -> None:
        self.rng = rng
        self.logs: dict[int, list[tuple[int, int]]] = {one: [] for one in range(1, brokers + 1)}
        self.known: dict[int, int] = dict.fromkeys(self.logs, 0)
        """Entries below are committed, as far as each broker knows."""
        self._heard: dict[int, int] = dict.fromkeys(self.logs, 0)
        self._leaders: dict[int, int] = {}
        """Who leads, and in which epoch."""
        self._epoch = 0
        self._entries = 0

    def step(self) -> None:
        kinds = (self._elect, *[self._append] * 3, *[self._copy] * 6, *[self._commit] * 3)
        self.rng.choice(kinds)()

    def _rank(self, broker: int) -> tuple[int, int]:
        entries = self.logs[broker]
        return (entries[-1][0] if entries else 0, len(entries))

    def _hear(self, broker: int, epoch: int) -> None:
        self._heard[broker] = epoch
        if self._leaders.get(broker, epoch) < epoch:
            del self._leaders[broker]

    def _elect(self) -> None:
        voters = self.rng.sample(sorted(self.logs), len(self.logs) // 2 + 1)
        self._epoch += 1
        for voter in voters:
            self._hear(voter, self._epoch)
        leader = max(voters, key=self._rank)
        self._leaders[leader] = self._epoch
        self._add(leader)

    def _add(self, leader: int) -> None:
        self._entries += 1
        self.logs[leader].append((self._leaders[leader], self._entries))

    def _append(self) -> None:
        if self._leaders:
            self._add(self.rng.choice(sorted(self._leaders)))

    def _copy(self) -> None:
        if not self._leaders:
            return
        leader = self.rng.choice(sorted(self._leaders))
        follower = self.rng.choice(sorted(self.logs.keys() - {leader}))
        if self._heard[follower] > self._leaders[leader]:
            self._hear(leader, self._heard[follower])
            return
        self._hear(follower, self._leaders[leader])
        source, target = self.logs[leader], self.logs[follower]
        same = _same(source, target)
        end = self.rng.randint(same, len(source))
        if end > same:
            self.logs[follower] = source[:end]

    def _commit(self) -> None:
        if not self._leaders:
            return
        leader = self.rng.choice(sorted(self._leaders))
        source, epoch = self.logs[leader], self._leaders[leader]
        ends = sorted(_same(source, entries) for entries in self.logs.values())
        end = ends[(len(ends) - 1) // 2]
        if end and source[end - 1][0] == epoch:
            for broker, entries in self.logs.items():
                is_sent = self._heard[broker] <= epoch and self.rng.random() < 0.7
                if entries[:end] == source[:end] and is_sent:
                    self.known[broker] = max(self.known[broker], end)


def _same(one: list[tuple[int, int]], two: list[tuple[int, int]]) -> int:
    """How many entries both begin with."""
    count = 0
    while count < min(len(one), len(two)) and one[count] == two[count]:
        count += 1
    return count


@pytest.mark.safety
@pytest.mark.parametrize("seed", seeds(200))
def test_the_chosen_log_has_all_that_any_survivor_knows_to_be_committed(seed: int) -> None:
    rng = random.Random(seed)
    count = rng.choice((5, 7))
    group = _Group(rng, count)
    for _ in range(rng.randint(5, 90)):
        group.step()
    brokers = tuple(group.logs)
    left = rng.sample(brokers, rng.randint(2, count // 2))
    found = {
        each: log(
            group.logs[each][-1][0] if group.logs[each] else 0, len(group.logs[each]), brokers
        )
        for each in left
    }
    topics = [topic(known(*brokers))]
    made = plan(
        [
            survey(each, found[each], partitions=[replica(found[each])], topics=topics,
                   brokers=brokers)
            for each in left
        ],
        *(set(brokers) - set(left)),
    )  # fmt: skip
    (holder,) = [one.broker_id for one in made.survivors if one.forced]
    for chosen in (made.metadata_broker, holder):
        for each in left:
            committed = group.logs[each][: group.known[each]]
            assert group.logs[chosen][: len(committed)] == committed
