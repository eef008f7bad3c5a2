"""Responsible for what a read was asked for: which topics, from where to where, how much at a
time."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final

import msgspec

from moldau.client.errors import InvalidArgumentError
from moldau.client.wire.security import Security
from moldau.model.ids import PartitionIndex, TopicPartition
from moldau.spark.option_table import Side
from moldau.spark.options import Options, warn_once
from moldau.spark.source.java_pattern import python_pattern

LATEST: Final = -1
EARLIEST: Final = -2
"""In startingOffsets and endingOffsets as in the Kafka connector, and in the wire protocol."""

FETCH_BYTES_DEFAULT: Final = 2 * 1024 * 1024
"""Arrow batches of about that size are what Spark takes with the least effort."""
FETCH_BYTES_MIN: Final = 1024
FETCH_BYTES_MAX: Final = 64 * 1024 * 1024
_UNITS: Final = {"us": 1e-6, "ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}
_DURATION: Final = re.compile(rf"(\d+)\s*({'|'.join(_UNITS)})?", re.IGNORECASE)

_Natural = Annotated[int, msgspec.Meta(ge=0)]
_Offset = Annotated[int, msgspec.Meta(ge=EARLIEST)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """Exactly one of the three ways to name what is read, by the option of that name."""

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    """As Python's re has it."""
    assigned: Mapping[str, tuple[int, ...]] | None = None

    @property
    def option(self) -> str:
        if self.assigned is not None:
            return "assign"
        return "subscribe" if self.pattern is None else "subscribePattern"

    def covers(self, place: TopicPartition) -> bool:
        """Whether a partition is asked for, be it there or not."""
        if self.assigned is not None:
            return place.partition in self.assigned.get(place.topic, ())
        if self.pattern is not None:
            return re.fullmatch(self.pattern, place.topic) is not None
        return place.topic in self.topics


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """Where to start or end: offsets, or times in ms, each for all partitions or for some."""

    option: str
    everywhere: int = LATEST
    """Or EARLIEST, or a time."""
    named: Mapping[TopicPartition, int] | None = None
    """For each partition, in place of `everywhere`."""
    is_time: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    bootstrap: str
    client_id: str
    timeout_seconds: float
    security: Security
    subscription: Subscription
    start: Bound
    end: Bound
    latest_without_match: bool
    """Where no record is as young as the start: else that is an error."""
    offsets_per_trigger_max: int | None
    offsets_per_trigger_min: int | None
    trigger_delay_seconds_max: float
    partitions_min: int | None
    records_per_partition_max: int | None
    fail_on_data_loss: bool
    include_headers: bool
    read_committed: bool
    group: str | None
    fetch_bytes_max: int


def parse_read_options(given: Mapping[str, str], *, streaming: bool) -> ReadOptions:
    """What `given` asks for; InvalidArgumentError names the option that is wrong."""
    options = Options(given)
    options.check_names(Side.READ)
    if streaming:
        for name in ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"):
            if options.text(name) is not None:
                raise InvalidArgumentError(
                    f"option {name} is for batch reads: a stream has no end",
                    hint="spark.read for a batch, or Trigger.AvailableNow to read what there is",
                )
        start = _bound(options, "starting", LATEST, forbidden=None)
    else:
        for name in ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay"):
            if options.text(name) is not None:
                warn_once(f"option {name} has no effect: it is for streams, and this is a batch")
        start = _bound(options, "starting", EARLIEST, forbidden=LATEST)
    end = _bound(options, "ending", LATEST, forbidden=EARLIEST)
    _check_order(start, end)
    most = options.whole_number("maxOffsetsPerTrigger")
    least = options.whole_number("minOffsetsPerTrigger")
    if most is not None and least is not None and least > most:
        raise InvalidArgumentError(
            f"option minOffsetsPerTrigger ({least}) is above maxOffsetsPerTrigger ({most})"
        )
    fetch_bytes = options.whole_number("kafka.max.partition.fetch.bytes", least=FETCH_BYTES_MIN)
    levels = [
        options.choice(name, ("read_committed", "read_uncommitted"), "read_uncommitted")
        for name in ("isolation", "kafka.isolation.level")
    ]
    strategy = options.choice("startingOffsetsByTimestampStrategy", ("error", "latest"), "error")
    return ReadOptions(
        bootstrap=options.bootstrap(),
        client_id=options.client_id(),
        timeout_seconds=options.timeout_seconds(),
        security=options.security(),
        subscription=_subscription(options),
        start=start,
        end=end,
        latest_without_match=strategy == "latest",
        offsets_per_trigger_max=most,
        offsets_per_trigger_min=least,
        trigger_delay_seconds_max=_duration(options, "maxTriggerDelay", "15m"),
        partitions_min=options.whole_number("minPartitions"),
        records_per_partition_max=options.whole_number("maxRecordsPerPartition"),
        fail_on_data_loss=options.flag("failOnDataLoss", True),
        include_headers=wants_headers(given),
        read_committed="read_committed" in levels,
        group=options.text("groupId") or None,
        fetch_bytes_max=min(fetch_bytes or FETCH_BYTES_DEFAULT, FETCH_BYTES_MAX),
    )


