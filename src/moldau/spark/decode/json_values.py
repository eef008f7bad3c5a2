"""Owns the decoding of JSON: strict, by a checker that is made of the schema once.

A value of another type than its field is no value of that schema: "1" is not a number, 1.0 no whole
one, 1 no text. Fields that the schema does not name are passed over, or make the row a bad one if
that is asked for. See docs/spark/decoding.md for the list.
"""

import datetime as dt
import decimal
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Annotated, Any, Final, NotRequired, Required, TypedDict

import msgspec
from msgspec import Meta

from moldau.client.errors import InvalidArgumentError
from moldau.spark.decode.column_types import (
    WHOLE_BITS,
    Array,
    Decimal,
    Map,
    Scalar,
    Struct,
    Type,
)
from moldau.spark.decode.framing import BadRowError

UNKNOWN_NAMES_MAX: Final = 100
_NAME_CHARACTERS_MAX: Final = 200
_FLOAT_MAX: Final = 3.4028234663852886e38
_PLAIN: Final[dict[str, Any]] = {
    "boolean": bool,
    "float": Annotated[float, Meta(ge=-_FLOAT_MAX, le=_FLOAT_MAX)],
    "double": float,
    "string": str,
    "binary": bytes,
    "date": dt.date,
    "timestamp": dt.datetime,
    "timestamp_ntz": Annotated[dt.datetime, Meta(tz=False)],
}


def json_reader(schema: Struct, *, only_known: bool) -> Callable[[bytes], dict[str, Any]]:
    """A function from a value to its fields; it raises BadRowError."""
    decode: Callable[[bytes], dict[str, Any]] = msgspec.json.Decoder(
        _checked(schema, "the value"), strict=True
    ).decode
    known = _names(schema) if only_known else None
    plain = msgspec.json.Decoder().decode

    def read(value: bytes) -> dict[str, Any]:
        try:
            found = decode(value)
            if known is not None:
                for name in _strange_names(plain(value), known, ""):
                    raise BadRowError(f"not of the schema: unknown field `{name}`")
        except msgspec.ValidationError as error:
            raise BadRowError(f"not of the schema: {error}") from None
        except UnicodeDecodeError as error:
            raise BadRowError(f"not JSON: {error}") from None
        except msgspec.DecodeError as error:
            raise BadRowError(f"not JSON: {error}") from None
        except RecursionError:
            raise BadRowError("not decoded: nested too deeply") from None
        return found

    return read


def _checked(kind: Type, where: str) -> Any:
    """The type that the checker takes."""
    match kind:
        case Scalar(name) if name in WHOLE_BITS:
            half = 1 << (WHOLE_BITS[name] - 1)
            return Annotated[int, Meta(ge=-half, le=half - 1)]
        case Scalar(name):
            return _PLAIN[name]
        case Decimal():
            return decimal.Decimal
        case Array(element, required):
            inner = _checked(element, where)
            return list[inner] if required else list[inner | None]  # type: ignore[valid-type]
        case Map(key, value, required):
            if key != Scalar("string"):
                raise InvalidArgumentError(
                    f"the schema has a map at {where} whose keys are no strings: JSON has no other"
                )
            inner = _checked(value, where)
            return dict[str, inner] if required else dict[str, inner | None]  # type: ignore[valid-type]
        case Struct(fields):
            inside: dict[str, Any] = {}
            for field in fields:
                inner = _checked(field.type, field.name)
                inside[field.name] = (
                    Required[inner] if field.required else NotRequired[inner | None]
                )
            # Made of text that a user wrote: the functional form is the only one there is.
            return TypedDict("Object", inside)  # type: ignore[operator]


Names = dict[str, Any]


def _names(kind: Type) -> Names | None:
    """Which fields there may be, and in them; None where there are none to check."""
    match kind:
        case Struct(fields):
            return {field.name: _names(field.type) for field in fields}
        case Array(element):
            inner = _names(element)
            return None if inner is None else {"[]": inner}
        case Map(_, value):
            inner = _names(value)
            return None if inner is None else {"{}": inner}
        case _:
            return None


def _strange_names(found: Any, known: Names, where: str) -> Iterator[str]:
    """Fields that the schema does not name, with the names of those around them."""
    if isinstance(found, list):
        for item in found:
            yield from _strange_names(item, known.get("[]", {}), f"{where}[]")
    elif isinstance(found, dict) and "{}" in known:
        for item in found.values():
            yield from _strange_names(item, known["{}"], f"{where}{{}}")
    elif isinstance(found, dict):
        for name, value in found.items():
            at = f"{where}.{name}" if where else name
            if name not in known:
                yield at
            elif known[name] is not None:
                yield from _strange_names(value, known[name], at)


def unknown_names(schema: Struct, values: Iterable[bytes | None]) -> Counter[str]:
    """How often there is a field that the schema does not name; of so many names at the most."""
    known = _names(schema) or {}
    decode = msgspec.json.Decoder().decode
    found: Counter[str] = Counter()
    for value in values:
        if value is None:
            continue
        try:
            names = list(_strange_names(decode(value), known, ""))
        except (msgspec.DecodeError, ValueError, RecursionError):
            # A bad row, which is told as one.
            continue
        for name in names:
            if name in found or len(found) < UNKNOWN_NAMES_MAX:
                found[name[:_NAME_CHARACTERS_MAX]] += 1
    return found
