"""Owns the way from batches of rows, of a topic or of a file, to offsets and digests by partition.

Nothing of it needs Spark; tasks call it.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from moldau.client.errors import ClientError
from moldau.model.queue_headers import DEAD_OFFSET_HEADER, DEAD_PARTITION_HEADER, DEAD_TOPIC_HEADER
from moldau.spark.pipelines.audit.digest import column_digests, joined, number_digests
from moldau.spark.schema import arrow_schema

PLACE_COLUMNS: Final = ("topic", "partition", "offset")
CONTENT_COLUMNS: Final = ("key", "value", "timestamp", "timestampType", "headers")
"""What is compared of a row, as far as both sides have it."""
_PARTITION_BITS: Final = 32


class PlaceRows(NamedTuple):
    """Rows of one partition, in no order, as arrays of numpy."""

    topic: str
    partition: int
    offsets: Any
    digests: Any


def comparable_columns(schema: Any | None) -> tuple[str, ...]:
    """Of the columns of a topic, those that a table holds as they are in the topic."""
    if schema is None:
        return CONTENT_COLUMNS
    names = set(schema.names)
    return tuple(
        name
        for name in CONTENT_COLUMNS
        if name in names
        and _is_same(arrow_schema(include_headers=True).field(name).type, schema.field(name).type)
    )


def _is_same(wanted: Any, found: Any) -> bool:
    """As far as digests are concerned."""
    if pa.types.is_dictionary(found):
        found = found.value_type
    if pa.types.is_binary(wanted):
        return bool(
            pa.types.is_binary(found)
            or pa.types.is_large_binary(found)
            or pa.types.is_string(found)
            or pa.types.is_large_string(found)
        )
    if pa.types.is_timestamp(wanted):
        return bool(pa.types.is_timestamp(found))
    if pa.types.is_integer(wanted):
        return bool(pa.types.is_integer(found))
    return bool(pa.types.is_list(found) or pa.types.is_large_list(found) or pa.types.is_map(found))


def place_rows(
    batch: Any,
    columns: Sequence[str],
    *,
    constants: Mapping[str, str] | None = None,
    topics: frozenset[str] | None = None,
) -> Iterator[PlaceRows]:
    """The rows of a pyarrow.RecordBatch by partition; of other topics than `topics` none.

    `constants` are columns that are the same in all rows, and need not be in the batch. A column
    that is not there at all is one of nulls. Raises ClientError for a row without a place.
    """
    if not batch.num_rows:
        return
    known = constants or {}
    offsets = _numbers(batch, "offset", known)
    partitions = _numbers(batch, "partition", known)
    names, codes = _topics(batch, known)
    parts = [number_digests(offsets)]
    parts += [column_digests(_content(batch, name)) for name in columns]
    digests = joined(parts)
    keys = (codes.astype(np.int64) << _PARTITION_BITS) | partitions
    for key in np.unique(keys).tolist():
        topic = names[key >> _PARTITION_BITS]
        if topics is not None and topic not in topics:
            continue
        chosen = keys == key
        yield PlaceRows(topic, key & ((1 << _PARTITION_BITS) - 1), offsets[chosen], digests[chosen])


def _content(batch: Any, name: str) -> Any:
    if name in batch.schema.names:
        return batch.column(name)
    return pa.nulls(batch.num_rows, arrow_schema(include_headers=True).field(name).type)


def _numbers(batch: Any, name: str, constants: Mapping[str, str]) -> Any:
    if name in constants:
        return np.full(batch.num_rows, int(constants[name]), dtype=np.int64)
    if name not in batch.schema.names:
        raise ClientError(
            f"there is no column {name}, so nobody can tell which records the rows are",
            hint="an audit reads tables with the columns topic, partition and offset, as "
            "moldau pipeline archive writes them",
        )
    column = batch.column(name)
    if column.null_count:
        raise ClientError(f"{column.null_count} rows have no {name}")
    return column.cast(pa.int64()).to_numpy(zero_copy_only=False)


def _topics(batch: Any, constants: Mapping[str, str]) -> tuple[list[str], Any]:
    """The names, and for each row which of them it is."""
    if "topic" in constants:
        return [constants["topic"]], np.zeros(batch.num_rows, dtype=np.int64)
    if "topic" not in batch.schema.names:
        raise ClientError(
            "there is no column topic, so nobody can tell which records the rows are",
            hint="an audit reads tables as moldau pipeline archive writes them",
        )
    column = batch.column("topic")
    if column.null_count:
        raise ClientError(f"{column.null_count} rows have no topic")
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    return column.dictionary.to_pylist(), column.indices.to_numpy(zero_copy_only=False)


def dead_letter_origins(batch: Any) -> Iterator[PlaceRows]:
    """Where dead letters, rows of a topic with headers, come from; those that say it."""
    lists = batch.column("headers")
    flat = lists.flatten()
    if not len(flat):
        return
    rows = pc.list_parent_indices(lists).to_numpy(zero_copy_only=False)
    keys, values = flat.field("key"), flat.field("value")
    found: dict[str, Any] = {}
    for name in (DEAD_TOPIC_HEADER, DEAD_PARTITION_HEADER, DEAD_OFFSET_HEADER):
        chosen = np.flatnonzero(pc.equal(keys, name).to_numpy(zero_copy_only=False))
        # The last one of a name is that of whoever wrote the letter.
        found[name] = dict(
            zip(rows[chosen].tolist(), values.take(pa.array(chosen)).to_pylist(), strict=True)
        )
    by_place: dict[tuple[str, int], list[int]] = {}
    for row, topic in found[DEAD_TOPIC_HEADER].items():
        try:
            partition = int(found[DEAD_PARTITION_HEADER].get(row) or b"")
            offset = int(found[DEAD_OFFSET_HEADER].get(row) or b"")
            by_place.setdefault(((topic or b"").decode(), partition), []).append(offset)
        except ValueError:
            # Written by somebody else; it accounts for no record.
            continue
    for (topic, partition), offsets in by_place.items():
        numbers = np.unique(np.array(offsets, dtype=np.int64))
        yield PlaceRows(topic, partition, numbers, np.zeros(len(numbers), dtype=np.uint64))
