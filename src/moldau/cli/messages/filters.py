r"""Parses the language of --filter into a predicate on messages.

    either    = both {("or" | "||") both}
    both      = negated {("and" | "&&") negated}
    negated   = ("not" | "!") negated | "(" either ")" | term
    term      = field [operator literal]
    field     = key | value | topic | partition | offset | timestamp | header.NAME | .PATH
    PATH      = NAME {"." NAME | "[" NUMBER "]"}        into the value's JSON
    operator  = "=" | "==" | "!=" | "<" | "<=" | ">" | ">=" | "~" | "!~"
    literal   = number | true | false | null | word | "text" | 'text' | @TIME

A field alone matches if it is present. The text is parsed, never executed; its length, depth and
patterns are bounded. An error names the column. filter_terms.py defines the operators.
"""

import re
from typing import Final, NamedTuple

from moldau.cli.errors import CommandError, ExitCode
from moldau.cli.messages.filter_terms import (
    BadTermError,
    Both,
    Either,
    Field,
    Literal,
    Not,
    Predicate,
    make_presence,
    make_term,
)
from moldau.cli.output import printable

FILTER_CHARACTERS_MAX: Final = 4096
DEPTH_MAX: Final = 50

_FIELDS: Final = ("key", "value", "topic", "partition", "offset", "timestamp")
_SHOWN_CHARACTERS: Final = 70
"""Of a long filter, around the error."""

_TOKEN: Final = re.compile(
    r"""
      (?P<space>\s+)
    | (?P<operator>==|!=|!~|<=|>=|=|<|>|~)
    | (?P<logic>&&|\|\||!|\(|\))
    | (?P<quoted>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')
    | (?P<word>[^\s()=!<>~"'&|\\]+)
    """,
    re.VERBOSE | re.DOTALL,
)
# A value without quotes: a number, a date, an address.
_BARE: Final = re.compile(r"(?![\"'])(?:(?!&&|\|\|)[^\s()])+")
_HEADER: Final = re.compile(r"[^\s()=!<>~\"'&|\\]+")
_NAME: Final = re.compile(r"[^\s()=!<>~\"'&|\\.\[\]]+")
_INDEX: Final = re.compile(r"\[(-?\d{1,9})\]")
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "0": "\0"}


