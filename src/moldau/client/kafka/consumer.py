"""Owns Consumer: reads topics, alone or as a member of a group, over librdkafka.

What was handed out counts as done once the consumer is asked for more, or closed without an error;
only then may it be committed. So a crash repeats messages, and never skips one.
"""

import logging
import time
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any, Self

from confluent_kafka import Consumer as Client
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka import Message as RawMessage

from moldau.client.config import Brokers, config_from
from moldau.client.errors import ClientError, InvalidArgumentError
from moldau.client.kafka import forks
from moldau.client.kafka.connect import probe, translate
from moldau.client.kafka.consumer_arguments import (
    Partition,
    behind,
    checked_offset,
    described,
    partition_keys,
    topic_names,
)
from moldau.client.kafka.consumer_config import ConsumerConfig, OffsetResetPolicy
from moldau.client.kafka.consumer_errors import (
    RETRIABLE,
    TAKEN_HINT,
    commit_hint,
    read_hint,
    translated,
)
from moldau.client.kafka.librdkafka_settings import REQUEST_SECONDS_MAX
from moldau.client.kafka.message import Message, wrap

log = logging.getLogger(__name__)

OnPartitions = Callable[[list[Partition]], object]

POLL_SECONDS = 1.0
JOIN_SECONDS_MAX = 30.0
_SLICE_SECONDS = 0.2
"""How long to be away in librdkafka at a time, so that Ctrl-C gets a word in."""
_GATHER_SECONDS = 0.002
"""How long to wait for more behind the first message, up to a full batch."""


class _ClosedError(ClientError):
    """Whoever reads one by one need not be told: there is nothing more."""


