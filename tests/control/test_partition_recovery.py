"""Which partitions have lost a majority, and from which replica they can go on."""

import asyncio
from types import SimpleNamespace

import msgspec
import pytest

from moldau.control import partition_recovery
from moldau.control.partition_recovery import (
    Part,
    PartitionRecovery,
    begins_empty,
    judge,
    may_elect,
)
from moldau.data.forced_replicas import BrokerSurvey
from moldau.metadata.image import EMPTY_IMAGE, INTERNAL_TOPICS, Partition, Topic
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import BrokerId, PartitionIndex, TopicId
from moldau.model.topology import PartitionRecovered, RecoveryRequest, ReplicaSurvey

OFFSETS = "__consumer_offsets"
SILENT = RefusedError(ErrorCode.BROKER_NOT_AVAILABLE, "no connection")


def replica(
    broker: int,
    *,
    voters: tuple[int, ...],
    epoch: int = 3,
    end: int = 10,
    problem: str = "",
    leader: bool = False,
    is_voter: bool = True,
    may_pass: bool = False,
) -> ReplicaSurvey:
    return ReplicaSurvey(
        broker=broker,
        voters=voters,
        last_epoch=epoch,
        end_index=end,
        problem=problem,
        has_leader=leader,
        is_voter=is_voter,
        may_pass=may_pass,
    )


def judged(
    voters: tuple[int, ...],
    lost: set[int],
    *left: ReplicaSurvey,
    silent: tuple[int, ...] = (),
    name: str = "t",
    part: Partition | None = None,
) -> PartitionRecovered | None:
    part = part or Partition(PartitionIndex(0), tuple(BrokerId(voter) for voter in voters))
    topic = Topic(
        name=name,
        topic_id=TopicId(bytes(16)),
        partitions=(part,),
        internal=name in INTERNAL_TOPICS,
    )
    surveys: dict[BrokerId, BrokerSurvey | RefusedError] = {
        BrokerId(one.broker): BrokerSurvey((), (one,)) for one in left
    }
    surveys |= {BrokerId(broker): SILENT for broker in silent}
    gone = frozenset(BrokerId(broker) for broker in lost)
    return judge((topic, part), 0, surveys, gone)


def test_a_partition_with_a_majority_needs_nothing() -> None:
    voters = (1, 2, 3)
    assert judged(voters, {3}, replica(1, voters=voters), replica(2, voters=voters)) is None
    # It was recovered: its group is another one than the metadata say.
    assert judged(voters, {2, 3}, replica(1, voters=(1,))) is None
    assert judged(voters, {2, 3}, replica(1, voters=voters, leader=True)) is None


def test_the_one_that_is_left_is_the_survivor() -> None:
    found = judged((1, 2, 3), {2, 3}, replica(1, voters=(1, 2, 3)))
    assert found is not None
    assert (found.state, found.survivor) == ("possible", 1)


def test_of_several_the_best_log_wins() -> None:
    voters = (1, 2, 3, 4, 5)
    found = judged(
        voters,
        {3, 4, 5},
        replica(1, voters=voters, epoch=3, end=90),
        replica(2, voters=voters, epoch=4, end=20),
    )
    assert found is not None
    assert (found.state, found.survivor) == ("possible", 2)
    assert [one.broker for one in found.replicas] == [1, 2]


def test_one_that_does_not_respond_may_be_better() -> None:
    voters = (1, 2, 3, 4, 5)
    found = judged(voters, {3, 4, 5}, replica(1, voters=voters), silent=(2,))
    assert found is not None
    assert (found.state, found.survivor) == ("impossible", -1)
    assert "broker 2 may have a replica, too, and does not respond (no connection)" in found.reason
    # With three, it would even be the majority.
    found = judged((1, 2, 3), {3}, replica(1, voters=(1, 2, 3)), silent=(2,))
    assert found is not None
    assert found.state == "impossible"


