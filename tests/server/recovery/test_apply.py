"""A plan is carried out whole or not at all, whenever the power fails."""

import random
import uuid
from collections.abc import Callable

import pytest
from effort import seeds
from msgspec.structs import replace
from recovery_directory import ALL, CLUSTER_ID, EPOCH, TOPIC_ID, directory

from moldau.log.datadir import RECOVERY_FILE, partition_path, read_identity
from moldau.log.disk_log import open_disk_log
from moldau.log.filesystem import Files
from moldau.log.flush_failure import write_fence
from moldau.log.interface import LogConfig
from moldau.log.unwritten_files import UnwrittenFiles
from moldau.metadata.image import BrokerState
from moldau.model.ids import BrokerId, PartitionIndex, TimestampMs
from moldau.replica.only_voter import EPOCH_DISTANCE
from moldau.server.recovery.apply import State, apply_plan, check_applicable
from moldau.server.recovery.plan import Plan, PlanError, make_plan
from moldau.server.recovery.survey import (
    NOBODY,
    Survey,
    image_of,
    survey_digest,
    survey_directory,
)
from moldau.server.storage import METADATA_LOG
from moldau.testing.logs import append
from sim.simdisk import SimCrash, SimDisk

CHANCE = uuid.UUID(int=0x1234567890ABCDEF1234567890ABCDEF, version=4)


def planned(disk: Files, chance: uuid.UUID = CHANCE) -> Plan:
    return make_plan(
        [survey_directory(disk)], ALL[1:], chance=chance, now_ms=TimestampMs(1_700_000_000_000)
    )


def check_done(disk: Files, plan: Plan) -> Survey:
    identity = read_identity(disk)
    assert identity is not None
    assert identity.cluster_id == plan.new_cluster_id
    assert not disk.exists(RECOVERY_FILE)
    assert check_applicable(disk, plan)[1] is State.DONE
    found = survey_directory(disk)
    assert found.metadata.voters == (1,)
    assert found.metadata.last_epoch == plan.metadata.epoch
    assert [part.partition for part in found.partitions] == [0, 1, 2]
    for part in found.partitions:
        assert part.log is not None
        assert part.log.voters == (1,)
        assert part.log.survivor(BrokerId(1), NOBODY).is_voter
    return found


def test_the_survivor_becomes_the_only_voter_of_all_and_the_cluster_another_one() -> None:
    disk = directory(log_id=99)
    before = survey_directory(disk)
    plan = planned(disk)
    told: list[int] = []
    apply_plan(disk, plan, told.append)
    assert told == [1, 2, 3]
    after = check_done(disk, plan)
    for old, new in zip(before.partitions, after.partitions, strict=False):
        assert old.log is not None
        assert new.log is not None
        assert new.log.end_offset == old.log.end_offset == 4
        assert new.log.last_epoch == EPOCH + EPOCH_DISTANCE
    log = open_disk_log(disk, "metadata", METADATA_LOG)
    image = image_of(log)
    assert image.cluster_id == plan.new_cluster_id != CLUSTER_ID
    assert [each.id for each in image.brokers.values() if each.state is BrokerState.DRAINING] == [
        2, 3,
    ]  # fmt: skip
    topic = image.topics_by_id[TOPIC_ID]
    assert [part.replicas[0] for part in topic.partitions] == [1, 1, 1]
    assert [len(part.replicas) for part in topic.partitions] == [3, 3, 2]


def test_a_look_changes_nothing() -> None:
    disk = directory()
    steps = disk.steps
    first = survey_directory(disk)
    assert survey_digest(survey_directory(disk)) == survey_digest(first)
    assert disk.steps == steps


def test_a_look_at_one_log_keeps_nothing_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    # Each listing of a folder searches what is kept: with 10,000 logs, that took minutes.
    disk = directory()
    kept = []
    listdir = UnwrittenFiles.listdir

    def counted(files: UnwrittenFiles, path: str) -> list[str]:
        kept.append([each for each in files._changed if each.startswith("topics/")])
        return listdir(files, path)

    monkeypatch.setattr(UnwrittenFiles, "listdir", counted)
    assert len(survey_directory(disk).partitions) == 2
    assert any(kept)
    assert all(len({each.rpartition("/")[0] for each in some}) <= 1 for some in kept)


