"""Owns the metadata image on this broker, and the way of a command into the metadata log.

The metadata group's leader decides: one command at a time, because a decision rests on the image,
which must not change before the decision's records are committed. Every other broker hands commands
over to it. All of them, the leader too, make their image from what is *committed*, batch by batch,
and a command is answered when the broker that was asked has its effect in its own image.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from typing import Final, Protocol

import msgspec

from moldau.data.commit import commit_batch
from moldau.metadata.apply import apply, apply_all
from moldau.metadata.command_codec import decode_command, encode_command
from moldau.metadata.commands import (
    AlterBrokerConfigs,
    AlterTopicConfigs,
    Command,
    CreatePartitions,
    DeleteTopic,
)
from moldau.metadata.decide import decide
from moldau.metadata.image import EMPTY_IMAGE, Image
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
from moldau.raft.errors import RaftRejection
from moldau.records.record import Record, build_batch, read_records
from moldau.replica.raft_group import RaftGroup
from moldau.replica.replica import Replica

log = logging.getLogger(__name__)

SUBMIT_METHOD: Final = 1
"""Number of the question by which a command reaches the metadata leader."""
FRESH_METHOD: Final = 4
"""By which the leader is asked how far an image must be to hold all that is committed."""

_SUBMIT_SECONDS_MAX = 30.0
_RETRY_SECONDS = 0.05
_FRESH_SECONDS_MAX = 5.0
_HEARD_MS_MAX = 2_000
"""A broker that gets no heartbeat of the leader for longer has lost contact."""
_SNAPSHOT_RECORDS = 5_000
"""Records between two snapshots: the log before is let go, so it and a start stay short."""

_AMBIGUOUS = (DeleteTopic, CreatePartitions, AlterTopicConfigs, AlterBrokerConfigs)
"""Not sent a second time if it is unknown whether the first was carried out."""

_RETRIED = frozenset(
    {
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.THROTTLING_QUOTA_EXCEEDED,
    }
)
_UNSENT = frozenset({ErrorCode.NOT_CONTROLLER, ErrorCode.THROTTLING_QUOTA_EXCEEDED})

RemovedReplica = tuple[str, TopicId, PartitionIndex]
"""A partition of which this broker held a replica, and shall no more."""


class PeerCaller(Protocol):
    """The part of the transport that is needed here."""

    async def call(
        self, peer: BrokerId, method: int, payload: bytes, timeout_seconds: float
    ) -> bytes: ...


class MetadataReplica(Replica):
    """A replica whose state is the image: snapshots hold that, and not producers."""

    on_image: Callable[[Offset, Image], None]
    """Told when a leader's snapshot replaced the log."""

    def snapshot(self, group: RaftGroup, offset: Offset) -> bytes:
        found = self.log.load_snapshot()
        if found is not None and found[0] > offset:
            # The disk was full between the two: make up for it, and be asked for that one.
            with suppress(DiskFullError), self._flusher.fencing():
                self.log.delete_before(found[0])
            raise RefusedError(ErrorCode.KAFKA_STORAGE_ERROR, f"no snapshot for {offset} now")
        if found is None or found[0] != offset:
            # They are renewed together, see MetadataStore.compact.
            raise CorruptionError(f"the metadata log begins at {offset} without a snapshot")
        return found[1]

    def on_reset(self, group: RaftGroup, offset: Offset, payload: bytes) -> None:
        try:
            image = decode_image(payload)
        except CorruptionError as error:
            self._listener.on_failed(self, error)
            return
        self.high_watermark = offset
        self.on_image(offset, image)

    async def fresh_offset(self) -> Offset:
        """All that is committed now is below it. Raises RefusedError."""
        try:
            return await self._driver.read_index(self.group)
        except RaftRejection as error:
            raise RefusedError(ErrorCode.NOT_CONTROLLER, str(error)) from None

    def has_recent_leader(self, within_ms: int) -> bool:
        return self._driver.has_recent_leader(self.group, within_ms)

    def snapshot_if_due(self) -> bool:
        """Not by bytes."""
        return False

    def close(self) -> None:
        self.end(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        with self._flusher.fencing():
            self.log.close()

    def compact(self, offset: Offset, payload: bytes) -> None:
        """Begin the log at `offset`, with the state for there. Raises StorageError."""
        if offset <= self.log.flushed_offset:
            with self._flusher.fencing():
                self.log.save_snapshot(offset, payload)
                self.log.delete_before(offset)

    def _load_state(self, end: Offset | None = None) -> None:
        """The store reads the log itself."""


class MetadataStore:
    """The cluster's metadata on this broker."""

    def __init__(
        self,
        replica: MetadataReplica,
        clock: Clock,
        caller: PeerCaller,
        on_change: Callable[[Image, list[RemovedReplica]], Awaitable[None]],
        on_committed: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_change` makes the broker as the image says; `on_committed` tells followers soon."""
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
        """Reconciled up to here."""
        self._records_since_snapshot = 0
        self._gone: list[RemovedReplica] = []
        self._once_held: set[RemovedReplica] = set()
        """What an earlier process may have left here, by the log that this one found."""
        self._moved = asyncio.Event()
        self._news = asyncio.Event()
        self._leader_news = asyncio.Event()
        self._settling: asyncio.Task[None] | None = None
        self.on_deleted: Callable[[frozenset[str]], None] = lambda names: None
        """Told of each deleted topic before the image has the next state: one of the same name may
        come right behind it, and is another topic."""
        replica.on_image = self._on_image
        self._load()

    # ---- the image

    def _load(self) -> None:
        """The state of the last snapshot: all of it is committed."""
        stored = self._replica.log
        snapshot = stored.load_snapshot()
        self._applied = stored.start_offset
        if stored.start_offset > 0 and (snapshot is None or snapshot[0] < stored.start_offset):
            # An older one would bring back what was deleted, and forget what was made.
            raise CorruptionError(
                f"{stored.start_offset:020d}.snapshot, where the log of the metadata begins, is "
                "damaged or gone: nothing was changed; restore the folder metadata from a backup, "
                "or, in a cluster, move it away and start with --join-addr of another broker, to "
                "learn it again"
            )
        if snapshot is not None:
            self._applied, self.image = snapshot[0], decode_image(snapshot[1])
            if self._applied > stored.start_offset:
                # A crash came between the two.
                stored.delete_before(self._applied)
        self._settled = self._applied
        image, left = self._look_ahead()
        self._once_held = {*left, *_held(image, self._me)}

    def forecast(self) -> Image:
        """The image with what the log holds beyond the committed part: good for addresses only."""
        return self._look_ahead()[0]

    def _look_ahead(self) -> tuple[Image, list[RemovedReplica]]:
        """The forecast, and what this broker holds no more by then."""
        image = self.image
        left: list[RemovedReplica] = []
        for batch in self._replica.log.batches(self._applied):
            for record in read_records(batch):
                if record.value is not None:
                    change = decode_record(record.value)
                    before, image = image, apply(image, change)
                    if isinstance(change, (TopicDeleted, DesiredReplicasReached)):
                        left += _left(before, image, change.topic_id, self._me)
        return image, left

    @property
    def is_empty(self) -> bool:
        """Nothing was ever stored here."""
        return self._replica.log.end_index == 0

    def start(self) -> None:
        """Follow the log from now on."""
        self._replica.watchers[self] = None
        self._settling = asyncio.create_task(self._keep_settling())
        self._moved.set()
        self.on_progress(self._replica)

    @property
    def settling(self) -> "asyncio.Task[None] | None":
        """The task behind it: if it ends by itself, something is broken."""
        return self._settling

    async def stop(self) -> None:
        """Take a last snapshot, so that the next start knows what is committed."""
        if self._settling is not None:
            self._settling.cancel()
            with suppress(asyncio.CancelledError):
                await self._settling
        if self._settled == self._applied:
            with suppress(DiskFullError):
                self.compact()

    def on_progress(self, replica: Replica) -> None:
        """Apply what is committed."""
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
                        self._tell_deleted(before, image)
                    if isinstance(change, (TopicDeleted, DesiredReplicasReached)):
                        self._gone += _left(before, image, change.topic_id, self._me)
                    self._records_since_snapshot += 1
            self._applied = Offset(records[-1].offset + 1)
        self.image = image
        self._moved.set()
        if replica.is_leader:
            self._on_committed()

    def _tell_deleted(self, before: Image, after: Image) -> None:
        gone = before.topics_by_id.keys() - after.topics_by_id.keys()
        if gone:
            self.on_deleted(frozenset(before.topics_by_id[topic_id].name for topic_id in gone))

    def on_gone(self, replica: Replica) -> None:
        """It leads no longer: it goes on to follow."""
        if replica.is_open:
            replica.watchers[self] = None

    def _on_image(self, offset: Offset, image: Image) -> None:
        held = set(_held(image, self._me))
        # The log that would have told of deletions is gone, and with it what was not applied yet.
        self._gone += sorted({*self._once_held, *_held(self.image, self._me)} - held)
        self._tell_deleted(self.image, image)
        self._applied, self.image = offset, image
        self._moved.set()

    async def _keep_settling(self) -> None:
        """Make the broker as the image says, one image after the other."""
        while True:
            await self._moved.wait()
            self._moved.clear()
            if any(self.image.topic_by_id(topic_id) is not None for _, topic_id, _ in self._gone):
                # What has moved away may be back by now, and its log be that of a voter.
                await self._catch_up()
            offset, image = self._applied, self.image
            gone, self._gone = self._gone, []
            await self._on_change(image, gone)
            self._settled = offset
            if self._records_since_snapshot >= _SNAPSHOT_RECORDS and offset == self._applied:
                with suppress(DiskFullError):
                    self.compact()
            self._news.set()

    async def _catch_up(self) -> None:
        """Until the image has all that is committed by now."""
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
        """Keep the image as a snapshot, and let go of the log before it."""
        if self._applied <= self._replica.log.start_offset or self._gone:
            return
        self._records_since_snapshot = 0
        self._replica.compact(self._applied, encode_image(self.image))

    async def settled(self, offset: Offset, seconds_max: float = _SUBMIT_SECONDS_MAX) -> None:
        """Wait until this broker is as the log says up to `offset`. Raises RefusedError."""
        try:
            async with asyncio.timeout(seconds_max):
                while self._settled < offset:
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            raise RefusedError(
                ErrorCode.REQUEST_TIMED_OUT,
                "the change is made, but this broker has not heard of it yet",
            ) from None

    # ---- commands

    @property
    def leader(self) -> BrokerId:
        """Of the metadata group, or -1."""
        return self._replica.leader

    @property
    def has_recent_leader(self) -> bool:
        """Whether this broker leads, or was told lately by another that it does.

        A leader that was deposed may still be connected, and a broker that does not vote has no
        election timeout by which it would notice.
        """
        return self._replica.has_recent_leader(_HEARD_MS_MAX)

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
        """Carry out a command; returns its records once they are in this broker's image.

        `on_decided` gets them earlier, as soon as they are committed.
        Raises RefusedError if it cannot be done; nothing has changed then, but for
        REQUEST_TIMED_OUT, when nobody knows.
        """
        deadline = self._clock.monotonic() + seconds_max
        while True:
            try:
                records, offset = await self._submit_once(command, deadline)
                break
            except RefusedError as error:
                if error.code not in _RETRIED:
                    raise
                if error.code not in _UNSENT and isinstance(command, _AMBIGUOUS):
                    raise RefusedError(
                        ErrorCode.REQUEST_TIMED_OUT,
                        f"the metadata leader changed; it may be done or not: {error}",
                    ) from None
                if self._clock.monotonic() > deadline:
                    raise RefusedError(
                        ErrorCode.REQUEST_TIMED_OUT,
                        "the cluster has no metadata leader now: a majority of its brokers has "
                        "to be up",
                    ) from None
            await self._pause()
        on_decided(records)
        await self.settled(offset, max(1.0, deadline - self._clock.monotonic()))
        return records

    async def _pause(self) -> None:
        """Until the leader is another one, but not for long."""
        self._leader_news.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(_RETRY_SECONDS):
                await self._leader_news.wait()

    def leader_changed(self) -> None:
        """Whoever waits for a leader may try again."""
        self._leader_news.set()

    async def _submit_once(
        self, command: Command, deadline: float
    ) -> tuple[list[MetadataRecord], Offset]:
        if self._replica.is_ready:
            return await self._decide(command)
        leader = self.leader
        if leader < 0 or leader == self._me:
            raise RefusedError(ErrorCode.NOT_CONTROLLER, "the metadata group has no leader now")
        seconds = min(10.0, max(1.0, deadline - self._clock.monotonic()))
        reply = await self._caller.call(leader, SUBMIT_METHOD, encode_command(command), seconds)
        offset, encoded = msgspec.msgpack.decode(reply, type=tuple[int, list[bytes]])
        return [decode_record(record) for record in encoded], Offset(offset)

    async def answer(self, sender: BrokerId, payload: bytes) -> bytes:
        """For the peers: a command that another broker was asked for. Raises RefusedError."""
        command = decode_command(payload)
        if not self._replica.is_ready:
            raise RefusedError(ErrorCode.NOT_CONTROLLER, "another broker leads the metadata group")
        records, offset = await self._decide(command)
        return msgspec.msgpack.encode((offset, [encode_record(record) for record in records]))

    async def _decide(self, command: Command) -> tuple[list[MetadataRecord], Offset]:
        """To the end, also if nobody waits any more: the next decision rests on this one."""
        task = asyncio.create_task(self._commit(command))
        self._deciding.add(task)
        task.add_done_callback(self._decided)
        return await asyncio.shield(task)

    def _decided(self, task: asyncio.Task[tuple[list[MetadataRecord], Offset]]) -> None:
        self._deciding.discard(task)
        if not task.cancelled():
            # Whoever asked may be gone: a refusal that nobody waits for is no failure.
            task.exception()

    async def _commit(self, command: Command) -> tuple[list[MetadataRecord], Offset]:
        async with self._lock:
            if not self._replica.is_ready:
                raise RefusedError(ErrorCode.NOT_CONTROLLER, "leadership was lost")
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
                # Nothing was appended: leadership is being handed over, or too much waits already.
                raise RefusedError(ErrorCode.NOT_CONTROLLER, refusal.message) from None
            if error is not ErrorCode.NONE:
                raise RefusedError(error, "the metadata log did not take the change")
            # The commit was applied before it was told.
            return records, self._applied

    async def fresh(self) -> Image:
        """An image with everything that is committed by now. Raises RefusedError."""
        await self.settled(await self._fresh_offset(), _FRESH_SECONDS_MAX)
        return self.image

    async def _fresh_offset(self) -> Offset:
        """All that is committed now is below it. Raises RefusedError."""
        leader = self.leader
        if self._replica.is_ready:
            return await self._replica.fresh_offset()
        if leader < 0 or leader == self._me:
            raise RefusedError(ErrorCode.NOT_CONTROLLER, "the metadata group has no leader now")
        reply = await self._caller.call(leader, FRESH_METHOD, b"", _FRESH_SECONDS_MAX)
        return Offset(int.from_bytes(reply, "big"))

    async def answer_fresh(self, sender: BrokerId, payload: bytes) -> bytes:
        """For the peers. Raises RefusedError."""
        if not self._replica.is_ready:
            raise RefusedError(ErrorCode.NOT_CONTROLLER, "another broker leads the metadata group")
        return (await self._replica.fresh_offset()).to_bytes(8, "big")

    def preview(self, command: Command) -> Image:
        """The image as it would be: for validate_only requests. Raises RefusedError."""
        return apply_all(self.image, decide(command, self.image))


def _held(image: Image, me: BrokerId) -> Iterator[RemovedReplica]:
    """All that this broker holds by an image."""
    for topic in image.topics.values():
        for partition in topic.partitions:
            if me in partition.replicas:
                yield topic.name, topic.topic_id, partition.index


def _left(before: Image, after: Image, topic_id: TopicId, me: BrokerId) -> list[RemovedReplica]:
    """What this broker held of a topic by the one image and does not by the other."""
    topic, now = before.topic_by_id(topic_id), after.topic_by_id(topic_id)
    if topic is None or now is topic:
        return []
    return [
        (topic.name, topic_id, partition.index)
        for partition in topic.partitions
        if me in partition.replicas
        and (now is None or me not in now.partitions[partition.index].replicas)
    ]