def test_one_that_does_not_respond_may_be_a_voter_by_entries_that_the_others_lack() -> None:
    # 2 made 4 a voter, which 1 does not know: what 3 and 4 committed since is on 4.
    found = judged((1, 4, 3, 2), {2, 3}, replica(1, voters=(1, 2, 3)), silent=(4,))
    assert found is not None
    assert (found.state, found.survivor) == ("impossible", -1)
    assert "broker 4 may have a replica, too, and does not respond" in found.reason


def test_a_damaged_replica_is_not_chosen_and_its_broker_is_not_lost() -> None:
    voters = (1, 2, 3)
    damaged = replica(1, voters=(), problem="corrupt at byte 17")
    found = judged(voters, {3}, damaged, replica(2, voters=voters))
    assert found is not None
    assert found.state == "impossible"
    assert "the replica of broker 1 cannot be used" in found.reason
    found = judged(voters, {2, 3}, damaged)
    assert found is not None
    assert found.state == "impossible"
    assert "no replica is left" in found.reason


VOTERS = (1, 2, 4, 5)
"""4 is one since an entry that it does not have yet, and a leader is lost."""
NEW_VOTER = replica(4, voters=(1, 2, 5), is_voter=False)


async def test_a_group_that_can_elect_a_leader_is_given_the_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = SimpleNamespace(monotonic=asyncio.get_running_loop().time)
    monkeypatch.setattr(partition_recovery, "time", clock)

    def seen(*, leader: bool) -> list[PartitionRecovered]:
        one = replica(1, voters=VOTERS, leader=leader)
        found = judged(VOTERS, {2, 3}, one, replica(5, voters=VOTERS), NEW_VOTER)
        return [] if found is None else [found]

    class Recovery(PartitionRecovery):
        looks = 0

        async def _judge_all(
            self, *arguments: object
        ) -> tuple[list[Part], list[PartitionRecovered]]:
            self.looks += 1
            return [], seen(leader=self.looks > 2)

    recovery = Recovery.__new__(Recovery)
    _, found = await recovery._judge_elected(EMPTY_IMAGE, frozenset(), None)
    assert (found, recovery.looks) == ([], 3)


def test_a_voter_whose_log_is_damaged_is_not_waited_for() -> None:
    damaged = replica(4, voters=(), is_voter=False, problem="corrupt at byte 17")
    for fourth, waits in ((NEW_VOTER, True), (damaged, False)):
        found = judged(VOTERS, {2, 3}, replica(1, voters=VOTERS), replica(5, voters=VOTERS), fourth)
        assert found is not None
        assert "the replica of broker 4 cannot be used" in found.reason
        assert may_elect(found) is waits


def test_one_that_cannot_be_opened_now_may_be_better() -> None:
    voters = (1, 2, 3, 4, 5)
    full = replica(2, voters=(), problem="the disk is full", may_pass=True)
    found = judged(voters, {3, 4, 5}, replica(1, voters=voters), full)
    assert found is not None
    assert (found.state, found.survivor) == ("impossible", -1)
    assert "the replica of broker 2 may be better (the disk is full)" in found.reason


def test_what_cannot_be_deleted_begins_again_if_nothing_is_left() -> None:
    nothing = replica(1, voters=(), problem="it has no replica")
    found = judged((2, 3), {2, 3}, nothing, name=OFFSETS)
    assert found is not None
    assert begins_empty(found)
    other = judged((2, 3), {2, 3}, nothing)
    assert other is not None
    assert (other.state, other.survivor) == ("impossible", -1)
    assert "delete the topic" in other.reason


@pytest.mark.parametrize(
    ("left", "remedy"),
    [
        (replica(3, voters=(), problem="corrupt at byte 17"), "set the damaged log aside"),
        (replica(3, voters=(), problem="the disk is full", may_pass=True), "mend that first"),
    ],
)
def test_what_cannot_be_deleted_does_not_begin_again_while_there_is_a_replica(
    left: ReplicaSurvey, remedy: str
) -> None:
    found = judged((2, 3), {2}, left, name=OFFSETS)
    assert found is not None
    assert found.state == "impossible"
    assert remedy in found.reason
    assert "delete the topic" not in found.reason


