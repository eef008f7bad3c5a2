"""Owns `moldau consume` and `moldau tail`.

A message counts as consumed once it is written to stdout: only then is its offset stored, so a
group that is interrupted goes on where the output ended.
"""

import sys
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import click

from moldau.cli.errors import CommandError, ExitCode
from moldau.cli.formats import (
    PLACEHOLDERS,
    Formatter,
    json_formatter,
    template_formatter,
    text_formatter,
)
from moldau.cli.lazy import command
from moldau.cli.options import Duration, Properties, brokers_option, topic_argument
from moldau.cli.output import NO_LEADER_HINT, say
from moldau.cli.positions import Position, PositionParam
from moldau.cli.signals import Stop, reader_gone, stop_signals

if TYPE_CHECKING:
    from confluent_kafka import Consumer

_POLL_SECONDS = 0.2
_DRAIN_MESSAGES_MAX = 1000
_CONTACT_SECONDS_MAX = 10.0
_ELECTION_SECONDS_MAX = 5.0
_LOOK_SECONDS = 0.2
"""How long the first answer of the broker may take before --timeout counts."""


def _format_options(function: Any) -> Any:
    placeholders = ", ".join(f"%{name} {doc}" for name, doc in PLACEHOLDERS.items())
    for option in (
        click.option("--print-headers", is_flag=True, help="Headers before the message."),
        click.option("--print-key", is_flag=True, help="The key before the value."),
        click.option(
            "-f",
            "--format",
            "template",
            metavar="TEMPLATE",
            help=f"Print by a template: {placeholders}; \\n and \\t.",
        ),
        click.option(
            "-o",
            "--output",
            type=click.Choice(("text", "json")),
            default="text",
            show_default=True,
            help="Values, or one JSON object per line.",
        ),
    ):
        function = option(function)
    return function


def make_formatter(output: str, template: str | None, key: bool, headers: bool) -> Formatter:
    """The formatter that the options ask for."""
    if template is not None:
        return template_formatter(template)
    if output == "json":
        return json_formatter
    return text_formatter(key=key, headers=headers)


class Link:
    """The way to the brokers; says once when it is lost, until something arrives again."""

    def __init__(self, brokers: str) -> None:
        self.brokers = brokers
        self._lost = False

    def on_error(self, error: Any) -> None:
        from confluent_kafka import KafkaError

        if error.code() == KafkaError._ALL_BROKERS_DOWN and not self._lost:
            self._lost = True
            say(f"lost {self.brokers}; trying again (Ctrl-C stops)")

    def on_message(self) -> None:
        self._lost = False


class Reader:
    """Reads from an assigned or subscribed consumer and writes to stdout, until told to stop."""

    def __init__(
        self,
        consumer: "Consumer",
        formatter: Formatter,
        stop: Stop,
        link: Link,
        offline: Iterable[tuple[str, int]] = (),
    ) -> None:
        self._consumer = consumer
        self._format = formatter
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
        while not self._stop and (limit is None or self.count < limit):
            room = _DRAIN_MESSAGES_MAX if limit is None else limit - self.count
            messages = self.receive(room)
            if messages:
                self.write(messages, store=store)
                last = time.monotonic()
            elif reader_gone():
                raise BrokenPipeError
            elif not self._fetched and time.monotonic() - started < _CONTACT_SECONDS_MAX:
                # Connecting and joining a group is no silence of the topic.
                last = time.monotonic()
            elif exit_at_end and self._at_end():
                break
            elif idle_seconds_max is not None and time.monotonic() - last > idle_seconds_max:
                return

    def receive(self, room: int) -> list[Any]:
        """What is there now, or the first that comes within a moment."""
        first = self._consumer.poll(_POLL_SECONDS)
        if first is None:
            return []
        # After the first, whatever else has arrived: no waiting, so that a tail is not late.
        more = self._consumer.consume(min(room, _DRAIN_MESSAGES_MAX) - 1, 0) if room > 1 else []
        return [message for message in (first, *more) if self._is_data(message)]

    def _is_data(self, message: Any) -> bool:
        from confluent_kafka import KafkaError

        from moldau.client.connect import translate

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
        stdout = sys.stdout.buffer
        for message in messages:
            stdout.write(self._format(message))
        stdout.flush()
        self.count += len(messages)
        if store:
            newest = {(message.topic(), message.partition()): message for message in messages}
            for message in newest.values():
                self._consumer.store_offsets(message=message)

    def _at_end(self) -> bool:
        assigned = {(part.topic, part.partition) for part in self._consumer.assignment()}
        return bool(assigned) and assigned <= self._ended

    def ended(self, place: tuple[str, int]) -> bool:
        return place in self._ended


def open_consumer(
    link: Link, topic: str, properties: Mapping[str, str], *, group: str | None
) -> "Consumer":
    """A consumer that goes on trying when it loses the broker."""
    from confluent_kafka import Consumer, KafkaException

    from moldau.client.connect import translate
    from moldau.client.settings import REQUEST_SECONDS_MAX, consumer_settings

    settings: dict[str, Any] = dict(
        # A new group starts at the first message: with several partitions, one that is read
        # only later would otherwise lose what came before.
        consumer_settings(link.brokers, group=group, from_beginning=True, extra=properties)
    )
    try:
        consumer = Consumer({**settings, "error_cb": link.on_error})
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


