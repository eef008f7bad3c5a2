"""Consumer: reads topics over librdkafka, alone or as a member of a group.

Messages that were returned count as done at the next poll, or when the consumer is closed without
an error; only then are they committed. So a crash repeats messages, and never skips one.
"""

import logging
import time
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any, Self, Unpack

from confluent_kafka import Consumer as Client
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka import Message as RawMessage

from moldau import tracing
from moldau.client.config import Brokers, config_from
from moldau.client.errors import ClientError, InvalidArgumentError
from moldau.client.kafka import forks
from moldau.client.kafka.connect import LinkErrors, probe, translate, translated
from moldau.client.kafka.consumer_arguments import (
    Partition,
    checked_offset,
    described,
    next_offsets,
    partition_keys,
    topic_names,
)
from moldau.client.kafka.consumer_config import ConsumerConfig, ConsumerSettings, OffsetResetPolicy
from moldau.client.kafka.consumer_errors import (
    REASSIGNED_HINT,
    RETRIABLE,
    commit_hint,
    read_hint,
)
from moldau.client.kafka.librdkafka_settings import REQUEST_SECONDS_MAX
from moldau.client.kafka.message import Message, wrap

log = logging.getLogger(__name__)

OnPartitions = Callable[[list[Partition]], object]

POLL_SECONDS = 1.0
JOIN_SECONDS_MAX = 30.0
_SLICE_SECONDS = 0.2
"""How long a call of librdkafka blocks at a time, so that Ctrl-C is handled."""
_GATHER_SECONDS = 0.002
"""How long to wait for more messages after the first, up to a full batch."""


class _ClosedError(ClientError):
    """Ends an iteration without an error."""


