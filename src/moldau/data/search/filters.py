"""Which messages a search is for.

A filter also names bytes that every match contains. A batch without them holds no match, so that
nearly all of a log is only searched for a few bytes.
"""

import re
from typing import Any, Final

import msgspec
from msgspec import Struct

from moldau.records.record import Record

_INTEGER: Final = re.compile(r"-?(0|[1-9][0-9]*)")
_NUMBER: Final = re.compile(r"-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_DIGITS_MAX: Final = 40
"""Of a number that is compared; Python refuses to parse very long ones."""
_STEP: Final = re.compile(
    r"""\[(?P<index>[0-9]{1,9})\]|(?P<dot>\.?)(?:(?P<name>[^\s()=!<>~"'&|\\.\[\]]+)|(?P<quoted>"(?:[^"\\]|\\.)+"))"""
)
"""Of a path. Other names are quoted: mostly they are not meant as a path."""
_PLAIN: Final = re.compile(r'[^"\\/\x00-\x1f\x7f-\U0010ffff]+')
"""Text that JSON holds as it is, or by \\u escapes."""
JSON_BYTES_MAX: Final = 1024 * 1024
"""Larger values are not decoded: meanwhile nothing else of the broker runs."""
_decode_json: Final = msgspec.json.Decoder().decode
_MISSING: Final = object()


class JsonTooLargeError(Exception):
    """Whether a message matches is not known."""


class JsonTerm(Struct, frozen=True, array_like=True):
    """The value at a path, of JSON in the value of a message."""

    path: list[str]
    equals: str | None
    """None: it exists."""

    @classmethod
    def parse(cls, text: str) -> "JsonTerm | None":
        """`a.b[0]."odd name"=value`, or a path alone. None if it begins with no path."""
        parts: list[str] = []
        at = 0
        while at < len(text) and not (parts and text[at] == "="):
            step = _STEP.match(text, at)
            if step is None:
                return None
            index, dot, name, quoted = step.group("index", "dot", "name", "quoted")
            if index is None and parts and not dot:
                return None
            found = index or name or _unquoted(quoted)
            if not found:
                return None
            parts.append(found)
            at = step.end()
        return cls(parts, text[at + 1 :] if at < len(text) else None) if parts else None

    def matches(self, document: object) -> bool:
        found = document
        for part in self.path:
            if isinstance(found, dict):
                found = found.get(part, _MISSING)
            elif isinstance(found, list) and part.isascii() and part.isdigit() and len(part) < 10:
                index = int(part)
                found = found[index] if index < len(found) else _MISSING
            else:
                return False
            if found is _MISSING:
                return False
        return self.equals is None or _equals(found, self.equals)

    def needle(self) -> bytes:
        """Bytes that every match without \\u escapes contains; empty if there are none for sure."""
        text = self.equals
        if text is not None and (
            _INTEGER.fullmatch(text) or (_PLAIN.fullmatch(text) and not _NUMBER.fullmatch(text))
        ):
            return ("0" if text == "-0" else text).encode()
        names = [part for part in self.path if not part.isdigit() and _PLAIN.fullmatch(part)]
        return max((name.encode() for name in names), key=len, default=b"")


def _unquoted(text: str) -> str | None:
    try:
        found = _decode_json(text)
    except (msgspec.DecodeError, UnicodeEncodeError):
        return None
    return found if isinstance(found, str) else None


def _equals(found: Any, text: str) -> bool:
    """Integers exactly. A number with a point or an exponent equals integers, too."""
    if isinstance(found, str):
        return found == text
    if found is None or isinstance(found, bool):
        return text == ("null" if found is None else "true" if found else "false")
    if isinstance(found, int):
        if _INTEGER.fullmatch(text):
            return len(text) <= _DIGITS_MAX and found == int(text)
        return bool(_NUMBER.fullmatch(text)) and found == float(text)
    if isinstance(found, float):
        if _INTEGER.fullmatch(text):
            return False
        return bool(_NUMBER.fullmatch(text)) and found == float(text)
    return False


class SearchFilter(Struct, frozen=True, array_like=True):
    """All that is given must match."""

    key: bytes | None = None
    contains: bytes | None = None
    """In the value."""
    headers: list[tuple[bytes, bytes | None]] = []
    """Name and value; None: any value."""
    json: list[JsonTerm] = []
    markers: bool = False
    """Also the markers that end transactions, if nothing else is asked for."""

    @property
    def is_empty(self) -> bool:
        return self.key is None and self.contains is None and not self.headers and not self.json

    @property
    def shows_markers(self) -> bool:
        return self.markers and self.is_empty


class Matcher:
    """A filter, prepared for many batches."""

    def __init__(self, wanted: SearchFilter) -> None:
        self.wanted = wanted
        self._key, self._contains = wanted.key, wanted.contains
        self._headers = [
            (name.decode("utf-8", "surrogateescape"), value) for name, value in wanted.headers
        ]
        needles = {wanted.key or b"", wanted.contains or b""}
        for name, value in wanted.headers:
            needles |= {name, value or b""}
        self._needles = sorted(filter(None, needles), key=len, reverse=True)
        of_json = {term.needle() for term in wanted.json} - {b""}
        self._json_needles = sorted(of_json, key=len, reverse=True)

    def needle_in(self, body: bytes) -> bytes | None:
        """What each match in this body contains; None: there is no match."""
        for needle in self._needles:
            if needle not in body:
                return None
        first = self._needles[0] if self._needles else b""
        # This escape may spell anything; the others only what is not in a needle.
        if self._json_needles and b"\\u" not in body:
            for needle in self._json_needles:
                if needle not in body:
                    return None
            first = first or self._json_needles[0]
        return first

    def matches(self, record: Record) -> bool:
        """Raises JsonTooLargeError."""
        value = record.value
        if self._key is not None and record.key != self._key:
            return False
        if self._contains is not None and (value is None or self._contains not in value):
            return False
        for wanted, content in self._headers:
            if not any(
                name == wanted and (content is None or given == content)
                for name, given in record.headers
            ):
                return False
        return not self.wanted.json or self._matches_json(value)

    def _matches_json(self, value: bytes | None) -> bool:
        if value is None:
            return False
        if len(value) > JSON_BYTES_MAX:
            if b"\\u" not in value and any(one not in value for one in self._json_needles):
                return False
            raise JsonTooLargeError(
                f"the value has {len(value)} bytes; JSON is searched up to {JSON_BYTES_MAX} bytes"
            )
        try:
            document = _decode_json(value)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return False
        return all(term.matches(document) for term in self.wanted.json)
