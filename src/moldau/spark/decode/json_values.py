"""JSON: strict decoding by a schema, detection of unknown fields, and schema inference.

A value of another type than its field is an error: "1" is not a number, 1.0 not an integer, 1 not a
text. See docs/spark/decoding.md for all rules.
"""

import datetime as dt
import decimal
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Final, NotRequired, Required, TypedDict

import msgspec
import pyarrow as pa
from msgspec import Meta

from moldau.client.errors import InvalidArgumentError
from moldau.spark.decode.arrow_types import MAP_OF_STRINGS, TIMESTAMP, list_of, struct_of
from moldau.spark.decode.registry import BadRowError, split_confluent
from moldau.spark.formats import Framing

_UNKNOWN_NAMES_MAX: Final = 100
_NAME_CHARACTERS_MAX: Final = 200
_FLOAT_MAX: Final = 3.4028234663852886e38
_PLAIN: Final[dict[Any, Any]] = {
    pa.bool_(): bool,
    pa.float32(): Annotated[float, Meta(ge=-_FLOAT_MAX, le=_FLOAT_MAX)],
    pa.float64(): float,
    pa.string(): str,
    pa.binary(): bytes,
    pa.date32(): dt.date,
    TIMESTAMP: dt.datetime,
    pa.timestamp("us"): Annotated[dt.datetime, Meta(tz=False)],
}
_WORDS: Final[dict[type, str]] = {dict: "an object", list: "an array", bool: "a boolean"}
_LONGS: Final = range(-(2**63), 2**63)
_INFER_HINT: Final = "give the schema: as DDL, as a JSON Schema or as a StructType"
_NO_JSON: Final = (msgspec.DecodeError, ValueError, RecursionError)


class JsonReader:
    """Reads values by a schema, and finds fields that are not in it."""

    def __init__(self, schema: Any) -> None:
        self.struct = schema
        self._decode = msgspec.json.Decoder(_checked(schema, "the value"), strict=True).decode
        self._known = _known(schema)

    def read(self, value: bytes, written: object = None) -> Any:
        """The fields of a value. JSON does not need the schema `written`."""
        try:
            return self._decode(value)
        except msgspec.ValidationError as error:
            raise BadRowError(f"does not match the schema: {error}") from None
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise BadRowError(f"not JSON: {error}") from None
        except RecursionError:
            raise BadRowError("nested too deeply") from None

    def unknown(self, values: Iterable[bytes | None]) -> Counter[str]:
        """Counts of fields that are not in the schema, of a limited number of names."""
        decode = msgspec.json.Decoder().decode
        found: Counter[str] = Counter()
        for value in values:
            try:
                names = [] if value is None else [*_unknown_names(decode(value), self._known, "")]
            except _NO_JSON:
                continue  # Reported as a bad row.
            for name in names:
                if name in found or len(found) < _UNKNOWN_NAMES_MAX:
                    found[name[:_NAME_CHARACTERS_MAX]] += 1
        return found


def _checked(kind: Any, where: str) -> Any:
    """The type for msgspec's decoder."""
    if pa.types.is_signed_integer(kind):
        half = 1 << (kind.bit_width - 1)
        return Annotated[int, Meta(ge=-half, le=half - 1)]
    if pa.types.is_decimal(kind):
        return decimal.Decimal
    if pa.types.is_list(kind):
        inner = _checked(kind.value_type, where)
        return list[inner | None] if kind.value_field.nullable else list[inner]  # type: ignore[valid-type]
    if pa.types.is_map(kind):
        if kind.key_type != pa.string():
            raise InvalidArgumentError(
                f"the schema has a map at {where} whose keys are not strings, as JSON requires"
            )
        inner = _checked(kind.item_type, where)
        return dict[str, inner | None] if kind.item_field.nullable else dict[str, inner]  # type: ignore[valid-type]
    if kind in _PLAIN:
        return _PLAIN[kind]
    if not pa.types.is_struct(kind):
        raise InvalidArgumentError(f"the schema has {kind} at {where}, which is not supported")
    inside: dict[str, Any] = {}
    for field in kind:
        inner = _checked(field.type, field.name)
        inside[field.name] = NotRequired[inner | None] if field.nullable else Required[inner]
    # Built at run time: only the functional form can do that.
    return TypedDict("Object", inside)  # type: ignore[operator]


def _known(kind: Any) -> Any:
    """Known field names as nested dicts; a list has [element], a map (value,), others None."""
    if pa.types.is_struct(kind):
        return {field.name: _known(field.type) for field in kind}
    if pa.types.is_list(kind):
        inner = _known(kind.value_type)
        return None if inner is None else [inner]
    if pa.types.is_map(kind):
        inner = _known(kind.item_type)
        return None if inner is None else (inner,)
    return None


def _unknown_names(found: Any, known: Any, where: str) -> Iterator[str]:
    """Paths of fields that are not in the schema."""
    if isinstance(known, list) and isinstance(found, list):
        for item in found:
            yield from _unknown_names(item, known[0], f"{where}[]")
    elif isinstance(known, tuple) and isinstance(found, dict):
        for item in found.values():
            yield from _unknown_names(item, known[0], f"{where}{{}}")
    elif isinstance(known, dict) and isinstance(found, dict):
        for name in found:
            if name not in known:
                yield f"{where}.{name}" if where else name
            elif (inner := known[name]) is not None:
                yield from _unknown_names(found[name], inner, f"{where}.{name}" if where else name)


def infer_json(values: Iterable[bytes | None], *, framing: str = Framing.NONE) -> Any:
    """The schema of a sample. Ignores values that are null or not JSON objects.

    Integers become bigint, other numbers double, texts string (a sample cannot show whether a text
    is always a timestamp). All fields are nullable. A field with two types is an error.
    """
    found = []
    for value in values:
        try:
            body = split_confluent(value)[1] if value and framing == Framing.CONFLUENT else value
            found.append(msgspec.json.decode(body or b""))
        except _NO_JSON:
            continue
    try:
        kind = _inferred([value for value in found if isinstance(value, dict)], "")
    except RecursionError:
        raise InvalidArgumentError(
            "cannot infer the schema: values are nested too deeply", hint=_INFER_HINT
        ) from None
    if not pa.types.is_struct(kind):
        raise InvalidArgumentError(
            "cannot infer the schema: no value of the sample is a JSON object with fields",
            hint=_INFER_HINT,
        )
    return kind


def _inferred(values: list[Any], where: str) -> Any:
    """The common type of the values at a path."""
    values = [value for value in values if value is not None]
    classes = {type(value) for value in values}
    if classes == {dict}:
        names = dict.fromkeys(name for value in values for name in value)
        fields = []
        for name in names:
            at = f"{where}.{name}" if where else name
            fields.append(pa.field(name, _inferred([value.get(name) for value in values], at)))
        # Objects that are always empty may have any fields later.
        return struct_of(fields, f"in {where}" if where else "") if fields else MAP_OF_STRINGS
    if classes == {list}:
        return list_of(_inferred([item for value in values for item in value], f"{where}[]"))
    if classes == {int} and all(value in _LONGS for value in values):
        return pa.int64()
    if classes and classes <= {int, float}:
        return pa.float64()
    if len(classes) > 1:
        one, other, *_ = sorted(
            {_WORDS.get(each, "a string" if each is str else "a number") for each in classes}
        )
        raise InvalidArgumentError(
            f"cannot infer the schema: {where} is {one} in some rows and {other} in others",
            hint=_INFER_HINT,
        )
    return pa.bool_() if classes == {bool} else pa.string()
