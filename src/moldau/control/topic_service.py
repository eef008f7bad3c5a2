"""Creates and deletes topics, adds partitions, and deletes records."""

from collections.abc import Callable, Mapping, Sequence

from moldau.control.metadata_store import MetadataStore
from moldau.data.commit import trim_replica
from moldau.data.disk_space import DiskGuard
from moldau.data.partitions import Partitions
from moldau.metadata.commands import CreatePartitions, CreateTopic, DeleteTopic
from moldau.metadata.image import Image, Topic
from moldau.metadata.replica_rules import default_replication
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import Offset, TopicId

_DEFAULT = -1
HIGH_WATERMARK = -1
"""DeleteRecords: everything that is committed."""
INTERNAL_SEGMENT_BYTES_MAX = 100 * 1024 * 1024
"""The active segment is never compacted, and a coordinator reads all of it when it loads."""


class TopicService:
    def __init__(
        self,
        *,
        metadata: MetadataStore,
        partitions: Partitions,
        disk: DiskGuard,
        new_topic_id: Callable[[], TopicId],
        default_partitions: int,
        default_replication_factor: int | None,
        default_segment_bytes: int,
    ) -> None:
        self._metadata = metadata
        self._partitions = partitions
        self._disk = disk
        self._new_topic_id = new_topic_id
        self._default_partitions = default_partitions
        self._default_replication_factor = default_replication_factor
        self._internal_configs = {
            "cleanup.policy": "compact",
            "segment.bytes": str(min(default_segment_bytes, INTERNAL_SEGMENT_BYTES_MAX)),
        }

    @property
    def image(self) -> Image:
        return self._metadata.image

    async def create(
        self,
        name: str,
        *,
        partitions: int = _DEFAULT,
        replication_factor: int = _DEFAULT,
        assignments: Mapping[int, Sequence[int]] | None = None,
        configs: Mapping[str, str | None] | None = None,
        validate_only: bool = False,
        internal: bool = False,
    ) -> Topic:
        """The new topic; with `validate_only`, what it would be. Raises RefusedError."""
        if assignments is None:
            if partitions == _DEFAULT:
                partitions = self._default_partitions
            if replication_factor == _DEFAULT:
                replication_factor = self._default_replication_factor or default_replication(
                    self.image
                )
        command = CreateTopic(
            name=name,
            topic_id=self._new_topic_id(),
            partitions=partitions,
            replication_factor=replication_factor,
            assignments=assignments,
            configs=configs or {},
            internal=internal,
        )
        if validate_only:
            image = self._metadata.preview(command)
        else:
            self._disk.check()
            await self._metadata.submit(command)
            image = self._metadata.image
        topic = image.topic_by_id(command.topic_id)
        if topic is None:
            raise RefusedError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{name} was deleted right after its creation"
            )
        return topic

    async def ensure(self, name: str, *, internal: bool = False, partitions: int = -1) -> Topic:
        """The topic, created if needed. Concurrent calls return the same topic."""
        topic = self.image.topic(name)
        if topic is None:
            try:
                await self.create(
                    name,
                    partitions=partitions,
                    replication_factor=(default_replication(self.image) if internal else _DEFAULT),
                    configs=self._internal_configs if internal else None,
                    internal=internal,
                )
            except RefusedError as error:
                if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                    raise
                if self.image.topic(name) is None:
                    # Created by another broker; the local image lags behind.
                    await self._metadata.fresh()
            topic = self.image.topic(name)
        if topic is None:
            raise RefusedError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{name} was deleted right after its creation"
            )
        return topic

    async def delete(self, *, name: str | None = None, topic_id: TopicId | None = None) -> None:
        await self._metadata.submit(DeleteTopic(name=name, topic_id=topic_id))

    async def add_partitions(
        self,
        name: str,
        count: int,
        assignments: Sequence[Sequence[int]] | None,
        *,
        validate_only: bool,
    ) -> Topic:
        """The topic with them; with `validate_only`, what it would be. Raises RefusedError."""
        command = CreatePartitions(topic=name, count=count, assignments=assignments)
        if validate_only:
            image = self._metadata.preview(command)
        else:
            self._disk.check()
            await self._metadata.submit(command)
            image = self._metadata.image
        topic = image.topic(name)
        if topic is None:
            raise RefusedError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"{name} was deleted right after it got partitions",
            )
        return topic

    async def delete_records(self, topic: str, partition: int, before: int) -> Offset:
        """Raise the start offset of a partition; returns it. Raises RefusedError."""
        hosted = self._partitions.lead(topic, partition)
        if hosted.internal:
            raise RefusedError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{topic} is an internal topic")
        if not hosted.deletes:
            raise RefusedError(
                ErrorCode.POLICY_VIOLATION, f"{topic} has a cleanup.policy without delete"
            )
        replica = hosted.replica
        offset = replica.high_watermark if before == HIGH_WATERMARK else Offset(before)
        if not 0 <= offset <= replica.high_watermark:
            raise RefusedError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"{before} is not between 0 and {replica.high_watermark}",
            )
        # Replicated even if retention already deleted it here: followers may still have it.
        offset = max(offset, replica.log.start_offset)
        if offset > replica.trimmed_to:
            error = await trim_replica(replica, offset)
            if error is not ErrorCode.NONE:
                raise RefusedError(
                    error, f"records of {topic}-{partition} could not be deleted; retry"
                )
        return replica.log.start_offset