class Consumer:
    """Reads messages. For one thread at a time; give each thread a consumer of its own."""

    def __init__(self, config: ConsumerConfig | Brokers | None = None, /, **settings: Any) -> None:
        self.config = config = config_from(ConsumerConfig, config, settings)
        self._brokers = config.brokers
        self._batch_max = config.max_poll_records
        self._commits_itself = config.group_id is not None and config.enable_auto_commit
        self._buffer: deque[Message] = deque()
        # librdkafka knows no position between a seek and the next message.
        self._sought: dict[Partition, int] = {}
        # Asking librdkafka takes a change of threads; every poll needs it.
        self._assigned: list[TopicPartition] | None = None
        self._unstored = False
        self._joined = False
        self._subscribed = False
        self._reads = False
        self._streaming = False
        self._error: ClientError | None = None
        self._told: set[str] = set()
        self._closed = False
        self._copied = False
        probe(self._brokers)
        try:
            self._client = Client(config.settings())
        except KafkaException as error:
            raise self._cannot("make a consumer", error) from error
        self._on_assign: OnPartitions | None = None
        self._on_revoke: OnPartitions | None = None
        self._on_lost: OnPartitions | None = None
        # While on_assign runs: the partitions that come, with the offset if one was sought.
        self._coming: dict[Partition, int | None] = {}
        # Neither this nor what the client calls back may keep the consumer alive.
        self._abandon = weakref.finalize(self, _abandoned, self._client, weakref.ref(self))
        forks.watch(self)

    def __repr__(self) -> str:
        return described(type(self).__name__, self.config, is_closed=self._closed)

    def start(self) -> Self:
        """For those who like to say it; a consumer is ready once it is made."""
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
        """Read these topics, instead of those before. A name that begins with ^ is a pattern.

        on_assign may seek in what comes, on_revoke commit what goes. What the group has given to
        others already, since it heard nothing of this consumer, is told to on_lost if there is
        one, else to on_revoke: it can be committed no more.
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
        # librdkafka assigns after this by itself, unless it was done here.
        for at in partitions:
            at.offset = starts.get((at.topic, at.partition), at.offset)
        if self.config.is_cooperative:
            self._client.incremental_assign(partitions)
        else:
            self._client.assign(partitions)
        self._sought |= starts

    def _give_up(self, partitions: list[TopicPartition], tell: OnPartitions | None) -> None:
        # First the user, who may want to commit what was handed out of them.
        if tell is not None:
            tell(_keys(partitions))
        for key in _keys(partitions):
            self._sought.pop(key, None)
        self._assigned = None

    def assign(self, partitions: Iterable[Partition]) -> None:
        """Read exactly these partitions, as no member of a group."""
        self._check_open()
        keys = partition_keys(partitions)
        self._joined = self._reads = True
        self._subscribed = False
        self._buffer.clear()
        self._sought.clear()
        self._assigned = None
        with translated(self._brokers, "assign partitions"):
            self._client.assign([TopicPartition(*key) for key in keys])

    def assignment(self) -> list[Partition]:
        """The partitions that this consumer reads at the moment."""
        self._check_open()
        return sorted(_keys(self._client.assignment()))

    def poll(self, timeout: float | None = None) -> list[Message]:
        """Messages that are there, at most max_poll_records; waits for the first up to timeout.

        Without a timeout it waits a second, and before that as long as the group needs to let this
        consumer in. What polls before this one handed out counts as done.
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
        """Messages without end, one by one. What comes before the current one counts as done."""
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
        """Commit, and wait until the group has it: after a restart it goes on behind this.

        A message, or {(topic, partition): offset}, means: done through here. Without either, all
        that was handed out is done.
        """
        self._check_open()
        if self.config.group_id is None:
            raise InvalidArgumentError(
                "a consumer without a group cannot commit", hint='Consumer(..., group_id="a name")'
            )
        if what is None:
            offsets = self.handed_out()
        else:
            offsets = behind(what)
        if not offsets:
            return
        self._check_owned(offsets)
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
        """The last offset that is done by the group, for each partition read here that has one."""
        self._check_open()
        with translated(self._brokers, "ask for committed offsets"):
            found = self._client.committed(self._client.assignment(), timeout=REQUEST_SECONDS_MAX)
        return {(at.topic, at.partition): at.offset - 1 for at in found if at.offset >= 0}

    def seek(self, topic: str, partition: int, offset: int | str) -> None:
        """Go on from this offset, or from "earliest" or "latest".

        In a partition that is read here: after the first poll, or in on_assign.
        """
        if (topic, partition) in self._coming:
            self._coming[topic, partition] = self._offset((topic, partition), offset)
            return
        key = self._check_assigned([(topic, partition)])[0]
        target = self._offset(key, offset)
        # What was handed out is done elsewhere, but not there: it will be read again, or never.
        self._store(without=key)
        self._drop_buffered({key})
        self._seek(TopicPartition(*key, target))

    def pause(self, partitions: Iterable[Partition]) -> None:
        """Hand out nothing of these until they are resumed; the group keeps them here."""
        keys = self._check_assigned(partitions)
        # What is buffered of them would still be handed out by iteration: read it again later.
        for key, offset in self._drop_buffered(set(keys)).items():
            self._seek(TopicPartition(*key, offset))
        with translated(self._brokers, "pause partitions"):
            self._client.pause([TopicPartition(*key) for key in keys])

    def resume(self, partitions: Iterable[Partition]) -> None:
        """Hand out messages of these again."""
        keys = self._check_assigned(partitions)
        with translated(self._brokers, "resume partitions"):
            self._client.resume([TopicPartition(*key) for key in keys])

    def lag(self) -> dict[Partition, int]:
        """How many messages of each partition are not handed out yet. Asks the brokers."""
        self._check_open()
        assigned = self._client.assignment()
        next_offsets = {(at.topic, at.partition): at.offset for at in self.handed_out()}
        lags: dict[Partition, int] = {}
        with translated(self._brokers, "ask for the lag"):
            unread = [at for at in assigned if (at.topic, at.partition) not in next_offsets]
            if unread and self.config.group_id is not None:
                for at in self._client.committed(unread, timeout=REQUEST_SECONDS_MAX):
                    if at.offset >= 0:
                        next_offsets[at.topic, at.partition] = at.offset
            for at in assigned:
                low, high = self._client.get_watermark_offsets(at, timeout=REQUEST_SECONDS_MAX)
                latest = self.config.auto_offset_reset == OffsetResetPolicy.LATEST
                begin = next_offsets.get((at.topic, at.partition), high if latest else low)
                lags[at.topic, at.partition] = max(0, high - max(begin, low))
        return lags

    def handed_out(self) -> list[TopicPartition]:
        """For each partition that something was read of: the offset behind what was handed out."""
        self._check_open()
        with translated(self._brokers, "ask for the position"):
            if self._assigned is None:
                self._assigned = self._client.assignment()
            positions = self._client.position(self._assigned)
        next_offsets = dict(self._sought)
        next_offsets |= {(at.topic, at.partition): at.offset for at in positions if at.offset >= 0}
        for message in reversed(self._buffer):
            next_offsets[message.topic, message.partition] = message.offset
        return [TopicPartition(*key, offset) for key, offset in next_offsets.items()]

    def group_metadata(self) -> Any:
        """What a transaction needs to commit offsets for this member."""
        self._check_open()
        return self._client.consumer_group_metadata()

    def close(self) -> None:
        """Leave the group. With enable_auto_commit, what was handed out is committed."""
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
            # Whoever failed was not done with what it had: the group gets that again.
            self._close()

    def _close(self) -> None:
        try:
            with translated(self._brokers, "leave the group"):
                self._client.close()
        finally:
            # An error in on_revoke comes out here, and what it belongs to is over all the same.
            self._closed = True
            self._buffer.clear()
            self._abandon.detach()

    def left_behind(self) -> None:
        """In a forked process: the parent goes on reading."""
        self._copied = True
        self._abandon.detach()
        forks.keep_forever(self._client)

    def _fetch(self, timeout: float | None) -> list[Message]:
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        if not self._reads:
            raise ClientError("this consumer reads nothing yet", hint="subscribe or assign first")
        # In a stream a full batch is there in no time, and costs less than two halves.
        raws = self._consume(self._batch_max, _GATHER_SECONDS if self._streaming else 0)
        self._streaming = len(raws) > self._batch_max // 2
        if raws and (batch := self._messages(raws)):
            return batch
        began = time.monotonic()
        deadline = began + (POLL_SECONDS if timeout is None else timeout)
        while True:
            now = time.monotonic()
            if timeout is None and not self._joined:
                # The second counts from when there is something to read from.
                deadline = min(now, began + JOIN_SECONDS_MAX) + POLL_SECONDS
            left = deadline - now
            if left <= 0:
                return []
            raws = self._consume(1, min(left, _SLICE_SECONDS))
            if raws and self._batch_max > 1:
                raws += self._consume(self._batch_max - 1, min(left, _GATHER_SECONDS))
            if raws and (batch := self._messages(raws)):
                return batch

    def _consume(self, count: int, seconds: float) -> list[RawMessage]:
        try:
            return self._client.consume(count, seconds)
        except KafkaException as error:
            raise self._cannot("read", error) from error
        except RuntimeError as error:
            # librdkafka's word for a handle that was closed meanwhile, by a handler of a signal.
            self._check_open()
            raise ClientError(f"cannot read: {error}") from error

    def _messages(self, raws: list[RawMessage]) -> list[Message]:
        """Those that are messages; librdkafka reports errors among them."""
        if not any(map(RawMessage.error, raws)):
            return wrap(raws)
        batch = wrap([raw for raw in raws if raw.error() is None])
        self._look_at_errors(raws, now=not batch)
        return batch

    def _look_at_errors(self, raws: list[RawMessage], *, now: bool) -> None:
        for raw in raws:
            cause = raw.error()
            if cause is None:
                continue
            if (cause.code() in RETRIABLE or cause.retriable()) and not cause.fatal():
                if cause.str() not in self._told:
                    self._told.add(cause.str())
                    log.warning("%s; still trying", self._cannot("read", cause))
                continue
            hint = read_hint(cause)
            self._error = translate(cause, brokers=self._brokers, doing="read", hint=hint)
        if now and self._error is not None:
            error, self._error = self._error, None
            raise error

    def _store(self, without: Partition | None = None) -> None:
        """What was handed out is done: librdkafka may commit it."""
        if not (self._unstored and self._commits_itself):
            return
        self._unstored = False
        try:
            if self._assigned is not None and not (self._sought or self._buffer or without):
                # Every poll of a stream comes by here: what librdkafka says is all there is.
                found = self._client.position(self._assigned)
            else:
                found = self.handed_out()
            offsets = [at for at in found if at.offset >= 0]
            if without is not None:
                offsets = [at for at in offsets if (at.topic, at.partition) != without]
            if offsets:
                self._client.store_offsets(offsets=offsets)
        except KafkaException as error:
            # A partition that was taken away meanwhile: its next owner reads that again.
            log.debug("offsets were not stored: %s", error)

    def _assign_all(self, topics: list[str]) -> None:
        """Without a group: every partition of the topics, from where auto_offset_reset says."""
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
                f"{offset!r} is no offset", hint="a number, earliest, latest"
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
        """Take these partitions out of the buffer; says where each was cut."""
        cut: dict[Partition, int] = {}
        kept: deque[Message] = deque()
        for message in self._buffer:
            key = (message.topic, message.partition)
            if key in keys:
                cut.setdefault(key, message.offset)
            else:
                kept.append(message)
        self._buffer = kept
        return cut

    def _check_assigned(self, partitions: Iterable[Partition]) -> list[Partition]:
        self._check_open()
        keys = partition_keys(partitions)
        assigned = set(_keys(self._client.assignment()))
        for topic, partition in keys:
            if (topic, partition) not in assigned:
                raise InvalidArgumentError(
                    f"{topic}[{partition}] is not read by this consumer",
                    hint="poll until the group has let it in; or seek in on_assign",
                )
        return keys

    def _check_owned(self, offsets: list[TopicPartition]) -> None:
        """Of what was taken away, another member commits: this one would set it back."""
        if not self._subscribed:
            return
        owned = set(_keys(self._client.assignment()))
        for at in offsets:
            if (at.topic, at.partition) not in owned:
                raise ClientError(
                    f"cannot commit {at.topic}[{at.partition}] for group {self.config.group_id}: "
                    "it is not read by this consumer",
                    hint=TAKEN_HINT,
                )

    def _check_open(self) -> None:
        if self._copied:
            raise forks.copied_error("consumer")
        if self._closed:
            raise _ClosedError("the consumer is closed", hint="make a new one")

    def _cannot(self, doing: str, error: KafkaException | KafkaError) -> ClientError:
        return translate(error, brokers=self._brokers, doing=doing)


def _abandoned(client: Client, consumer: "weakref.ref[Consumer]") -> None:
    """A consumer was dropped, or the program ends, without close: leave, and commit nothing."""
    warnings.warn(
        "a consumer was not closed: its last messages come again; use `with` or close()",
        ResourceWarning,
        stacklevel=2,
    )
    if (alive := consumer()) is not None:
        # At the end of the program, what its callbacks need may be gone.
        alive._on_assign = alive._on_revoke = alive._on_lost = None
    try:
        client.close()
    except (KafkaException, RuntimeError) as error:
        log.debug("an unclosed consumer did not leave its group: %s", error)


def _keys(partitions: Iterable[TopicPartition]) -> list[Partition]:
    return [(at.topic, at.partition) for at in partitions]