def test_a_folder_without_a_log_is_not_a_replica() -> None:
    disk = directory()
    path = partition_path("t", TOPIC_ID, PartitionIndex(2))
    disk.makedirs(path)
    disk.replace(f"{path}/notes.txt", b"moved to the other disk")
    plan = planned(disk)
    assert plan.topics[0].empty == (2,)
    apply_plan(disk, plan)
    check_done(disk, plan)


def test_it_can_be_done_twice() -> None:
    disk = directory()
    plan = planned(disk)
    apply_plan(disk, plan)
    found = check_done(disk, plan)
    apply_plan(disk, plan)
    assert check_done(disk, plan) == found


def test_a_directory_that_has_changed_is_refused() -> None:
    disk = directory()
    plan = planned(disk)
    path = partition_path("t", TOPIC_ID, PartitionIndex(0))
    log = open_disk_log(disk, path, LogConfig())
    append(log, epoch=EPOCH)
    log.close()
    steps = disk.steps
    with pytest.raises(PlanError, match="has changed since the plan was made"):
        apply_plan(disk, plan)
    assert disk.steps == steps


def test_a_directory_that_is_not_in_the_plan_is_refused() -> None:
    disk = directory()
    plan = planned(disk)
    (one,) = plan.survivors
    other = replace(plan, survivors=(replace(one, directory_id="another"),))
    with pytest.raises(PlanError, match="not for this data directory"):
        apply_plan(disk, other)


def test_another_plan_cannot_complete_what_was_begun() -> None:
    disk = directory()
    plan, other = planned(disk), planned(disk, uuid.UUID(int=5, version=4))
    disk.crash_at(8)
    with pytest.raises(SimCrash):
        apply_plan(disk, plan)
    disk = disk.survive()
    assert check_applicable(disk, plan)[1] is State.BEGUN
    with pytest.raises(PlanError, match="another plan was begun"):
        apply_plan(disk, other)


def test_a_failed_disk_is_rewritten_first() -> None:
    disk = directory()
    write_fence(disk, "EIO")
    plan = planned(disk)
    assert plan.warnings
    apply_plan(disk, plan)
    check_done(disk, plan)
    assert not disk.exists("fence")


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the metadata gets several."""
    monkeypatch.setattr("moldau.server.recovery.apply._BATCH_RECORDS_MAX", 2)


OUTCOMES: dict[str, Callable[[SimDisk, random.Random], SimDisk]] = {
    "killed": lambda disk, rng: disk.survive(),
    "power": lambda disk, rng: disk.crash(rng),
    "worst": lambda disk, rng: disk.lose(),
}


@pytest.mark.safety
@pytest.mark.parametrize("outcome", OUTCOMES)
@pytest.mark.parametrize("seed", seeds(2))
def test_after_a_crash_at_any_step_the_same_command_completes_it(outcome: str, seed: int) -> None:
    rng = random.Random(seed)
    base = directory().durable_copy()
    plan = planned(base)
    whole = base.durable_copy()
    apply_plan(whole, plan)
    wanted = check_done(whole, plan)
    step = 0
    while True:
        disk = base.durable_copy()
        disk.crash_at(step)
        try:
            apply_plan(disk, plan)
        except SimCrash:
            pass
        else:
            break
        disk = OUTCOMES[outcome](disk, rng)
        _, state = check_applicable(disk, plan)
        if state is State.NOTHING_DONE:
            assert survey_digest(survey_directory(disk)) == plan.survivors[0].digest
        # Once more, somewhere.
        disk.crash_at(rng.randrange(40))
        try:
            apply_plan(disk, plan)
        except SimCrash:
            disk = OUTCOMES[outcome](disk, rng)
            apply_plan(disk, plan)
        # What is done is on the disk.
        assert check_done(disk.lose(), plan) == wanted
        step += 1
    assert step > 30
