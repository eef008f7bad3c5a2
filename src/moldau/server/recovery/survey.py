"""What is in the data directory of a stopped broker, as the plan of a recovery needs it.

Nothing is changed, and a survey has nothing secret: no records, passwords or tokens. What is
committed is not in the files, as brokers learn it from their leader: only what is below
the start of a log is known to be.
"""

import hashlib
from collections.abc import Iterable
from typing import Final

import msgspec
from msgspec import Struct

from moldau.log.datadir import (
    IDENTITY_FILE,
    METADATA_PATH,
    VOTES_PATH,
    list_partitions,
    partition_path,
    read_identity,
)
from moldau.log.disk_log import open_disk_log
from moldau.log.filesystem import Files
from moldau.log.flush_failure import read_fence
from moldau.log.format_file import check_format
from moldau.log.interface import LogConfig, PartitionLog
from moldau.log.unwritten_files import UnwrittenFiles
from moldau.log.vote_journal import VoteJournal
from moldau.metadata.apply import apply
from moldau.metadata.image import EMPTY_IMAGE, Image
from moldau.metadata.records import decode_record
from moldau.metadata.snapshot import decode_image
from moldau.model.errors import ConfigError, CorruptionError
from moldau.model.flush import FlushPolicy
from moldau.model.ids import (
    BrokerId,
    Epoch,
    LogId,
    Offset,
    PartitionIndex,
    ProducerId,
    RaftIndex,
)
from moldau.raft.membership import Members
from moldau.records.record import read_records
from moldau.replica.only_voter import Survivor
from moldau.replica.only_voter import survey as survey_log
from moldau.replica.peer_codec import METADATA_GROUP, GroupKey
from moldau.server.storage import METADATA_LOG

SURVEY_FORMAT: Final = 1
_NO_LOG: Final = LogId((1 << 63) - 1)
"""Of a log that is made by looking at a directory without one: larger than any that is drawn."""
NOBODY: Final = Members(())
"""Of a log without an entry about members: they are those of the metadata."""


def replica_log(*, internal: bool) -> LogConfig:
    """How a partition is opened: the flush policy of its topic is not known, so nothing is
    truncated that an acknowledged record could be in."""
    return LogConfig(flush=FlushPolicy.ALWAYS if internal else FlushPolicy.INTERVAL)


class SurveyedLog(Struct, frozen=True, kw_only=True):
    """One replica."""

    log_id: LogId
    voters: tuple[BrokerId, ...]
    """By the last entry about members in its log; empty if there is none."""
    learners: tuple[BrokerId, ...] = ()
    voter_logs: tuple[tuple[BrokerId, LogId], ...] = ()
    voted_epoch: Epoch
    last_epoch: Epoch
    end_index: RaftIndex
    start_offset: Offset
    end_offset: Offset

    def survivor(self, broker: BrokerId, initial: Members) -> Survivor:
        """`initial`: the members if the log has none."""
        found = Members(self.voters, self.learners, self.voter_logs)
        return Survivor(
            broker=broker,
            log_id=self.log_id,
            members=found if self.voters else initial,
            voted_epoch=self.voted_epoch,
            last_epoch=self.last_epoch,
            end_index=self.end_index,
            start_offset=self.start_offset,
            end_offset=self.end_offset,
        )


class SurveyedPartition(Struct, frozen=True, kw_only=True):
    """A partition with a replica on the broker."""

    topic: str
    topic_id: str
    partition: PartitionIndex
    log: SurveyedLog | None = None
    corrupt: str = ""
    """Why it cannot be opened."""


class KnownBroker(Struct, frozen=True, kw_only=True):
    """A broker that is registered, by the metadata of the surveyed one."""

    id: BrokerId
    address: str
    directory_id: str


class KnownPartition(Struct, frozen=True, kw_only=True):
    """Replicas of a partition, by the metadata."""

    replicas: tuple[BrokerId, ...]
    target: tuple[BrokerId, ...] = ()
    origin: tuple[BrokerId, ...] = ()
    desired_version: int = 0


class KnownTopic(Struct, frozen=True, kw_only=True):
    """A topic, by the metadata."""

    name: str
    topic_id: str
    internal: bool
    partitions: tuple[KnownPartition, ...]


class Survey(Struct, frozen=True, kw_only=True):
    """One data directory."""

    format: int = SURVEY_FORMAT
    cluster_id: str
    broker_id: BrokerId
    directory_id: str
    disk_failure: str | None = None
    """Why the last run ended, if its disk failed."""
    metadata: SurveyedLog
    brokers: tuple[KnownBroker, ...]
    topics: tuple[KnownTopic, ...]
    next_producer_id: ProducerId
    image_version: int
    partitions: tuple[SurveyedPartition, ...]


