"""The terms of a filter: a field, an operator and a literal, evaluated on one message.

The field decides how it is compared. Partition and offset are numbers, timestamp is a time. Key,
value, topic and headers are text; `<` and `>` compare them as numbers if both sides are numbers. A
JSON path is compared by the type of the literal; a JSON string never equals a number. A missing
field equals only null. `!=` is exactly `not =`, `!~` exactly `not ~`.
"""

import json
import operator
import re
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

PATTERN_CHARACTERS_MAX: Final = 500
SEARCHED_CHARACTERS_MAX: Final = 1 << 20
"""A pattern searches only this much of a text."""

_NUMBER: Final = re.compile(r"-?[0-9]{1,40}(?:\.[0-9]{1,40})?(?:[eE][+-]?[0-9]{1,3})?")
_INTEGER: Final = re.compile(r"-?[0-9]{1,19}")
_WORDS: Final = {"true": True, "false": False, "null": None}
_ORDERS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_NUMERIC: Final = ("partition", "offset", "timestamp")
_ALWAYS_PRESENT: Final = ("topic", *_NUMERIC)


class Field(NamedTuple):
    """A field; `path` is a path into the JSON, or the header's name."""

    name: str
    path: tuple[str | int, ...]


class Literal(NamedTuple):
    """The value to compare with."""

    text: str
    is_quoted: bool

    @property
    def is_null(self) -> bool:
        return not self.is_quoted and self.text == "null"

    @property
    def number(self) -> int | float | None:
        return None if self.is_quoted else _number(self.text)


class BadTermError(Exception):
    """An invalid term; `about` is field, operator or literal."""

    def __init__(self, about: str, why: str) -> None:
        super().__init__(why)
        self.about = about


class _Missing:
    """The JSON has no such field, or the value is not JSON."""


MISSING: Final = _Missing()


class FilteredMessage:
    """A message, with its JSON once it was parsed."""

    def __init__(self, message: Any) -> None:
        self.message = message
        self._document: object = None
        self._is_parsed = False

    def texts(self, field: Field) -> Iterable[bytes | None]:
        """The bytes of a field; for a header, of all with its name."""
        match field.name:
            case "key":
                return (_bytes(self.message.key()),)
            case "value":
                return (_bytes(self.message.value()),)
            case "topic":
                return (_bytes(self.message.topic()),)
            case _:
                name = field.path[0]
                found = self.message.headers() or ()
                return [_bytes(value) for key, value in found if key == name] or (None,)

    def number(self, field: Field) -> int:
        match field.name:
            case "partition":
                return int(self.message.partition())
            case "offset":
                return int(self.message.offset())
            case _:
                return int(self.message.timestamp()[1])

    def json(self, path: tuple[str | int, ...]) -> object:
        """The JSON at a path of the value, or MISSING."""
        if not self._is_parsed:
            self._is_parsed = True
            self._document = _parse_json(self.message.value())
        found = self._document
        for step in path:
            if isinstance(found, dict) and isinstance(step, str):
                found = found.get(step, MISSING)
            elif isinstance(found, list) and isinstance(step, int):
                found = found[step] if -len(found) <= step < len(found) else MISSING
            else:
                return MISSING
        return found


class Predicate(Protocol):
    """A condition on a message."""

    def matches(self, message: FilteredMessage) -> bool: ...


@dataclass(frozen=True, slots=True)
class Both:
    parts: tuple[Predicate, ...]

    def matches(self, message: FilteredMessage) -> bool:
        return all(part.matches(message) for part in self.parts)


@dataclass(frozen=True, slots=True)
class Either:
    parts: tuple[Predicate, ...]

    def matches(self, message: FilteredMessage) -> bool:
        return any(part.matches(message) for part in self.parts)


@dataclass(frozen=True, slots=True)
class Not:
    part: Predicate

    def matches(self, message: FilteredMessage) -> bool:
        return not self.part.matches(message)


@dataclass(frozen=True, slots=True)
class Contains:
    """--grep: the text is in the key, the value or a header."""

    text: bytes

    def matches(self, message: FilteredMessage) -> bool:
        raw = message.message
        parts = [raw.key(), raw.value(), *(value for _, value in raw.headers() or ())]
        return any(self.text in (_bytes(part) or b"") for part in parts)


@dataclass(frozen=True, slots=True)
class _NumberTerm:
    field: Field
    compare: Callable[[Any, Any], bool]
    wanted: int

    def matches(self, message: FilteredMessage) -> bool:
        return self.compare(message.number(self.field), self.wanted)


@dataclass(frozen=True, slots=True)
class _TextTerm:
    """Matches if one of several headers with the same name does."""

    field: Field
    test: Callable[[bytes | None], bool]

    def matches(self, message: FilteredMessage) -> bool:
        return any(self.test(text) for text in message.texts(self.field))


@dataclass(frozen=True, slots=True)
class _JsonTerm:
    path: tuple[str | int, ...]
    test: Callable[[object], bool]

    def matches(self, message: FilteredMessage) -> bool:
        return self.test(message.json(self.path))


