r"""Owns the way from a regular expression of Java, as `subscribePattern` is one, to Python's.

What both write alike but mean differently is translated: `\Q…\E`, `\p{Alpha}`, `\z`, classes with
others inside (`[a-z&&[^x]]`). What cannot be is an error, since a pattern that means something else
would read other topics. Names of topics are ASCII, so classes are sets of its characters.
"""

import re
from typing import Final

from moldau.client.errors import InvalidArgumentError

_ALL: Final = frozenset(map(chr, range(128)))


def _where(test: str) -> frozenset[str]:
    return frozenset(re.findall(test, "".join(sorted(_ALL)), re.ASCII | re.DOTALL))


_LOWER, _UPPER, _DIGIT = _where("[a-z]"), _where("[A-Z]"), _where("[0-9]")
_LETTERS: Final = {"d": _DIGIT, "w": _where(r"\w"), "s": _where(r"\s")}
_CONTROL: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f", "a": "\a", "e": "\x1b"}
_PROPERTIES: Final = {
    **dict.fromkeys(("Lower", "Ll", "IsLowercase", "javaLowerCase"), _LOWER),
    **dict.fromkeys(("Upper", "Lu", "IsUppercase", "javaUpperCase"), _UPPER),
    **dict.fromkeys(("Alpha", "L", "IsL", "IsAlphabetic", "IsLatin"), _LOWER | _UPPER),
    **dict.fromkeys(("Digit", "N", "Nd", "IsDigit"), _DIGIT),
    "Alnum": _LOWER | _UPPER | _DIGIT,
    "XDigit": _where("[0-9a-fA-F]"),
    "ASCII": _ALL,
    "Punct": _where(r"[!-/:-@\[-`{-~]"),
    "Graph": _where("[!-~]"),
    "Print": _where("[ -~]"),
    "Blank": _where("[ \t]"),
    "Space": _LETTERS["s"],
    "Cntrl": _where("[\0-\x1f\x7f]"),
}
_QUANTIFIER: Final = re.compile(r"\{\d+(?:,\d*)?\}")
_GROUP: Final = re.compile(r"\(\?(?:[:=!>]|<[=!])")
_NAMED: Final = re.compile(r"\(\?<([a-zA-Z][a-zA-Z0-9]*)>")
_FLAGS: Final = re.compile(r"\(\?([imsduU]*)(?:-([imsduU]+))?([:)])")
_NUMBER: Final = re.compile(
    r"x\{([0-9a-fA-F]{1,6})\}|x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|0([0-3]?[0-7]{1,2})"
)


def python_pattern(text: str, option: str) -> str:
    """The same for `re`, to be matched as a whole. InvalidArgumentError if there is none."""
    translated = _Translation(text, option).pattern()
    try:
        re.compile(translated)
    except (re.error, OverflowError, RecursionError) as error:
        raise InvalidArgumentError(
            f"option {option} is no regular expression that can be used here: "
            f"{getattr(error, 'msg', error)}"
        ) from None
    return translated


