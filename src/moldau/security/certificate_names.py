"""The user that a client certificate stands for: its subject, mapped by rules as Kafka has them.

The subject is text by RFC 4514, the most specific part first: `CN=alice,OU=Sales,C=DE`.
`RULE:pattern/replacement/` gives the replacement for subjects that match the whole pattern, with
`$1` for its first group; a final `L` or `U` changes to lower or upper case. `DEFAULT` gives the
subject itself. Rules are separated by commas, the first that matches wins; without a match there is
no user. Kafka's ssl.principal.mapping.rules are read as they are.
"""

import re
from functools import lru_cache
from typing import Final

from moldau.security.principal import Principal, authenticated_user
from moldau.security.sasl import AuthenticationError

RULES_LENGTH_MAX: Final = 4096
SUBJECT_LENGTH_MAX: Final = 256
"""Longer names are refused: patterns may take the square of it, or more, and the event loop
waits."""
_KNOWN_MAX: Final = 1024
"""Subjects whose names are remembered, those without one too: patterns run once for each."""
NO_USER: Final = "Authentication failed: the certificate is not of a known user"

_RULE: Final = re.compile(r"DEFAULT|RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?)", re.DOTALL)
_REFERENCE: Final = re.compile(r"\$(\d)|\\(.)", re.DOTALL)


class _Rule:
    def __init__(self, pattern: str, replacement: str, case: str) -> None:
        _check_pattern(pattern)
        try:
            self._pattern = re.compile(pattern)
        except (re.error, OverflowError, RecursionError) as error:
            raise ValueError(f"pattern {pattern!r} is invalid: {error}") from None
        for reference in _REFERENCE.finditer(replacement):
            if reference[1] and int(reference[1]) > self._pattern.groups:
                raise ValueError(f"pattern {pattern!r} has no group {reference[0]}")
        self._replacement = replacement
        self._case = case

    def apply(self, name: str) -> str | None:
        found = self._pattern.fullmatch(name)
        if found is None:
            return None
        text = _REFERENCE.sub(
            lambda reference: (
                (found[int(reference[1])] or "") if reference[1] else str(reference[2])
            ),
            self._replacement,
        )
        return {"L": text.lower(), "U": text.upper()}.get(self._case, text)


class CertificateNames:
    """Rules, compiled once."""

    def __init__(self, rules: str = "DEFAULT") -> None:
        """Raises ValueError for rules that cannot be used."""
        self._rules = _parse(rules)
        self._find = lru_cache(maxsize=_KNOWN_MAX)(self._apply_rules)

    def principal(self, subject: str) -> Principal:
        """Raises AuthenticationError."""
        name = self.name_of(subject)
        try:
            return authenticated_user(name)
        except ValueError as error:
            raise AuthenticationError(
                NO_USER, reason=f"a certificate of {subject!r}: {error}"
            ) from None

    def name_of(self, subject: str) -> str:
        """The name that the rules give, which is not yet known to be one of a user. Raises
        AuthenticationError."""
        if not 0 < len(subject) <= SUBJECT_LENGTH_MAX:
            raise AuthenticationError(
                NO_USER,
                reason=f"a certificate whose subject has {len(subject)} characters; 1 to "
                f"{SUBJECT_LENGTH_MAX} are possible",
            )
        found = self._find(subject)
        if found is None:
            raise AuthenticationError(NO_USER, reason=f"no rule for a certificate of {subject!r}")
        return found

    def _apply_rules(self, subject: str) -> str | None:
        for rule in self._rules:
            found = subject if rule is None else rule.apply(subject)
            if found is not None:
                return found
        return None


def _parse(rules: str) -> tuple[_Rule | None, ...]:
    """None stands for DEFAULT."""
    if len(rules) > RULES_LENGTH_MAX:
        raise ValueError(f"the rules have {len(rules)} characters, the limit is {RULES_LENGTH_MAX}")
    parsed: list[_Rule | None] = []
    position = 0
    text = rules.strip()
    while True:
        found = _RULE.match(text, position)
        if found is None:
            raise ValueError(
                f"{text[position : position + 40]!r} is not a valid rule: write DEFAULT, or "
                "RULE:pattern/replacement/ with L or U for the case"
            )
        is_default = found[0] == "DEFAULT"
        parsed.append(None if is_default else _Rule(found[1], found[2], found[3]))
        rest = text[found.end() :].lstrip()
        if not rest:
            return tuple(parsed)
        if not rest.startswith(","):
            raise ValueError(f"a comma is missing before {rest[:40]!r}")
        position = len(text) - len(rest[1:].lstrip())


def _check_pattern(pattern: str) -> None:
    """Refuse what can take exponential time: a repeated group with a repetition or an alternative
    in it. Raises ValueError.

    Python's patterns have no deadline. What is left is at worst a power of the subject's length,
    for subjects that the operator's own authority has signed.
    """
    nested = [False]
    """For each open group, whether it has a repetition or an alternative."""
    position = 0
    while position < len(pattern):
        character = pattern[position]
        if character == "\\":
            if pattern[position + 1 : position + 2].isdigit():
                raise ValueError(f"pattern {pattern!r} must not refer to its own groups")
            position += 1
        elif character == "[":
            position = _end_of_class(pattern, position)
        elif character == "(":
            if pattern.startswith("(?", position) and not pattern.startswith("(?:", position):
                raise ValueError(f"pattern {pattern!r} must not use (? except as (?:")
            nested.append(False)
            position += 2 if pattern.startswith("(?:", position) else 0
        elif character == ")" and len(nested) > 1:
            inner = nested.pop()
            if inner and pattern[position + 1 : position + 2] in ("*", "+", "{"):
                raise ValueError(
                    f"pattern {pattern!r} repeats a group with a repetition or an alternative in "
                    "it, which can take forever"
                )
            nested[-1] = nested[-1] or inner
        elif character in "*+?{|":
            nested[-1] = True
        position += 1


def _end_of_class(pattern: str, position: int) -> int:
    """Where a character class ends."""
    position += 2 if pattern.startswith("[^", position) else 1
    first = position
    while position < len(pattern) and (pattern[position] != "]" or position == first):
        position += 2 if pattern[position] == "\\" else 1
    return position
