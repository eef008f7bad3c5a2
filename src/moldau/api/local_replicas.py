"""Read-only views of the replicas of this broker, for metrics and DescribeLogDirs."""

from collections.abc import Container, Iterator

from moldau.data.partitions import HostedPartition, Partitions
from moldau.data.traffic import Traffic
from moldau.model.errors import MoldauError
from moldau.model.ids import (
    BrokerId,
    Epoch,
    Offset,
    RaftIndex,
    TimestampMs,
    TopicId,
    TopicPartition,
)
from moldau.records.batch import read_header
from moldau.replica.replica import LAG_MS_MAX


class LocalReplica:
    """One replica; properties are read from it on access."""

    __slots__ = ("_hosted",)

    def __init__(self, hosted: HostedPartition) -> None:
        self._hosted = hosted

    @property
    def partition(self) -> TopicPartition:
        return self._hosted.replica.partition

    @property
    def is_leader(self) -> bool:
        return self._hosted.replica.is_leader

    @property
    def start_offset(self) -> int:
        return self._hosted.replica.log.start_offset

    @property
    def end_offset(self) -> int:
        return self._hosted.replica.log.end_offset

    @property
    def high_watermark(self) -> int:
        return self._hosted.replica.high_watermark

    @property
    def size_bytes(self) -> int:
        return self._hosted.replica.log.size_bytes

    @property
    def topic_id(self) -> TopicId:
        return self._hosted.replica.topic_id

    @property
    def epoch(self) -> Epoch:
        return self._hosted.replica.epoch

    @property
    def is_compacted(self) -> bool:
        """By its settings here, or it was and still has offsets from then."""
        log = self._hosted.replica.log
        return self._hosted.is_compacted or log.compacted_end > log.start_offset

    @property
    def replica_count(self) -> int:
        return len(self._hosted.replica.members.everyone)

    def in_sync_count(self) -> int:
        """0 unless this broker leads."""
        return len(self._hosted.replica.in_sync(LAG_MS_MAX))

    def timestamp_at(self, offset: int) -> TimestampMs | None:
        """The timestamp of the batch that contains the offset, or of the one that follows; reads a
        few kilobytes of the log."""
        log = self._hosted.replica.log
        if not log.start_offset <= offset < log.end_offset:
            return None
        try:
            header = next(log.headers(Offset(offset)), None)
        except (MoldauError, OSError):
            # Those who serve the partition report that.
            return None
        return None if header is None else header.base_timestamp

    def committed_batches(self, offset: int) -> Iterator[tuple[bytes, int]]:
        """Batches from the one that contains `offset`, each with the offset after it.

        Raises MoldauError.
        """
        end = self.high_watermark
        for batch in self._hosted.replica.log.batches(Offset(offset)):
            next_offset = read_header(batch).next_offset
            if next_offset > end:
                return
            yield batch, next_offset

    @property
    def topic_traffic(self) -> Traffic:
        """Of the whole topic on this broker."""
        return self._hosted.traffic

    def follower_lag(self) -> dict[BrokerId, int]:
        """Records of a leader that each follower has not flushed yet.

        By offsets: Raft indexes count control entries, too.
        """
        log, lag = self._hosted.replica.log, {}
        start_index = RaftIndex(log.start.offset + log.start.control_count)
        for peer, progress in self._hosted.replica.group.core.progress.items():
            flushed = log.offset_of(max(progress.match, start_index))
            lag[peer] = max(0, log.end_offset - flushed)
        return lag

    def follower_seconds(self) -> dict[BrokerId, float]:
        """How long ago each follower of a leader last had every record."""
        return self._hosted.replica.follower_seconds()

    def is_under_min_insync(self) -> bool:
        """Whether acks=all is rejected: fewer replicas in sync than min.insync.replicas."""
        wanted = self._hosted.config.insync_replicas_min
        return wanted > 1 and len(self._hosted.replica.in_sync(LAG_MS_MAX)) < wanted


class LocalReplicas:
    """All replicas of this broker that are online."""

    def __init__(self, partitions: Partitions) -> None:
        self._partitions = partitions

    def __iter__(self) -> Iterator[LocalReplica]:
        return map(LocalReplica, self._partitions)

    def __len__(self) -> int:
        return len(self._partitions)

    @property
    def offline_count(self) -> int:
        return len(self._partitions.offline)

    def get(self, topic: str, partition: int) -> LocalReplica | None:
        hosted = self._partitions.get(topic, partition)
        return None if hosted is None else LocalReplica(hosted)

    def is_leader(self, topic: str, partition: int) -> bool:
        hosted = self._partitions.get(topic, partition)
        return hosted is not None and hosted.replica.is_leader

    def message_bytes_max(self, topic: str) -> int | None:
        """The max.message.bytes of a topic whose first partition has a replica here."""
        hosted = self._partitions.get(topic, 0)
        return None if hosted is None else hosted.config.message_bytes_max

    def written_by_topic(self) -> dict[str, tuple[int, int]]:
        """Bytes and records since the start."""
        return self._partitions.traffic.written()

    def total_traffic(self, topics: Container[str]) -> Traffic:
        """Over all topics since the start; `topics` are those that exist."""
        self._partitions.traffic.retain_only(topics)
        return self._partitions.traffic.total()
