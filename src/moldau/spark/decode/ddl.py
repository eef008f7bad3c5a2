"""Owns schemas as Spark writes them: DDL text (`id bigint NOT NULL, at timestamp`), and its JSON.

Read without Spark, so that plans and checks need no Java. What Spark knows and rows of these
formats cannot hold (intervals, variants, collations) is refused by name.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

from moldau.client.errors import InvalidArgumentError
from moldau.spark.decode.column_types import (
    DECIMAL_PRECISION_MAX,
    SCALARS,
    Array,
    Decimal,
    Field,
    Map,
    Scalar,
    Struct,
    Type,
    struct_of,
)

_ALIASES: Final = {
    "byte": "tinyint",
    "short": "smallint",
    "integer": "int",
    "long": "bigint",
    "real": "float",
    "bool": "boolean",
    "text": "string",
    "timestamp_ltz": "timestamp",
}
_TOKEN: Final = re.compile(r"\s*(?:(`(?:[^`]|``)+`)|([\w.\-]+)|(.))", re.DOTALL)
_DECIMAL: Final = re.compile(r"decimal\((\d+),\s*(-?\d+)\)")


def parse_ddl(text: str) -> Struct:
    """The fields of a table: `a int, b struct<c: string NOT NULL>`; also `struct<…>` around it."""
    reader = _Reader(text)
    if reader.peek().lower() == "struct" and reader.peek(1) == "<":
        kind = reader.type()
        found = kind if isinstance(kind, Struct) else None
    else:
        found = reader.fields(end="")
    reader.expect("")
    if found is None:
        raise reader.wrong("a list of fields")
    return found


class _Reader:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = [match.group().strip() for match in _TOKEN.finditer(text)]
        self._tokens = [token for token in self._tokens if token]
        self._at = 0

    def peek(self, ahead: int = 0) -> str:
        place = self._at + ahead
        return self._tokens[place] if place < len(self._tokens) else ""

    def take(self) -> str:
        token = self.peek()
        self._at += 1
        return token

    def expect(self, wanted: str) -> None:
        if self.peek().upper() != wanted.upper():
            raise self.wrong(wanted or "the end")
        self._at += 1

    def wrong(self, wanted: str) -> InvalidArgumentError:
        found = self.peek() or "the end"
        return InvalidArgumentError(
            f"the schema is no DDL of Spark: {wanted} is expected where {found} is: {self._text}",
            hint="as in: id bigint NOT NULL, name string, tags array<string>",
        )

    def fields(self, *, end: str) -> Struct:
        found: list[Field] = []
        while self.peek() != end:
            if found:
                self.expect(",")
            found.append(self._field())
        return struct_of(found, "" if not end else f"in {self._text}")

    def _field(self) -> Field:
        name = self.take()
        if name.startswith("`"):
            name = name[1:-1].replace("``", "`")
        elif not re.fullmatch(r"[\w.\-]+", name):
            self._at -= 1
            raise self.wrong("the name of a field")
        if self.peek() == ":":
            self._at += 1
        kind = self.type()
        required = False
        if self.peek().upper() == "NOT":
            self._at += 1
            self.expect("NULL")
            required = True
        if self.peek().upper() == "COMMENT":
            self._comment()
        return Field(name, kind, required)

    def _comment(self) -> None:
        self._at += 1
        quote = self.take()
        while self.peek() != quote:
            if not self.take():
                raise self.wrong("the end of a comment")
        self._at += 1

    def type(self) -> Type:
        word = self.take().lower()
        name = _ALIASES.get(word, word)
        if name in ("array", "map", "struct"):
            self.expect("<")
            kind = self._nested(name)
            self.expect(">")
            return kind
        if name in ("decimal", "dec", "numeric"):
            return self._decimal()
        if name in ("varchar", "char") and self.peek() == "(":
            self._at += 3
            return Scalar("string")
        if name not in SCALARS:
            self._at -= 1
            raise self.wrong("a type")
        return Scalar(name)

    def _nested(self, name: str) -> Type:
        if name == "struct":
            return self.fields(end=">")
        first = self.type()
        if name == "array":
            return Array(first)
        self.expect(",")
        return Map(first, self.type())

    def _decimal(self) -> Type:
        precision, scale = 10, 0
        if self.peek() == "(":
            self._at += 1
            precision = self._number()
            if self.peek() == ",":
                self._at += 1
                scale = self._number()
            self.expect(")")
        return decimal_of(precision, scale)

    def _number(self) -> int:
        if not self.peek().isdecimal():
            raise self.wrong("a number")
        return int(self.take())


def decimal_of(precision: int, scale: int) -> Decimal:
    if not 0 < precision <= DECIMAL_PRECISION_MAX or not 0 <= scale <= precision:
        raise InvalidArgumentError(
            f"decimal({precision},{scale}) is none of Spark's: at most {DECIMAL_PRECISION_MAX} "
            "digits, and not more of them behind the point"
        )
    return Decimal(precision, scale)


def from_spark_json(found: Mapping[str, Any]) -> Struct:
    """What `StructType.jsonValue()` gives."""
    kind = _from_json(dict(found))
    if not isinstance(kind, Struct):
        raise InvalidArgumentError("the schema is no struct")
    return kind


def _from_json(found: Any) -> Type:
    if isinstance(found, str):
        name = _ALIASES.get(found, found)
        decimal = _DECIMAL.fullmatch(name)
        if decimal:
            return decimal_of(int(decimal[1]), int(decimal[2]))
        if name in SCALARS:
            return Scalar(name)
        raise InvalidArgumentError(f"the schema has a field of type {found}, which is not decoded")
    try:
        match found["type"]:
            case "struct":
                fields = [
                    Field(item["name"], _from_json(item["type"]), not item.get("nullable", True))
                    for item in found["fields"]
                ]
                return struct_of(fields, "")
            case "array":
                return Array(_from_json(found["elementType"]), not found.get("containsNull", True))
            case "map":
                return Map(
                    _from_json(found["keyType"]),
                    _from_json(found["valueType"]),
                    not found.get("valueContainsNull", True),
                )
            case other:
                raise InvalidArgumentError(f"the schema has a {other!r}, which is not decoded")
    except (KeyError, TypeError, AttributeError) as error:
        raise InvalidArgumentError(f"the schema is no JSON of Spark's: {error!r}") from None
