r"""Translates `subscribePattern`, a Java regular expression, to Python's `re`.

Syntax with the same meaning in both is kept; `\Q…\E`, `\p{Alpha}` and the like, `\z` and named
groups are translated. All else is rejected: a pattern with another meaning would read other
topics. Topic names are ASCII, and so are Java's character classes by default.
"""

import re
from typing import Final

from moldau.client.errors import InvalidArgumentError

_PROPERTIES: Final = {
    "Lower": "a-z",
    "Upper": "A-Z",
    "Alpha": "a-zA-Z",
    "Digit": "0-9",
    "Alnum": "a-zA-Z0-9",
    "L": "a-zA-Z",
    "N": "0-9",
}
_TOKEN: Final = re.compile(
    r"""
      \\Q(?P<quoted>.*?)(?:\\E|$)
    | \\p\{(?P<property>\w+)\}
    | (?P<end>\\z)
    | \(\?<(?P<name>[a-zA-Z][a-zA-Z0-9]*)>
    | (?P<same>
        \(\?(?:[:=!>]|<[=!]|i:)
      | [\w\-.,:;=@%!~<>/"'`&\ ^$|()*+?]
      | \\[.\-\\*+?()\[\]{}|^$/_&dwsDWSbBA]
      | \{\d+(?:,\d*)?\}
      | \[\^?(?:[\w.\-,:;=@%/]|\\[.\-\\dws\[\]^])+\]
      )
    """,
    re.VERBOSE | re.ASCII | re.DOTALL,
)


def python_pattern(text: str, option: str) -> str:
    """The pattern for `re.fullmatch`. Raises InvalidArgumentError if it cannot be translated."""
    begun = re.match(r"\(\?i\)", text)
    flags, at = ("ai", begun.end()) if begun else ("a", 0)
    parts = [f"(?{flags})"]
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None or (found[0] == "(" and text.startswith("(?", at)):
            raise _failure(option, f"{text[at : at + 6]!r} has no equivalent in Python")
        parts.append(_translated(found, option))
        at = found.end()
    translated = "".join(parts)
    try:
        re.compile(translated)
    except (re.error, OverflowError, RecursionError) as error:
        raise _failure(option, str(getattr(error, "msg", error))) from None
    return translated


def _translated(found: re.Match[str], option: str) -> str:
    match found.lastgroup:
        case "quoted":
            return re.escape(found["quoted"])
        case "property":
            if found["property"] not in _PROPERTIES:
                raise _failure(option, f"{found[0]} is not supported")
            return f"[{_PROPERTIES[found['property']]}]"
        case "end":
            return r"\Z"
        case "name":
            return f"(?P<{found['name']}>"
        case _:
            return found[0]


def _failure(option: str, why: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"option {option} is not a supported regular expression: {why}",
        hint="list the topics instead: option subscribe",
    )
