"""Reads messages for consume and tail with librdkafka, and writes them to stdout.

The offset of a message is stored only after it was written to stdout or filtered out, so that an
interrupted group resumes where the output ended.
"""

import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from moldau.cli.messages.filter_terms import FilteredMessage
from moldau.cli.messages.print_options import MessageOutput
from moldau.cli.options import open_admin
from moldau.cli.output import NO_LEADER_HINT, say
from moldau.cli.signals import Stop, output_closed

if TYPE_CHECKING:
    from confluent_kafka import Consumer

DRAIN_MESSAGES_MAX = 1000

_POLL_SECONDS = 0.2
_CONTACT_SECONDS_MAX = 10.0
"""Time for the first response of a broker, which does not count for --timeout."""
_ELECTION_SECONDS_MAX = 5.0
_LEADER_POLL_SECONDS = 0.2
_BUFFERED_SECONDS_MAX = 1.0
_STALL_NOTICE_SECONDS = 5.0
_STALL_SECONDS_MAX = 60.0
"""Longer than a leader election and the restart of a broker take."""


class BrokerLink:
    """Reports a lost connection to the brokers, once until messages arrive again."""

    def __init__(self, brokers: str, *, now: Callable[[], float] = time.monotonic) -> None:
        self.brokers = brokers
        self._now = now
        self._lost_at: float | None = None

    def on_error(self, error: Any) -> None:
        from confluent_kafka import KafkaError

        if error.code() == KafkaError._ALL_BROKERS_DOWN and self._lost_at is None:
            self._lost_at = self._now()
            say(f"lost the connection to {self.brokers}; retrying (Ctrl-C stops)")

    def on_message(self) -> None:
        """Messages that were buffered before the loss do not count."""
        if self._lost_at is not None and self._now() - self._lost_at > _BUFFERED_SECONDS_MAX:
            self._lost_at = None


