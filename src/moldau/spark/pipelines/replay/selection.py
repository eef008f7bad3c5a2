"""Responsible for which records a replay sends: as it is told, as it means, and as it is pinned.

The first run writes down which offsets it will send, in batches that are numbered, before it sends
any. Whoever goes on after a crash sends the same batches under the same numbers, so that the sink
can tell which of them are there. All of it lies beside where a query would keep its checkpoint.
"""

import hashlib
import re
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, ClassVar, Final, Literal, NamedTuple

import msgspec

from moldau.client.errors import ClientError, InvalidArgumentError
from moldau.client.timestamps import parse_timestamp_ms
from moldau.model.ids import PartitionIndex, TopicPartition
from moldau.spark.lake.storage import Folder
from moldau.spark.pipelines.spec import PipelineSettings
from moldau.spark.source.planning import OffsetRange, limited

BATCH_ROWS_DEFAULT: Final = 500_000
"""A batch is one set of transactions: large enough to be cheap, and over long before they end."""
_CHANGEABLE: Final = frozenset({each.name for each in fields(PipelineSettings)} - {"name"}) | {
    *("create", "batch_rows", "storage")
}
"""Fields that may be others when a replay goes on: they do not say what is sent."""
_PINNED: Final = "replay.json"
_OFFSETS: Final = re.compile(r"(?:([\w.-]+)/)?(\d{1,9}):(\d{0,18})-(\d{0,18})")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaySettings(PipelineSettings):
    """One of `topics` and `table` is the source. All that selects records holds together."""

    kind: ClassVar[str] = "replay"

    target: str
    topics: tuple[str, ...] = ()
    table: str | None = None
    """The location of a table that `archive` wrote: a folder, or s3://…"""
    table_format: str = "delta"
    storage: Mapping[str, str] = field(default_factory=dict)
    from_time: str | None = None
    """The first moment: ISO 8601, milliseconds since 1970, or ago as in -2h."""
    to_time: str | None = None
    """The first moment that is not sent any more."""
    times_rise: bool = False
    """Timestamps rise with offsets, so that nothing is to be found behind the first late one."""
    offsets: tuple[str, ...] = ()
    """[TOPIC/]PARTITION:FIRST-LAST, both included; without one of them to the end there."""
    keys: tuple[str, ...] = ()
    key_file: str | None = None
    create: bool = False
    keep_partitions: bool | None = None
    """None: where the target has enough of them."""
    origin_headers: bool = False
    batch_rows: int = BATCH_ROWS_DEFAULT

    def check(self) -> None:
        """Raises InvalidArgumentError for what contradicts itself."""
        if bool(self.topics) == bool(self.table):
            raise InvalidArgumentError(
                "a replay reads from topics or from a table: name one of them",
                hint="--topic NAME, or --table LOCATION",
            )
        if not self.target:
            raise InvalidArgumentError(
                "a replay needs a topic to write to", hint="name it: --to TOPIC"
            )
        if self.batch_rows < 1:
            raise InvalidArgumentError(f"--batch-rows is at least 1, not {self.batch_rows}")

    def asked(self) -> dict[str, Any]:
        """What says which records are sent where: it must not change while a replay goes on."""
        names = [each.name for each in fields(self) if each.name not in _CHANGEABLE]
        values = {name: getattr(self, name) for name in names}
        return {n: list(each) if isinstance(each, tuple) else each for n, each in values.items()}


class Span(NamedTuple):
    """Offsets of a partition, `end` not included; None is as far as it goes."""

    first: int | None
    end: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """All of it holds together; what is None selects everything."""

    from_ms: int | None = None
    to_ms: int | None = None
    spans: Mapping[tuple[str | None, int], Span] = field(default_factory=dict)
    """By topic (None: whichever) and partition. If there is any, only those are meant."""
    keys: frozenset[bytes] | None = None

    def span(self, topic: str, partition: int) -> Span | None:
        """What is meant of a partition by its offsets; None is nothing."""
        if not self.spans:
            return Span(None, None)
        return self.spans.get((topic, partition)) or self.spans.get((None, partition))

    def keys_digest(self) -> str | None:
        """Tells whether they are the same keys as before."""
        if self.keys is None:
            return None
        digest = hashlib.sha256()
        for key in sorted(self.keys):
            digest.update(len(key).to_bytes(8, "big") + key)
        return digest.hexdigest()


def selection_of(
    settings: ReplaySettings, *, now_ms: int, times: tuple[int | None, int | None] | None = None
) -> Selection:
    """Raises InvalidArgumentError, which names the option to change. Reads the file of keys.

    A replay that goes on gives the `times` with which it began: by now, -2h is another moment.
    """
    from_ms, to_ms = times or (
        _moment(settings.from_time, "--from-time", now_ms),
        _moment(settings.to_time, "--to-time", now_ms),
    )
    if from_ms is not None and to_ms is not None and from_ms >= to_ms:
        raise InvalidArgumentError(
            f"nothing lies between --from-time {settings.from_time} and --to-time "
            f"{settings.to_time}",
            hint="--to-time is the first moment that is not sent, and has to be the later one",
        )
    return Selection(from_ms=from_ms, to_ms=to_ms, spans=_spans(settings), keys=_keys(settings))


