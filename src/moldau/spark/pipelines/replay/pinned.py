"""Owns what a replay holds on to from its first start to its end: the offsets, and how far it is.

The first run writes down which offsets it will send, in batches that are numbered, before it sends
any. Whoever goes on after a crash sends the same batches under the same numbers, so that the sink
can tell which of them are there. All of it lies beside where a query would keep its checkpoint.
"""

import json
import uuid
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from moldau.client.errors import ClientError, InvalidArgumentError
from moldau.model.ids import PartitionIndex, TopicPartition
from moldau.spark.lake.storage import Folder
from moldau.spark.source.planning import OffsetRange, limited

_FORMAT: Final = 1
_NAME: Final = "replay.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pinned:
    """What is sent, in which batches; the same for all runs of a replay."""

    id: str
    """Under which the sink knows the batches."""
    asked: dict[str, Any]
    keys_digest: str | None
    from_ms: int | None
    to_ms: int | None
    target_id: int | None
    target_partitions: int
    keep_partitions: bool
    ranges: tuple[OffsetRange, ...]
    batch_rows: int
    done: int = 0
    """So many batches are sent for sure; the next may be."""
    rows: int = 0
    """In those."""

    @property
    def offset_count(self) -> int:
        return sum(planned.size for planned in self.ranges)

    def batches(self) -> Iterator[tuple[OffsetRange, ...]]:
        """The ranges of each batch, in order; no batch is empty."""
        of = {_place(planned): planned for planned in self.ranges}
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

    @staticmethod
    def new_id() -> str:
        return f"replay-{uuid.uuid4()}"


def _place(planned: OffsetRange) -> TopicPartition:
    return TopicPartition(planned.topic, PartitionIndex(planned.partition))


def load(folder: Folder) -> Pinned | None:
    """What was begun; None if nothing was."""
    path = f"{folder.location}/{_NAME}"
    text = folder.read(_NAME)
    if text is None:
        return None
    try:
        found = json.loads(text)
        if found.pop("format") != _FORMAT:
            raise ClientError(f"{path} was written by another version")
        ranges = tuple(OffsetRange(**each) for each in found.pop("ranges"))
        return Pinned(ranges=ranges, **found)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ClientError(
            f"{path} is damaged: {error}",
            hint="what was sent is not known any more: look at the target, then go on with "
            "--offsets and another --name",
        ) from None


def save(folder: Folder, pinned: Pinned) -> None:
    """Durable, and whole or not at all."""
    ranges = [asdict(planned) for planned in pinned.ranges]
    text = json.dumps({"format": _FORMAT, **asdict(pinned), "ranges": ranges}, indent=1)
    try:
        folder.write(_NAME, text.encode())
    except OSError as error:
        raise ClientError(f"{folder.location}/{_NAME} cannot be written: {error}") from None


def check_same(pinned: Pinned, asked: dict[str, Any], keys_digest: str | None) -> None:
    """A replay that was begun goes on as it was begun, or not at all."""
    changed = sorted(
        name for name in {*asked, *pinned.asked} if asked.get(name) != pinned.asked.get(name)
    )
    if not changed and keys_digest != pinned.keys_digest:
        changed = ["key_file"]
    if changed:
        said = ", ".join(
            f"{name} was {pinned.asked.get(name)!r}, is {asked.get(name)!r}" for name in changed
        )
        raise InvalidArgumentError(
            f"replay {pinned.asked.get('name')} was begun with other settings: {said}",
            hint="use another --name for another replay",
        )
