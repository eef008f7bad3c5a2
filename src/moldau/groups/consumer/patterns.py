"""Regular expressions for topic subscriptions: parsing and matching in bounded time.

One pattern can keep a backtracking matcher busy practically forever. This one does not backtrack: a
pattern becomes a nondeterministic automaton, and a name is matched by its set of reachable nodes,
as in RE2; sets are cached. The time for a name is bounded by its length times the number of nodes.
Limits: the length of a pattern, the nodes of its automaton, the depth of its brackets, and the work
of one round over all names (`Budget`).

The alphabet is that of topic names, so a character class is a small set. A name must match as a
whole. The syntax is RE2's; look-around, back-references, word boundaries and everything unknown
are rejected.
"""

from collections.abc import Callable, Iterable
from typing import Final

from moldau.model.errors import MoldauError

PATTERN_CHARS_MAX: Final = 2_048
NODES_MAX: Final = 4_000
DEPTH_MAX: Final = 50
REPEATS_MAX: Final = 1_000
WORK_BASE: Final = 200_000
"""Nodes that may be visited besides reading the names: about 0.1 s."""
WORK_PER_NAME: Final = 300
"""A name has at most 249 characters."""
_SETS_KEPT_MAX: Final = 1_000

_LOWER: Final = "abcdefghijklmnopqrstuvwxyz"
_DIGITS: Final = "0123456789"
ALPHABET: Final = frozenset(_LOWER + _LOWER.upper() + _DIGITS + "._-")
_WORD: Final = frozenset(_LOWER + _LOWER.upper() + _DIGITS + "_")
_NAMED: Final = {"d": frozenset(_DIGITS), "w": _WORD, "s": frozenset[str]()}
_POSIX: Final = {
    "alnum": _WORD - {"_"},
    "alpha": frozenset(_LOWER + _LOWER.upper()),
    "digit": frozenset(_DIGITS),
    "lower": frozenset(_LOWER),
    "upper": frozenset(_LOWER.upper()),
    "punct": frozenset("._-"),
    "word": _WORD,
    "xdigit": frozenset(_DIGITS + "abcdefABCDEF"),
    "space": frozenset[str](),
}
_CONTROLS: Final = frozenset("afnrtv")


class PatternError(MoldauError):
    """The pattern is invalid, unsupported, or too expensive to match."""


class Budget:
    """Work limit of one round over all names, shared by the patterns of the round."""

    __slots__ = ("_left",)

    def __init__(self, names: int) -> None:
        self._left = WORK_BASE + WORK_PER_NAME * names

    def spend(self, work: int) -> None:
        self._left -= work
        if self._left < 0:
            raise PatternError("the pattern is too expensive to match")


# Nodes of the automaton. A node is its kind and where it leads.
_CHARS, _FORK, _START, _END, _MATCH = range(5)
_Node = tuple[int, frozenset[str], int, int]
_NONE: Final = frozenset[str]()
# A builder gets the following node and returns its own first node.
_Part = Callable[[int], int]


class Pattern:
    """A parsed pattern. Raises PatternError if it is invalid."""

    __slots__ = ("_nodes", "_sets", "_start")

    def __init__(self, text: str) -> None:
        self._nodes: list[_Node] = []
        parser = _Parser(text, self._nodes)
        whole = parser.parse()
        self._start = whole(parser.add(_MATCH, _NONE, -1))
        self._sets: dict[frozenset[int], dict[str, frozenset[int]]] = {}

    def matching(self, names: Iterable[str], budget: Budget) -> frozenset[str]:
        return frozenset(name for name in names if self.matches(name, budget))

    def matches(self, name: str, budget: Budget) -> bool:
        budget.spend(len(name) + 1)
        current = self._closure([self._start], budget, at_start=True)
        for char in name:
            known = self._sets.get(current)
            if known is None:
                if len(self._sets) >= _SETS_KEPT_MAX:
                    self._sets.clear()
                known = self._sets[current] = {}
            following = known.get(char)
            if following is None:
                budget.spend(len(current))
                nodes = (self._nodes[one] for one in current)
                reached = [node[2] for node in nodes if node[0] == _CHARS and char in node[1]]
                following = known[char] = self._closure(reached, budget)
            current = following
            if not current:
                return False
        last = self._closure(list(current), budget, at_start=not name, at_end=True)
        return any(self._nodes[one][0] == _MATCH for one in last)

    def _closure(
        self, start: list[int], budget: Budget, *, at_start: bool = False, at_end: bool = False
    ) -> frozenset[int]:
        """Nodes reachable without input that read a character, expect the end, or match."""
        todo = list(start)
        seen: set[int] = set()
        kept: list[int] = []
        while todo:
            one = todo.pop()
            if one in seen:
                continue
            seen.add(one)
            kind, _, first, second = self._nodes[one]
            if kind == _FORK:
                todo += (first, second)
            elif (kind == _START and at_start) or (kind == _END and at_end):
                todo.append(first)
            elif kind in (_CHARS, _END, _MATCH):
                kept.append(one)
        budget.spend(len(seen))
        return frozenset(kept)


