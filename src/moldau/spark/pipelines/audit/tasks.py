"""Owns what a task of an audit does: reads ranges of topics or files of a table, and sums them up.

Reads with pyarrow and the project's own client, so that S3 and Iceberg need nothing of Java, and so
that no row passes through the JVM. Imports no pyspark: `jobs` hands these to Spark.
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from moldau.spark.lake.schemas import from_text
from moldau.spark.lake.storage import open_filesystem
from moldau.spark.lake.table import DataFile, LakeError, Layout
from moldau.spark.pipelines.audit.drift import Drift, drift_of
from moldau.spark.pipelines.audit.rows import (
    PLACE_COLUMNS,
    PlaceRows,
    dead_letter_origins,
    place_rows,
)
from moldau.spark.pipelines.audit.tally import (
    BUCKET_OFFSETS,
    BucketKey,
    Tallies,
    add_up,
    tally_rows,
)
from moldau.spark.source.planning import OffsetRange
from moldau.spark.source.read_options import ReadOptions
from moldau.spark.source.reading import read_ranges

TOPIC, LAKE, DEAD = 0, 1, 2
"""The sides."""
BATCH_ROWS: Final = 64 * 1024

Places = Mapping[tuple[str, int], tuple[int, int]]
"""The start of the log and the end of the cut, by topic and partition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Common:
    """What all tasks of an audit know."""

    places: Places
    topics: frozenset[str]
    columns: tuple[str, ...]
    """Of the content, those that are compared."""
    chosen: frozenset[BucketKey] | None = None
    """If not None: only rows of these buckets are wanted."""
    numbers: tuple[int, ...] = ()
    """Of the chosen buckets, sorted."""
    ends: Mapping[tuple[str, int], int] = field(default_factory=dict)
    """Where the topics ended after the table was looked at: no row of it can come from behind."""

    def bounds(self, topic: str, partition: int) -> tuple[int, int | None]:
        """A partition that the topic does not have: nothing in it is right, whatever its offset."""
        return self.places.get((topic, partition), (0, None))


@dataclass(slots=True)
class Seen:
    """What a task has to tell beside its sums."""

    after_cut: int = 0
    drifts: list[Drift] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicWork:
    options: ReadOptions
    ranges: tuple[OffsetRange, ...]
    side: int = TOPIC

    def rows(self, common: Common, seen: Seen) -> Iterator[PlaceRows]:
        for batch in read_ranges(self.options, self.ranges):
            if self.side == DEAD:
                yield from dead_letter_origins(batch)
            else:
                yield from place_rows(batch, common.columns)


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeWork:
    layout: Layout
    files: tuple[DataFile, ...]
    schema: str
    """Of the table, as `moldau.spark.lake.schemas.to_text` writes it."""
    side: int = LAKE

    def rows(self, common: Common, seen: Seen) -> Iterator[PlaceRows]:
        schema = from_text(self.schema)
        table = {
            name: schema.field(name).type
            for name in schema.names
            if self.layout.keeps_partition_columns or name not in self.layout.partition_columns
        }
        wanted = (*PLACE_COLUMNS, *common.columns)
        for file in self.files:
            with ExitStack() as opened:
                found = pq.ParquetFile(opened.enter_context(open_file(self.layout, file)))
                seen.drifts += drift_of(table, found.schema_arrow, path=file.path)
                yield from self._file_rows(found, file, common, wanted)

    def _file_rows(
        self, found: Any, file: DataFile, common: Common, wanted: Sequence[str]
    ) -> Iterator[PlaceRows]:
        names = [name for name in wanted if name in found.schema_arrow.names]
        constants = {k: v for k, v in file.partition.items() if k in PLACE_COLUMNS}
        groups = [
            number
            for number in range(found.num_row_groups)
            if _may_hold(found.metadata.row_group(number), common)
        ]
        for batch in found.iter_batches(batch_size=BATCH_ROWS, row_groups=groups, columns=names):
            yield from place_rows(batch, common.columns, constants=constants, topics=common.topics)


Work = TopicWork | LakeWork


