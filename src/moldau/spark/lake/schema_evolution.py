"""Schema evolution: adds columns and fields of structs, widens numbers, rejects other changes."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from moldau.spark.lake.model import LakeError


def with_partitions_last(schema: Any, partition_columns: Sequence[str]) -> Any:
    """The schema with partition columns last. Raises LakeError if one is missing."""
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
    """The table's schema for old rows and rows of `new`. Raises LakeError for a changed type."""
    wanted = with_partitions_last(new, partition_columns)
    if old is None:
        return wanted
    kept = []
    for field in old:
        kind = field.type
        if field.name in wanted.names:
            new_kind = wanted.field(field.name).type
            kind = merged_type(kind, new_kind)
            if kind is None:
                raise LakeError(
                    f"cannot change column {field.name} of the table at {location} from "
                    f"{field.type} to {new_kind}",
                    hint="write to another table (--to), or use the previous --decode and --schema",
                )
        kept.append(pa.field(field.name, kind))
    added = [field for field in wanted if field.name not in old.names]
    return with_partitions_last(pa.schema([*kept, *added]), partition_columns)


def merged_type(old: Any, new: Any) -> Any | None:
    """A type for values of both; None if there is none."""
    old, new = _plain(old), _plain(new)
    if old.equals(new):
        return old
    if pa.types.is_struct(old) and pa.types.is_struct(new):
        return _merged_struct(old, new)
    if pa.types.is_list(old) and pa.types.is_list(new):
        element = merged_type(old.value_type, new.value_type)
        return None if element is None else pa.list_(pa.field("element", element))
    if pa.types.is_map(old) and pa.types.is_map(new) and old.key_type.equals(new.key_type):
        item = merged_type(old.item_type, new.item_type)
        return None if item is None else pa.map_(old.key_type, item)
    if pa.types.is_decimal(old) and pa.types.is_decimal(new) and old.scale == new.scale:
        return max(old, new, key=lambda kind: kind.precision)
    for is_kind in (pa.types.is_signed_integer, pa.types.is_floating):
        if is_kind(old) and is_kind(new):
            return max(old, new, key=lambda kind: kind.bit_width)
    return None


def _merged_struct(old: Any, new: Any) -> Any | None:
    """Merges fields by case-insensitive name, as readers compare them."""
    fields = {field.name.lower(): field for field in old}
    for field in new:
        known = fields.get(field.name.lower())
        if known is None:
            fields[field.name.lower()] = field.with_nullable(True)
            continue
        kind = merged_type(known.type, field.type)
        if kind is None or known.name != field.name:
            return None
        fields[field.name.lower()] = pa.field(known.name, kind)
    return pa.struct(list(fields.values()))


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
