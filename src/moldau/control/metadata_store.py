"""The metadata image of this broker, and the submission of commands to the metadata log.

The metadata leader decides one command at a time, because a decision depends on the image, which
must not change before its records are committed. Other brokers forward commands to it. Every
broker, the leader too, builds its image from *committed* records, and `submit` returns when the
change is in the image of the broker that received the request.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress

import msgspec

from moldau.control.metadata_replica import MetadataReplica
from moldau.data.commit import commit_batch
from moldau.metadata.apply import apply, apply_all
from moldau.metadata.command_codec import decode_command, encode_command
from moldau.metadata.commands import (
    AlterBrokerConfigs,
    AlterTopicConfigs,
    Command,
    CreatePartitions,
    DeleteAcls,
    DeleteJoinToken,
    DeleteScramCredential,
    DeleteTopic,
    DeleteUser,
)
from moldau.metadata.decide import decide
from moldau.metadata.image import EMPTY_IMAGE, Image, Topic
from moldau.metadata.records import (
    DesiredReplicasReached,
    MetadataRecord,
    TopicDeleted,
    decode_record,
    encode_record,
)
from moldau.metadata.snapshot import decode_image, encode_image
from moldau.model.clock import Clock
from moldau.model.errors import CorruptionError, DiskFullError, ErrorCode, RefusedError
from moldau.model.ids import BrokerId, Offset, PartitionIndex, TopicId
from moldau.net.peers.caller import PeerCaller
from moldau.net.peers.methods import PeerMethod
from moldau.records.record import Record, build_batch, read_records

log = logging.getLogger(__name__)


_SUBMIT_SECONDS_MAX = 30.0
_RETRY_SECONDS = 0.05
_FRESH_SECONDS_MAX = 5.0
_CONTACT_MS_MAX = 2_000
"""Without a heartbeat of the leader for longer, contact is lost."""
_SNAPSHOT_RECORDS = 5_000
"""Records between two snapshots; the log before a snapshot is deleted."""

_AMBIGUOUS = (
    DeleteTopic,
    CreatePartitions,
    AlterTopicConfigs,
    AlterBrokerConfigs,
    DeleteAcls,
    DeleteUser,
    DeleteScramCredential,
    DeleteJoinToken,
)
"""Not retried if it is unknown whether they were executed."""

_RETRIABLE = frozenset(
    {
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.THROTTLING_QUOTA_EXCEEDED,
    }
)
"""Fewer than `is_unavailable`: a full disk of the metadata leader is reported at once."""
_UNSENT = frozenset({ErrorCode.NOT_CONTROLLER, ErrorCode.THROTTLING_QUOTA_EXCEEDED})

RemovedReplica = tuple[str, TopicId, PartitionIndex]
"""A partition of which this broker had a replica, and no longer has."""


class MetadataStore:
    def __init__(
        self,
        replica: MetadataReplica,
        clock: Clock,
        caller: PeerCaller,
        on_change: Callable[[Image, list[RemovedReplica]], Awaitable[None]],
        on_committed: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_change` applies an image to this broker; `on_committed` notifies followers."""
        self._replica = replica
        self._clock = clock
        self._caller = caller
        self._me = replica.group.core.me
        self._on_change = on_change
        self._on_committed = on_committed
        self._lock = asyncio.Lock()
        self._deciding: set[asyncio.Task[tuple[list[MetadataRecord], Offset]]] = set()
        self.image = EMPTY_IMAGE
        self._applied = Offset(0)
        self._settled = Offset(0)
        """Images up to this offset are applied to this broker."""
        self._records_since_snapshot = 0
        self._removed: list[RemovedReplica] = []
        self._earlier_replicas: set[RemovedReplica] = set()
        """Replicas that an earlier process may have left, according to the log."""
        self._moved = asyncio.Event()
        self._applied_event = asyncio.Event()
        self._leader_event = asyncio.Event()
        self.applying: asyncio.Task[None] | None = None
        """The background task; it ends by itself only on an internal error."""
        self.on_deleted: Callable[[list[Topic]], None] = lambda topics: None
        """Called with deleted topics before the next record is applied, which may create another
        topic with the same name."""
        replica.on_image = self._on_image
        self._load()

    # ---- the image

    def _load(self) -> None:
        """Load the last snapshot, which is committed."""
        stored = self._replica.log
        snapshot = stored.load_snapshot()
        self._applied = stored.start_offset
        if stored.start_offset > 0 and (snapshot is None or snapshot[0] < stored.start_offset):
            # An older snapshot would restore deleted topics and lose new ones.
            raise CorruptionError(
                f"{stored.start_offset:020d}.snapshot, where the metadata log begins, is corrupt "
                "or missing; nothing was changed. Restore the metadata folder from a backup or, in "
                "a cluster, move it away and start with --join-addr of another broker to copy it"
            )
        if snapshot is not None:
            self._applied, self.image = snapshot[0], decode_image(snapshot[1])
            if self._applied > stored.start_offset:
                # After a crash between saving and truncating.
                stored.delete_before(self._applied)
        self._settled = self._applied
        image, left = self._with_uncommitted()
        self._earlier_replicas = {*left, *_replicas_of(image, self._me)}

    def forecast(self) -> Image:
        """The image including uncommitted records: for broker addresses only."""
        return self._with_uncommitted()[0]

    def _with_uncommitted(self) -> tuple[Image, list[RemovedReplica]]:
        """The forecast, and the replicas removed from this broker by then."""
        image = self.image
        left: list[RemovedReplica] = []
        for batch in self._replica.log.batches(self._applied):
            for record in read_records(batch):
                if record.value is not None:
                    change = decode_record(record.value)
                    before, image = image, apply(image, change)
                    if isinstance(change, (TopicDeleted, DesiredReplicasReached)):
                        left += _removed_replicas(before, image, change.topic_id, self._me)
        return image, left

    def start(self) -> None:
        """Start following the log."""
        self._replica.on_progress = self.on_progress
        self.applying = asyncio.create_task(self._apply_images())
        self._moved.set()
        self.on_progress(self._replica)

    async def stop(self) -> None:
        """Take a last snapshot, so that the next start has a committed image."""
        if self.applying is not None:
            self.applying.cancel()
            with suppress(asyncio.CancelledError):
                await self.applying
        if self._settled == self._applied:
            with suppress(DiskFullError):
                self.compact()

    def on_progress(self, replica: MetadataReplica) -> None:
        """Apply committed records."""
        end = replica.high_watermark
        if self._applied >= end:
            return
        image = self.image
        for batch in replica.log.batches(self._applied):
            records = read_records(batch)
            if not records or records[0].offset >= end:
                break
            for record in records:
                if record.value is not None:
                    change = decode_record(record.value)
                    before, image = image, apply(image, change)
                    if isinstance(change, TopicDeleted):
                        self._report_deleted(before, image)
                    if isinstance(change, (TopicDeleted, DesiredReplicasReached)):
                        self._removed += _removed_replicas(before, image, change.topic_id, self._me)
                    self._records_since_snapshot += 1
            self._applied = Offset(records[-1].offset + 1)
        self.image = image
        self._moved.set()
        if replica.is_leader:
            self._on_committed()

    def _report_deleted(self, before: Image, after: Image) -> None:
        deleted = sorted(before.topics_by_id.keys() - after.topics_by_id.keys())
        if deleted:
            self.on_deleted([before.topics_by_id[topic_id] for topic_id in deleted])

    def _on_image(self, offset: Offset, image: Image) -> None:
        held = set(_replicas_of(image, self._me))
        # The log with the deletions was replaced, including records not applied yet.
        self._removed += sorted(
            {*self._earlier_replicas, *_replicas_of(self.image, self._me)} - held
        )
        self._report_deleted(self.image, image)
        self._applied, self.image = offset, image
        self._moved.set()

    async def _apply_images(self) -> None:
        """Apply each image to this broker, one after the other."""
        while True:
            await self._moved.wait()
            self._moved.clear()
            if any(
                self.image.topic_by_id(topic_id) is not None for _, topic_id, _ in self._removed
            ):
                # A removed replica may be assigned again by now, and be a voter.
                await self._catch_up()
            offset, image = self._applied, self.image
            removed, self._removed = self._removed, []
            await self._on_change(image, removed)
            self._settled = offset
            if self._records_since_snapshot >= _SNAPSHOT_RECORDS and offset == self._applied:
                with suppress(DiskFullError):
                    self.compact()
            self._applied_event.set()

    async def _catch_up(self) -> None:
        """Wait until the image has everything committed by now."""
        while True:
            try:
                offset = await self._fresh_offset()
            except RefusedError:
                await self._pause()
                continue
            while self._applied < offset:
                await self._moved.wait()
                self._moved.clear()
            return

    def compact(self) -> None:
        """Store the image as a snapshot, and delete the log before it."""
        if self._applied <= self._replica.log.start_offset or self._removed:
            return
        self._records_since_snapshot = 0
        self._replica.compact(self._applied, encode_image(self.image))

    async def settled(self, offset: Offset, seconds_max: float = _SUBMIT_SECONDS_MAX) -> None:
        """Wait until the log up to `offset` is applied to this broker. Raises RefusedError."""
        try:
            async with asyncio.timeout(seconds_max):
                while self._settled < offset:
                    self._applied_event.clear()
                    await self._applied_event.wait()
        except TimeoutError:
            raise RefusedError(
                ErrorCode.REQUEST_TIMED_OUT,
                "the change is committed, but not yet applied on this broker",
            ) from None

    # ---- commands

    @property
    def leader(self) -> BrokerId:
        """The leader of the metadata group, or -1."""
        return self._replica.leader

    @property
    def has_recent_leader(self) -> bool:
        """Whether this broker leads, or got a heartbeat of the leader recently.

        A deposed leader may still be connected, and a broker that is not a voter has no election
        timeout to notice it.
        """
        return self._replica.has_recent_leader(_CONTACT_MS_MAX)

    @property
    def is_leading(self) -> bool:
        return self._replica.is_ready

    async def submit(
        self,
        command: Command,
        *,
        seconds_max: float = _SUBMIT_SECONDS_MAX,
        on_decided: Callable[[list[MetadataRecord]], None] = lambda _: None,
    ) -> list[MetadataRecord]:
        """Execute a command; returns its records when they are in this broker's image.

        `on_decided` gets them earlier, when they are committed. Raises RefusedError; then nothing
        has changed, except for REQUEST_TIMED_OUT, where the outcome is unknown.
        """
        deadline = self._clock.monotonic() + seconds_max
        while True:
            try:
                records, offset = await self._submit_once(command, deadline)
                break
            except RefusedError as error:
                if error.code not in _RETRIABLE:
                    raise
                if error.code not in _UNSENT and isinstance(command, _AMBIGUOUS):
                    raise RefusedError(
                        ErrorCode.REQUEST_TIMED_OUT,
                        f"the metadata leader changed, and the outcome is unknown: {error}",
                    ) from None
                if self._clock.monotonic() > deadline:
                    raise RefusedError(
                        ErrorCode.REQUEST_TIMED_OUT,
                        "the cluster has no metadata leader: a majority of its brokers must be up",
                    ) from None
            await self._pause()
        on_decided(records)
        await self.settled(offset, max(1.0, deadline - self._clock.monotonic()))
        return records

    async def _pause(self) -> None:
        """Backoff until the leader changes, or a short timeout."""
        self._leader_event.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(_RETRY_SECONDS):
                await self._leader_event.wait()

    def leader_changed(self) -> None:
        """Commands that wait for a leader are retried."""
        self._leader_event.set()

    async def _submit_once(
        self, command: Command, deadline: float
    ) -> tuple[list[MetadataRecord], Offset]:
        if self._replica.is_ready:
            return await self._decide(command)
        leader = self.leader
        if leader < 0 or leader == self._me:
            raise RefusedError(ErrorCode.NOT_CONTROLLER, "the metadata group has no leader")
        seconds = min(10.0, max(1.0, deadline - self._clock.monotonic()))
        reply = await self._caller.call(
            leader, PeerMethod.SUBMIT_COMMAND, encode_command(command), seconds
        )
        offset, encoded = msgspec.msgpack.decode(reply, type=tuple[int, list[bytes]])
        return [decode_record(record) for record in encoded], Offset(offset)

    async def on_command(self, sender: BrokerId, payload: bytes) -> bytes:
        """Handle a command forwarded by another broker. Raises RefusedError."""
        command = decode_command(payload)
        if not self._replica.is_ready:
            raise RefusedError(ErrorCode.NOT_CONTROLLER, "another broker leads the metadata group")
        records, offset = await self._decide(command)
        return msgspec.msgpack.encode((offset, [encode_record(record) for record in records]))

    async def _decide(self, command: Command) -> tuple[list[MetadataRecord], Offset]:
        """Not cancelled with its caller: the next decision depends on it."""
        task = asyncio.create_task(self._commit(command))
        self._deciding.add(task)
        task.add_done_callback(self._decided)
        return await asyncio.shield(task)

    def _decided(self, task: asyncio.Task[tuple[list[MetadataRecord], Offset]]) -> None:
        self._deciding.discard(task)
        if not task.cancelled():
            # The caller may have been cancelled: retrieve the exception.
            task.exception()

    async def _commit(self, command: Command) -> tuple[list[MetadataRecord], Offset]:
        async with self._lock:
            if not self._replica.is_ready:
                raise RefusedError(
                    ErrorCode.NOT_CONTROLLER, "lost leadership of the metadata group"
                )
            records = decide(command, self.image)
            if not records:
                return records, self._applied
            now = self._clock.wall_ms()
            batch = build_batch(
                [Record(Offset(0), now, None, encode_record(record), []) for record in records]
            )
            try:
                error = await commit_batch(self._replica, batch)
            except RefusedError as refusal:
                # Nothing was appended: a leadership transfer, or too many waiting appends.
                raise RefusedError(ErrorCode.NOT_CONTROLLER, refusal.message) from None
            if error is not ErrorCode.NONE:
                raise RefusedError(error, "the change was not committed to the metadata log")
            # Commits are applied before they are reported.
            return records, self._applied

    async def fresh(self) -> Image:
        """An image with everything committed by now. Raises RefusedError."""
        await self.settled(await self._fresh_offset(), _FRESH_SECONDS_MAX)
        return self.image

    async def _fresh_offset(self) -> Offset:
        """All that is committed now is below it. Raises RefusedError."""
        leader = self.leader
        if self._replica.is_ready:
            return await self._replica.fresh_offset()
        if leader < 0 or leader == self._me:
            raise RefusedError(ErrorCode.NOT_CONTROLLER, "the metadata group has no leader")
        reply = await self._caller.call(
            leader, PeerMethod.FRESH_METADATA_OFFSET, b"", _FRESH_SECONDS_MAX
        )
        return Offset(int.from_bytes(reply, "big"))

    async def on_fresh_offset_request(self, sender: BrokerId, payload: bytes) -> bytes:
        """Handle the RPC for the read index. Raises RefusedError."""
        if not self._replica.is_ready:
            raise RefusedError(ErrorCode.NOT_CONTROLLER, "another broker leads the metadata group")
        return (await self._replica.fresh_offset()).to_bytes(8, "big")

    def preview(self, command: Command) -> Image:
        """The image after the command, for validate_only requests. Raises RefusedError."""
        return apply_all(self.image, decide(command, self.image))


def _replicas_of(image: Image, me: BrokerId) -> Iterator[RemovedReplica]:
    """All replicas of this broker in an image."""
    for topic in image.topics.values():
        for partition in topic.partitions:
            if me in partition.replicas:
                yield topic.name, topic.topic_id, partition.index


def _removed_replicas(
    before: Image, after: Image, topic_id: TopicId, me: BrokerId
) -> list[RemovedReplica]:
    """Replicas of a topic that this broker has in one image and not in the other."""
    topic, now = before.topic_by_id(topic_id), after.topic_by_id(topic_id)
    if topic is None or now is topic:
        return []
    return [
        (topic.name, topic_id, partition.index)
        for partition in topic.partitions
        if me in partition.replicas
        and (now is None or me not in now.partitions[partition.index].replicas)
    ]
