"""Owns what Spark's checkpoint says about a batch: its watermark, and where it begins and ends.

Spark writes it before the batch runs and keeps it when the batch is played again. So whether a row
is late is a question with one answer, in every task and in every attempt.
"""

import json
from typing import Any, Final, NamedTuple

from moldau.spark.lake.storage import Folder
from moldau.spark.pipelines.home import CheckpointError
from moldau.spark.source.planning import OffsetRange
from moldau.spark.source.positions import Positions, ranges_between

_VERSION: Final = "v1"
_NO_OFFSET: Final = "-"


class BatchLog(NamedTuple):
    """What is known of a batch before it runs."""

    watermark_ms: int
    end: Positions


def read_batch(checkpoint: Folder, batch: int) -> BatchLog:
    """Raises CheckpointError if Spark has not written it as it does."""
    path = f"offsets/{batch}"
    text = checkpoint.read(path)
    if text is None:
        raise CheckpointError(
            f"the checkpoint has no batch {batch}: {checkpoint.location}/{path}",
            hint="--home has to be a place that the driver and all workers of Spark see",
        )
    lines = text.decode().splitlines()
    if len(lines) < 3 or lines[0] != _VERSION:
        raise CheckpointError(
            f"batch {batch} of the checkpoint is not of the form {_VERSION}: {path}",
            hint="it was written by another version of Spark: moldau pipeline reset NAME --to …",
        )
    try:
        about: dict[str, Any] = json.loads(lines[1])
        watermark = int(about["batchWatermarkMs"])
        sources = [json.loads(line) for line in lines[2:] if line != _NO_OFFSET]
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"batch {batch} of the checkpoint cannot be read: {error!r}: {path}"
        ) from None
    if len(sources) != 1:
        raise CheckpointError(
            f"batch {batch} of the checkpoint is of {len(sources)} sources, and not of one",
            hint="--sql may name the view once: a stream that is joined with itself is read twice",
        )
    return BatchLog(watermark, Positions.from_json(sources[0]))


def ranges_of(checkpoint: Folder, batch: int, start: Positions) -> list[OffsetRange]:
    """What a batch reads; `start` is where the first one begins."""
    before = read_batch(checkpoint, batch - 1).end if batch else start
    found = ranges_between(before, read_batch(checkpoint, batch).end)
    return [planned for planned in found if planned.end > planned.start]


def is_late(event_us: int, watermark_ms: int) -> bool:
    """Whether a row comes too late.

    Spark drops a row from a window that ends at or before the watermark, and from a group that is
    the time itself if that is at or before it. Its watermark for late rows is never above that of
    the batch. So no row that is on time by this is ever dropped.
    """
    return event_us <= watermark_ms * 1000