class _Parser:
    """Recursive descent parser; each method moves `_at` past the text it parsed."""

    def __init__(self, text: str, nodes: list[_Node]) -> None:
        if len(text) > PATTERN_CHARS_MAX:
            raise PatternError(f"the pattern is longer than {PATTERN_CHARS_MAX} characters")
        self._text = text
        self._nodes = nodes
        self._at = 0
        self._depth = 0
        self._copies = 0
        self._any_case = False

    def parse(self) -> _Part:
        part = self._alternatives()
        if self._at < len(self._text):
            raise PatternError(f"the pattern has an unmatched ) at {self._at}")
        return part

    def add(self, kind: int, chars: frozenset[str], first: int, second: int = -1) -> int:
        if len(self._nodes) >= NODES_MAX:
            raise PatternError("the pattern is too large")
        self._nodes.append((kind, chars, first, second))
        return len(self._nodes) - 1

    def _peek(self, text: str) -> bool:
        return self._text.startswith(text, self._at)

    def _take(self) -> str:
        if self._at >= len(self._text):
            raise PatternError("the pattern is incomplete")
        char = self._text[self._at]
        self._at += 1
        return char

    def _alternatives(self) -> _Part:
        parts = [self._sequence()]
        while self._peek("|"):
            self._at += 1
            parts.append(self._sequence())
        if len(parts) == 1:
            return parts[0]

        def build(following: int) -> int:
            first = parts[-1](following)
            for part in reversed(parts[:-1]):
                first = self.add(_FORK, _NONE, part(following), first)
            return first

        return build

    def _sequence(self) -> _Part:
        parts: list[_Part] = []
        while self._at < len(self._text) and self._text[self._at] not in "|)":
            parts += self._repeated()

        def build(following: int) -> int:
            for part in reversed(parts):
                following = part(following)
            return following

        return build

    def _repeated(self) -> list[_Part]:
        parts = self._atom()
        is_repeated = False
        while parts and (bounds := self._bounds()) is not None:
            if is_repeated:
                raise PatternError(f"the pattern repeats a repetition at {self._at}")
            is_repeated = True
            if self._peek("?"):
                # The lazy form matches the same names.
                self._at += 1
            parts = [*parts[:-1], self._repeat(parts[-1], *bounds)]
        return parts

    def _bounds(self) -> tuple[int, int | None] | None:
        if self._at >= len(self._text):
            return None
        simple: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
        char = self._text[self._at]
        if char in simple:
            self._at += 1
            return simple[char]
        end = self._text.find("}", self._at)
        if char != "{" or end < 0:
            return None
        least, comma, most = self._text[self._at + 1 : end].partition(",")
        if not (least.isdecimal() and least.isascii() and len(least) <= 4):
            return None
        if most and not (most.isdecimal() and most.isascii() and len(most) <= 4):
            return None
        self._at = end + 1
        low = int(least)
        high = int(most) if most else (None if comma else low)
        if low > REPEATS_MAX or (high is not None and not low <= high <= REPEATS_MAX):
            raise PatternError(f"invalid repetition {low} to {high}; the limit is {REPEATS_MAX}")
        return low, high

    def _repeat(self, part: _Part, low: int, high: int | None) -> _Part:
        def build(following: int) -> int:
            first = following
            if high is None:
                loop = self.add(_FORK, _NONE, -1, following)
                body = part(loop)
                self._nodes[loop] = (_FORK, _NONE, body, following)
                first = loop
            else:
                for _ in range(high - low):
                    first = self.add(_FORK, _NONE, self._copy(part, first), following)
            for _ in range(low):
                first = self._copy(part, first)
            return first

        return build

    def _copy(self, part: _Part, following: int) -> int:
        # Counted apart from the nodes: repeating an empty part adds no nodes but takes time.
        self._copies += 1
        if self._copies > NODES_MAX:
            raise PatternError("the pattern is too large")
        return part(following)

    def _atom(self) -> list[_Part]:
        char = self._take()
        match char:
            case "(":
                return self._bracket()
            case "[":
                return [self._one_of(self._char_class())]
            case ".":
                return [self._one_of(ALPHABET)]
            case "^":
                return [lambda following: self.add(_START, _NONE, following)]
            case "$":
                return [lambda following: self.add(_END, _NONE, following)]
            case "*" | "+" | "?":
                raise PatternError(f"the pattern repeats nothing at {self._at - 1}")
            case "\\":
                return self._escape()
            case _:
                return [self._one_of(self._folded(frozenset(char)))]

    def _one_of(self, chars: frozenset[str]) -> _Part:
        return lambda following: self.add(_CHARS, chars, following)

    def _folded(self, chars: frozenset[str]) -> frozenset[str]:
        if not self._any_case:
            return chars
        return chars | {char.lower() for char in chars} | {char.upper() for char in chars}

    def _bracket(self) -> list[_Part]:
        any_case = self._any_case
        if self._peek("?") and not self._group_options():
            return []
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise PatternError(f"the pattern nests brackets more than {DEPTH_MAX} deep")
        part = self._alternatives()
        if not self._peek(")"):
            raise PatternError("the pattern has an unmatched (")
        self._at += 1
        self._depth -= 1
        self._any_case = any_case
        return [part]

    def _group_options(self) -> bool:
        """Whether a group follows: (?i) alone only sets options for the rest."""
        for opening in ("?P<", "?<"):
            end = self._text.find(">", self._at)
            name = self._text[self._at + len(opening) : end]
            if self._peek(opening) and end > 0 and name.isidentifier():
                self._at = end + 1
                return True
        self._at += 1
        is_on = True
        while (char := self._take()) not in ":)":
            match char:
                case "-":
                    is_on = False
                case "i":
                    self._any_case = is_on
                case "s" | "m" | "U":
                    # Names have no lines, and greediness does not change what matches as a whole.
                    pass
                case _:
                    raise PatternError("the pattern uses an unsupported form of (?")
        return char == ":"

    def _escape(self) -> list[_Part]:
        char = self._take()
        if char == "Q":
            end = self._text.find("\\E", self._at)
            stop = len(self._text) if end < 0 else end
            quoted = self._text[self._at : stop]
            self._at = len(self._text) if end < 0 else end + 2
            return [self._one_of(self._folded(frozenset(one))) for one in quoted]
        if char == "A":
            return [lambda following: self.add(_START, _NONE, following)]
        if char in "zZ":
            return [lambda following: self.add(_END, _NONE, following)]
        return [self._one_of(self._escaped_chars(char))]

    def _escaped_chars(self, char: str) -> frozenset[str]:
        if char.lower() in _NAMED:
            chars = _NAMED[char.lower()]
            return chars if char.islower() else ALPHABET - chars
        if char == "x":
            digits = self._take() + self._take()
            try:
                return self._folded(frozenset(chr(int(digits, 16))))
            except ValueError:
                raise PatternError(f"the pattern has the invalid escape \\x{digits}") from None
        if char in _CONTROLS:
            return _NONE
        if char.isalnum():
            raise PatternError(f"the pattern has \\{char}, which is not supported")
        return frozenset(char)

    def _char_class(self) -> frozenset[str]:
        is_negated = self._peek("^")
        self._at += is_negated
        chars: frozenset[str] = _NONE
        is_first = True
        while is_first or not self._peek("]"):
            is_first = False
            if self._peek("[:"):
                chars |= self._posix()
                continue
            low = self._class_item()
            if self._peek("-") and not self._peek("-]") and len(low) == 1:
                self._at += 1
                high = self._class_item()
                if len(high) != 1 or min(high) < min(low):
                    raise PatternError(f"the pattern has a bad range at {self._at}")
                low = frozenset(one for one in ALPHABET if min(low) <= one <= min(high))
            chars |= low
        self._at += 1
        chars = self._folded(chars)
        return ALPHABET - chars if is_negated else chars

    def _class_item(self) -> frozenset[str]:
        char = self._take()
        return self._escaped_chars(self._take()) if char == "\\" else frozenset(char)

    def _posix(self) -> frozenset[str]:
        end = self._text.find(":]", self._at)
        name = self._text[self._at + 2 : end]
        chars = _POSIX.get(name.removeprefix("^")) if end > 0 else None
        if chars is None:
            raise PatternError(f"the pattern has an unknown character class at {self._at}")
        self._at = end + 2
        return ALPHABET - chars if name.startswith("^") else chars