def survey_digest(survey: Survey) -> str:
    """Two surveys of the same state have the same."""
    return hashlib.sha256(msgspec.json.encode(survey)).hexdigest()


def survey_directory(stored: Files) -> Survey:
    """Raises ConfigError, CorruptionError, OSError; nothing is written to `stored`."""
    files = UnwrittenFiles(stored)
    check_format(files)
    identity = read_identity(files)
    if identity is None or identity.broker_id is None or identity.cluster_id is None:
        raise ConfigError(f"this is not the data directory of a cluster's broker ({IDENTITY_FILE})")
    if not files.exists(VOTES_PATH):
        raise CorruptionError(f"the file {VOTES_PATH} is missing: treat this broker as lost")
    votes = VoteJournal.open(files, VOTES_PATH)
    me = identity.broker_id
    log = open_disk_log(files, METADATA_PATH, METADATA_LOG)
    initial = Members(() if not identity.is_bootstrap_broker else (me,))
    if log.end_index == 0:
        raise CorruptionError("its metadata log is empty: treat this broker as lost")
    image = image_of(log)
    metadata = _surveyed(log, me, votes, METADATA_GROUP, initial)
    log.discard()
    partitions = tuple(_survey_partitions(stored, image, me, votes))
    return Survey(
        cluster_id=identity.cluster_id,
        broker_id=me,
        directory_id=identity.directory_id,
        disk_failure=read_fence(files),
        metadata=metadata,
        brokers=tuple(
            KnownBroker(
                id=broker.id,
                address=f"{broker.host}:{broker.port}",
                directory_id=broker.incarnation,
            )
            for broker in sorted(image.brokers.values(), key=lambda broker: broker.id)
        ),
        topics=tuple(_known_topics(image)),
        next_producer_id=image.next_producer_id,
        image_version=image.version,
        partitions=partitions,
    )


def image_of(log: PartitionLog) -> Image:
    """The metadata with all entries of the log, committed or not: what it will be if this log is
    chosen. Raises CorruptionError."""
    snapshot = log.load_snapshot()
    start, image = (log.start_offset, EMPTY_IMAGE)
    if snapshot is not None:
        start, image = snapshot[0], decode_image(snapshot[1])
    if start < log.start_offset:
        raise CorruptionError("the snapshot of its metadata is missing: treat this broker as lost")
    for batch in log.batches(start):
        for record in read_records(batch):
            if record.value is not None:
                image = apply(image, decode_record(record.value))
    return image


def _survey_partitions(
    stored: Files, image: Image, me: BrokerId, votes: VoteJournal
) -> Iterable[SurveyedPartition]:
    for name, topic_id, index in list_partitions(UnwrittenFiles(stored)):
        # New ones for each log: what is kept of thousands would be searched at each listing.
        files = UnwrittenFiles(stored)
        topic = image.topic_by_id(topic_id)
        path = partition_path(name, topic_id, index)
        config = replica_log(internal=topic is not None and topic.internal)
        try:
            if not files.listdir(path):
                continue
            log = open_disk_log(files, path, config, _NO_LOG)
        except CorruptionError as error:
            yield SurveyedPartition(
                topic=name, topic_id=topic_id.hex(), partition=index, corrupt=str(error)
            )
            continue
        found = _surveyed(log, me, votes, GroupKey(topic_id, index), NOBODY)
        log.discard()
        if log.log_id == _NO_LOG:
            continue
        yield SurveyedPartition(topic=name, topic_id=topic_id.hex(), partition=index, log=found)


def _surveyed(
    log: PartitionLog, me: BrokerId, votes: VoteJournal, key: GroupKey, initial: Members
) -> SurveyedLog:
    epoch, _ = votes.get(key.name)
    found = survey_log(log, me=me, voted_epoch=epoch, initial=initial)
    return SurveyedLog(
        log_id=found.log_id,
        voters=found.members.voters,
        learners=found.members.learners,
        voter_logs=found.members.logs,
        voted_epoch=found.voted_epoch,
        last_epoch=found.last_epoch,
        end_index=found.end_index,
        start_offset=found.start_offset,
        end_offset=found.end_offset,
    )


def _known_topics(image: Image) -> Iterable[KnownTopic]:
    for topic in sorted(image.topics.values(), key=lambda topic: topic.name):
        yield KnownTopic(
            name=topic.name,
            topic_id=topic.topic_id.hex(),
            internal=topic.internal,
            partitions=tuple(
                KnownPartition(
                    replicas=partition.replicas,
                    target=partition.target,
                    origin=partition.origin,
                    desired_version=partition.desired_version,
                )
                for partition in topic.partitions
            ),
        )