class Consumer:
    """Reads messages. Not thread-safe: give each thread its own consumer."""

    def __init__(
        self,
        config: ConsumerConfig | Brokers | None = None,
        /,
        **settings: Unpack[ConsumerSettings],
    ) -> None:
        self.config = config = config_from(ConsumerConfig, config, settings)
        self._brokers = config.brokers
        self._batch_max = config.max_poll_records
        self._commits_itself = config.group_id is not None and config.enable_auto_commit
        self._buffer: deque[Message] = deque()
        # librdkafka has no position between a seek and the next message.
        self._sought: dict[Partition, int] = {}
        # Next offsets before partitions were revoked or sought in: those may still be committed.
        self._returned: dict[Partition, int] = {}
        # Cached: every poll needs it, and asking librdkafka takes a thread switch.
        self._assigned: list[TopicPartition] | None = None
        self._unstored = False
        self._joined = False
        self._subscribed = False
        self._reads = False
        self._streaming = False
        self._error: ClientError | None = None
        self._logged: set[str] = set()
        self._closed = False
        self._copied = False
        probe(self._brokers, extra=config.properties)
        # An object of its own, which does not keep the consumer alive.
        self._link = LinkErrors(is_long_lived=True)
        with translated(self._brokers, "create a consumer"):
            self._client = Client({"error_cb": self._link, **config.settings()})
        self._on_assign: OnPartitions | None = None
        self._on_revoke: OnPartitions | None = None
        self._on_lost: OnPartitions | None = None
        # While on_assign runs: the new partitions, with the offset if one was sought.
        self._coming: dict[Partition, int | None] = {}
        # Neither this nor the callbacks of the client may keep the consumer alive.
        self._abandon = weakref.finalize(self, _abandoned, self._client, weakref.ref(self))
        forks.watch(self)

    def __repr__(self) -> str:
        return described(type(self).__name__, self.config, is_closed=self._closed)

    def start(self) -> Self:
        """Does nothing; a consumer is ready when constructed."""
        self._check_open()
        return self

    def subscribe(
        self,
        topics: str | Iterable[str],
        *,
        on_assign: OnPartitions | None = None,
        on_revoke: OnPartitions | None = None,
        on_lost: OnPartitions | None = None,
    ) -> None:
        """Read these topics, instead of earlier ones. A name that begins with ^ is a pattern.

        on_assign may seek in the new partitions, on_revoke may commit. Partitions that were already
        reassigned, because this consumer sent no heartbeats, are passed to on_lost, or to on_revoke
        if there is none; they cannot be committed any more.
        """
        self._check_open()
        names = topic_names(topics)
        self._joined = False
        self._on_assign, self._on_revoke = on_assign, on_revoke
        self._on_lost = on_lost if on_lost is not None else on_revoke
        if self.config.group_id is None:
            self._assign_all(names)
            return
        alive = weakref.ref(self)

        def assigned(_: Client, partitions: list[TopicPartition]) -> None:
            if (me := alive()) is not None:
                me._take_over(partitions)

        def revoked(_: Client, partitions: list[TopicPartition]) -> None:
            if (me := alive()) is not None:
                me._give_up(partitions, me._on_revoke)

        def lost(_: Client, partitions: list[TopicPartition]) -> None:
            if (me := alive()) is not None:
                me._give_up(partitions, me._on_lost)

        with translated(self._brokers, f"subscribe to {', '.join(names)}"):
            self._client.subscribe(names, on_assign=assigned, on_revoke=revoked, on_lost=lost)
        self._subscribed = self._reads = True

    def _take_over(self, partitions: list[TopicPartition]) -> None:
        self._joined = True
        self._assigned = None
        if self._on_assign is None:
            return
        self._coming = dict.fromkeys(_keys(partitions))
        try:
            self._on_assign(_keys(partitions))
        finally:
            coming, self._coming = self._coming, {}
        starts = {key: offset for key, offset in coming.items() if offset is not None}
        if not starts:
            return
        # librdkafka assigns after this callback, unless it was done here.
        for at in partitions:
            at.offset = starts.get((at.topic, at.partition), at.offset)
        if self.config.is_cooperative:
            self._client.incremental_assign(partitions)
        else:
            self._client.assign(partitions)
        self._sought |= starts

    def _give_up(self, partitions: list[TopicPartition], callback: OnPartitions | None) -> None:
        self._remember_returned()
        # First the callback, which may commit.
        if callback is not None:
            callback(_keys(partitions))
        for key in _keys(partitions):
            self._sought.pop(key, None)
            # Another member may commit further until it is assigned here again.
            self._returned.pop(key, None)
        self._assigned = None

    def assign(self, partitions: Iterable[Partition]) -> None:
        """Read exactly these partitions, without joining a group."""
        self._check_open()
        keys = partition_keys(partitions)
        self._remember_returned()
        self._joined = self._reads = True
        self._subscribed = False
        self._buffer.clear()
        self._sought.clear()
        self._assigned = None
        with translated(self._brokers, "assign partitions"):
            self._client.assign([TopicPartition(*key) for key in keys])

    def assignment(self) -> list[Partition]:
        """The partitions that this consumer currently reads."""
        self._check_open()
        return sorted(_keys(self._client.assignment()))

    def poll(self, timeout: float | None = None) -> list[Message]:
        """Up to max_poll_records messages; waits up to `timeout` seconds for the first.

        By default it waits one second, after it has waited for the group to assign partitions. The
        messages of earlier polls count as done.
        """
        self._check_open()
        self._store()
        if self._buffer:
            batch = list(self._buffer)
            self._buffer.clear()
        else:
            batch = self._fetch(timeout)
        self._unstored = bool(batch)
        return batch

    def __iter__(self) -> Iterator[Message]:
        """Yields messages forever. Those before the current one count as done."""
        while not self._closed:
            self._check_open()
            if not self._buffer:
                self._store()
                try:
                    self._buffer.extend(self._fetch(POLL_SECONDS))
                except _ClosedError:
                    return
            if self._buffer:
                self._unstored = True
                yield self._buffer.popleft()

    def commit(self, what: Message | Mapping[Partition, int] | None = None) -> None:
        """Commit, and wait until it is stored: after a restart the group continues after this.

        A message, or {(topic, partition): offset}: done up to and including this one. Without an
        argument: all messages that were returned. Raises InvalidArgumentError beyond those.
        """
        self._check_open()
        if self.config.group_id is None:
            raise InvalidArgumentError(
                "a consumer without a group cannot commit", hint='Consumer(..., group_id="a name")'
            )
        if what is None:
            offsets = self.positions()
        else:
            offsets = next_offsets(what)
        if not offsets:
            return
        self._check_owned(offsets)
        if what is not None:
            self._check_returned(offsets)
        doing = f"commit for group {self.config.group_id}"
        try:
            done = self._client.commit(offsets=offsets, asynchronous=False)
        except KafkaException as error:
            hint = commit_hint(error.args[0])
            raise translate(error, brokers=self._brokers, doing=doing, hint=hint) from error
        for at in done or ():
            if at.error is not None:
                doing = f"commit {at.topic}[{at.partition}] for group {self.config.group_id}"
                hint = commit_hint(at.error)
                raise translate(at.error, brokers=self._brokers, doing=doing, hint=hint)

    def committed(self) -> dict[Partition, int]:
        """The last offset that the group has done, for each assigned partition that has one."""
        self._check_open()
        with translated(self._brokers, "fetch committed offsets"):
            found = self._client.committed(self._client.assignment(), timeout=REQUEST_SECONDS_MAX)
        return {(at.topic, at.partition): at.offset - 1 for at in found if at.offset >= 0}

    def seek(self, topic: str, partition: int, offset: int | str) -> None:
        """Continue from this offset, or from "earliest" or "latest".

        The partition must be assigned: after the first poll, or in on_assign.
        """
        if (topic, partition) in self._coming:
            self._coming[topic, partition] = self._offset((topic, partition), offset)
            return
        key = self._check_assigned([(topic, partition)])[0]
        target = self._offset(key, offset)
        # Not stored for this partition: its messages are read again, or skipped on purpose.
        self._store(without=key)
        self._remember_returned()
        self._drop_buffered({key})
        self._seek(TopicPartition(*key, target))

    def pause(self, partitions: Iterable[Partition]) -> None:
        """Return no messages of these partitions until they are resumed; they stay assigned."""
        keys = self._check_assigned(partitions)
        self._remember_returned()
        # Buffered messages of them would still be returned by iteration: fetch them again later.
        for key, offset in self._drop_buffered(set(keys)).items():
            self._seek(TopicPartition(*key, offset))
        with translated(self._brokers, "pause partitions"):
            self._client.pause([TopicPartition(*key) for key in keys])

    def resume(self, partitions: Iterable[Partition]) -> None:
        """Return messages of these partitions again."""
        keys = self._check_assigned(partitions)
        with translated(self._brokers, "resume partitions"):
            self._client.resume([TopicPartition(*key) for key in keys])

    def lag(self) -> dict[Partition, int]:
        """The number of messages of each partition not returned yet. Queries the brokers."""
        self._check_open()
        assigned = self._client.assignment()
        positions = {(at.topic, at.partition): at.offset for at in self.positions()}
        lags: dict[Partition, int] = {}
        with translated(self._brokers, "fetch the lag"):
            unread = [at for at in assigned if (at.topic, at.partition) not in positions]
            if unread and self.config.group_id is not None:
                for at in self._client.committed(unread, timeout=REQUEST_SECONDS_MAX):
                    if at.offset >= 0:
                        positions[at.topic, at.partition] = at.offset
            for at in assigned:
                low, high = self._client.get_watermark_offsets(at, timeout=REQUEST_SECONDS_MAX)
                latest = self.config.auto_offset_reset == OffsetResetPolicy.LATEST
                begin = positions.get((at.topic, at.partition), high if latest else low)
                lags[at.topic, at.partition] = max(0, high - max(begin, low))
        return lags

    def positions(self) -> list[TopicPartition]:
        """For a transaction: the next offset of each partition of which messages were returned."""
        self._check_open()
        with translated(self._brokers, "read the position"):
            if self._assigned is None:
                self._assigned = self._client.assignment()
            positions = self._client.position(self._assigned)
        following = dict(self._sought)
        following |= {(at.topic, at.partition): at.offset for at in positions if at.offset >= 0}
        for message in reversed(self._buffer):
            following[message.topic, message.partition] = message.offset
        return [TopicPartition(*key, offset) for key, offset in following.items()]

    def group_metadata(self) -> Any:
        """For a transaction that commits offsets of this member."""
        self._check_open()
        return self._client.consumer_group_metadata()

    def close(self) -> None:
        """Leave the group. With enable_auto_commit, commits the messages that were returned."""
        if not (self._closed or self._copied):
            self._store()
            self._close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
        elif not (self._closed or self._copied):
            # After an error the last messages are not done: the group gets them again.
            self._close()

    def _close(self) -> None:
        try:
            with translated(self._brokers, "leave the group"):
                self._client.close()
        finally:
            # An error in on_revoke is raised here, but the consumer is closed nevertheless.
            self._closed = True
            self._buffer.clear()
            self._abandon.detach()

    def disable_after_fork(self) -> None:
        """In a forked child: the parent continues to read."""
        self._copied = True
        self._abandon.detach()
        forks.keep_forever(self._client)

    def _fetch(self, timeout: float | None) -> list[Message]:
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        if not self._reads:
            raise ClientError("the consumer has no subscription", hint="subscribe or assign first")
        # While streaming, a full batch arrives quickly, and costs less than two halves.
        raws = self._consume(self._batch_max, _GATHER_SECONDS if self._streaming else 0)
        self._streaming = len(raws) > self._batch_max // 2
        if raws and (batch := self._messages(raws)):
            return batch
        began = time.monotonic()
        deadline = began + (POLL_SECONDS if timeout is None else timeout)
        while True:
            now = time.monotonic()
            if timeout is None and not self._joined:
                # The default timeout starts when partitions are assigned.
                deadline = min(now, began + JOIN_SECONDS_MAX) + POLL_SECONDS
            left = deadline - now
            if left <= 0:
                return []
            raws = self._consume(1, min(left, _SLICE_SECONDS))
            if raws and self._batch_max > 1:
                raws += self._consume(self._batch_max - 1, min(left, _GATHER_SECONDS))
            if raws and (batch := self._messages(raws)):
                return batch
            self._link.raise_rejection(self._brokers)

    def _consume(self, count: int, seconds: float) -> list[RawMessage]:
        try:
            return self._client.consume(count, seconds)
        except KafkaException as error:
            raise translate(error, brokers=self._brokers, doing="read") from error
        except RuntimeError as error:
            # librdkafka's error for a handle that was closed meanwhile, by a signal handler.
            self._check_open()
            raise ClientError(f"cannot read: {error}") from error

    def _messages(self, raws: list[RawMessage]) -> list[Message]:
        """The messages among them; librdkafka reports errors in the same list."""
        if not any(map(RawMessage.error, raws)):
            batch = wrap(raws)
        else:
            batch = wrap([raw for raw in raws if raw.error() is None])
            self._handle_errors(raws, now=not batch)
        if tracing.active is not None and batch:
            tracing.active.received(batch, self.config.group_id or "")
        return batch

    def _handle_errors(self, raws: list[RawMessage], *, now: bool) -> None:
        for raw in raws:
            cause = raw.error()
            if cause is None or self._is_of_no_group(cause):
                continue
            error = translate(cause, brokers=self._brokers, doing="read", hint=read_hint(cause))
            if (cause.code() in RETRIABLE or cause.retriable()) and not cause.fatal():
                if cause.str() not in self._logged:
                    self._logged.add(cause.str())
                    log.warning("%s; retrying in the background", error)
                continue
            self._error = error
        if now and self._error is not None:
            error, self._error = self._error, None
            raise error

    def _is_of_no_group(self, cause: KafkaError) -> bool:
        """librdkafka needs a group id even without a group; nobody needs rights for that one."""
        code = KafkaError.GROUP_AUTHORIZATION_FAILED
        return self.config.group_id is None and cause.code() == code

    def _store(self, without: Partition | None = None) -> None:
        """Messages that were returned are done: librdkafka may commit them."""
        if not (self._unstored and self._commits_itself):
            return
        self._unstored = False
        try:
            if self._assigned is not None and not (self._sought or self._buffer or without):
                # The fast path of every poll: librdkafka's position is all there is.
                found = self._client.position(self._assigned)
            else:
                found = self.positions()
            offsets = [at for at in found if at.offset >= 0]
            if without is not None:
                offsets = [at for at in offsets if (at.topic, at.partition) != without]
            if offsets:
                self._client.store_offsets(offsets=offsets)
        except KafkaException as error:
            # The partition was revoked meanwhile: its next owner reads the messages again.
            log.debug("offsets not stored: %s", error)

    def _assign_all(self, topics: list[str]) -> None:
        """Without a group: every partition of the topics, from auto_offset_reset on."""
        partitions: list[Partition] = []
        for topic in topics:
            with translated(self._brokers, f"subscribe to {topic}"):
                found = self._client.list_topics(topic, timeout=REQUEST_SECONDS_MAX).topics[topic]
            if found.error is not None:
                hint = f"create it: moldau topic create {topic}"
                raise translate(found.error, doing=f"subscribe to {topic}", hint=hint)
            partitions += [(topic, number) for number in found.partitions]
        self.assign(partitions)

    def _offset(self, key: Partition, offset: int | str) -> int:
        if not isinstance(offset, str):
            return checked_offset(offset)
        if offset not in ("earliest", "latest"):
            raise InvalidArgumentError(
                f"invalid offset {offset!r}", hint='a number, "earliest" or "latest"'
            )
        with translated(self._brokers, f"seek in {key[0]}[{key[1]}]"):
            low, high = self._client.get_watermark_offsets(
                TopicPartition(*key), timeout=REQUEST_SECONDS_MAX
            )
        return low if offset == "earliest" else high

    def _seek(self, target: TopicPartition) -> None:
        with translated(self._brokers, f"seek in {target.topic}[{target.partition}]"):
            self._client.seek(target)
        self._sought[target.topic, target.partition] = target.offset

    def _drop_buffered(self, keys: set[Partition]) -> dict[Partition, int]:
        """Remove these partitions from the buffer; the first removed offset of each."""
        first: dict[Partition, int] = {}
        kept: deque[Message] = deque()
        for message in self._buffer:
            key = (message.topic, message.partition)
            if key in keys:
                first.setdefault(key, message.offset)
            else:
                kept.append(message)
        self._buffer = kept
        return first

    def _check_assigned(self, partitions: Iterable[Partition]) -> list[Partition]:
        self._check_open()
        keys = partition_keys(partitions)
        assigned = set(_keys(self._client.assignment()))
        for topic, partition in keys:
            if (topic, partition) not in assigned:
                raise InvalidArgumentError(
                    f"{topic}[{partition}] is not assigned to this consumer",
                    hint="poll until the group has assigned it, or seek in on_assign",
                )
        return keys

    def _check_owned(self, offsets: list[TopicPartition]) -> None:
        """A commit for a revoked partition would reset the offset of its new owner."""
        if not self._subscribed:
            return
        owned = set(_keys(self._client.assignment()))
        for at in offsets:
            if (at.topic, at.partition) not in owned:
                raise ClientError(
                    f"cannot commit {at.topic}[{at.partition}] for group {self.config.group_id}: "
                    "it is not assigned to this consumer",
                    hint=REASSIGNED_HINT,
                )

    def _remember_returned(self) -> None:
        with suppress(ClientError):
            for at in self.positions():
                key = (at.topic, at.partition)
                self._returned[key] = max(at.offset, self._returned.get(key, 0))

    def _check_returned(self, offsets: list[TopicPartition]) -> None:
        """A commit beyond the messages that were returned would skip messages unnoticed."""
        self._remember_returned()
        for at in offsets:
            following = self._returned.get((at.topic, at.partition))
            if following is None:
                # Nothing was read from here: e.g. offsets that the program stores itself.
                with translated(self._brokers, f"commit {at.topic}[{at.partition}]"):
                    _, following = self._client.get_watermark_offsets(
                        TopicPartition(at.topic, at.partition), timeout=REQUEST_SECONDS_MAX
                    )
            if at.offset > following:
                raise InvalidArgumentError(
                    f"cannot commit {at.topic}[{at.partition}] through offset {at.offset - 1}: "
                    f"messages were returned through offset {following - 1}",
                    hint="commit a message that poll returned",
                )

    def _check_open(self) -> None:
        if self._copied:
            raise forks.copied_error("consumer")
        if self._closed:
            raise _ClosedError("the consumer is closed", hint="create a new one")


def _abandoned(client: Client, consumer: "weakref.ref[Consumer]") -> None:
    """A consumer was dropped, or the program ends, without close: leave without a commit."""
    warnings.warn(
        "a consumer was not closed: its last messages will be redelivered; use `with` or close()",
        ResourceWarning,
        stacklevel=2,
    )
    if (alive := consumer()) is not None:
        # At the exit of the program, objects that the callbacks need may be gone.
        alive._on_assign = alive._on_revoke = alive._on_lost = None
    try:
        client.close()
    except (KafkaException, RuntimeError) as error:
        log.debug("an unclosed consumer could not leave its group: %s", error)


def _keys(partitions: Iterable[TopicPartition]) -> list[Partition]:
    return [(at.topic, at.partition) for at in partitions]