@dataclass(frozen=True, slots=True)
class _Pattern:
    """A regular expression, searched anywhere in the text."""

    pattern: re.Pattern[str]

    def text(self, text: bytes | None) -> bool:
        return text is not None and self.json(text.decode(errors="replace"))

    def json(self, found: object) -> bool:
        return (
            isinstance(found, str)
            and self.pattern.search(found, 0, SEARCHED_CHARACTERS_MAX) is not None
        )


def make_presence(field: Field) -> Predicate:
    """A field alone; raises BadTermError for one that is always present."""
    if field.name in _ALWAYS_PRESENT:
        raise BadTermError("operator", f"expected an operator: {field.name} is always present")
    if field.name == "json":
        return _JsonTerm(field.path, _is_present)
    return _TextTerm(field, lambda text: text is not None)


def _is_present(found: object) -> bool:
    return found is not MISSING and found is not None and found is not False


def make_term(field: Field, sign: str, literal: Literal) -> Predicate:
    """A comparison; raises BadTermError."""
    if sign in ("!=", "!~"):
        return Not(make_term(field, sign.replace("!=", "=").replace("!~", "~"), literal))
    if field.name in _NUMERIC:
        return _number_term(field, sign, literal)
    if sign == "~":
        pattern = _Pattern(_compiled(literal))
        if field.name == "json":
            return _JsonTerm(field.path, pattern.json)
        return _TextTerm(field, pattern.text)
    if field.name == "json":
        return _JsonTerm(field.path, _json_test(sign, literal))
    return _TextTerm(field, _text_test(sign, literal))


def _number_term(field: Field, sign: str, literal: Literal) -> Predicate:
    if sign == "~":
        raise BadTermError("operator", f"{field.name} is a number: use = != < <= > or >=")
    wanted = int(literal.text) if _INTEGER.fullmatch(literal.text) else None
    if wanted is None and field.name == "timestamp":
        from moldau.cli.start_position import parse_position

        position = parse_position("@" + literal.text.removeprefix("@"))
        wanted = position.time_ms if position is not None else None
        if wanted is None:
            raise BadTermError("literal", "expected milliseconds, @2026-11-15T08:00 or @-10m")
    if wanted is None:
        raise BadTermError("literal", f"{field.name} must be an integer, not {literal.text!r}")
    return _NumberTerm(field, _ORDERS.get(sign, operator.eq), wanted)


def _text_test(sign: str, literal: Literal) -> Callable[[bytes | None], bool]:
    if sign not in _ORDERS:
        wanted = None if literal.is_null else literal.text.encode(errors="surrogateescape")
        return lambda text: text == wanted
    compare, number = _ORDERS[sign], literal.number
    if number is None:
        least = literal.text.encode(errors="surrogateescape")
        return lambda text: text is not None and compare(text, least)

    def in_order(text: bytes | None) -> bool:
        found = _number(text.decode(errors="replace")) if text is not None else None
        return found is not None and compare(found, number)

    return in_order


def _json_test(sign: str, literal: Literal) -> Callable[[object], bool]:
    if sign not in _ORDERS and literal.is_null:
        return lambda found: found is MISSING or found is None
    wanted: object = literal.text
    if not literal.is_quoted:
        wanted = _WORDS.get(literal.text, literal.text)
        wanted = literal.number if literal.number is not None else wanted
    compare: Callable[[Any, Any], bool] = _ORDERS.get(sign, operator.eq)
    kinds: tuple[type, ...] = (int, float)
    if isinstance(wanted, bool | str):
        kinds = (type(wanted),)
    if sign in _ORDERS and (wanted is None or isinstance(wanted, bool)):
        raise BadTermError("literal", f"{literal.text} cannot be compared with {sign}")

    def compared(found: object) -> bool:
        # In Python true is 1; in JSON it is not.
        is_kind = isinstance(found, kinds) and isinstance(found, bool) == (kinds == (bool,))
        return is_kind and compare(found, wanted)

    return compared


def _compiled(literal: Literal) -> re.Pattern[str]:
    if len(literal.text) > PATTERN_CHARACTERS_MAX:
        raise BadTermError(
            "literal", f"the pattern is longer than {PATTERN_CHARACTERS_MAX} characters"
        )
    try:
        with warnings.catch_warnings():
            # FutureWarnings about the pattern do not help the user.
            warnings.simplefilter("ignore")
            return re.compile(literal.text)
    except (re.error, OverflowError, RecursionError) as error:
        raise BadTermError("literal", f"invalid regular expression: {error}") from error


def _number(text: str) -> int | float | None:
    text = text.strip() if len(text) <= 100 else ""
    if not _NUMBER.fullmatch(text):
        return None
    return int(text) if text.lstrip("-").isdigit() else float(text)


def _parse_json(value: bytes | str | None) -> object:
    if value is None:
        return MISSING
    try:
        document: object = json.loads(value)
    except (ValueError, RecursionError):
        return MISSING
    return document


def _bytes(data: bytes | str | None) -> bytes | None:
    return data.encode(errors="surrogateescape") if isinstance(data, str) else data