def open_file(layout: Layout, file: DataFile) -> Any:
    """A file of a snapshot, also while its commit is being published."""
    filesystem, root = open_filesystem(layout.location, layout.storage)
    places = (file.path, layout.written_path(file.path))
    # Twice, since it may be moved from one place to the other while we look.
    for path in (*places, *places):
        try:
            return filesystem.open_input_file(f"{root}/{path}")
        except FileNotFoundError:
            continue
    raise LakeError(
        f"{file.path} of the table at {layout.location} is not there",
        hint="if the table was compacted just now, audit it again; else the file is lost",
    )


def _may_hold(group: Any, common: Common) -> bool:
    """By the statistics of a row group: whether it can have rows of the chosen buckets."""
    if common.chosen is None:
        return True
    for number in range(group.num_columns):
        column = group.column(number)
        if column.path_in_schema == "offset":
            known = column.statistics
            if known is None or not known.has_min_max:
                return True
            first, last = known.min // BUCKET_OFFSETS, known.max // BUCKET_OFFSETS
            at = bisect_left(common.numbers, first)
            return at < len(common.numbers) and common.numbers[at] <= last
    return True


def within_cut(rows: PlaceRows, common: Common, side: int, seen: Seen) -> PlaceRows:
    """Without what came after the cut."""
    _, end = common.bounds(rows.topic, rows.partition)
    if end is None or side == DEAD:
        return rows
    inside = rows.offsets < end
    topic_end = common.ends.get((rows.topic, rows.partition))
    if topic_end is not None:
        # These never were in the topic, or the topic has lost them: nothing to pass over.
        inside |= rows.offsets >= topic_end
    if inside.all():
        return rows
    seen.after_cut += int(len(inside) - inside.sum())
    return rows._replace(offsets=rows.offsets[inside], digests=rows.digests[inside])


def tallies_of(work: Work, common: Common) -> tuple[Tallies, Seen]:
    """The first look: sums of everything."""
    seen = Seen()
    tallies: Tallies = {}
    for rows in work.rows(common, seen):
        rows = within_cut(rows, common, work.side, seen)
        start, _ = common.bounds(rows.topic, rows.partition)
        add_up(
            tallies,
            tally_rows(rows.topic, rows.partition, rows.offsets, rows.digests, log_start=start),
        )
    return tallies, seen


ROWS_SCHEMA: Final = pa.schema(
    [
        pa.field("side", pa.int32()),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("expired", pa.bool_()),
        pa.field("bucket", pa.int64()),
        pa.field("offset", pa.int64()),
        pa.field("digest", pa.int64()),
    ]
)


def chosen_rows(work: Work, common: Common) -> Iterator[Any]:
    """The second look: the rows of the chosen buckets, as pyarrow.RecordBatch."""
    seen = Seen()
    for rows in work.rows(common, seen):
        rows = within_cut(rows, common, work.side, seen)
        start, _ = common.bounds(rows.topic, rows.partition)
        for bucket in np.unique(rows.offsets // BUCKET_OFFSETS).tolist():
            for is_expired in (False, True):
                key = BucketKey(rows.topic, rows.partition, is_expired, bucket)
                if common.chosen is not None and key not in common.chosen:
                    continue
                inside = (rows.offsets // BUCKET_OFFSETS == bucket) & (
                    (rows.offsets < start) == is_expired
                )
                if inside.any():
                    yield _row_batch(work.side, key, rows.offsets[inside], rows.digests[inside])


def _row_batch(side: int, key: BucketKey, offsets: Any, digests: Any) -> Any:
    count = len(offsets)
    return pa.RecordBatch.from_arrays(
        [
            pa.repeat(pa.scalar(side, pa.int32()), count),
            pa.repeat(pa.scalar(key.topic), count),
            pa.repeat(pa.scalar(key.partition, pa.int32()), count),
            pa.repeat(pa.scalar(key.is_expired), count),
            pa.repeat(pa.scalar(key.number, pa.int64()), count),
            pa.array(offsets, pa.int64()),
            pa.array(digests.view("int64"), pa.int64()),
        ],
        schema=ROWS_SCHEMA,
    )
