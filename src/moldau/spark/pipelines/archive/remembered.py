"""Owns what an archive must remember beside Spark's checkpoint: what it is of, and its beginning.

A checkpoint that went on with another table would leave out, in that table, all that was read
before. And Spark asks where to begin again when the first batch is played again: were `latest` or
a time looked up anew, or `earliest` after records were deleted, the batch would be another one.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Final

from moldau.client.errors import InvalidArgumentError
from moldau.spark.lake.table import LakeError, LakeTable
from moldau.spark.pipelines.archive.settings import ArchiveSettings

FILE: Final = "archive.json"
"""In the checkpoint's folder, and gone with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Remembered:
    """As the file has it."""

    tables: list[str]
    table_format: str
    decode: str
    topics: list[str]
    start: str
    """The option startingOffsets, with a number for each partition."""
    keep_raw: bool = False


def recall(settings: ArchiveSettings, tables: Mapping[str, LakeTable]) -> Remembered | None:
    """None before the first start. InvalidArgumentError if the checkpoint is of something else."""
    path = settings.checkpoint / FILE
    try:
        known = Remembered(**json.loads(path.read_text()))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError) as error:
        raise LakeError(f"{path} cannot be read: {error!r}") from None
    again = (
        "use another --name, or let it begin again: "
        f"moldau pipeline reset {settings.name} --to earliest"
    )
    now = _remembered(settings, known.start)
    changed: list[str] = []
    is_wider = settings.table_per_topic and set(known.tables) <= set(now.tables)
    if known.tables != now.tables and not is_wider:
        changed.append(f"--to {', '.join(known.tables)}")
    if known.table_format != now.table_format:
        changed.append(f"--format {known.table_format}")
    if known.decode != now.decode:
        changed.append(f"--decode {known.decode}")
    if known.keep_raw != now.keep_raw:
        # Half of the rows would have no bytes, and be taken for tombstones.
        changed.append("--keep-raw" if known.keep_raw else "no --keep-raw")
    if not set(known.topics) & set(now.topics):
        changed.append(f"--topic {', '.join(known.topics)}")
    if changed:
        raise InvalidArgumentError(
            f"archive {settings.name} goes on where it was, and that was with {changed[0]}",
            hint=again,
        )
    gone = [place for place in known.tables if tables[place].schema() is None]
    if gone and has_commits(settings):
        raise InvalidArgumentError(
            f"the table at {gone[0]} is gone, and archive {settings.name} would go on behind what "
            "it had",
            hint=again,
        )
    return known


def remember(settings: ArchiveSettings, start: str) -> None:
    """Before Spark writes anything of its own."""
    path = settings.checkpoint / FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    with temporary.open("w") as file:
        json.dump(asdict(_remembered(settings, start)), file)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def has_commits(settings: ArchiveSettings) -> bool:
    """Whether Spark knows of a batch that is done: from then on it knows where to go on."""
    return bool(committed_batches(settings))


def committed_batches(settings: ArchiveSettings) -> list[int]:
    """Those that are still in the checkpoint."""
    path = settings.checkpoint / "commits"
    if not path.is_dir():
        return []
    return sorted(int(each.name) for each in path.iterdir() if each.name.isdigit())


def _remembered(settings: ArchiveSettings, start: str) -> Remembered:
    return Remembered(
        tables=sorted(set(settings.locations().values())),
        table_format=settings.table_format,
        decode=settings.decode,
        topics=sorted(settings.topics),
        start=start,
        keep_raw=settings.keep_raw,
    )
