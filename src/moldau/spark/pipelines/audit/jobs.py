"""Owns the two jobs that an audit gives to Spark: sums of everything, then rows where sums differ.

The driver sees sums of some 65,000 offsets each, and ranges of offsets; never rows.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from moldau.spark.pipelines.audit.comparing import RANGES_MAX, Finding, compare_rows
from moldau.spark.pipelines.audit.drift import Drift
from moldau.spark.pipelines.audit.ranges import Range
from moldau.spark.pipelines.audit.tally import BucketKey, Tallies, Tally, add_up
from moldau.spark.pipelines.audit.tasks import (
    DEAD,
    LAKE,
    TOPIC,
    Common,
    Seen,
    Work,
    chosen_rows,
    tallies_of,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TALLY_DDL: Final = (
    "side int, topic string, partition int, expired boolean, bucket bigint, count bigint, "
    "rows_sum bigint, rows_sum_again bigint, offsets_sum bigint, first bigint, last bigint, "
    "note string"
)
_TALLY_SCHEMA: Final = pa.schema(
    [
        pa.field("side", pa.int32()),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("expired", pa.bool_()),
        *(
            pa.field(name, pa.int64())
            for name in ("bucket", "count", "rows_sum", "rows_sum_again", "offsets_sum")
        ),
        pa.field("first", pa.int64()),
        pa.field("last", pa.int64()),
        pa.field("note", pa.string()),
    ]
)
_ROWS_DDL: Final = (
    "side int, topic string, partition int, expired boolean, bucket bigint, offset bigint, "
    "digest bigint"
)
_FOUND_DDL: Final = (
    "topic string, partition int, expired boolean, kind string, rows bigint, ranges string"
)
_FOUND_SCHEMA: Final = pa.schema(
    [
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("expired", pa.bool_()),
        pa.field("kind", pa.string()),
        pa.field("rows", pa.int64()),
        pa.field("ranges", pa.string()),
    ]
)
_SIGN: Final = 1 << 63
_MODULUS: Final = 1 << 64


class Sums(NamedTuple):
    """What the first job found, by side."""

    tallies: dict[int, Tallies]
    after_cut: int
    drifts: list[Drift]


class BucketFinding(NamedTuple):
    """What the second job found in one bucket."""

    topic: str
    partition: int
    is_expired: bool
    kind: Finding
    rows: int
    ranges: tuple[Range, ...]
    """The first ones, if there are more than RANGES_MAX."""


def sums(spark: "SparkSession", works: Sequence[Work], common: Common) -> Sums:
    if not works:
        return Sums({TOPIC: {}, LAKE: {}}, 0, [])
    return read_sums(
        spark.range(0, len(works), 1, len(works)).mapInArrow(
            partial(_tally_task, tuple(works), common), TALLY_DDL
        )
    )


def read_sums(frame: "DataFrame") -> Sums:
    """Run a job whose rows are made by `sums_batch`, and add up what its tasks found."""
    tallies: dict[int, Tallies] = {TOPIC: {}, LAKE: {}}
    after_cut = 0
    drifts: list[Drift] = []
    for row in frame.toArrow().to_pylist():
        if row["note"] is not None:
            note = json.loads(row["note"])
            after_cut += note["after_cut"]
            drifts += [Drift(**fields) for fields in note["drifts"]]
            continue
        key = BucketKey(row["topic"], row["partition"], row["expired"], row["bucket"])
        tally = Tally(
            row["count"],
            row["rows_sum"] % _MODULUS,
            row["rows_sum_again"] % _MODULUS,
            row["offsets_sum"] % _MODULUS,
            row["first"],
            row["last"],
        )
        add_up(tallies[row["side"]], {key: tally})
    return Sums(tallies, after_cut, drifts)


def findings(spark: "SparkSession", works: Sequence[Work], common: Common) -> list[BucketFinding]:
    """Compares the rows of the buckets that `common.chosen` names."""
    if not works or not common.chosen:
        return []
    rows = spark.range(0, len(works), 1, len(works)).mapInArrow(
        partial(_rows_task, tuple(works), common), _ROWS_DDL
    )
    compared = rows.groupBy("topic", "partition", "expired", "bucket").applyInArrow(
        _compare_bucket, _FOUND_DDL
    )
    return [
        BucketFinding(
            row["topic"],
            row["partition"],
            row["expired"],
            Finding(row["kind"]),
            row["rows"],
            tuple(Range(*numbers) for numbers in json.loads(row["ranges"])),
        )
        for row in compared.toArrow().to_pylist()
    ]


# -- in tasks


def _works(works: Sequence[Work], batches: Iterable[Any]) -> Iterator[Work]:
    for batch in batches:
        for number in batch.column(0).to_pylist():
            yield works[number]


def _tally_task(works: Sequence[Work], common: Common, batches: Iterable[Any]) -> Iterator[Any]:
    for work in _works(works, batches):
        yield sums_batch(work.side, *tallies_of(work, common))


def sums_batch(side: int, tallies: Tallies, seen: Seen | None = None) -> Any:
    """What a task found, as a pyarrow.RecordBatch."""
    rows = [
        (
            side,
            *key,
            tally.rows,
            *(_signed(number) for number in tally[1:4]),
            tally.first,
            tally.last,
            None,
        )
        for key, tally in tallies.items()
    ]
    if seen is not None:
        note = {
            "after_cut": seen.after_cut,
            "drifts": [_drift_fields(drift) for drift in seen.drifts],
        }
        rows.append((side, *(None for _ in _TALLY_SCHEMA.names[1:-1]), json.dumps(note)))
    return batch_of(rows, _TALLY_SCHEMA)


def _rows_task(works: Sequence[Work], common: Common, batches: Iterable[Any]) -> Iterator[Any]:
    for work in _works(works, batches):
        yield from chosen_rows(work, common)


def _compare_bucket(rows: Any) -> Any:
    """A pyarrow.Table of one bucket, of all sides."""
    side = rows.column("side").to_numpy()
    offsets = rows.column("offset").to_numpy()
    digests = rows.column("digest").to_numpy().view(np.uint64)
    is_expired = rows.column("expired")[0].as_py()
    topic, lake = side == TOPIC, side == LAKE
    found = compare_rows(
        offsets[topic],
        digests[topic],
        offsets[lake],
        digests[lake],
        offsets[side == DEAD],
        is_expired=is_expired,
    )
    return pa.Table.from_batches(
        [
            batch_of(
                [
                    (
                        rows.column("topic")[0].as_py(),
                        rows.column("partition")[0].as_py(),
                        is_expired,
                        str(each.kind),
                        each.rows,
                        json.dumps(each.ranges[:RANGES_MAX]),
                    )
                    for each in found
                ],
                _FOUND_SCHEMA,
            )
        ],
        _FOUND_SCHEMA,
    )


def _drift_fields(drift: Drift) -> dict[str, Any]:
    return {name: getattr(drift, name) for name in Drift.__slots__}


def _signed(number: int) -> int:
    return number - _MODULUS if number >= _SIGN else number


def batch_of(rows: Sequence[tuple[Any, ...]], schema: Any) -> Any:
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(schema)
    return pa.RecordBatch.from_arrays(
        [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)],
        schema=schema,
    )
