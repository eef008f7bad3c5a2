"""Carries out a plan in the data directory of one survivor, whose broker is stopped.

The plan itself is stored in the directory first, and removed last. As long as it is there, no
broker starts in it, and each step can be repeated: after a crash, the same command completes it.

Order: the replicas, the metadata, and then `broker.json` with the new id of the cluster. A
directory with the new id is complete.
"""

from collections.abc import Callable
from enum import Enum, auto
from typing import Final

import msgspec
from msgspec.structs import replace

from moldau.log.datadir import (
    METADATA_PATH,
    RECOVERY_FILE,
    VOTES_PATH,
    partition_path,
    purge_deleted,
    read_identity,
    write_identity,
)
from moldau.log.disk_log import open_disk_log
from moldau.log.filesystem import Files
from moldau.log.format_file import check_format, write_format
from moldau.log.interface import LogConfig, PartitionLog
from moldau.log.vote_journal import VoteJournal
from moldau.metadata.records import encode_record
from moldau.model.errors import StorageError
from moldau.model.ids import FIRST_LOG, BrokerId, Offset, RaftIndex, TopicId
from moldau.raft.membership import Members
from moldau.records.batch import read_header
from moldau.records.record import Record, build_batch
from moldau.replica.only_voter import make_only_voter
from moldau.replica.peer_codec import METADATA_GROUP, GroupKey
from moldau.server.recovery.plan import PLAN_FORMAT, ForcedLog, Plan, PlanError, PlannedSurvivor
from moldau.server.recovery.survey import replica_log, survey_digest, survey_directory
from moldau.server.storage import METADATA_LOG, rewrite_after_failure

_BATCH_RECORDS_MAX: Final = 500
_COLLECT_HINT: Final = (
    "collect the files of all survivors again, and make another plan: "
    "moldau cluster recover collect"
)


class State(Enum):
    """How far a plan is carried out in a directory."""

    NOTHING_DONE = auto()
    BEGUN = auto()
    DONE = auto()


def decode_plan(data: bytes) -> Plan:
    """Raises PlanError."""
    try:
        plan = msgspec.json.decode(data, type=Plan)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise PlanError(f"this is not a plan of a recovery ({error})") from error
    if plan.format != PLAN_FORMAT:
        raise PlanError(
            f"the plan has format {plan.format}, and this version reads {PLAN_FORMAT}",
            "use one version of moldau for all steps of a recovery",
        )
    return plan


def check_applicable(files: Files, plan: Plan) -> tuple[PlannedSurvivor, State]:
    """What the plan says of this directory. Raises PlanError, ConfigError, CorruptionError; nothing
    is changed."""
    check_format(files)
    identity = read_identity(files)
    planned = None
    if identity is not None and identity.broker_id is not None:
        planned = plan.survivor(identity.broker_id)
    if planned is None or identity is None or identity.directory_id != planned.directory_id:
        raise PlanError(
            "the plan is not for this data directory",
            "it is for those of "
            f"broker{'s' if len(plan.survivors) > 1 else ''} "
            + ", ".join(str(one.broker_id) for one in plan.survivors),
        )
    if files.exists(RECOVERY_FILE):
        begun = decode_plan(files.read(RECOVERY_FILE))
        if begun != plan:
            raise PlanError(
                "another plan was begun in this data directory, and must be completed",
                f"its file is {RECOVERY_FILE} in the data directory",
            )
        return planned, State.BEGUN
    if identity.cluster_id == plan.new_cluster_id:
        return planned, State.DONE
    if survey_digest(survey_directory(files)) != planned.digest:
        raise PlanError(
            f"the data directory of broker {planned.broker_id} has changed since the plan was made",
            _COLLECT_HINT,
        )
    return planned, State.NOTHING_DONE


def apply_plan(
    files: Files, plan: Plan, on_replicas: Callable[[int], None] = lambda count: None
) -> None:
    """Durable and complete when it returns; after a crash, to be repeated. `on_replicas` gets
    the count of those that are done. The caller holds the lock of the directory. Raises as
    check_applicable, StorageError and OSError."""
    planned, state = check_applicable(files, plan)
    if state is State.DONE:
        # The removal of the plan may have been the last thing before a kill.
        files.sync_dir("")
        return
    if state is State.NOTHING_DONE:
        files.replace(RECOVERY_FILE, msgspec.json.encode(plan))
    identity = read_identity(files)
    if identity is None:
        raise PlanError("the data directory has lost its broker.json")
    write_format(files)
    purge_deleted(files)
    rewrite_after_failure(files)
    votes = VoteJournal.open(files, VOTES_PATH)
    try:
        for number, forced in enumerate(planned.forced, 1):
            _force_replica(files, planned.broker_id, votes, forced)
            on_replicas(number)
        if planned.broker_id == plan.metadata_broker:
            _force_metadata(files, votes, plan)
    finally:
        votes.close()
    # From here on it is a directory of the new cluster, and the plan is not needed any more.
    write_identity(files, replace(identity, cluster_id=plan.new_cluster_id))
    files.remove(RECOVERY_FILE)
    files.sync_dir("")


def _force_replica(files: Files, me: BrokerId, votes: VoteJournal, forced: ForcedLog) -> None:
    key = GroupKey(TopicId(bytes.fromhex(forced.topic_id)), forced.partition)
    path = partition_path(forced.topic, key.topic_id, forced.partition)
    log = _open(files, path, replica_log(internal=forced.internal), forced)
    _force(log, me, votes, key, forced)
    log.close()


def _force_metadata(files: Files, votes: VoteJournal, plan: Plan) -> None:
    """The entry with the only voter, then batches with the changes of the plan, of its epoch."""
    forced = plan.metadata
    log = _open(files, METADATA_PATH, METADATA_LOG, forced)
    _force(log, plan.metadata_broker, votes, METADATA_GROUP, forced)
    records = [
        Record(Offset(0), plan.made_ms, None, encode_record(record), [])
        for record in plan.records()
    ]
    for first in range(0, len(records), _BATCH_RECORDS_MAX):
        # After a crash, batches are there up to one of them.
        if log.end_index == RaftIndex(forced.end_index + 1 + first):
            batch = build_batch(
                records[first : first + _BATCH_RECORDS_MAX],
                base_offset=log.end_offset,
                leader_epoch=log.last_epoch,
            )
            log.append(batch, [read_header(batch)])
    # Durable when it returns.
    log.close()


def _open(files: Files, path: str, config: LogConfig, forced: ForcedLog) -> PartitionLog:
    if not forced.is_new and not files.listdir(path):
        raise PlanError(f"the log {path} is missing in the data directory", _COLLECT_HINT)
    return open_disk_log(files, path, config)


def _force(
    log: PartitionLog, me: BrokerId, votes: VoteJournal, key: GroupKey, forced: ForcedLog
) -> None:
    if log.last_epoch < forced.epoch and log.end_index != forced.end_index:
        log.discard()
        raise PlanError(
            f"the log of {forced.topic or 'the metadata'}-{forced.partition} ends at "
            f"{log.end_index}, and not at {forced.end_index} as planned",
            _COLLECT_HINT,
        )
    logs = ((me, log.log_id),) if log.log_id != FIRST_LOG else ()
    try:
        make_only_voter(
            log,
            me=me,
            voted_epoch=votes.get(key.name)[0],
            initial=Members((me,), (), logs),
            epoch=forced.epoch,
            # The best log of all survivors may be that of a learner: no voter has more.
            needs_voter=False,
        )
    except StorageError:
        log.discard()
        raise
