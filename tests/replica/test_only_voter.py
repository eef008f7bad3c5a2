"""One replica is made the only voter of its group: on its files, and what the group does then."""

import random

import pytest
from only_voter_files import force_on_disk

from moldau.log.disk_log import DiskLog, open_disk_log
from moldau.log.interface import ControlKind, FlushPolicy, LogConfig
from moldau.model.errors import CorruptionError, RefusedError
from moldau.model.ids import FIRST_LOG, NO_EPOCH, BrokerId, Epoch, LogId
from moldau.raft.membership import Members, encode_members
from moldau.replica.log_view import GroupLog
from moldau.replica.only_voter import (
    EPOCH_DISTANCE,
    forced_epoch,
    make_only_voter,
    survey,
)
from moldau.testing.logs import append, flush
from sim.simdisk import SimDisk

ME = BrokerId(1)
PATH = "topics/t/0"
OLD = Members((BrokerId(1), BrokerId(2), BrokerId(3)))
ONLY = Members((ME,))
FORCED = Epoch(500)


def force(disk: SimDisk, config: LogConfig, *, voted: int = 7, epoch: int = FORCED) -> bool:
    return force_on_disk(
        disk,
        PATH,
        config,
        me=ME,
        voted_epoch=Epoch(voted),
        initial=OLD,
        epoch=Epoch(epoch),
    )


def members_of(log: DiskLog) -> Members:
    return GroupLog(log, OLD).members(log.end_index)[1]


def used_log(disk: SimDisk, config: LogConfig, rng: random.Random) -> bytes:
    """A log with a history, and at its end whatever a killed process leaves. Returns what is
    flushed of it."""
    log = open_disk_log(disk, PATH, config)
    epoch = 1
    for _ in range(rng.randint(0, 8)):
        if rng.random() < 0.5:
            epoch += 1
            log.append_control(Epoch(epoch), ControlKind.NOOP, b"")
        append(log, epoch=epoch, count=rng.randint(1, 3), value=rng.randbytes(200))
        if rng.random() < 0.5:
            flush(log)
    flushed = b"".join(log.batches(log.start_offset))
    if log.synced_offset < log.end_offset:
        flushed = b"".join(
            batch
            for batch, header in zip(
                log.batches(log.start_offset), log.headers(log.start_offset), strict=True
            )
            if header.next_offset <= log.synced_offset
        )
    if rng.random() < 0.5:
        log.close()
    return flushed


@pytest.mark.parametrize("policy", [FlushPolicy.ALWAYS, FlushPolicy.NEVER])
@pytest.mark.parametrize("seed", range(12))
def test_a_power_cut_leaves_the_old_members_or_the_new_ones(seed: int, policy: FlushPolicy) -> None:
    rng = random.Random(seed)
    config = LogConfig(flush=policy, segment_bytes_max=rng.choice((500, 100_000)))
    disk = SimDisk()
    flushed = used_log(disk, config, rng)
    found: set[bool] = set()

    def cut_power(label: str) -> None:
        after = disk.crash(random.Random(f"{seed} {label} {disk.steps}"))
        # The operation goes on in the world in which the power stayed on.
        disk._is_off = False
        try:
            log = open_disk_log(after, PATH, config)
        except CorruptionError:
            # Of what was there before, promised to nobody and lost in the middle.
            assert policy is not FlushPolicy.ALWAYS
            return
        is_new = log.last_epoch >= FORCED
        found.add(is_new)
        assert members_of(log) == (ONLY if is_new else OLD), label
        records = b"".join(log.batches(log.start_offset))
        assert records.startswith(flushed), label
        # Again from here, and it is done once.
        assert force(after, config) is not is_new
        again = open_disk_log(after, PATH, config)
        assert members_of(again) == ONLY
        assert again.last_epoch == FORCED
        assert b"".join(again.batches(again.start_offset)) == records

    disk.on_step = cut_power
    assert force(disk, config)
    disk.on_step = None
    assert False in found
    log = open_disk_log(disk.lose(), PATH, config)
    assert members_of(log) == ONLY


@pytest.mark.parametrize("policy", list(FlushPolicy))
def test_it_is_on_the_disk_when_it_returns(policy: FlushPolicy) -> None:
    disk, config = SimDisk(), LogConfig(flush=policy)
    log = open_disk_log(disk, PATH, config)
    assert make_only_voter(log, me=ME, voted_epoch=Epoch(3), initial=OLD, epoch=FORCED)
    assert members_of(open_disk_log(disk.lose(), PATH, config)) == ONLY


def test_done_once_it_is_done_for_good() -> None:
    disk, config = SimDisk(), LogConfig()
    used_log(disk, config, random.Random(3))
    assert force(disk, config)
    log = open_disk_log(disk, PATH, config)
    grown = encode_members(Members((ME, BrokerId(4))))
    log.append_control(Epoch(FORCED + 1), ControlKind.MEMBERSHIP, grown)
    log.close()
    # A second try with the order of the first one leaves alone what the group became since.
    assert not force(disk, config)
    log = open_disk_log(disk, PATH, config)
    assert members_of(log).voters == (1, 4)


def test_the_epoch_is_above_every_vote_of_the_survivor() -> None:
    disk, config = SimDisk(), LogConfig()
    open_disk_log(disk, PATH, config).close()
    assert force(disk, config, voted=900, epoch=800)
    assert open_disk_log(disk, PATH, config).last_epoch == 901


def test_a_log_that_is_not_a_voters_is_left_as_it_is() -> None:
    disk, config = SimDisk(), LogConfig()
    for number, (log_id, members) in enumerate(
        [
            (LogId(77), OLD),
            (FIRST_LOG, Members((BrokerId(2), BrokerId(3)), (ME,))),
            (FIRST_LOG, OLD._replace(logs=((ME, LogId(5)),))),
        ]
    ):
        path = f"topics/t/{number}"
        log = open_disk_log(disk, path, config, log_id)
        log.append_control(Epoch(3), ControlKind.MEMBERSHIP, encode_members(members))
        with pytest.raises(RefusedError, match="is not a voter"):
            make_only_voter(log, me=ME, voted_epoch=Epoch(3), initial=OLD, epoch=FORCED)
        assert log.last_epoch == 3
        # By one who knows that no voter has more.
        assert make_only_voter(
            log, me=ME, voted_epoch=Epoch(3), initial=OLD, epoch=FORCED, needs_voter=False
        )
        assert members_of(log).is_voter(ME, log_id)


def test_a_voter_keeps_the_log_that_it_votes_with() -> None:
    disk, config = SimDisk(), LogConfig()
    log = open_disk_log(disk, PATH, config, LogId(77))
    members = OLD._replace(logs=((ME, LogId(77)), (BrokerId(3), LogId(9))))
    log.append_control(Epoch(3), ControlKind.MEMBERSHIP, encode_members(members))
    assert make_only_voter(log, me=ME, voted_epoch=Epoch(3), initial=OLD, epoch=FORCED)
    assert members_of(log) == ONLY._replace(logs=((ME, LogId(77)),))
    assert survey(log, me=ME, voted_epoch=Epoch(3), initial=OLD).is_voter


def test_the_epoch_is_far_from_all_that_are_known() -> None:
    assert forced_epoch([Epoch(3), Epoch(12), NO_EPOCH]) == 12 + EPOCH_DISTANCE