def _moment(text: str | None, option: str, now_ms: int) -> int | None:
    found = None if text is None else parse_timestamp_ms(text.strip(), now_ms=now_ms)
    if text is not None and found is None:
        raise InvalidArgumentError(
            f"{option} {text!r} is no time",
            hint="write 2026-11-15T14:00:00Z, milliseconds since 1970, or how long ago: -2h",
        )
    return found


def _spans(settings: ReplaySettings) -> dict[tuple[str | None, int], Span]:
    found: dict[tuple[str | None, int], Span] = {}
    for text in settings.offsets:
        match = _OFFSETS.fullmatch(text.strip())
        if match is None:
            raise InvalidArgumentError(
                f"--offsets {text!r} is not PARTITION:FIRST-LAST as in 0:100-199, 0:100-, or "
                "orders/0:-199"
            )
        topic, partition, first, last = match.groups()
        if topic is not None and settings.topics and topic not in settings.topics:
            raise InvalidArgumentError(
                f"--offsets {text} names {topic}, which is not among what is read",
                hint=f"read are {', '.join(settings.topics)}",
            )
        place = (topic, int(partition))
        if place in found:
            raise InvalidArgumentError(
                f"--offsets names partition {partition} twice",
                hint="one range per partition; run two replays for two ranges",
            )
        span = Span(int(first) if first else None, int(last) + 1 if last else None)
        if span.first is not None and span.end is not None and span.first >= span.end:
            raise InvalidArgumentError(f"--offsets {text} is empty: it ends before it begins")
        found[place] = span
    return found


def _keys(settings: ReplaySettings) -> frozenset[bytes] | None:
    path = settings.key_file
    if not settings.keys and path is None:
        return None
    found = {key.encode() for key in settings.keys}
    if path is not None:
        try:
            # As bytes, so that keys that are no UTF-8 can be named, too.
            lines = [line for line in Path(path).read_bytes().splitlines() if line]
        except OSError as error:
            said = f"--key-file {path} cannot be read: {error.strerror or error}"
            raise InvalidArgumentError(said) from None
        if not lines:
            raise InvalidArgumentError(f"--key-file {path} holds no key", hint="one key per line")
        found.update(lines)
    return frozenset(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayState:
    """What is sent, in which batches; the same for all runs of a replay."""

    asked: dict[str, Any]
    keys_digest: str | None
    from_ms: int | None
    to_ms: int | None
    target_id: int | None
    target_partitions: int
    keep_partitions: bool
    ranges: tuple[OffsetRange, ...]
    batch_rows: int
    id: str = field(default_factory=lambda: f"replay-{uuid.uuid4()}")
    """Under which the sink knows the batches."""
    done: int = 0
    """So many batches are sent for sure; the next may be."""
    rows: int = 0
    """In those."""
    format: Literal[1] = 1

    def batches(self) -> Iterator[tuple[OffsetRange, ...]]:
        """The ranges of each batch, in order; no batch is empty."""
        of = {place_of(planned): planned for planned in self.ranges}
        starts = {place: planned.start for place, planned in of.items()}
        ends = {place: planned.end for place, planned in of.items()}
        while starts != ends:
            upto = limited(starts, ends, self.batch_rows)
            yield tuple(
                replace(of[place], start=start, end=upto[place])
                for place, start in starts.items()
                if start < upto[place]
            )
            starts = upto


def place_of(planned: OffsetRange) -> TopicPartition:
    return TopicPartition(planned.topic, PartitionIndex(planned.partition))


def load(folder: Folder) -> ReplayState | None:
    """What was begun; None if nothing was."""
    text = folder.read(_PINNED)
    if text is None:
        return None
    try:
        return msgspec.json.decode(text, type=ReplayState)
    except msgspec.MsgspecError as error:
        raise ClientError(
            f"{folder.location}/{_PINNED} is damaged, or of another version: {error}",
            hint="what was sent is not known any more: look at the target, then go on with "
            "--offsets and another --name",
        ) from None


def save(folder: Folder, pinned: ReplayState) -> None:
    """Durable, and whole or not at all."""
    try:
        folder.write(_PINNED, msgspec.json.encode(pinned))
    except OSError as error:
        raise ClientError(f"{folder.location}/{_PINNED} cannot be written: {error}") from None


def check_same(pinned: ReplayState, asked: dict[str, Any], keys_digest: str | None) -> None:
    """A replay that was begun goes on as it was begun, or not at all."""
    changed = [
        f"{name} was {pinned.asked.get(name)!r}, is {value!r}"
        for name, value in sorted(asked.items())
        if value != pinned.asked.get(name)
    ]
    if not changed and keys_digest != pinned.keys_digest:
        changed = ["other keys are in the key_file"]
    if changed:
        raise InvalidArgumentError(
            f"replay {asked['name']} was begun with other settings: {', '.join(changed)}",
            hint="use another --name for another replay",
        )
