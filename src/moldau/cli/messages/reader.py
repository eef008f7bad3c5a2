"""Owns reading for consume and tail: a consumer of librdkafka, and what is written to stdout.

A message counts as consumed once it is written to stdout or filtered out: only then is its offset
stored, so a group that is interrupted goes on where the output ended.
"""

import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from moldau.cli.messages.filter_terms import FilteredMessage
from moldau.cli.messages.print_options import MessageOutput
from moldau.cli.output import NO_LEADER_HINT, say
from moldau.cli.signals import Stop, reader_gone

if TYPE_CHECKING:
    from confluent_kafka import Consumer

DRAIN_MESSAGES_MAX = 1000

_POLL_SECONDS = 0.2
_CONTACT_SECONDS_MAX = 10.0
"""How long the first answer of the broker may take before --timeout counts."""
_ELECTION_SECONDS_MAX = 5.0
_LOOK_SECONDS = 0.2
_LEFT_OVER_SECONDS_MAX = 1.0
_SILENCE_SECONDS_MIN = 5.0
"""Then it is said for what a command waits that is to read to the end."""
_SILENCE_SECONDS_MAX = 60.0
"""Then it gives up: longer than an election takes, and a broker that is started again."""


class BrokerLink:
    """The way to the brokers; says once when it is lost, until something arrives again."""

    def __init__(self, brokers: str, *, now: Callable[[], float] = time.monotonic) -> None:
        self.brokers = brokers
        self._now = now
        self._lost_at: float | None = None

    def on_error(self, error: Any) -> None:
        from confluent_kafka import KafkaError

        if error.code() == KafkaError._ALL_BROKERS_DOWN and self._lost_at is None:
            self._lost_at = self._now()
            say(f"lost {self.brokers}; trying again (Ctrl-C stops)")

    def on_message(self) -> None:
        """What had arrived before and was waiting to be read does not count."""
        if self._lost_at is not None and self._now() - self._lost_at > _LEFT_OVER_SECONDS_MAX:
            self._lost_at = None


