"""Change events for upserts: the key of each record, and whether it deletes the key.

A record without a value deletes its key. A Debezium event holds the row before and after the
change, and the operation; a delete is followed by a tombstone, which is redundant.
"""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from moldau.client.errors import InvalidArgumentError
from moldau.spark.decode.registry import CONFLUENT_BYTES, split_confluent
from moldau.spark.formats import Framing
from moldau.spark.pipelines.settings.archive import UPSERT, ArchiveSettings

DELETED: Final = "_deleted"
"""A column of the files that tasks write for an upsert, but not of tables."""
DEBEZIUM: Final = "debezium"
_ROW_OPS: Final = ("c", "u", "r", "d")
"""Create, update, read (of a snapshot), delete."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpsertSettings:
    """How records change a table. Plain values, sent to tasks."""

    keys: tuple[str, ...]
    """`key`, or fields of the value as `value.id`."""
    envelope: str = "none"
    key_framing: str = "none"

    @staticmethod
    def of(settings: ArchiveSettings) -> "UpsertSettings | None":
        """None with --mode append."""
        if settings.mode != UPSERT:
            return None
        return UpsertSettings(
            keys=settings.keys or ("key",),
            envelope=settings.envelope,
            key_framing=settings.key_framing,
        )

    def is_of_row(self, name: str) -> bool:
        """Whether a field of a value belongs to the row, not to the envelope."""
        inner = name.removeprefix("payload.")
        return self.envelope != DEBEZIUM or inner.startswith(("before.", "after."))

    @property
    def value_fields(self) -> list[str]:
        return [key.removeprefix("value.") for key in self.keys if key != "key"]


class _Event(msgspec.Struct):
    """The parts of an event that hold rows."""

    before: dict[str, Any] | None = None
    after: dict[str, Any] | None = None
    payload: "_Event | None" = None


def events_in(values: Iterable[bytes], framing: str) -> tuple[bool, list[bytes]]:
    """The rows in Debezium JSON events; and whether events are inside `payload`."""
    rows: list[bytes] = []
    is_inside = False
    for value in values:
        with suppress(msgspec.DecodeError, ValueError, RecursionError):
            body = split_confluent(value)[1] if framing == Framing.CONFLUENT else value
            found = msgspec.json.decode(body, type=_Event)
            if found.after is None and found.payload is not None:
                is_inside, found = True, found.payload
            states = (state for state in (found.before, found.after) if state is not None)
            rows += map(msgspec.json.encode, states)
    return is_inside, rows


def row_type(kind: Any, changes: UpsertSettings) -> Any:
    """The type of the table column `value`, from the type of decoded values.

    Raises InvalidArgumentError if values are not Debezium events, or have no field for a key.
    """
    if changes.envelope == DEBEZIUM:
        _, kind = _payload(kind)
        if not {"after", "op"} <= set(_names(kind)):
            raise InvalidArgumentError(
                "values are not Debezium events: the fields `op` and `after` are missing",
                hint="--schema must be the schema of the whole event; without --envelope debezium "
                "the value itself is the row",
            )
        kind = kind.field("after").type
    names = _names(kind)
    for name in changes.value_fields:
        if name not in names:
            raise InvalidArgumentError(
                f"--key value.{name}: values have no field {name}",
                hint=f"fields: {', '.join(names)}" if names else "decode values: --decode",
            )
    return kind


def changed_rows(rows: Any, changes: UpsertSettings) -> tuple[Any, Any]:
    """The rows of a batch, with a column `_deleted`; and bad rows, with an error."""
    at = rows.schema.get_field_index("value")
    if changes.envelope == DEBEZIUM:
        if changes.value_fields:
            # The tombstone after a delete has no value, and so no key field.
            rows = rows.filter(pc.is_valid(rows.column(at)))
        values, deleted, errors = _unwrapped(rows.column(at))
        rows = rows.set_column(at, pa.field("value", values.type), values)
    else:
        deleted, errors = pc.is_null(rows.column(at)), pa.nulls(rows.num_rows, pa.string())
    for name in changes.keys:
        if name == "key":
            what, column = "the key", rows.column("key")
        else:
            field = name.removeprefix("value.")
            what, column = f"field {field}", pc.struct_field(rows.column(at), field)
        missing = f"not a row change: {what} is null, see --key"
        errors = pc.coalesce(errors, pc.if_else(pc.is_null(column), missing, None))
    if changes.key_framing == Framing.CONFLUENT and "key" in changes.keys:
        keys = rows.column("key")
        is_framed = pc.and_(
            pc.greater(pc.binary_length(keys), CONFLUENT_BYTES), pc.starts_with(keys, b"\0")
        )
        unframed = "the key has no Confluent header, see --key-framing"
        errors = pc.coalesce(errors, pc.if_else(is_framed, None, unframed))
    return set_aside(rows.append_column(DELETED, deleted), errors)


def set_aside(rows: Any, errors: Any) -> tuple[Any, Any]:
    """The rows without an error; and the others, with the columns `raw` and `error`."""
    if errors.null_count == len(errors):
        return rows, rows.slice(0, 0)
    is_good = pc.is_null(errors)
    bad = rows.filter(pc.invert(is_good))
    if "raw" not in bad.schema.names:
        bad = bad.append_column("raw", bad.column("value"))
    bad = bad.append_column("error", errors.drop_null())
    names = [name for name in bad.schema.names if name not in ("value", DELETED)]
    return rows.filter(is_good), bad.select(names)


def _names(kind: Any) -> list[str]:
    return [field.name for field in kind] if pa.types.is_struct(kind) else []


def _payload(kind: Any) -> tuple[bool, Any]:
    """Whether events are inside `payload`, beside their schema; and the type of events."""
    names = _names(kind)
    is_inside = "payload" in names and "after" not in names
    return is_inside, kind.field("payload").type if is_inside else kind


def _unwrapped(values: Any) -> tuple[Any, Any, Any]:
    """Rows, whether they were deleted, and errors of events that are not row changes."""
    is_inside, inner = _payload(values.type)
    events = pc.struct_field(values, "payload") if is_inside else values
    op, after = pc.struct_field(events, "op"), pc.struct_field(events, "after")
    before = pa.nulls(len(values), after.type)
    if "before" in _names(inner):
        before = _as_row(pc.struct_field(events, "before"), after.type)
    is_delete = pc.or_kleene(pc.is_null(values), pc.fill_null(pc.equal(op, "d"), False))
    is_known = pc.or_(pc.is_null(values), pc.is_in(op, value_set=pa.array(_ROW_OPS)))
    is_lost = pc.and_(pc.invert(is_delete), pc.is_null(after))
    kinds = pc.fill_null(op, "none")
    reason = pc.binary_join_element_wise("invalid or unsupported Debezium event, op", kinds, " ")
    errors = pc.if_else(pc.or_(pc.invert(is_known), is_lost), reason, None)
    return pc.if_else(is_delete, before, after), is_delete, errors


def _as_row(found: Any, wanted: Any) -> Any:
    """Rows before a change as the type `wanted`; fields of another type become null."""
    if not pa.types.is_struct(found.type):
        return pa.nulls(len(found), wanted)
    known = {field.name: field.type for field in found.type}
    columns = [
        pc.struct_field(found, field.name)
        if known.get(field.name) == field.type
        else pa.nulls(len(found), field.type)
        for field in wanted
    ]
    return pa.StructArray.from_arrays(columns, fields=list(wanted), mask=pc.is_null(found))
