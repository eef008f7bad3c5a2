"""Owns what may become of a table's columns: new ones come at the end, old ones keep their type."""

import base64
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from moldau.spark.lake.table import LakeError


def with_partitions_last(schema: Any, partition_columns: Sequence[str]) -> Any:
    """The columns of a table, in its order. LakeError if one to partition by is missing."""
    missing = [name for name in partition_columns if name not in schema.names]
    if missing:
        raise LakeError(
            f"a table partitioned by {', '.join(partition_columns)} has no column "
            f"{', '.join(missing)}"
        )
    inner = [field for field in schema if field.name not in partition_columns]
    last = [schema.field(name) for name in partition_columns]
    return pa.schema([field.with_nullable(True) for field in (*inner, *last)])


def merged(old: Any | None, new: Any, partition_columns: Sequence[str], location: str) -> Any:
    """The table's columns once it takes rows of `new`. LakeError for a type that changed."""
    wanted = with_partitions_last(new, partition_columns)
    if old is None:
        return wanted
    for field in wanted:
        if field.name not in old.names:
            continue
        had = old.field(field.name).type
        if not same_type(had, field.type):
            raise LakeError(
                f"column {field.name} of the table at {location} is {had}, and would become "
                f"{field.type}",
                hint="write to another table (--to), or decode as before (--decode, --schema)",
            )
    added = [field for field in wanted if field.name not in old.names]
    return with_partitions_last(pa.schema([*old, *added]), partition_columns)


def same_type(one: Any, other: Any) -> bool:
    """Whatever the names of a list's elements, and whichever of text's two sizes."""
    return bool(_plain(one).equals(_plain(other)))


def _plain(kind: Any) -> Any:
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind):
        return pa.binary()
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(pa.field("element", _plain(kind.value_type)))
    if pa.types.is_map(kind):
        return pa.map_(_plain(kind.key_type), _plain(kind.item_type))
    if pa.types.is_struct(kind):
        return pa.struct(
            [pa.field(kind.field(at).name, _plain(kind.field(at).type)) for at in range(len(kind))]
        )
    return kind


def plain_schema(schema: Any) -> Any:
    """With one spelling of each type, without metadata."""
    return pa.schema([pa.field(field.name, _plain(field.type)) for field in schema])


def to_text(schema: Any) -> str:
    return base64.b64encode(schema.remove_metadata().serialize().to_pybytes()).decode()


def from_text(text: str) -> Any:
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))
