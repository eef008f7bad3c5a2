"""The replicas of this broker: opened and closed as the metadata image requires.

A replica with a corrupt log is offline, with the reason; the others are served.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from moldau.data.traffic import TopicTraffic, Traffic
from moldau.log.interface import LogConfig, PartitionLog
from moldau.metadata.config_types import LONG_MAX
from moldau.metadata.image import EMPTY_IMAGE, Image, Partition, Topic, changed_topics
from moldau.metadata.topic_configs import Layer, TopicConfig, broker_layers
from moldau.model import log_events as events
from moldau.model.clock import Clock
from moldau.model.errors import CorruptionError, DiskFullError, ErrorCode, MoldauError, RefusedError
from moldau.model.flush import FlushPolicy
from moldau.model.ids import (
    BrokerId,
    LogId,
    PartitionIndex,
    TimestampMs,
    TopicId,
    TopicPartition,
)
from moldau.raft.membership import NO_BROKER, Members
from moldau.records.compression import Codec
from moldau.replica.driver import RaftDriver
from moldau.replica.flusher import Flusher
from moldau.replica.peer_codec import GroupKey
from moldau.replica.replica import Replica

log = logging.getLogger(__name__)

_DROPPED_PER_STEP = 20
"""Per turn of the event loop: each costs a flush or two."""
_OPENED_PER_STEP = 96
_OPENING_THREADS = 6
"""The logs of a step are opened in this many threads, to overlap their disk access."""

_LED_SECONDS_MAX = 30.0
_CAMPAIGN_SECONDS = (0.0, 0.05, 0.15, 0.4)
"""When the preferred leader of a new group campaigns: the other replicas may learn of the group
slightly later. After that, the election timeout applies."""

OpenLog = Callable[[str, TopicId, PartitionIndex, LogConfig, LogId], PartitionLog]
"""The last argument is the id for a new log."""
DropLog = Callable[[str, TopicId, PartitionIndex], None]


def log_config(config: TopicConfig, *, internal: bool) -> LogConfig:
    """The settings of a topic that its logs need. Internal topics are always flushed."""
    return LogConfig(
        segment_bytes_max=config.segment_bytes,
        segment_ms_max=config.segment_ms,
        index_interval_bytes=config.index_interval_bytes,
        retention_ms=config.retention_ms,
        retention_bytes=config.retention_bytes,
        delete_expired="delete" in config.cleanup_policy and not config.restoring,
        compact=config.compacted and not config.restoring,
        delete_retention_ms=config.delete_retention_ms,
        compaction_lag_ms_min=config.compaction_lag_min_ms,
        compaction_lag_ms_max=config.compaction_lag_max_ms,
        dirty_ratio_min=config.cleanable_dirty_ratio_min,
        flush=FlushPolicy.ALWAYS if internal else FlushPolicy(config.flush),
    )


class HostedPartition:
    """A replica with the settings of its topic, resolved once instead of per request."""

    __slots__ = (
        "bounds_timestamps",
        "codec",
        "config",
        "deletes",
        "flushes_at_intervals",
        "internal",
        "is_compacted",
        "is_plain",
        "replica",
        "stamps_append_time",
        "traffic",
    )

    def __init__(
        self, replica: Replica, config: TopicConfig, internal: bool, traffic: Traffic | None = None
    ) -> None:
        self.replica = replica
        self.internal = internal
        self.traffic = traffic or Traffic()
        """Of the whole topic on this broker."""
        self.configure(config)

    def configure(self, config: TopicConfig) -> None:
        self.config = config
        self.replica.min_insync_replicas = config.insync_replicas_min
        self.codec = codec_of(config.compression_type)
        self.is_compacted = config.compacted
        self.deletes = "delete" in config.cleanup_policy
        flush = log_config(config, internal=self.internal).flush
        self.flushes_at_intervals = flush is FlushPolicy.INTERVAL
        self.stamps_append_time = config.timestamp_type == "LogAppendTime"
        self.bounds_timestamps = not self.stamps_append_time and (
            min(config.timestamp_before_max_ms, config.timestamp_after_max_ms) < LONG_MAX
        )
        self.is_plain = not (
            self.internal
            or self.is_compacted
            or self.codec is not None
            or self.bounds_timestamps
            or config.restoring
        )
        """Batches are appended unchanged and unchecked: the usual case, decided once."""


def codec_of(compression_type: str) -> Codec | None:
    """The codec that a topic requires; None if it keeps that of the producer."""
    if compression_type == "producer":
        return None
    return Codec.NONE if compression_type == "uncompressed" else Codec[compression_type.upper()]


def first_members(partition: Partition) -> Members:
    """The members of the group by the metadata, for a new log."""
    if not partition.moving:
        return Members(tuple(sorted(partition.replicas)))
    return Members(tuple(sorted(partition.origin)), tuple(sorted(partition.adding)))


class Opening(NamedTuple):
    topic: Topic
    partition: Partition
    config: TopicConfig
    members: Members
    new_id: LogId
    """For its log, if that does not exist."""

    @property
    def key(self) -> tuple[str, int]:
        return self.topic.name, self.partition.index


Opened = PartitionLog | CorruptionError | DiskFullError


class Partitions:
    def __init__(
        self,
        *,
        open_log: OpenLog,
        drop_log: DropLog,
        driver: RaftDriver,
        flusher: Flusher,
        clock: Clock,
        defaults: Mapping[str, str],
    ) -> None:
        self._broker = driver.me
        self._open_log = open_log
        self._drop_log = drop_log
        self._driver = driver
        self._flusher = flusher
        self._clock = clock
        self._defaults = defaults
        self._hosted: dict[tuple[str, int], HostedPartition] = {}
        self.traffic = TopicTraffic()
        self._offline: dict[tuple[str, int], MoldauError] = {}
        self._topics: dict[TopicId, Topic] = {}
        self._layers: tuple[Layer, ...] = ()
        self._broker_configs: Mapping[BrokerId, Mapping[str, str]] | None = None
        self.on_leadership: Callable[[Replica], None] = lambda _: None
        """Called when the leader of a replica changes, when the replica becomes a ready leader,
        and when it is closed."""
        self.newest_image: Callable[[], Image] = lambda: EMPTY_IMAGE
        self._deleted: dict[TopicId, dict[PartitionIndex, HostedPartition]] = {}
        """Deleted topics, until an image without them is reconciled, and their open replicas."""
        self._leaving: dict[tuple[str, int], Topic] = {}
        """Moved to other brokers by the image, but still active members of their groups."""
        self.on_voter_replaced: Callable[[Replica], None] = lambda _: None
        """Called when a replica leads and a voter came back without its log."""

    # ---- lookup

    def get(self, topic: str, partition: int) -> HostedPartition | None:
        return self._hosted.get((topic, partition))

    def find(self, topic: str, partition: int) -> HostedPartition:
        """The partition. Raises RefusedError."""
        hosted = self._hosted.get((topic, partition))
        if hosted is not None:
            return hosted
        if (topic, partition) in self._offline:
            raise RefusedError(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"{topic}-{partition} is offline: {self._offline[topic, partition]}",
            )
        # The newest image: right after a start it contains more than is opened.
        known = self.newest_image().topic(topic)
        if known is not None and 0 <= partition < len(known.partitions):
            raise RefusedError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                f"{topic}-{partition} has no replica on this broker",
            )
        raise RefusedError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"unknown partition {topic}-{partition}"
        )

    def lead(self, topic: str, partition: int) -> HostedPartition:
        """The partition, if this broker leads it. Raises RefusedError."""
        hosted = self.find(topic, partition)
        if not hosted.replica.is_leader:
            hosted.replica.check_leadership()
        return hosted

    def __iter__(self) -> Iterator[HostedPartition]:
        return iter(list(self._hosted.values()))

    def __len__(self) -> int:
        return len(self._hosted)

    @property
    def offline(self) -> Mapping[tuple[str, int], MoldauError]:
        return self._offline

    def stop_serving(self, topics: Iterable[Topic]) -> None:
        """They were deleted, and are dropped when their image is reconciled. Until then, what is
        stored in another topic that already has the name must not go to their replicas."""
        for topic in topics:
            held = self._deleted.setdefault(topic.topic_id, {})
            for partition in topic.partitions:
                hosted = self._pop_hosted(topic, partition.index)
                if hosted is not None:
                    held[partition.index] = hosted

    def _pop_hosted(self, topic: Topic, index: PartitionIndex) -> HostedPartition | None:
        """The replica of this topic, and not of another one with its name."""
        key = (topic.name, index)
        hosted = self._hosted.get(key)
        if hosted is None or hosted.replica.topic_id != topic.topic_id:
            return None
        return self._hosted.pop(key)

    def take_offline(self, hosted: HostedPartition, error: MoldauError) -> None:
        """Stops serving a partition that proved corrupt, and leaves its files as they are.

        Its log is not closed: a clean close would mark its contents as good.
        """
        replica = hosted.replica
        key = (replica.partition.topic, replica.partition.partition)
        if self._hosted.get(key) is hosted:
            del self._hosted[key]
            self._set_offline(key, error)
            replica.end(ErrorCode.KAFKA_STORAGE_ERROR)
            if isinstance(error, DiskFullError):
                # Opened again when there is free space.
                replica.log.discard()
            self.on_leadership(replica)

    def on_failed(self, replica: Replica, error: MoldauError) -> None:
        """Called by the replica: its group stopped."""
        hosted = self._hosted.get((replica.partition.topic, replica.partition.partition))
        if hosted is not None and hosted.replica is replica:
            self.take_offline(hosted, error)

    def _set_offline(self, key: tuple[str, int], error: MoldauError) -> None:
        before = self._offline.get(key)
        self._offline[key] = error
        if str(before) != str(error):
            # Once, not with every retry.
            log.error(
                "partition %s-%d is offline: %s",
                *key,
                error,
                extra=events.PARTITION_OFFLINE(topic=key[0], partition=key[1]),
            )

    def retry_offline(self) -> None:
        """Opens the partitions again that are offline because the disk was full."""
        if not any(isinstance(error, DiskFullError) for error in self._offline.values()):
            return
        with self._flusher.fencing():
            for topic in self._topics.values():
                if topic.topic_id in self._deleted:
                    continue
                for partition in topic.partitions:
                    key = (topic.name, partition.index)
                    if isinstance(self._offline.get(key), DiskFullError):
                        opening = self._opening(topic, partition, self._resolve(topic))
                        self._host(opening, self._open(opening))
                        if key in self._hosted:
                            log.warning(
                                "partition %s-%d is online again",
                                *key,
                                extra=events.PARTITION_ONLINE(topic=key[0], partition=key[1]),
                            )

    def flush_of(self, topic: Topic) -> FlushPolicy:
        """The flush policy of a topic on this broker."""
        return log_config(self._resolve(topic), internal=topic.internal).flush

    def find_placed(self, name: str, index: int) -> tuple[Topic, Partition] | None:
        """The partition in the image, if it has a replica on this broker."""
        for topic in self._topics.values():
            if topic.name == name and index < len(topic.partitions):
                partition = topic.partitions[index]
                return (topic, partition) if self._broker in partition.replicas else None
        return None

    def open_empty(self, topic: Topic, partition: Partition) -> None:
        """Opens a partition with an empty log, under a new log id: this log has not voted."""
        opening = self._opening(topic, partition, self._resolve(topic))
        opening = opening._replace(new_id=self._driver.make_log_id())
        with self._flusher.fencing():
            self._host(opening, self._open(opening))

    def reopen(
        self, topic: Topic, partition: Partition, change: Callable[[PartitionLog, Members], None]
    ) -> None:
        """Closes a replica, lets `change` work on its log, and opens it again.

        `change` also gets the members that count while the log names none. What it raises is
        raised once the replica is open; so is what keeps the log from being opened again.
        """
        opening = self._opening(topic, partition, self._resolve(topic))
        hosted = self._hosted.pop(opening.key)
        with self._flusher.fencing():
            try:
                hosted.replica.close()
                opened = self._open(opening)
            except DiskFullError as error:
                hosted.replica.log.discard()
                self._set_offline(opening.key, error)
                raise
            finally:
                self.on_leadership(hosted.replica)
            try:
                if isinstance(opened, MoldauError):
                    raise opened
                change(opened, opening.members)
            finally:
                self._host(opening, opened)

    # ---- reconciliation with the image

    async def reconcile(self, image: Image) -> None:
        """Opens new partitions, drops removed ones, reconfigures changed ones.

        The image is committed and cannot be rejected: a disk failure ends the process, and the next
        start does the rest. Requests run after every few partitions; logs are opened in threads.
        """
        with self._flusher.fencing():
            for openings in self._reconcile_steps(image):
                shares = [openings[at::_OPENING_THREADS] for at in range(_OPENING_THREADS)]
                work = asyncio.gather(
                    *(asyncio.to_thread(self._open_all, share) for share in shares if share)
                )
                try:
                    opened = await asyncio.shield(work)
                except asyncio.CancelledError:
                    # Threads cannot be cancelled: wait until they write no more.
                    await asyncio.wait([work])
                    raise
                for share, logs in zip(shares, opened, strict=False):
                    for opening, found in zip(share, logs, strict=True):
                        self._host(opening, found)
                await asyncio.sleep(0)

    def _reconcile_steps(self, image: Image) -> Iterator[list[Opening]]:
        """Yields the partitions to open, after every few of them."""
        for topic_id in sorted(self._topics.keys() - image.topics_by_id.keys()):
            yield from self._drop_topic(self._topics[topic_id])
        self._layers = broker_layers(image, self._broker, self._defaults)
        defaults_changed = image.broker_configs is not self._broker_configs
        self._broker_configs = image.broker_configs
        topics = image.topics_by_id
        for topic in topics.values() if defaults_changed else changed_topics(self._topics, topics):
            known = self._topics.get(topic.topic_id)
            config = self._resolve(topic)
            if known is not None and (defaults_changed or known.configs != topic.configs):
                self._reconfigure(topic, config)
            self._topics[topic.topic_id] = topic
            openings: list[Opening] = []
            left = 0
            for partition in topic.partitions:
                if topic.topic_id in self._deleted:
                    # By a later image; what is open must not be opened a second time.
                    break
                key = (topic.name, partition.index)
                is_here = key in self._hosted or key in self._offline
                if self._broker in partition.replicas and not is_here:
                    openings.append(self._opening(topic, partition, config))
                elif is_here and self._broker not in partition.replicas:
                    self._drop_if_inactive(topic, partition.index)
                    left += 1
                else:
                    continue
                if len(openings) == _OPENED_PER_STEP or left == _DROPPED_PER_STEP:
                    yield openings
                    openings, left = [], 0
            yield openings
        self._deleted = {
            topic_id: held for topic_id, held in self._deleted.items() if topic_id in self._topics
        }

    def _resolve(self, topic: Topic) -> TopicConfig:
        return TopicConfig.resolve(topic.configs, self._layers)

    def _reconfigure(self, topic: Topic, config: TopicConfig) -> None:
        for partition in topic.partitions:
            hosted = self._hosted.get((topic.name, partition.index))
            if hosted is not None:
                if hosted.config.restoring and not config.restoring:
                    # They are of another cluster, or of another time: a producer of now with the
                    # same id would have its first batch taken for a retry.
                    hosted.replica.expire_producers(TimestampMs(LONG_MAX))
                hosted.configure(config)
                try:
                    hosted.replica.reconfigure(log_config(config, internal=topic.internal))
                except DiskFullError as error:
                    self.take_offline(hosted, error)

    def _opening(self, topic: Topic, partition: Partition, config: TopicConfig) -> Opening:
        members = first_members(partition)
        key = GroupKey(topic.topic_id, partition.index)
        return Opening(topic, partition, config, members, self._driver.new_log_id(key, members))

    def _open(self, opening: Opening) -> Opened:
        """Its log, or the error. In any thread."""
        topic = opening.topic
        try:
            return self._open_log(
                topic.name,
                topic.topic_id,
                opening.partition.index,
                log_config(opening.config, internal=topic.internal),
                opening.new_id,
            )
        except (CorruptionError, DiskFullError) as error:
            return error

    def _open_all(self, openings: Sequence[Opening]) -> list[Opened]:
        return [self._open(opening) for opening in openings]

    def _host(self, opening: Opening, opened: Opened) -> None:
        """Adds the partition, or sets it offline."""
        topic, partition, config, members, _ = opening
        key = opening.key
        if topic.topic_id in self._deleted:
            # While its log was opened.
            if not isinstance(opened, MoldauError):
                opened.discard()
            return
        if isinstance(opened, MoldauError):
            self._set_offline(key, opened)
            return
        try:
            is_fresh = opened.end_index == 0
            replica = Replica(
                partition=TopicPartition(topic.name, partition.index),
                topic_id=topic.topic_id,
                log=opened,
                members=members,
                driver=self._driver,
                flusher=self._flusher,
                clock=self._clock,
                listener=self,
            )
        except (CorruptionError, DiskFullError) as error:
            self._set_offline(key, error)
            return
        self._offline.pop(key, None)
        traffic = self.traffic.of(topic.name)
        self._hosted[key] = HostedPartition(replica, config, topic.internal, traffic)
        if is_fresh and not partition.moving and partition.replicas[0] == self._broker:
            for delay in _CAMPAIGN_SECONDS:
                asyncio.get_running_loop().call_later(delay, self._campaign, replica)

    def _campaign(self, replica: Replica) -> None:
        if replica.is_open and replica.leader == NO_BROKER:
            self._driver.campaign(replica.group)

    def _drop_topic(self, topic: Topic) -> Iterator[list[Opening]]:
        """The topic was deleted."""
        del self._topics[topic.topic_id]
        held = self._deleted.get(topic.topic_id, {})
        for number, partition in enumerate(topic.partitions, 1):
            # Also one that had moved away, and was still a member of its group.
            if self._broker in partition.replicas or partition.index in held:
                self._drop_replica(topic, partition.index, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            # Also of partitions that moved before, or could not be opened.
            self._driver.forget_vote(GroupKey(topic.topic_id, partition.index))
            if number % _DROPPED_PER_STEP == 0:
                yield []

    def _drop_if_inactive(self, topic: Topic, index: PartitionIndex) -> None:
        """Drops a partition that moved to other brokers, if its group no longer needs this replica.

        Checked with the newest image and the group: the given image may be old, and a voter must
        not drop what it acknowledged.
        """
        key = (topic.name, index)
        self._leaving.pop(key, None)
        newest = self.newest_image().topic_by_id(topic.topic_id)
        if newest is not None and self._broker in newest.partitions[index].replicas:
            # It moved back, in a later image.
            return
        hosted = self._hosted.get(key)
        if hosted is not None and hosted.replica.is_active_member:
            self._leaving[key] = topic
            return
        log.info("partition %s-%d moved to other brokers; dropping its replica", topic.name, index)
        self._drop_replica(topic, index, ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def finish_moves(self) -> None:
        """Drops partitions that moved, once their groups no longer need these replicas."""
        with self._flusher.fencing():
            for (_, index), topic in list(self._leaving.items()):
                self._drop_if_inactive(topic, PartitionIndex(index))

    def _drop_replica(self, topic: Topic, index: PartitionIndex, code: ErrorCode) -> None:
        key = (topic.name, index)
        self._leaving.pop(key, None)
        self._offline.pop(key, None)
        held = self._deleted.get(topic.topic_id, {})
        hosted = held.pop(index, None) or self._pop_hosted(topic, index)
        if hosted is not None:
            is_deleted = topic.topic_id not in self._topics
            hosted.replica.drop(code, forget_vote=is_deleted)
            self.on_leadership(hosted.replica)
        self._drop_log(topic.name, topic.topic_id, index)

    def forget_logs(
        self, removed: Iterable[tuple[str, TopicId, PartitionIndex]], image: Image
    ) -> None:
        """Deletes logs of removed replicas at the start, before anything is opened.

        Except those that moved back by `image`: a start replays old moves, and the log that exists
        now belongs to a voter.
        """
        with self._flusher.fencing():
            for name, topic_id, index in removed:
                topic = image.topic_by_id(topic_id)
                is_gone = topic is None or self._broker not in topic.partitions[index].replicas
                if is_gone and not self._is_open(name, topic_id, index):
                    self._drop_log(name, topic_id, index)

    def _is_open(self, name: str, topic_id: TopicId, index: PartitionIndex) -> bool:
        hosted = self._hosted.get((name, index))
        is_served = hosted is not None and hosted.replica.topic_id == topic_id
        return is_served or index in self._deleted.get(topic_id, {})

    async def wait_until_led(self) -> None:
        """At the start: waits for the partitions with a single voter, this broker; with a limit."""
        deadline = self._clock.monotonic() + _LED_SECONDS_MAX
        while self._clock.monotonic() < deadline and any(
            not hosted.replica.is_ready and hosted.replica.members.voters == (self._broker,)
            for hosted in self._hosted.values()
        ):
            await asyncio.sleep(0.002)

    def close(self) -> None:
        """Close every log cleanly."""
        deleted = (hosted for held in self._deleted.values() for hosted in held.values())
        for hosted in (*self._hosted.values(), *deleted):
            try:
                hosted.replica.close()
            except DiskFullError as error:
                partition = hosted.replica.partition
                log.warning(
                    "log of %s not closed cleanly, to be recovered: %s",
                    partition,
                    error,
                    extra=events.LOG_NOT_CLOSED(),
                )
        self._hosted.clear()
        self._deleted.clear()
