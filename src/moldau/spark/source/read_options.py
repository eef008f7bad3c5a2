"""The options of a read: which topics, from where to where, how much at a time."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final

import msgspec

from moldau.client.errors import InvalidArgumentError
from moldau.model.ids import PartitionIndex, TopicPartition
from moldau.spark.option_table import Side
from moldau.spark.options import ConnectionOptions, Options, warn_once
from moldau.spark.source.java_pattern import python_pattern

LATEST: Final = -1
EARLIEST: Final = -2
"""The same numbers in startingOffsets, endingOffsets and in the wire protocol."""

FETCH_BYTES_DEFAULT: Final = 2 * 1024 * 1024
"""Spark handles Arrow batches of about this size most efficiently."""
FETCH_BYTES_MIN: Final = 1024
FETCH_BYTES_MAX: Final = 64 * 1024 * 1024
_UNITS: Final = {"us": 1e-6, "ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}
_DURATION: Final = re.compile(rf"(\d+)\s*({'|'.join(_UNITS)})?", re.IGNORECASE)

_Natural = Annotated[int, msgspec.Meta(ge=0)]
_Offset = Annotated[int, msgspec.Meta(ge=EARLIEST)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """What is read: exactly one of the options subscribe, subscribePattern and assign."""

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    """For Python's `re`."""
    assigned: Mapping[str, tuple[int, ...]] | None = None

    @property
    def option(self) -> str:
        if self.assigned is not None:
            return "assign"
        return "subscribe" if self.pattern is None else "subscribePattern"

    def covers(self, place: TopicPartition) -> bool:
        """Whether the options name this partition, whether it exists or not."""
        if self.assigned is not None:
            return place.partition in self.assigned.get(place.topic, ())
        if self.pattern is not None:
            return re.fullmatch(self.pattern, place.topic) is not None
        return place.topic in self.topics


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """Where to start or end: offsets, or timestamps in ms, for all partitions or for each."""

    option: str
    everywhere: int = LATEST
    """Or EARLIEST, or a timestamp."""
    named: Mapping[TopicPartition, int] | None = None
    """For each partition, instead of `everywhere`."""
    is_time: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions(ConnectionOptions):
    subscription: Subscription
    start: Bound
    end: Bound
    latest_without_match: bool
    """Start at the end where no record is as recent as the start; otherwise that is an error."""
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
    """Raises InvalidArgumentError, which names the option to change."""
    options = Options(given)
    options.check_names(Side.READ)
    if streaming:
        for name in ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"):
            if options.text(name) is not None:
                raise InvalidArgumentError(
                    f"option {name} is for batch reads: a stream has no end",
                    hint="use spark.read, or trigger(availableNow=True) to read what is there",
                )
        start = _bound(options, "starting", LATEST, forbidden=None)
    else:
        for name in ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay"):
            if options.text(name) is not None:
                warn_once(f"option {name} has no effect on a batch read: it is for streams")
        start = _bound(options, "starting", EARLIEST, forbidden=LATEST)
    end = _bound(options, "ending", LATEST, forbidden=EARLIEST)
    _check_order(start, end)
    most = options.whole_number("maxOffsetsPerTrigger")
    least = options.whole_number("minOffsetsPerTrigger")
    if most is not None and least is not None and least > most:
        raise InvalidArgumentError(
            f"option minOffsetsPerTrigger ({least}) must not exceed maxOffsetsPerTrigger ({most})"
        )
    fetch_bytes = options.whole_number("kafka.max.partition.fetch.bytes", least=FETCH_BYTES_MIN)
    levels = [
        options.choice(name, ("read_committed", "read_uncommitted"), "read_uncommitted")
        for name in ("isolation", "kafka.isolation.level")
    ]
    strategy = options.choice("startingOffsetsByTimestampStrategy", ("error", "latest"), "error")
    return ReadOptions(
        **options.connection(),
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
    """Whether to add the column `headers`; the only option that changes the schema."""
    return Options(given).flag("includeHeaders", False)


def _subscription(options: Options) -> Subscription:
    names = ("subscribe", "subscribePattern", "assign")
    found = [name for name in names if options.text(name) is not None]
    if len(found) != 1:
        given = f"{' and '.join(found)} are set" if found else "none is set"
        raise InvalidArgumentError(
            "exactly one of the options subscribe, subscribePattern and assign is required; "
            f"{given}",
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
    raise InvalidArgumentError(f"option {found[0]} names no topic or partition: {text!r}")


def _bound(options: Options, side: str, default: int, *, forbidden: int | None) -> Bound:
    """A timestamp for all overrides timestamps by partition, and those override offsets."""
    name = f"{side}Timestamp"
    timestamp = options.whole_number(name, least=0)
    if timestamp is not None:
        return Bound(option=name, everywhere=timestamp, is_time=True)
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
                hint="by default, a batch read goes from earliest to latest",
            )
        return Bound(option=name, everywhere=word)
    example = 'earliest, latest, or as in {"orders": {"0": 23, "1": -1}}'
    named = _per_partition(text, _Offset, name, example)
    if forbidden in named.values():
        raise InvalidArgumentError(f"option {name} cannot use {forbidden} in a batch read")
    return Bound(option=name, named=named)


def _check_order(start: Bound, end: Bound) -> None:
    """An end before the start is an error, not an empty batch, as in the Kafka connector."""
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
        raise InvalidArgumentError(
            f"option {option} must be {example}, not {text}: {error}"
        ) from None


def _duration(options: Options, name: str, default: str) -> float:
    text = options.text(name)
    text = default if text is None else text
    found = _DURATION.fullmatch(text)
    if found is None:
        raise InvalidArgumentError(
            f"option {name} must be a duration such as 30s or 15m, not {text!r}"
        )
    return int(found[1]) * _UNITS[(found[2] or "ms").lower()]
