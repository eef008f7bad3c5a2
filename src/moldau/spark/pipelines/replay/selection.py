"""Which records a replay sends: the selection, and the stored state.

The first run stores the offset ranges that it will send, in numbered batches, before it sends any.
A later run sends the same batches under the same numbers, so that the sink can skip those that are
already written. The state is stored in the folder of the checkpoint.
"""

import hashlib
import re
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import msgspec

from moldau.client.errors import ClientError, InvalidArgumentError
from moldau.client.timestamps import parse_timestamp_ms
from moldau.spark.lake.storage import Folder
from moldau.spark.pipelines.settings.replay import ReplaySettings
from moldau.spark.source.planning import OffsetRange, limited

_STATE_FILE: Final = "replay.json"
_OFFSETS: Final = re.compile(r"(?:([\w.-]+)/)?(\d{1,9}):(\d{0,18})-(\d{0,18})")


class Span(NamedTuple):
    """Offsets of a partition, `end` exclusive; None: no limit."""

    first: int | None
    end: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Records must match all of it; None matches every record."""

    from_ms: int | None = None
    to_ms: int | None = None
    spans: Mapping[tuple[str | None, int], Span] = field(default_factory=dict)
    """By topic (None: any) and partition. If not empty, other partitions are not sent."""
    keys: frozenset[bytes] | None = None

    def span(self, topic: str, partition: int) -> Span | None:
        """The selected offsets of a partition; None: none of them."""
        if not self.spans:
            return Span(None, None)
        return self.spans.get((topic, partition)) or self.spans.get((None, partition))

    def keys_digest(self) -> str | None:
        """To check that the keys have not changed."""
        if self.keys is None:
            return None
        digest = hashlib.sha256()
        for key in sorted(self.keys):
            digest.update(len(key).to_bytes(8, "big") + key)
        return digest.hexdigest()


def selection_of(
    settings: ReplaySettings, *, now_ms: int, times: tuple[int | None, int | None] | None = None
) -> Selection:
    """Raises InvalidArgumentError, which names the option to change. Reads the key file.

    A replay that continues passes the `times` of its first run: relative ones have moved since.
    """
    from_ms, to_ms = times or (
        _timestamp(settings.from_time, "--from-time", now_ms),
        _timestamp(settings.to_time, "--to-time", now_ms),
    )
    if from_ms is not None and to_ms is not None and from_ms >= to_ms:
        raise InvalidArgumentError(
            f"--from-time {settings.from_time} must be before --to-time {settings.to_time}",
            hint="--to-time is exclusive",
        )
    return Selection(from_ms=from_ms, to_ms=to_ms, spans=_spans(settings), keys=_keys(settings))


def _timestamp(text: str | None, option: str, now_ms: int) -> int | None:
    found = None if text is None else parse_timestamp_ms(text.strip(), now_ms=now_ms)
    if text is not None and found is None:
        raise InvalidArgumentError(
            f"{option} {text!r} is not a valid timestamp",
            hint="use 2026-11-15T14:00:00Z, milliseconds since 1970, or a relative time: -2h",
        )
    return found


def _spans(settings: ReplaySettings) -> dict[tuple[str | None, int], Span]:
    found: dict[tuple[str | None, int], Span] = {}
    for text in settings.offsets:
        match = _OFFSETS.fullmatch(text.strip())
        if match is None:
            raise InvalidArgumentError(
                f"--offsets must be PARTITION:FIRST-LAST, as in 0:100-199, 0:100- or "
                f"orders/0:-199, not {text!r}"
            )
        topic, partition, first, last = match.groups()
        if topic is not None and settings.topics and topic not in settings.topics:
            raise InvalidArgumentError(
                f"--offsets {text} names {topic}, which is not replayed",
                hint=f"topics: {', '.join(settings.topics)}",
            )
        key = (topic, int(partition))
        if key in found:
            raise InvalidArgumentError(
                f"--offsets names partition {partition} twice",
                hint="only one range per partition; run two replays for two ranges",
            )
        span = Span(int(first) if first else None, int(last) + 1 if last else None)
        if span.first is not None and span.end is not None and span.first >= span.end:
            raise InvalidArgumentError(f"--offsets {text} is empty: it ends before it starts")
        found[key] = span
    return found


def _keys(settings: ReplaySettings) -> frozenset[bytes] | None:
    path = settings.key_file
    if not settings.keys and path is None:
        return None
    found = {key.encode() for key in settings.keys}
    if path is not None:
        try:
            # As bytes, since keys need not be UTF-8.
            lines = [line for line in Path(path).read_bytes().splitlines() if line]
        except OSError as error:
            raise InvalidArgumentError(
                f"cannot read --key-file {path}: {error.strerror or error}"
            ) from None
        if not lines:
            raise InvalidArgumentError(f"--key-file {path} is empty", hint="one key per line")
        found.update(lines)
    return frozenset(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayState:
    """What is sent, in which batches, and how many are done. Stored as JSON."""

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
    """The txnAppId of the batches."""
    done: int = 0
    """Number of sent batches; the next one may be sent, too."""
    rows: int = 0
    """Rows of the sent batches."""
    format: Literal[1] = 1

    def batches(self) -> Iterator[tuple[OffsetRange, ...]]:
        """The ranges of each batch, in order; no batch is empty."""
        by_partition = {planned.tp: planned for planned in self.ranges}
        starts = {tp: planned.start for tp, planned in by_partition.items()}
        ends = {tp: planned.end for tp, planned in by_partition.items()}
        while starts != ends:
            upto = limited(starts, ends, self.batch_rows)
            yield tuple(
                replace(by_partition[tp], start=start, end=upto[tp])
                for tp, start in starts.items()
                if start < upto[tp]
            )
            starts = upto


def load(folder: Folder) -> ReplayState | None:
    """The stored state; None before the first run."""
    text = folder.read(_STATE_FILE)
    if text is None:
        return None
    try:
        return msgspec.json.decode(text, type=ReplayState)
    except msgspec.MsgspecError as error:
        raise ClientError(
            f"{folder.location}/{_STATE_FILE} is corrupt, or of another version: {error}",
            hint="it is unknown what was sent: inspect the target, then replay the rest with "
            "--offsets and another --name",
        ) from None


def save(folder: Folder, state: ReplayState) -> None:
    """Durable and atomic."""
    try:
        folder.write(_STATE_FILE, msgspec.json.encode(state))
    except OSError as error:
        raise ClientError(f"cannot write {folder.location}/{_STATE_FILE}: {error}") from None


def check_same(state: ReplayState, asked: dict[str, Any], keys_digest: str | None) -> None:
    """Raises InvalidArgumentError if settings have changed since the replay started."""
    changed = [
        f"{name} was {state.asked.get(name)!r}, is {value!r}"
        for name, value in sorted(asked.items())
        if value != state.asked.get(name)
    ]
    if not changed and keys_digest != state.keys_digest:
        changed = ["the key_file has other keys"]
    if changed:
        raise InvalidArgumentError(
            f"replay {asked['name']} was started with other settings: {', '.join(changed)}",
            hint="for another replay, use another --name",
        )