class FilterError(CommandError):
    """A syntax error in a filter, with its column."""

    def __init__(self, text: str, at: int, why: str) -> None:
        self.column = at + 1
        # The caret is printed below the text, which follows "hint:  ".
        first = max(0, min(at - _SHOWN_CHARACTERS // 2, len(text) - _SHOWN_CHARACTERS))
        shown = printable(text[first : first + _SHOWN_CHARACTERS])
        super().__init__(
            f"--filter, column {self.column}: {why}",
            hint=f"{shown}\n{'':7}{'':{at - first}}^",
            code=ExitCode.USAGE,
        )


def parse_filter(text: str) -> Predicate:
    """The predicate; raises FilterError."""
    if len(text) > FILTER_CHARACTERS_MAX:
        raise FilterError(
            text, FILTER_CHARACTERS_MAX, f"longer than {FILTER_CHARACTERS_MAX} characters"
        )
    return _Parser(text).whole()


class _Token(NamedTuple):
    kind: str
    text: str
    at: int


_END: Final = "end"


class _Parser:
    """Recursive descent; `_at` is the start of the next token."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._depth = 0

    def whole(self) -> Predicate:
        found = self._either()
        token = self._peek()
        if token.kind != _END:
            raise self._bad(token, f"expected 'and', 'or' or the end, not {token.text!r}")
        return found

    def _either(self) -> Predicate:
        parts = [self._both()]
        while self._take("or", "||"):
            parts.append(self._both())
        return parts[0] if len(parts) == 1 else Either(tuple(parts))

    def _both(self) -> Predicate:
        parts = [self._negated()]
        while self._take("and", "&&"):
            parts.append(self._negated())
        return parts[0] if len(parts) == 1 else Both(tuple(parts))

    def _negated(self) -> Predicate:
        opened = self._peek()
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise self._bad(opened, f"nested deeper than {DEPTH_MAX}")
        try:
            if self._take("not", "!"):
                return Not(self._negated())
            if not self._take("("):
                return self._term()
            inner = self._either()
            if not self._take(")"):
                raise self._bad(self._peek(), f"expected ')' for the '(' in column {opened.at + 1}")
            return inner
        finally:
            self._depth -= 1

    def _term(self) -> Predicate:
        self._skip_space()
        field_at = literal_at = self._at
        field, literal = self._field(), None
        operator = self._peek()
        if operator.kind == "operator":
            self._at = operator.at + len(operator.text)
            self._skip_space()
            literal_at = self._at
            literal = self._literal(operator.text)
        try:
            return make_term(field, operator.text, literal) if literal else make_presence(field)
        except BadTermError as error:
            at = {"field": field_at, "operator": operator.at}.get(error.about, literal_at)
            raise FilterError(self._text, at, str(error)) from error

    def _field(self) -> Field:
        token = self._peek()
        known = f"one of {', '.join(_FIELDS)}, header.NAME or .PATH"
        if token.kind == _END:
            raise self._bad(token, f"expected {known}")
        if token.kind != "word":
            raise self._bad(token, f"expected {known}, not {token.text!r}")
        if token.text.startswith("."):
            return Field("json", self._path(token.at))
        if token.text.startswith("header."):
            self._at = token.at + len("header.")
            return Field("header", (self._header_name(),))
        if token.text not in _FIELDS:
            raise self._bad(token, f"unknown field {token.text!r}; expected {known}")
        self._at = token.at + len(token.text)
        return Field(token.text, ())

    def _header_name(self) -> str:
        """A header's name may contain dots, and in quotes anything."""
        if self._at < len(self._text) and self._text[self._at] in "\"'":
            return self._quoted()
        match = _HEADER.match(self._text, self._at)
        if match is None:
            raise FilterError(self._text, self._at, "expected the name of a header")
        self._at = match.end()
        return match[0]

    def _path(self, at: int) -> tuple[str | int, ...]:
        steps: list[str | int] = []
        self._at = at
        while self._at < len(self._text) and self._text[self._at] in ".[":
            if self._text[self._at] == "[":
                match = _INDEX.match(self._text, self._at)
                if match is None:
                    raise FilterError(self._text, self._at, "expected [NUMBER]")
                steps.append(int(match[1]))
                self._at = match.end()
                continue
            self._at += 1
            if self._at < len(self._text) and self._text[self._at] in "\"'":
                steps.append(self._quoted())
            elif match := _NAME.match(self._text, self._at):
                steps.append(match[0])
                self._at = match.end()
            elif steps or not self._text.startswith("[", self._at):
                raise FilterError(self._text, self._at, "expected a name after the dot")
        return tuple(steps)

    def _literal(self, operator: str) -> Literal:
        if self._at >= len(self._text):
            raise FilterError(self._text, self._at, f"expected a value after {operator}")
        if self._text[self._at] in "\"'":
            return Literal(self._quoted(), is_quoted=True)
        match = _BARE.match(self._text, self._at)
        if match is None:
            raise FilterError(
                self._text, self._at, f"expected a value after {operator}, with brackets in quotes"
            )
        self._at = match.end()
        return Literal(match[0], is_quoted=False)

    def _quoted(self) -> str:
        """The quoted text that starts here. A backslash is kept unless n, t, r, 0, the quote or a
        backslash follows, so that patterns need not double it."""
        quote, start = self._text[self._at], self._at
        parts: list[str] = []
        at = start + 1
        while at < len(self._text):
            character = self._text[at]
            if character == quote:
                self._at = at + 1
                return "".join(parts)
            if character == "\\" and at + 1 < len(self._text):
                at += 1
                after = self._text[at]
                parts.append(after if after in (quote, "\\") else _ESCAPES.get(after, "\\" + after))
            else:
                parts.append(character)
            at += 1
        raise FilterError(self._text, start, f"the {quote} is not closed")

    def _skip_space(self) -> None:
        while self._at < len(self._text) and self._text[self._at].isspace():
            self._at += 1

    def _peek(self) -> _Token:
        self._skip_space()
        match = _TOKEN.match(self._text, self._at)
        if match is None or match.lastgroup is None:
            return _Token(
                "other" if self._at < len(self._text) else _END,
                self._text[self._at : self._at + 1],
                self._at,
            )
        return _Token(match.lastgroup, match[0], self._at)

    def _take(self, *words: str) -> bool:
        token = self._peek()
        if token.kind == "quoted" or token.text not in words:
            return False
        self._at = token.at + len(token.text)
        return True

    def _bad(self, token: _Token, why: str) -> FilterError:
        return FilterError(self._text, token.at, why)
