"""Owns what a read was asked for: which topics, from where to where, how much at a time."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from moldau.client.errors import InvalidArgumentError
from moldau.client.kafka.security import Security
from moldau.model.ids import TopicPartition
from moldau.spark.option_table import Side
from moldau.spark.options import Options, tell_once
from moldau.spark.source.java_pattern import python_pattern

LATEST: Final = -1
EARLIEST: Final = -2
"""In startingOffsets and endingOffsets, as in the Kafka connector."""

FETCH_BYTES_DEFAULT: Final = 2 * 1024 * 1024
"""Arrow batches of about that size are what Spark takes with the least effort."""
FETCH_BYTES_MIN: Final = 1024
FETCH_BYTES_MAX: Final = 64 * 1024 * 1024
TRIGGER_DELAY_SECONDS_DEFAULT: Final = 15 * 60.0
_DURATION: Final = re.compile(r"(\d+)\s*(us|ms|s|m|min|h|d)?", re.IGNORECASE)
_DURATION_SECONDS: Final = {
    "us": 1e-6,
    "ms": 0.001,
    "s": 1,
    "m": 60,
    "min": 60,
    "h": 3600,
    "d": 86400,
}

PerPartition = dict[str, dict[int, int]]
"""A number for partitions of topics: an offset or a time."""


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
    everywhere: int | None = None
    """LATEST, EARLIEST, or a time; None if each partition is named."""
    named: PerPartition | None = None
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
    start_without_match: Literal["error", "latest"]
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
    start = _bound(
        options,
        "starting",
        LATEST if streaming else EARLIEST,
        forbidden=None if streaming else LATEST,
    )
    if streaming:
        for name in ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"):
            if options.text(name) is not None:
                raise InvalidArgumentError(
                    f"option {name} is for batch reads: a stream has no end",
                    hint="spark.read for a batch, or Trigger.AvailableNow to read what there is",
                )
    else:
        for name in ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay"):
            if options.text(name) is not None:
                tell_once(f"option {name} has no effect: it is for streams, and this is a batch")
    end = _bound(options, "ending", LATEST, forbidden=EARLIEST)
    _check_order(start, end)
    strategy = (options.text("startingOffsetsByTimestampStrategy") or "error").lower()
    if strategy not in ("error", "latest"):
        raise InvalidArgumentError(
            f"option startingOffsetsByTimestampStrategy is error or latest, not {strategy!r}"
        )
    most = options.whole_number("maxOffsetsPerTrigger")
    least = options.whole_number("minOffsetsPerTrigger")
    if most is not None and least is not None and least > most:
        raise InvalidArgumentError(
            f"option minOffsetsPerTrigger ({least}) is above maxOffsetsPerTrigger ({most})"
        )
    fetch_bytes = options.whole_number("kafka.max.partition.fetch.bytes", least=FETCH_BYTES_MIN)
    return ReadOptions(
        bootstrap=options.bootstrap(),
        client_id=options.client_id(),
        timeout_seconds=options.timeout_seconds(),
        security=options.security(),
        subscription=_subscription(options),
        start=start,
        end=end,
        start_without_match="latest" if strategy == "latest" else "error",
        offsets_per_trigger_max=most,
        offsets_per_trigger_min=least,
        trigger_delay_seconds_max=_duration(options, "maxTriggerDelay"),
        partitions_min=options.whole_number("minPartitions"),
        records_per_partition_max=options.whole_number("maxRecordsPerPartition"),
        fail_on_data_loss=options.flag("failOnDataLoss", True),
        include_headers=options.flag("includeHeaders", False),
        read_committed=_isolation(options),
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
    if not text:
        raise InvalidArgumentError(f"option {found[0]} is empty")
    if found == ["subscribe"]:
        topics = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
        if not topics:
            raise InvalidArgumentError(f"option subscribe names no topic: {text!r}")
        return Subscription(topics=topics)
    if found == ["subscribePattern"]:
        return Subscription(pattern=python_pattern(text, found[0]))
    return Subscription(assigned=_assigned(text))


def _assigned(text: str) -> dict[str, tuple[int, ...]]:
    example = 'as in {"orders": [0, 1]}'
    parsed = _json(text, "assign", example)
    result = {}
    for topic, partitions in parsed.items():
        if not isinstance(partitions, list) or not all(_is_number(p, 0) for p in partitions):
            raise InvalidArgumentError(f"option assign lists partitions by topic, {example}")
        result[topic] = tuple(sorted(set(partitions)))
    if not any(result.values()):
        raise InvalidArgumentError(f"option assign names no partition: {text}")
    return result


def _bound(options: Options, side: str, default: int, *, forbidden: int | None) -> Bound:
    """A time for all goes before times by partition, and those before offsets."""
    name = f"{side}Timestamp"
    moment = options.whole_number(name, least=0)
    if moment is not None:
        return Bound(option=name, everywhere=moment, is_time=True)
    name = f"{side}OffsetsByTimestamp"
    text = options.text(name)
    if text is not None:
        named = _per_partition(
            text, name, least=0, example='as in {"orders": {"0": 1700000000000}}'
        )
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
    named = _per_partition(text, name, least=EARLIEST, example=example)
    if forbidden is not None and any(forbidden in found.values() for found in named.values()):
        raise InvalidArgumentError(f"option {name} cannot use {forbidden}, here")
    return Bound(option=name, named=named)


def _check_order(start: Bound, end: Bound) -> None:
    """An end before the start is a mistake, and not an empty batch; as in the Kafka connector."""
    if start.is_time != end.is_time:
        return
    if start.named is None or end.named is None:
        first, last = start.everywhere, end.everywhere
        is_wrong = start.is_time and first is not None and last is not None and first > last
        if is_wrong:
            raise InvalidArgumentError(f"option {end.option} ({last}) is before {start.option}")
        return
    for topic, numbers in start.named.items():
        for partition, first in numbers.items():
            last = end.named.get(topic, {}).get(partition, first)
            if 0 <= last < first:
                raise InvalidArgumentError(
                    f"option {end.option} ({last}) is before {start.option} ({first}) for "
                    f"{topic}-{partition}"
                )


def _per_partition(text: str, option: str, *, least: int, example: str) -> PerPartition:
    parsed = _json(text, option, example)
    result: PerPartition = {}
    for topic, numbers in parsed.items():
        if not isinstance(numbers, dict) or not all(
            key.isdecimal() and _is_number(value, least) for key, value in numbers.items()
        ):
            raise InvalidArgumentError(f"option {option} is {example}; not {text}")
        result[topic] = {int(key): value for key, value in numbers.items()}
    return result


def _json(text: str, option: str, example: str) -> dict[str, object]:
    try:
        parsed = json.loads(text)
    except json.JSONDecodeError as error:
        raise InvalidArgumentError(
            f"option {option} is {example}; {text!r} is no JSON: {error}"
        ) from None
    if not isinstance(parsed, dict):
        raise InvalidArgumentError(f"option {option} is {example}; not {text}")
    return parsed


def _is_number(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _isolation(options: Options) -> bool:
    committed = False
    for name in ("isolation", "kafka.isolation.level"):
        text = options.text(name)
        if text is None:
            continue
        if text.lower() not in ("read_committed", "read_uncommitted"):
            raise InvalidArgumentError(
                f"option {name} is read_committed or read_uncommitted, not {text!r}"
            )
        committed |= text.lower() == "read_committed"
    return committed


def _duration(options: Options, name: str) -> float:
    text = options.text(name)
    if text is None:
        return TRIGGER_DELAY_SECONDS_DEFAULT
    found = _DURATION.fullmatch(text)
    if found is None:
        raise InvalidArgumentError(f"option {name} is a time such as 30s or 15m, not {text!r}")
    return int(found[1]) * _DURATION_SECONDS[(found[2] or "ms").lower()]
