r"""Responsible for `subscribePattern`, a regular expression of Java, as one of Python's.

What both read alike is taken; `\Q…\E`, `\p{Alpha}` and their like, `\z` and named groups are
translated. All else is refused: a pattern that means something else would read other topics. Names
of topics are ASCII, and Java's classes are, too, unless told otherwise.
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
    """The same for `re`, to be matched as a whole. InvalidArgumentError if there is none."""
    begun = re.match(r"\(\?i\)", text)
    flags, at = ("ai", begun.end()) if begun else ("a", 0)
    parts = [f"(?{flags})"]
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None or (found[0] == "(" and text.startswith("(?", at)):
            raise _failure(option, f"{text[at : at + 6]!r} is nothing that Python reads alike")
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
                raise _failure(option, f"{found[0]} is not known here")
            return f"[{_PROPERTIES[found['property']]}]"
        case "end":
            return r"\Z"
        case "name":
            return f"(?P<{found['name']}>"
        case _:
            return found[0]


def _failure(option: str, why: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"option {option} is no regular expression that can be used here: {why}",
        hint="name the topics instead: option subscribe",
    )
