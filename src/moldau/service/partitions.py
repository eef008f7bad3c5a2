"""Owns the replicas of this broker: opens and closes them as the metadata image says.

A partition whose log is damaged stays closed, with the reason; the others go on.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping

from moldau.log.interface import LogConfig, PartitionLog
from moldau.metadata.config_types import LONG_MAX
from moldau.metadata.image import Image, Topic
from moldau.metadata.topic_configs import Layer, TopicConfig, broker_layers
from moldau.model.clock import Clock
from moldau.model.errors import (
    CorruptionError,
    DiskFullError,
    ErrorCode,
    MoldauError,
    RefusedError,
)
from moldau.model.flush import FlushPolicy
from moldau.model.ids import BrokerId, PartitionIndex, RaftIndex, TopicId, TopicPartition
from moldau.raft.group import RaftGroup
from moldau.records.compression import Codec
from moldau.replica.election import Votes, elect, group_key
from moldau.replica.flusher import Flusher
from moldau.replica.replica import Replica

log = logging.getLogger(__name__)

_PARTITIONS_PER_STEP = 20
"""Opened or dropped in one turn of the loop: each costs a flush or two."""

OpenLog = Callable[[str, TopicId, PartitionIndex, LogConfig], PartitionLog]
DropLog = Callable[[str, TopicId, PartitionIndex], None]


def log_config(config: TopicConfig, *, internal: bool) -> LogConfig:
    """The slice of a topic's settings that its logs need. Internal topics are always flushed."""
    return LogConfig(
        segment_bytes_max=config.segment_bytes,
        segment_ms_max=config.segment_ms,
        index_interval_bytes=config.index_interval_bytes,
        retention_ms=config.retention_ms,
        retention_bytes=config.retention_bytes,
        delete_expired="delete" in config.cleanup_policy,
        flush=FlushPolicy.ALWAYS if internal else FlushPolicy(config.flush),
    )


class Hosted:
    """A replica with the settings of its topic, resolved once and not per request."""

    __slots__ = (
        "bounds_timestamps",
        "codec",
        "config",
        "deletes",
        "internal",
        "is_compacted",
        "is_plain",
        "replica",
        "stamps_append_time",
    )

    def __init__(self, replica: Replica, config: TopicConfig, internal: bool) -> None:
        self.replica = replica
        self.internal = internal
        self.configure(config)

    def configure(self, config: TopicConfig) -> None:
        self.config = config
        self.codec = codec_of(config.compression_type)
        self.is_compacted = config.compacted
        self.deletes = "delete" in config.cleanup_policy
        self.stamps_append_time = config.timestamp_type == "LogAppendTime"
        self.bounds_timestamps = not self.stamps_append_time and (
            min(config.timestamp_before_max_ms, config.timestamp_after_max_ms) < LONG_MAX
        )
        self.is_plain = not (
            self.internal or self.is_compacted or self.codec is not None or self.bounds_timestamps
        )
        """Batches go to the log as they come: the usual case, decided once."""


def codec_of(compression_type: str) -> Codec | None:
    """The codec that a topic insists on; None if it keeps what producers send."""
    if compression_type == "producer":
        return None
    return Codec.NONE if compression_type == "uncompressed" else Codec[compression_type.upper()]