class StallTimeout:
    """For partitions that are to be read to their ends: silence is told, and not borne for ever."""

    def __init__(self, *, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._since = now()
        self._is_told = False
        self._missing: set[tuple[str, int]] = set()

    def on_progress(self) -> None:
        self._since = self._now()
        self._is_told = False

    def check(self, missing: Iterable[tuple[str, int]]) -> None:
        """`missing`: whose ends have not come yet. Raises ClientError after too long a silence."""
        from moldau.client.errors import ClientError

        if set(missing) != self._missing:
            self._missing = set(missing)
            self.on_progress()
        silence = self._now() - self._since
        if silence < _SILENCE_SECONDS_MIN or (self._is_told and silence < _SILENCE_SECONDS_MAX):
            return
        names = ", ".join(f"{topic}-{partition}" for topic, partition in sorted(self._missing))
        names = names or "partitions of the group"
        if silence >= _SILENCE_SECONDS_MAX:
            raise ClientError(
                f"not read to the end: nothing came of {names} for {silence:.0f} s",
                hint=NO_LEADER_HINT,
            )
        self._is_told = True
        say(f"waiting for {names} (Ctrl-C stops)")


class MessagePrinter:
    """Reads from an assigned or subscribed consumer and writes to stdout, until told to stop."""

    def __init__(
        self,
        consumer: "Consumer",
        printed: MessageOutput,
        stop: Stop,
        link: BrokerLink,
        offline: Iterable[tuple[str, int]] = (),
    ) -> None:
        self._consumer = consumer
        self._printed = printed
        self._stop = stop
        self._link = link
        # An offline partition has nothing to wait for; if it comes back, it is read.
        self._ended = set(offline)
        self._fetched = False
        self.count = 0

    def run(
        self, *, limit: int | None, idle_seconds_max: float | None, exit_at_end: bool, store: bool
    ) -> None:
        """Print messages until `limit`, the idle time, the end or a signal."""
        started = last = time.monotonic()
        patience = StallTimeout()
        while not self._stop and (limit is None or self.count < limit):
            room = DRAIN_MESSAGES_MAX if limit is None else limit - self.count
            messages = self.receive(room)
            if messages:
                self.write(messages, store=store)
                last = time.monotonic()
                patience.on_progress()
            elif reader_gone():
                raise BrokenPipeError
            elif not self._fetched and time.monotonic() - started < _CONTACT_SECONDS_MAX:
                # Connecting and joining a group is no silence of the topic.
                last = time.monotonic()
            elif exit_at_end and self._at_end():
                break
            elif idle_seconds_max is not None and time.monotonic() - last > idle_seconds_max:
                return
            elif exit_at_end and idle_seconds_max is None:
                # Who names a time of its own waits for that, and no shorter.
                patience.check(self._missing())

    def receive(self, room: int) -> list[Any]:
        """What is there now, or the first that comes within a moment."""
        first = self._consumer.poll(_POLL_SECONDS)
        if first is None:
            return []
        # After the first, whatever else has arrived: no waiting, so that a tail is not late.
        more = self._consumer.consume(min(room, DRAIN_MESSAGES_MAX) - 1, 0) if room > 1 else []
        return [message for message in (first, *more) if self._is_data(message)]

    def _is_data(self, message: Any) -> bool:
        from confluent_kafka import KafkaError

        from moldau.client.kafka.connect import translate

        error = message.error()
        self._fetched = True
        place = (message.topic(), message.partition())
        if error is None:
            self._link.on_message()
            self._ended.discard(place)
            return True
        if error.code() == KafkaError._PARTITION_EOF:
            self._link.on_message()
            self._ended.add(place)
            return False
        if error.retriable() or error.code() in (KafkaError._TRANSPORT, KafkaError._TIMED_OUT):
            return False
        raise translate(error, brokers=self._link.brokers, doing="consume")

    def write(self, messages: list[Any], *, store: bool) -> None:
        """Print those that pass the filter; the offsets of the others are stored all the same."""
        stdout, (format_message, chosen) = sys.stdout.buffer, self._printed
        for message in messages:
            if chosen is None or chosen.matches(FilteredMessage(message)):
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
        """Assigned, and not read to the end."""
        return self._assigned() - self._ended

    def _at_end(self) -> bool:
        assigned = self._assigned()
        return bool(assigned) and assigned <= self._ended

    def ended(self, place: tuple[str, int]) -> bool:
        return place in self._ended


def open_consumer(
    link: BrokerLink, topics: Sequence[str], properties: Mapping[str, str], *, group: str | None
) -> "Consumer":
    """A consumer that goes on trying when it loses the broker."""
    from confluent_kafka import Consumer, KafkaException

    from moldau.client.kafka.connect import translate
    from moldau.client.kafka.librdkafka_settings import REQUEST_SECONDS_MAX, consumer_settings

    settings: dict[str, Any] = dict(
        # A new group starts at the first message: with several partitions, one that is read
        # only later would otherwise lose what came before.
        consumer_settings(link.brokers, group=group, from_beginning=True, extra=properties)
    )
    try:
        consumer = Consumer({**settings, "error_cb": link.on_error})
        for topic in topics:
            # A consumer that knows the topic before it is assigned starts half a second sooner.
            consumer.list_topics(topic, timeout=REQUEST_SECONDS_MAX)
        return consumer
    except KafkaException as error:
        raise translate(error, brokers=link.brokers, doing="consume") from error


def close_consumer(consumer: "Consumer", *, commit: bool) -> None:
    """Commit what was printed, leave the group, hang up."""
    from confluent_kafka import KafkaError, KafkaException

    try:
        if commit:
            consumer.commit(asynchronous=False)
    except KafkaException as error:
        if error.args[0].code() != KafkaError._NO_OFFSET:
            say(f"the last offsets were not committed: {error.args[0].str()}")
    finally:
        consumer.close()


def readable_partitions(
    brokers: str, topic: str, wanted: tuple[int, ...], properties: Mapping[str, str]
) -> tuple[list[int], list[tuple[str, int]]]:
    """The partitions that can be read of those that are wanted, and those that are offline."""
    from moldau.client.errors import ClientError, NotFoundError
    from moldau.client.kafka.admin import Admin

    admin = Admin(brokers, properties)
    deadline = time.monotonic() + _ELECTION_SECONDS_MAX
    while True:
        leaders = {part.partition: part.leader for part in admin.topic(topic).partitions}
        if min(leaders.values()) >= 0 or time.monotonic() > deadline:
            break
        # A leader may have died just now, and the next one is being elected.
        time.sleep(_LOOK_SECONDS)
    for partition in wanted:
        if partition not in leaders:
            raise NotFoundError(
                f"topic {topic} has no partition {partition}", hint=f"it has 0 to {max(leaders)}"
            )
    chosen = wanted or tuple(leaders)
    online = [partition for partition in chosen if leaders[partition] >= 0]
    offline = [(topic, partition) for partition in chosen if leaders[partition] < 0]
    names = ", ".join(f"{topic}-{partition}" for _, partition in offline)
    if not online:
        raise ClientError(f"cannot read {names}: no leader", hint=NO_LEADER_HINT)
    if offline:
        say(f"without a leader, left out: {names} ({NO_LEADER_HINT})")
    return online, offline