@pytest.mark.parametrize("silent", [3, 4])
def test_nothing_begins_empty_while_a_broker_does_not_respond(silent: int) -> None:
    # 4 is not among the replicas: it may have been, and not know that it was moved away.
    found = judged((2, 3), {2, 3} - {silent}, silent=(silent,), name=OFFSETS)
    assert found is not None
    assert found.state == "impossible"
    assert f"broker {silent} may have a replica" in found.reason


def test_a_log_that_was_made_after_damage_counts_for_no_voter() -> None:
    # 3 is a voter by its number, and not with the log that it has now.
    voters = (3, 4, 5)
    rebuilt = replica(3, voters=voters, is_voter=False)
    found = judged(voters, {4, 5}, rebuilt, name=OFFSETS)
    assert found is not None
    assert (found.state, found.survivor) == ("possible", 3)
    assert "what the replica of broker 3 lacks is lost" in found.reason


def test_a_damaged_replica_of_a_move_may_be_the_only_voter() -> None:
    moving = Partition(
        PartitionIndex(0),
        replicas=tuple(map(BrokerId, (4, 5, 1, 2, 3))),
        target=tuple(map(BrokerId, (4, 5))),
        origin=tuple(map(BrokerId, (1, 2, 3))),
    )
    learner = replica(5, voters=(1, 2, 3), is_voter=False)
    damaged = replica(4, voters=(), problem="corrupt at byte 17")
    found = judged((), {1, 2, 3}, learner, damaged, name=OFFSETS, part=moving)
    assert found is not None
    assert found.state == "impossible"
    behind = replica(4, voters=(1, 2, 3), is_voter=False, end=3)
    other = judged((), {1, 2, 3}, learner, behind, name=OFFSETS, part=moving)
    assert other is not None
    assert (other.state, other.survivor) == ("possible", 5)


def test_the_highest_epoch_counts_that_anybody_has_heard_of() -> None:
    absent = ReplicaSurvey(broker=9, problem="it has no replica", known_epoch=100_004)
    found = judged((1, 2, 3), {2, 3}, replica(1, voters=(1, 2, 3)), absent)
    assert found is not None
    assert found.known_epoch == 100_004


def test_what_cannot_be_deleted_goes_on_with_a_replica_that_was_being_filled() -> None:
    voters = (1, 2, 3)
    learner = replica(4, voters=voters, epoch=9, end=900, is_voter=False)
    found = judged(voters, {1, 2, 3}, learner, name=OFFSETS)
    assert found is not None
    assert (found.state, found.survivor) == ("possible", 4)
    # Not while a voter is in the cluster, whatever is wrong with it.
    damaged = replica(3, voters=(), problem="corrupt at byte 17")
    found = judged(voters, {1, 2}, learner, damaged, name=OFFSETS)
    assert found is not None
    assert found.state == "impossible"


def test_a_replica_that_was_being_filled_is_chosen_if_it_has_more_than_the_voters() -> None:
    voters = (1, 2, 3)
    one = replica(1, voters=voters)
    for learner, survivor in (
        (replica(4, voters=voters, epoch=9, end=900, is_voter=False, leader=True), 4),
        (replica(4, voters=voters, end=10, is_voter=False), 1),
        (replica(4, voters=voters, end=9, is_voter=False), 1),
    ):
        found = judged(voters, {2, 3}, one, learner)
        assert found is not None
        assert (found.state, found.survivor) == ("possible", survivor)


def test_without_any_voter_one_that_was_being_filled_may_lack_anything() -> None:
    voters = (1, 2, 3)
    learner = replica(4, voters=voters, epoch=9, end=900, is_voter=False)
    found = judged(voters, {1, 2, 3}, learner)
    assert found is not None
    assert found.state == "impossible"


def test_a_field_that_is_misspelt_is_not_passed_over() -> None:
    # It would be carried out, instead of being shown.
    with pytest.raises(msgspec.ValidationError, match="dry-run"):
        msgspec.json.decode(b'{"lost": [2], "dry-run": true}', type=RecoveryRequest)