@command(
    "consume",
    examples=(
        "moldau consume orders --from-beginning -n 10",
        "moldau consume orders --group billing -o json",
        "moldau consume orders --offset @-1h -f '%p:%o %k=%s\\n'",
    ),
)
@topic_argument
@click.option("-g", "--group", help="Share the topic with this group; goes on where it was.")
@click.option("--from-beginning", is_flag=True, help="Start at the first message.")
@click.option(
    "--offset",
    "position",
    type=PositionParam(),
    metavar="WHERE",
    help="Start at: beginning, end, N, -N (N before the end), @TIME or @-10m.",
)
@click.option(
    "-p", "--partition", "partitions", type=int, multiple=True, help="Only this; may be repeated."
)
@click.option("-n", "--count", "limit", type=click.IntRange(1), help="Stop after so many.")
@click.option("--timeout", type=Duration(), help="Stop after so long without a message.")
@click.option("-e", "--exit-at-end", is_flag=True, help="Stop when all has been read.")
@_format_options
@brokers_option
def consume(
    topic: str,
    group: str | None,
    from_beginning: bool,
    position: Position | None,
    partitions: tuple[int, ...],
    limit: int | None,
    timeout: float | None,
    exit_at_end: bool,
    output: str,
    template: str | None,
    print_key: bool,
    print_headers: bool,
    brokers: str,
    properties: Properties,
) -> None:
    """Print messages of a topic: new ones, or from where you say."""
    if position is not None and from_beginning:
        raise CommandError("--offset and --from-beginning exclude each other", code=ExitCode.USAGE)
    formatter = make_formatter(output, template, print_key, print_headers)
    start = Position.beginning() if from_beginning else position
    found, offline = _partitions(brokers, topic, partitions, properties)
    link = Link(brokers)
    consumer = open_consumer(link, topic, dict(properties), group=group)
    reader: Reader | None = None
    try:
        with stop_signals() as stop:
            _begin(consumer, topic, found, group if not partitions else None, start, position)
            reader = Reader(consumer, formatter, stop, link, offline)
            reader.run(
                limit=limit,
                idle_seconds_max=timeout,
                exit_at_end=exit_at_end,
                store=group is not None,
            )
    finally:
        close_consumer(consumer, commit=group is not None and reader is not None)
    if limit is not None and reader.count < limit and not stop and not exit_at_end:
        raise CommandError(f"{reader.count} of {limit} messages came, then none for {timeout:g} s")


def _partitions(
    brokers: str, topic: str, wanted: tuple[int, ...], properties: Properties
) -> tuple[list[int], list[tuple[str, int]]]:
    """The partitions that can be read of those that are wanted, and those that are offline."""
    from moldau.client.admin import Admin
    from moldau.client.errors import ClientError, NotFoundError

    admin = Admin(brokers, dict(properties))
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


def _begin(
    consumer: "Consumer",
    topic: str,
    partitions: list[int],
    group: str | None,
    start: Position | None,
    position: Position | None,
) -> None:
    """Subscribe in a group, else take the partitions by hand."""
    if group is None:
        consumer.assign((start or Position.end()).resolve(consumer, topic, partitions))
        return

    def on_assign(_: "Consumer", parts: list[Any]) -> None:
        # Without --offset, the group goes on where it was.
        if position is not None and parts:
            chosen = [part.partition for part in parts]
            consumer.assign(position.resolve(consumer, topic, chosen))

    consumer.subscribe([topic], on_assign=on_assign)


@command(
    "tail",
    examples=(
        "moldau tail orders",
        "moldau tail orders -n 100 --print-key",
        "moldau tail orders -n 1 --no-follow -o json",
    ),
)
@topic_argument
@click.option(
    "-n",
    "--count",
    "last",
    type=click.IntRange(0, 100_000),
    default=10,
    show_default=True,
    help="Begin with the last so many.",
)
@click.option(
    "--follow/--no-follow", default=True, help="Go on with what comes.  [default: follow]"
)
@_format_options
@brokers_option
def tail(
    topic: str,
    last: int,
    follow: bool,
    output: str,
    template: str | None,
    print_key: bool,
    print_headers: bool,
    brokers: str,
    properties: Properties,
) -> None:
    """Print the last messages of a topic, over all partitions, and follow the end."""
    formatter = make_formatter(output, template, print_key, print_headers)
    partitions, _ = _partitions(brokers, topic, (), properties)
    link = Link(brokers)
    consumer = open_consumer(link, topic, dict(properties), group=None)
    try:
        with stop_signals() as stop:
            start = Position.before_end(last) if last else Position.end()
            consumer.assign(start.resolve(consumer, topic, partitions))
            reader = Reader(consumer, formatter, stop, link)
            if last:
                reader.write(_last_messages(reader, stop, topic, partitions, last), store=False)
            if follow:
                reader.run(limit=None, idle_seconds_max=None, exit_at_end=False, store=False)
    finally:
        close_consumer(consumer, commit=False)


def _last_messages(
    reader: Reader, stop: Stop, topic: str, partitions: list[int], last: int
) -> list[Any]:
    """The newest messages over all partitions: each one's last, merged by time."""
    found: list[Any] = []
    while not stop and not all(reader.ended((topic, part)) for part in partitions):
        found += reader.receive(_DRAIN_MESSAGES_MAX)
    found.sort(key=lambda message: (message.timestamp()[1], message.partition(), message.offset()))
    return found[-last:]