def wants_headers(given: Mapping[str, str]) -> bool:
    """The one option that the schema depends on."""
    return Options(given).flag("includeHeaders", False)


def _subscription(options: Options) -> Subscription:
    names = ("subscribe", "subscribePattern", "assign")
    found = [name for name in names if options.text(name) is not None]
    if len(found) != 1:
        said = f"{' and '.join(found)} are given" if found else "none is"
        raise InvalidArgumentError(
            f"exactly one of the options subscribe, subscribePattern and assign names what is "
            f"read; {said}",
            hint='for example .option("subscribe", "orders")',
        )
    text = options.text(found[0]) or ""
    if found == ["subscribePattern"] and text:
        return Subscription(pattern=python_pattern(text, found[0]))
    if found == ["assign"] and text:
        lists = _json(text, dict[str, set[_Natural]], "assign", 'as in {"orders": [0, 1]}')
        if any(lists.values()):
            return Subscription(assigned={name: tuple(sorted(lists[name])) for name in lists})
    elif topics := tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip())):
        return Subscription(topics=topics)
    raise InvalidArgumentError(f"option {found[0]} names nothing to read: {text!r}")


def _bound(options: Options, side: str, default: int, *, forbidden: int | None) -> Bound:
    """A time for all goes before times by partition, and those before offsets."""
    name = f"{side}Timestamp"
    moment = options.whole_number(name, least=0)
    if moment is not None:
        return Bound(option=name, everywhere=moment, is_time=True)
    name = f"{side}OffsetsByTimestamp"
    text = options.text(name)
    if text is not None:
        example = 'as in {"orders": {"0": 1700000000000}}'
        named = _per_partition(text, _Natural, name, example)
        return Bound(option=name, named=named, is_time=True)
    name = f"{side}Offsets"
    text = options.text(name)
    if text is None:
        return Bound(option=name, everywhere=default)
    word = {"earliest": EARLIEST, "latest": LATEST}.get(text.lower())
    if word is not None:
        if word == forbidden:
            raise InvalidArgumentError(
                f"option {name} cannot be {text}: nothing would be read",
                hint="a batch is read from earliest to latest, unless options say otherwise",
            )
        return Bound(option=name, everywhere=word)
    example = 'earliest, latest, or as in {"orders": {"0": 23, "1": -1}}'
    named = _per_partition(text, _Offset, name, example)
    if forbidden in named.values():
        raise InvalidArgumentError(f"option {name} cannot use {forbidden}, here")
    return Bound(option=name, named=named)


def _check_order(start: Bound, end: Bound) -> None:
    """An end before the start is a mistake, and not an empty batch; as in the Kafka connector."""
    if start.is_time != end.is_time or (start.named is None) != (end.named is None):
        return
    everywhere = TopicPartition("all", PartitionIndex(0))
    lasts = end.named or {everywhere: end.everywhere}
    for place, first in (start.named or {everywhere: start.everywhere}).items():
        last = lasts.get(place, first)
        if 0 <= last < first:
            where = f" for {place}" if start.named else ""
            raise InvalidArgumentError(
                f"option {end.option} ({last}) is before {start.option} ({first}){where}"
            )


def _per_partition(text: str, kind: Any, option: str, example: str) -> dict[TopicPartition, int]:
    found = _json(text, dict[str, dict[_Natural, kind]], option, example)
    return {
        TopicPartition(topic, PartitionIndex(partition)): number
        for topic, numbers in found.items()
        for partition, number in numbers.items()
    }


def _json(text: str, kind: Any, option: str, example: str) -> Any:
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.MsgspecError as error:
        raise InvalidArgumentError(f"option {option} is {example}; not {text}: {error}") from None


def _duration(options: Options, name: str, default: str) -> float:
    text = options.text(name)
    text = default if text is None else text
    found = _DURATION.fullmatch(text)
    if found is None:
        raise InvalidArgumentError(f"option {name} is a time such as 30s or 15m, not {text!r}")
    return int(found[1]) * _UNITS[(found[2] or "ms").lower()]
