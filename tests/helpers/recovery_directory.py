"""A data directory on a simulated disk, as a broker leaves it that was killed."""

from moldau.log.datadir import METADATA_PATH, VOTES_PATH, Identity, partition_path, write_identity
from moldau.log.disk_log import open_disk_log
from moldau.log.filesystem import Files
from moldau.log.interface import ControlKind, LogConfig, PartitionLog
from moldau.log.vote_journal import VoteJournal
from moldau.metadata.records import (
    BrokerRegistered,
    ClusterCreated,
    MetadataRecord,
    TopicCreated,
    encode_record,
)
from moldau.model.ids import BrokerId, Epoch, LogId, Offset, PartitionIndex, TimestampMs, TopicId
from moldau.raft.membership import Members, encode_members
from moldau.records.batch import read_header
from moldau.records.record import Record, build_batch
from moldau.replica.peer_codec import METADATA_GROUP, GroupKey
from moldau.testing.logs import append, flush
from sim.simdisk import SimDisk

CLUSTER_ID = "prod.0123456789abcdef"
TOPIC_ID = TopicId(bytes(15) + b"\x07")
ALL = tuple(BrokerId(each) for each in (1, 2, 3))
EPOCH = 4


def begun(log: PartitionLog, log_id: int = 0) -> PartitionLog:
    """A leader's no-op, and the members."""
    logs = ((BrokerId(1), LogId(log_id)),) if log_id else ()
    log.append_control(Epoch(EPOCH), ControlKind.NOOP, b"")
    log.append_control(Epoch(EPOCH), ControlKind.MEMBERSHIP, encode_members(Members(ALL, (), logs)))
    flush(log)
    return log


def metadata_records() -> list[MetadataRecord]:
    registered = [
        BrokerRegistered(id=each, host="h", port=9000 + each, incarnation=f"dir-{each}", epoch=1)
        for each in ALL
    ]
    others = tuple(each for each in ALL if each != 1)
    topic = TopicCreated(name="t", topic_id=TOPIC_ID, partitions=(ALL, ALL, others))
    return [ClusterCreated(cluster_id=CLUSTER_ID), *registered, topic]


def directory(log_id: int = 0) -> SimDisk:
    disk = SimDisk()
    fill_directory(disk, log_id)
    return disk.survive()


def fill_directory(disk: Files, log_id: int = 0) -> None:
    """Of broker 1 of three: with replicas of the first two partitions of `t`, and not of the last.

    `log_id`: of its second replica, which was created later than the group."""
    write_identity(
        disk,
        Identity(
            broker_id=BrokerId(1),
            cluster_id=CLUSTER_ID,
            directory_id="dir-1",
            metadata_voters=(BrokerId(1),),
        ),
    )
    votes = VoteJournal.open(disk, VOTES_PATH)
    key = GroupKey(TOPIC_ID, PartitionIndex(0))
    votes.record(
        {
            METADATA_GROUP.name: (Epoch(EPOCH + 2), BrokerId(2)),
            key.name: (Epoch(EPOCH), BrokerId(1)),
        }
    )
    votes.close()
    log = begun(open_disk_log(disk, METADATA_PATH, LogConfig()))
    records = [
        Record(Offset(0), TimestampMs(1), None, encode_record(each), [])
        for each in metadata_records()
    ]
    batch = build_batch(records, base_offset=log.end_offset, leader_epoch=Epoch(EPOCH))
    log.append(batch, [read_header(batch)])
    flush(log)
    log.discard()
    for index in (0, 1):
        path = partition_path("t", TOPIC_ID, PartitionIndex(index))
        new_id = LogId(log_id if index else 0)
        log = begun(open_disk_log(disk, path, LogConfig(), new_id), log_id if index else 0)
        append(log, count=3, epoch=EPOCH)
        flush(log)
        # Was never flushed.
        append(log, epoch=EPOCH)
        log.discard()
