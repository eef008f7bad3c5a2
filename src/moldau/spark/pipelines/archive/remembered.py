"""Owns what an archive must remember beside Spark's checkpoint: what it is of, and its beginning.

A checkpoint that went on with another table would leave out, in that table, all that was read
before. And Spark asks where to begin again when the first batch is played again: were `latest` or
a time looked up anew, or `earliest` after records were deleted, the batch would be another one.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Final

from moldau.client.errors import InvalidArgumentError
from moldau.spark.lake.table import WRITER, Destination, TableFormat, marked
from moldau.spark.pipelines.archive.settings import APPEND, ArchiveSettings
from moldau.spark.pipelines.home import CheckpointError, Home, batches_in

FILE: Final = "archive.json"
"""In the checkpoint's folder, and gone with it."""
_AGAIN: Final = "begin again: moldau pipeline reset NAME --to earliest"


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
    mode: str = APPEND
    keys: list[str] = field(default_factory=list)
    envelope: str = "none"
    decoding: list[str | None] = field(default_factory=list)
    """How values are read, as far as that may change between two batches."""


def recall(settings: ArchiveSettings, tables: Mapping[str, Destination]) -> Remembered | None:
    """None before the first start. InvalidArgumentError if the checkpoint is of something else."""
    found = settings.checkpoint.read(FILE)
    if found is None:
        _check_checkpoint_is_new(settings, tables)
        return None
    try:
        known = Remembered(**json.loads(found))
    except (ValueError, TypeError) as error:
        raise CheckpointError(
            f"{settings.checkpoint.location}/{FILE} cannot be read: {error!r}", hint=_AGAIN
        ) from None
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
    if known.mode != now.mode:
        changed.append(f"--mode {known.mode}")
    if known.keys != now.keys:
        changed.append(f"--key {' --key '.join(known.keys) or 'key'}")
    if known.envelope != now.envelope:
        changed.append(f"--envelope {known.envelope}")
    if not set(known.topics) & set(now.topics):
        changed.append(f"--topic {', '.join(known.topics)}")
    if known.decoding and known.decoding != now.decoding and _is_pending(settings):
        # Rows that are bad now were good before, and their dead letters are sent already.
        raise InvalidArgumentError(
            f"a batch of archive {settings.name} is not done, and has to be read as it was begun",
            hint="run it once with --schema, --framing, --registry and --key-framing as before",
        )
    if changed:
        raise InvalidArgumentError(
            f"archive {settings.name} goes on where it was, and that was with {changed[0]}",
            hint=again,
        )
    if not batches_in(settings.checkpoint, "offsets") and not Home(settings.home).has_new_start():
        # What is left of a checkpoint is worth nothing, and batches would have old numbers.
        _check_checkpoint_is_new(settings, tables)
    gone = [
        place
        for place in known.tables
        if now.table_format != TableFormat.PARQUET and tables[place].schema() is None
    ]
    if gone and has_commits(settings):
        raise InvalidArgumentError(
            f"the table at {gone[0]} is gone, and archive {settings.name} would go on behind what "
            "it had",
            hint=again,
        )
    return known


def _check_checkpoint_is_new(settings: ArchiveSettings, tables: Mapping[str, Destination]) -> None:
    """Without the checkpoint of before, all that is in the tables would be written once more."""
    home = Home(settings.home)
    if home.has_new_start():
        # A reset has said where to begin, and what that means.
        return
    mine = marked(settings.name)
    for place, table in tables.items():
        if table.mark(f"{WRITER}{settings.name}") == mine:
            raise InvalidArgumentError(
                f"archive {settings.name} has written to {place} before, and its checkpoint is not "
                f"in {home.location}: all records would be there twice",
                hint="is --home the same as before? · begin again, knowing that: moldau pipeline "
                f"reset {settings.name} --to … · write to another table: --to",
            )
        for topic in settings.topics:
            if settings.locations()[topic] == place and table.mark(f"topic.{topic}") not in (
                None,
                mine,
            ):
                raise InvalidArgumentError(
                    f"another archive writes topic {topic} to {place}: its records would be there "
                    "twice",
                    hint="write to another table: --to; or give this one the name of that: --name",
                )


def marks_of(settings: ArchiveSettings, place: str) -> tuple[tuple[str, str], ...]:
    """What commits to a table say of who writes what."""
    topics = [topic for topic, table in settings.locations().items() if table == place]
    names = [f"{WRITER}{settings.name}", *(f"topic.{topic}" for topic in topics)]
    return tuple((name, settings.name) for name in names)


def remember(settings: ArchiveSettings, start: str) -> None:
    """Before Spark writes anything of its own."""
    text = json.dumps(asdict(_remembered(settings, start)))
    settings.checkpoint.write(FILE, text.encode())
    Home(settings.home).use_start()


def _is_pending(settings: ArchiveSettings) -> bool:
    """Whether there is a batch that was begun and is not done."""
    begun = batches_in(settings.checkpoint, "offsets")
    return bool(begun) and begun[-1:] != batches_in(settings.checkpoint, "commits")[-1:]


def has_commits(settings: ArchiveSettings) -> bool:
    """Whether Spark knows of a batch that is done: from then on it knows where to go on."""
    return bool(batches_in(settings.checkpoint, "commits"))


def _remembered(settings: ArchiveSettings, start: str) -> Remembered:
    return Remembered(
        tables=sorted(set(settings.locations().values())),
        table_format=settings.table_format,
        decode=settings.decode,
        topics=sorted(settings.topics),
        start=start,
        keep_raw=settings.keep_raw,
        mode=settings.mode,
        keys=list(settings.keys),
        envelope=settings.envelope,
        decoding=[settings.schema, settings.framing, settings.registry, settings.key_framing],
    )