class StallTimeout:
    """Reports partitions that deliver nothing, and fails after a deadline."""

    def __init__(self, *, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._since = now()
        self._is_reported = False
        self._missing: set[tuple[str, int]] = set()

    def on_progress(self) -> None:
        self._since = self._now()
        self._is_reported = False

    def check(self, missing: Iterable[tuple[str, int]]) -> None:
        """`missing`: not read to the end. Raises ClientError at the deadline."""
        from moldau.client.errors import ClientError

        if set(missing) != self._missing:
            self._missing = set(missing)
            self.on_progress()
        stalled = self._now() - self._since
        notice = _STALL_SECONDS_MAX if self._is_reported else _STALL_NOTICE_SECONDS
        if stalled < notice:
            return
        names = ", ".join(f"{topic}-{partition}" for topic, partition in sorted(self._missing))
        names = names or "the partitions of the group"
        if stalled >= _STALL_SECONDS_MAX:
            raise ClientError(
                f"not read to the end: no message from {names} for {stalled:.0f} s",
                hint=NO_LEADER_HINT,
            )
        self._is_reported = True
        say(f"waiting for messages from {names} (Ctrl-C stops)")


class MessagePrinter:
    """Reads from a consumer and writes to stdout, until it is stopped."""

    def __init__(
        self,
        consumer: "Consumer",
        printed: MessageOutput,
        stop: Stop,
        link: BrokerLink,
        offline: Iterable[tuple[str, int]] = (),
        *,
        has_group: bool = False,
    ) -> None:
        self._consumer = consumer
        self._has_group = has_group
        self._printed = printed
        self._stop = stop
        self._link = link
        # Do not wait for an offline partition; if it gets a leader, it is read.
        self._ended = set(offline)
        self._fetched = False
        self.count = 0

    def run(
        self, *, limit: int | None, idle_seconds_max: float | None, exit_at_end: bool, store: bool
    ) -> None:
        """Print messages until `limit`, the idle timeout, the end or a signal."""
        started = last = time.monotonic()
        stall = StallTimeout()
        while not self._stop and (limit is None or self.count < limit):
            room = DRAIN_MESSAGES_MAX if limit is None else limit - self.count
            messages = self.receive(room)
            if messages:
                self.write(messages, store=store)
                last = time.monotonic()
                stall.on_progress()
            elif output_closed():
                raise BrokenPipeError
            elif not self._fetched and time.monotonic() - started < _CONTACT_SECONDS_MAX:
                # Connecting and joining a group does not count as idle.
                last = time.monotonic()
            elif exit_at_end and self._at_end():
                break
            elif idle_seconds_max is not None and time.monotonic() - last > idle_seconds_max:
                return
            elif exit_at_end and idle_seconds_max is None:
                # An explicit --timeout replaces the stall deadline.
                stall.check(self._missing())

    def receive(self, room: int) -> list[Any]:
        """The messages available now, or the first within the poll time."""
        first = self._consumer.poll(_POLL_SECONDS)
        if first is None:
            return []
        # After the first, take what is buffered without waiting: tail must not delay messages.
        more = self._consumer.consume(min(room, DRAIN_MESSAGES_MAX) - 1, 0) if room > 1 else []
        return [message for message in (first, *more) if self._is_data(message)]

    def _is_data(self, message: Any) -> bool:
        from confluent_kafka import KafkaError

        from moldau.client.kafka.connect import translate

        error = message.error()
        self._fetched = True
        part = (message.topic(), message.partition())
        if error is None:
            self._link.on_message()
            self._ended.discard(part)
            return True
        if error.code() == KafkaError._PARTITION_EOF:
            self._link.on_message()
            self._ended.add(part)
            return False
        if error.retriable() or error.code() in (KafkaError._TRANSPORT, KafkaError._TIMED_OUT):
            return False
        if error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED and not self._has_group:
            # librdkafka looks for the coordinator of a group that only it needs.
            return False
        raise translate(error, brokers=self._link.brokers, doing="consume")

    def write(self, messages: list[Any], *, store: bool) -> None:
        """Print the messages that match the filter; store the offsets of all."""
        stdout, (format_message, predicate) = sys.stdout.buffer, self._printed
        for message in messages:
            if predicate is None or predicate.matches(FilteredMessage(message)):
                stdout.write(format_message(message))
                self.count += 1
        stdout.flush()
        if store:
            newest = {(message.topic(), message.partition()): message for message in messages}
            for message in newest.values():
                self._consumer.store_offsets(message=message)

    def _assigned(self) -> set[tuple[str, int]]:
        return {(part.topic, part.partition) for part in self._consumer.assignment()}

    def _missing(self) -> set[tuple[str, int]]:
        """Assigned partitions that are not read to the end."""
        return self._assigned() - self._ended

    def _at_end(self) -> bool:
        assigned = self._assigned()
        return bool(assigned) and assigned <= self._ended

    def ended(self, part: tuple[str, int]) -> bool:
        return part in self._ended


def open_consumer(
    link: BrokerLink, topics: Sequence[str], properties: Mapping[str, str], *, group: str | None
) -> "Consumer":
    """A consumer that reconnects when it loses the broker."""
    from confluent_kafka import Consumer, KafkaException

    from moldau.client.kafka.connect import translate
    from moldau.client.kafka.librdkafka_settings import REQUEST_SECONDS_MAX, consumer_settings

    settings: dict[str, Any] = dict(
        # A new group starts at the beginning: messages that arrive in a partition before it is
        # first fetched would otherwise be skipped.
        consumer_settings(link.brokers, group=group, from_beginning=True, extra=properties)
    )
    try:
        consumer = Consumer({**settings, "error_cb": link.on_error})
        for topic in topics:
            # With the metadata before the assignment, it starts half a second sooner.
            consumer.list_topics(topic, timeout=REQUEST_SECONDS_MAX)
        return consumer
    except KafkaException as error:
        raise translate(error, brokers=link.brokers, doing="consume") from error


def close_consumer(consumer: "Consumer", *, commit: bool) -> None:
    """Commit the stored offsets, leave the group and disconnect."""
    from confluent_kafka import KafkaError, KafkaException

    try:
        if commit:
            consumer.commit(asynchronous=False)
    except KafkaException as error:
        if error.args[0].code() != KafkaError._NO_OFFSET:
            say(
                f"the last offsets were not committed ({error.args[0].str()}); "
                "the group will receive these messages again"
            )
    finally:
        consumer.close()


def readable_partitions(
    brokers: str, topic: str, wanted: tuple[int, ...], properties: Mapping[str, str]
) -> tuple[list[int], list[tuple[str, int]]]:
    """The chosen partitions with a leader, and those without one."""
    from moldau.client.errors import ClientError, NotFoundError

    admin = open_admin(brokers, tuple(properties.items()))
    deadline = time.monotonic() + _ELECTION_SECONDS_MAX
    while True:
        leaders = {part.partition: part.leader for part in admin.topic(topic).partitions}
        if min(leaders.values()) >= 0 or time.monotonic() > deadline:
            break
        # A leader may just be being elected.
        time.sleep(_LEADER_POLL_SECONDS)
    for partition in wanted:
        if partition not in leaders:
            raise NotFoundError(
                f"topic {topic} has no partition {partition}",
                hint=f"it has partitions 0 to {max(leaders)}",
            )
    chosen = wanted or tuple(leaders)
    online = [partition for partition in chosen if leaders[partition] >= 0]
    offline = [(topic, partition) for partition in chosen if leaders[partition] < 0]
    names = ", ".join(f"{topic}-{partition}" for _, partition in offline)
    if not online:
        raise ClientError(f"cannot read {names}: no leader", hint=NO_LEADER_HINT)
    if offline:
        say(f"skipping {names}: no leader ({NO_LEADER_HINT})")
    return online, offline