class _Translation:
    """From left to right. Groups and quantifiers are the same in both, and stay as they are."""

    def __init__(self, text: str, option: str) -> None:
        self._text = text
        self._option = option
        self._at = 0
        self._folds = [False]
        """Whether letters stand for both cases, in each of the groups around."""

    def pattern(self) -> str:
        flags = "a"
        if (found := _FLAGS.match(self._text)) is not None and found[3] == ")" and not found[2]:
            flags += _kept(found[1])
            self._folds = ["i" in flags]
            self._at = found.end()
        parts = []
        while self._at < len(self._text):
            parts.append(self._next())
        return f"(?{flags})" + "".join(parts)

    def _next(self) -> str:
        letter = self._text[self._at]
        if letter == "\\":
            return self._escape()
        if letter == "[":
            return _class_of(self._class())
        if letter == "(":
            self._folds.append(self._folds[-1])
            if self._text.startswith("(?", self._at):
                return self._group()
        if letter == ")" and len(self._folds) > 1:
            self._folds.pop()
        if letter == "{":
            if (found := self._take(_QUANTIFIER)) is None:
                raise self._failure("{ without a number, which is a literal only as \\{")
            return found[0]
        self._at += 1
        # What Java reads as itself outside of classes.
        return re.escape(letter) if letter in "]}&~#- " else letter

    def _group(self) -> str:
        if (found := self._take(_GROUP)) is not None:
            return found[0]
        if (found := self._take(_NAMED)) is not None:
            return f"(?P<{found[1]}>"
        if (found := self._take(_FLAGS)) is not None and found[3] == ":":
            on, off = _kept(found[1]), _kept(found[2] or "")
            self._folds[-1] = "i" not in off and ("i" in on or self._folds[-1])
            return f"(?{on}{'-' if off else ''}{off}:"
        if found is not None:
            raise self._failure(
                f"{found[0]} after the beginning: write (?{found[1]}:…) around what follows"
            )
        raise self._failure(f"a group that begins with {self._text[self._at : self._at + 4]}")

    def _escape(self) -> str:
        """Outside of classes."""
        letter = self._text[self._at + 1 : self._at + 2]
        if letter in ("A", "b", "B", "Z", "z"):
            self._at += 2
            if letter == "b" and self._text[self._at : self._at + 1] == "{":
                raise self._failure("\\b{")
            return {"z": r"\Z"}.get(letter, "\\" + letter)
        if letter.isdecimal() and letter != "0":
            if self._text[self._at + 2 : self._at + 3].isdecimal():
                raise self._failure("a reference to a group by two digits")
            self._at += 2
            # What comes next may be a digit that was written otherwise.
            return f"(?:\\{letter})"
        if (found := self._take(re.compile(r"\\k<([a-zA-Z][a-zA-Z0-9]*)>"))) is not None:
            return f"(?P={found[1]})"
        if letter == "Q":
            return re.escape(self._quoted())
        found_set = self._set()
        return _class_of(found_set) if len(found_set) != 1 else re.escape(next(iter(found_set)))

    # -- sets of characters

    def _class(self) -> frozenset[str]:
        """From [ to its ], with all that stands inside."""
        self._at += 1
        negated = self._text[self._at : self._at + 1] == "^"
        self._at += negated
        both: frozenset[str] | None = None
        union: frozenset[str] = frozenset()
        begun = False
        while True:
            letter = self._text[self._at : self._at + 1]
            if not letter:
                raise self._failure("[ without ]")
            ends = letter == "]" and (begun or both is not None)
            if ends or self._text.startswith("&&", self._at):
                if not begun:
                    raise self._failure("&& with nothing beside it")
                self._at += 1 if ends else 2
                both = union if both is None else both & union
                union, begun = frozenset(), False
                if ends:
                    return _ALL - both if negated else both
                continue
            begun = True
            union |= self._class() if letter == "[" else self._folded(self._item())

    def _item(self) -> frozenset[str]:
        """A character, a range, or an escape with many."""
        if self._text.startswith("\\Q", self._at):
            return frozenset(self._quoted())
        first = self._set()
        after = self._text[self._at + 1 : self._at + 2]
        is_range = len(first) == 1 and self._text.startswith("-", self._at)
        if not is_range or after in ("]", "[", "") or self._text.startswith("-&&", self._at):
            return first
        self._at += 1
        last = self._set()
        (begin,) = first
        if len(last) != 1 or (end := next(iter(last))) < begin:
            raise self._failure(f"a range from {begin} that ends nowhere")
        return frozenset(map(chr, range(ord(begin), min(ord(end), 127) + 1))) | last

    def _set(self) -> frozenset[str]:
        """One character, or those that an escape stands for."""
        letter = self._text[self._at]
        self._at += 1
        if letter != "\\":
            return frozenset(letter)
        letter = self._text[self._at : self._at + 1]
        if not letter:
            raise self._failure("\\ at the end")
        if (found := self._take(_NUMBER)) is not None:
            digits = found[1] or found[2] or found[3]
            number = int(digits, 16) if digits else int(found[4], 8)
            if number > 0x10FFFF:
                raise self._failure(f"\\{found[0]}")
            return frozenset(chr(number))
        if letter in "pP":
            return self._property()
        self._at += 1
        if letter.lower() in _LETTERS:
            known = _LETTERS[letter.lower()]
            return known if letter.islower() else _ALL - known
        if letter in _CONTROL:
            return frozenset(_CONTROL[letter])
        if letter.isalnum():
            raise self._failure(f"\\{letter}")
        return frozenset(letter)

    def _property(self) -> frozenset[str]:
        found = self._take(re.compile(r"([pP])(?:\{(\^?\w+)\}|(\w))"))
        name = "" if found is None else found[2] or found[3]
        if found is None or name not in _PROPERTIES:
            raise self._failure(f"\\p{{{name}}}")
        known = self._folded(_PROPERTIES[name])
        return known if found[1] == "p" else _ALL - known

    def _folded(self, characters: frozenset[str]) -> frozenset[str]:
        """In both cases, if so asked: what is left out by ^ then is left out in both."""
        if not self._folds[-1]:
            return characters
        return characters | {letter.swapcase() for letter in characters & (_LOWER | _UPPER)}

    def _quoted(self) -> str:
        end = self._text.find("\\E", self._at)
        quoted = self._text[self._at + 2 : end if end >= 0 else None]
        self._at = end + 2 if end >= 0 else len(self._text)
        return quoted

    def _take(self, expression: re.Pattern[str]) -> re.Match[str] | None:
        found = expression.match(self._text, self._at)
        if found is not None:
            self._at = found.end()
        return found

    def _failure(self, what: str) -> InvalidArgumentError:
        return InvalidArgumentError(
            f"option {self._option} cannot be used: {what}, near character {self._at}",
            hint="name the topics instead: option subscribe",
        )


def _kept(flags: str) -> str:
    """Those that make a difference for names in ASCII."""
    return "".join(flag for flag in "ims" if flag in flags)


def _class_of(characters: frozenset[str]) -> str:
    if not characters:
        return "(?!)"
    return "[" + "".join(map(re.escape, sorted(characters))) + "]"
