"""Owns the schema of JSON that nobody has written down: found by looking at some values.

Whole numbers are bigint, others double, texts string (a time in a text stays a text: whether it is
one is not for a sample to say), objects structs. Nothing is required. A field that is of two types
has no type: that is an error which names it, not a guess that would make half of the rows bad.
"""

from collections.abc import Iterable
from typing import Any, Final

import msgspec

from moldau.client.errors import InvalidArgumentError
from moldau.spark.decode.column_types import (
    STRING,
    Array,
    Field,
    Map,
    Scalar,
    Struct,
    Type,
    struct_of,
)
from moldau.spark.decode.framing import Framing, split_confluent

_HINT: Final = "give the schema: as DDL, as a JSON Schema or as a StructType"
_LONG_MAX: Final = 2**63 - 1


class _Seen:
    """What is known of a place in the values so far."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.scalar: str | None = None
        self.fields: dict[str, _Seen] | None = None
        self.element: _Seen | None = None

    def add(self, value: Any) -> None:
        match value:
            case None:
                return
            case dict():
                self._be("object")
                self.fields = {} if self.fields is None else self.fields
                for name, inner in value.items():
                    if name not in self.fields:
                        self.fields[name] = _Seen(f"{self.where}.{name}" if self.where else name)
                    self.fields[name].add(inner)
            case list():
                self._be("array")
                self.element = self.element or _Seen(f"{self.where}[]")
                for inner in value:
                    self.element.add(inner)
            case bool():
                self._be("boolean")
            case int():
                self._be("bigint" if -_LONG_MAX - 1 <= value <= _LONG_MAX else "double")
            case float():
                self._be("double")
            case _:
                self._be("string")

    def _be(self, name: str) -> None:
        if self.scalar is None or {self.scalar, name} == {"bigint", "double"}:
            self.scalar = name if self.scalar is None else "double"
        elif self.scalar != name:
            raise InvalidArgumentError(
                f"the schema cannot be inferred: {self.where or 'the value'} is {self.scalar} in "
                f"some rows and {name} in others",
                hint=_HINT,
            )

    def type(self) -> Type:
        if self.fields is not None:
            # An object that was always empty may hold anything later on.
            return self._struct() if self.fields else Map(STRING, STRING)
        if self.element is not None:
            return Array(self.element.type())
        return Scalar(self.scalar or "string")

    def _struct(self) -> Struct:
        found = [Field(name, seen.type()) for name, seen in (self.fields or {}).items()]
        return struct_of(found, f"in {self.where}" if self.where else "")


def infer_json(values: Iterable[bytes | None], *, framing: str = Framing.NONE) -> Struct:
    """From a sample. Values that are null, or no JSON object, say nothing."""
    seen = _Seen("")
    for value in values:
        if value is None:
            continue
        try:
            body = split_confluent(value)[1] if framing == Framing.CONFLUENT else value
            found = msgspec.json.decode(body)
        except (msgspec.DecodeError, ValueError, RecursionError):
            continue
        if isinstance(found, dict):
            seen.add(found)
    kind = seen.type()
    if not isinstance(kind, Struct):
        raise InvalidArgumentError(
            "the schema cannot be inferred: no value of the sample is a JSON object with fields",
            hint=_HINT,
        )
    return kind
