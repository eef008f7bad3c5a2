"""Responsible for records that change a table: of which key they are, and whether they delete it.

A record without a value deletes its key. An event of Debezium holds the row before and after the
change, and says what the change was; a delete is followed by a record without a value, which says
the same once more.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from moldau.client.errors import InvalidArgumentError
from moldau.spark.decode.framing import CONFLUENT_BYTES, Framing, split_confluent

DELETED: Final = "_deleted"
"""In files that tasks write for an upsert, not in tables."""
RECORD_KEY: Final = "key"
DEBEZIUM: Final = "debezium"
_VALUE: Final = "value."
_ROW_OPS: Final = ("c", "u", "r", "d")
"""Created, updated, read by a first snapshot, deleted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """How records change a table. Plain values: it travels to tasks."""

    keys: tuple[str, ...]
    """`key`, or fields of the value as `value.id`."""
    envelope: str = "none"
    key_framing: str = "none"

    def is_of_row(self, name: str) -> bool:
        """Whether a field of a value is one of the row, not of what is told about the change."""
        if self.envelope != DEBEZIUM:
            return True
        return name.removeprefix("payload.").startswith(("before.", "after."))

    @property
    def value_fields(self) -> list[str]:
        return [key.removeprefix(_VALUE) for key in self.keys if key.startswith(_VALUE)]


def events_in(values: Iterable[bytes], framing: str) -> tuple[bool, list[bytes]]:
    """The rows in events of Debezium's JSON; and whether these stand in `payload`."""
    rows: list[bytes] = []
    is_inside = False
    for value in values:
        try:
            body = split_confluent(value)[1] if framing == Framing.CONFLUENT else value
            found = msgspec.json.decode(body)
        except (msgspec.DecodeError, ValueError, RecursionError):
            continue
        if isinstance(found, dict) and "after" not in found and "payload" in found:
            is_inside, found = True, found["payload"]
        if isinstance(found, dict):
            states = [found.get(name) for name in ("before", "after")]
            rows += [msgspec.json.encode(state) for state in states if isinstance(state, dict)]
    return is_inside, rows


def row_type(kind: Any, envelope: str) -> Any:
    """The type of a table's column `value`, from that of decoded values.

    Raises InvalidArgumentError if values are no events of Debezium.
    """
    if envelope != DEBEZIUM:
        return kind
    _, inner = _payload(kind)
    names = [field.name for field in inner] if pa.types.is_struct(inner) else []
    if not {"after", "op"} <= set(names):
        raise InvalidArgumentError(
            "values have no fields `op` and `after`, as events of Debezium have",
            hint="--schema is that of the whole event; without --envelope debezium values are "
            "taken as they are",
        )
    return inner.field("after").type


def check_keys(changes: Changes, kind: Any) -> None:
    """Raises InvalidArgumentError if the table's values have no such field."""
    names = [field.name for field in kind] if pa.types.is_struct(kind) else []
    for name in changes.value_fields:
        if name not in names:
            raise InvalidArgumentError(
                f"--key value.{name}: values have no field {name}",
                hint=f"they have {', '.join(names)}" if names else "--decode says what they are",
            )


def changed_rows(rows: Any, changes: Changes) -> tuple[Any, Any]:
    """The rows of a batch, with a column `_deleted`; and those that change nothing.

    Those have their bytes in `raw` and a reason in `error`.
    """
    at = rows.schema.get_field_index("value")
    values = rows.column(at)
    deleted = pc.is_null(values)
    errors = pa.nulls(len(values), pa.string())
    if "raw" not in rows.schema.names:
        rows = rows.append_column("raw", values)
    if changes.envelope == DEBEZIUM:
        if changes.value_fields:
            # The record that follows a delete has no value, and so no key.
            rows = rows.filter(pc.is_valid(values))
        values, deleted, errors = _unwrapped(rows.column(at))
        rows = rows.set_column(at, pa.field("value", values.type), values)
    for name, column in _key_columns(rows, changes).items():
        missing = pc.and_(pc.is_null(column), pc.is_null(errors))
        errors = pc.if_else(missing, f"no change of any row: {name} is null, see --key", errors)
    if changes.key_framing == Framing.CONFLUENT and RECORD_KEY in changes.keys:
        keys = rows.column("key")
        is_framed = pc.and_kleene(
            pc.greater(pc.binary_length(keys), CONFLUENT_BYTES), pc.starts_with(keys, b"\0")
        )
        unframed = pc.and_(pc.invert(pc.fill_null(is_framed, False)), pc.is_null(errors))
        errors = pc.if_else(unframed, "no header before the key, see --key-framing", errors)
    good = rows.append_column(DELETED, deleted).filter(pc.is_null(errors))
    bad = rows.drop_columns(["value"]).append_column("error", errors)
    return good, bad.filter(pc.is_valid(errors))


def _key_columns(rows: Any, changes: Changes) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key in changes.keys:
        if key == RECORD_KEY:
            found["the key"] = rows.column("key")
        else:
            values = rows.column("value")
            found[f"field {key.removeprefix(_VALUE)}"] = pc.struct_field(
                values, key.removeprefix(_VALUE)
            )
    return found


def _payload(kind: Any) -> tuple[bool, Any]:
    """Whether events are inside of `payload`, beside their schema; and the type of events."""
    names = [field.name for field in kind] if pa.types.is_struct(kind) else []
    if "payload" in names and "after" not in names:
        return True, kind.field("payload").type
    return False, kind


def _unwrapped(values: Any) -> tuple[Any, Any, Any]:
    """Rows, whether they were deleted, and why an event is no change of a row."""
    is_inside, inner = _payload(values.type)
    events = pc.struct_field(values, "payload") if is_inside else values
    op = pc.struct_field(events, "op")
    after = pc.struct_field(events, "after")
    before = _as_type(
        pc.struct_field(events, "before") if inner.get_field_index("before") >= 0 else None, after
    )
    is_delete = pc.or_kleene(pc.is_null(values), pc.fill_null(pc.equal(op, "d"), False))
    count = len(values)
    places = pc.if_else(is_delete, pa.array(range(count, 2 * count)), pa.array(range(count)))
    rows = pa.concat_arrays([after, before]).take(places)
    is_known = pc.or_(pc.is_null(values), pc.is_in(op, value_set=pa.array(_ROW_OPS)))
    lost = pc.and_(pc.invert(is_delete), pc.is_null(after))
    kinds = pc.fill_null(op, "none")
    reason = pc.binary_join_element_wise("an event of Debezium of kind", kinds, " ")
    is_bad = pc.or_(pc.invert(is_known), lost)
    return rows, is_delete, pc.if_else(is_bad, reason, pa.nulls(count, pa.string()))


def _as_type(found: Any, wanted: Any) -> Any:
    """Rows before a change, with the fields of those after it; none where they are no rows."""
    if found is None or not pa.types.is_struct(found.type):
        return pa.nulls(len(wanted), wanted.type)
    if found.type.equals(wanted.type):
        return found
    names = {field.name: field.type for field in found.type}
    columns = [
        pc.struct_field(found, field.name)
        if names.get(field.name) == field.type
        else pa.nulls(len(found), field.type)
        for field in wanted.type
    ]
    return pa.StructArray.from_arrays(columns, fields=list(wanted.type), mask=pc.is_null(found))