class Partitions:
    """Every partition that this broker hosts."""

    def __init__(
        self,
        *,
        broker: BrokerId,
        open_log: OpenLog,
        drop_log: DropLog,
        votes: Votes,
        flusher: Flusher,
        clock: Clock,
        defaults: Mapping[str, str],
    ) -> None:
        self._broker = broker
        self._open_log = open_log
        self._drop_log = drop_log
        self._votes = votes
        self._flusher = flusher
        self._clock = clock
        self._defaults = defaults
        self._hosted: dict[tuple[str, int], Hosted] = {}
        self._offline: dict[tuple[str, int], MoldauError] = {}
        self._topics: dict[TopicId, Topic] = {}
        self._layers: tuple[Layer, ...] = ()
        self._broker_configs: Mapping[BrokerId, Mapping[str, str]] | None = None

    # ---- finding

    def get(self, topic: str, partition: int) -> Hosted | None:
        return self._hosted.get((topic, partition))

    def find(self, topic: str, partition: int) -> Hosted:
        """The partition, or the RefusedError that the client gets instead."""
        hosted = self._hosted.get((topic, partition))
        if hosted is not None:
            return hosted
        if (topic, partition) in self._offline:
            raise RefusedError(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"{topic}-{partition} is offline: {self._offline[topic, partition]}",
            )
        raise RefusedError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {topic}-{partition}"
        )

    def __iter__(self) -> Iterator[Hosted]:
        return iter(list(self._hosted.values()))

    def __len__(self) -> int:
        return len(self._hosted)

    @property
    def topic_names(self) -> frozenset[str]:
        return frozenset(topic.name for topic in self._topics.values())

    @property
    def offline(self) -> Mapping[tuple[str, int], MoldauError]:
        return self._offline

    def take_offline(self, hosted: Hosted, error: CorruptionError) -> None:
        """A partition proved to be damaged while it was served: serve it no more, touch nothing.

        Its log is not closed, because a clean close would vouch for what is in it.
        """
        partition = hosted.replica.partition
        key = (partition.topic, partition.partition)
        if self._hosted.pop(key, None) is not None:
            self._set_offline(key, error)
            hosted.replica.fail_waiters(ErrorCode.KAFKA_STORAGE_ERROR)

    def _give_up(self, replica: Replica, error: DiskFullError) -> None:
        """There was no room for something that had to be written: offline until there is."""
        key = (replica.partition.topic, replica.partition.partition)
        if self._hosted.pop(key, None) is not None:
            self._set_offline(key, error)
            replica.fail_waiters(ErrorCode.KAFKA_STORAGE_ERROR)
            replica.log.discard()

    def _set_offline(self, key: tuple[str, int], error: MoldauError) -> None:
        before = self._offline.get(key)
        self._offline[key] = error
        if str(before) != str(error):
            # Once, not with every try.
            log.error("partition %s-%d is offline: %s", *key, error)

    def retry_offline(self) -> None:
        """Try again to open what only lacked room on the disk."""
        if not any(isinstance(error, DiskFullError) for error in self._offline.values()):
            return
        opened = []
        with self._flusher.fencing():
            for topic in self._topics.values():
                for partition in topic.partitions:
                    if isinstance(self._offline.get((topic.name, partition.index)), DiskFullError):
                        opened += self._open(topic, partition.index, self._resolve(topic))
            self._elect(opened)
        for replica in opened:
            if replica.is_ready:
                log.warning("partition %s-%d is online again", *replica.partition)

    def _elect(self, opened: list[Replica]) -> None:
        """Lead what was opened; what finds no room on the disk waits offline until there is."""
        for replica, error in elect(opened, self._votes).items():
            self._give_up(replica, error)

    # ---- following the image

    def reconcile(self, image: Image) -> None:
        """Open what is new, close and drop what is gone, reconfigure what changed.

        The image is committed, so there is no way back: a disk that fails here ends the process,
        and the next start does the rest.
        """
        with self._flusher.fencing():
            for _ in self._follow(image):
                pass

    async def reconcile_gently(self, image: Image) -> None:
        """As `reconcile`, but others get their turn after every few partitions."""
        with self._flusher.fencing():
            for _ in self._follow(image):
                await asyncio.sleep(0)

    def _follow(self, image: Image) -> Iterator[None]:
        """Yields after every few partitions; what is hosted then is led."""
        for topic in list(self._topics.values()):
            if topic.topic_id not in image.topics_by_id:
                yield from self._drop(topic)
        self._layers = broker_layers(image, self._broker, self._defaults)
        defaults_changed = image.broker_configs is not self._broker_configs
        self._broker_configs = image.broker_configs
        for topic in image.topics.values():
            known = self._topics.get(topic.topic_id)
            if known is topic and not defaults_changed:
                continue
            config = self._resolve(topic)
            first_new = len(known.partitions) if known is not None else 0
            if known is not None and (defaults_changed or known.configs != topic.configs):
                self._reconfigure(topic, first_new, config)
            here = [p.index for p in topic.partitions[first_new:] if self._broker in p.replicas]
            for start in range(0, len(here), _PARTITIONS_PER_STEP):
                opened: list[Replica] = []
                for index in here[start : start + _PARTITIONS_PER_STEP]:
                    opened += self._open(topic, index, config)
                self._elect(opened)
                yield
            self._topics[topic.topic_id] = topic

    def _resolve(self, topic: Topic) -> TopicConfig:
        return TopicConfig.resolve_layers(topic.configs, self._layers)

    def _reconfigure(self, topic: Topic, count: int, config: TopicConfig) -> None:
        for index in range(count):
            hosted = self._hosted.get((topic.name, index))
            if hosted is not None:
                hosted.configure(config)
                try:
                    hosted.replica.reconfigure(log_config(config, internal=topic.internal))
                except DiskFullError as error:
                    self._give_up(hosted.replica, error)

    def _open(self, topic: Topic, index: PartitionIndex, config: TopicConfig) -> list[Replica]:
        """The replica, or nothing if it has to stay offline."""
        key = (topic.name, index)
        try:
            opened = self._open_log(
                topic.name, topic.topic_id, index, log_config(config, internal=topic.internal)
            )
            epoch, _ = self._votes.get(group_key(topic.topic_id, index))
            replica = Replica(
                partition=TopicPartition(topic.name, index),
                topic_id=topic.topic_id,
                log=opened,
                group=RaftGroup(
                    broker=self._broker,
                    voters=frozenset({self._broker}),
                    epoch=epoch,
                    commit=RaftIndex(0),
                ),
                flusher=self._flusher,
                clock=self._clock,
            )
        except (CorruptionError, DiskFullError) as error:
            self._set_offline(key, error)
            return []
        self._offline.pop(key, None)
        self._hosted[key] = Hosted(replica, config, topic.internal)
        return [replica]

    def _drop(self, topic: Topic) -> Iterator[None]:
        del self._topics[topic.topic_id]
        for number, partition in enumerate(topic.partitions, 1):
            key = (topic.name, partition.index)
            self._offline.pop(key, None)
            hosted = self._hosted.pop(key, None)
            if hosted is not None:
                hosted.replica.drop()
            if self._broker in partition.replicas:
                self._drop_log(topic.name, topic.topic_id, partition.index)
            if number % _PARTITIONS_PER_STEP == 0:
                yield

    def close(self) -> None:
        """Close every log cleanly."""
        for hosted in self._hosted.values():
            try:
                hosted.replica.close()
            except DiskFullError as error:
                log.warning("the next start has to check a log: %s", error)
        self._hosted.clear()
