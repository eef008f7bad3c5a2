"""The language of --filter: what it means, what it refuses and where, and that it never breaks."""

import json
import operator
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.cli.errors import ExitCode
from moldau.cli.messages.filter_terms import PATTERN_CHARACTERS_MAX, FilteredMessage
from moldau.cli.messages.filters import DEPTH_MAX, FILTER_CHARACTERS_MAX, FilterError, parse_filter

pytestmark = pytest.mark.inprocess

DOCUMENT = {
    "user": {"id": 42, "name": "Ada L", "admin": True, "score": 0, "none": None, "age": "42"},
    "items": [{"price": 9.5}, 2, []],
    "odd name": {"a.b": 1},
}


@dataclass
class Message:
    key_: bytes | None = b"k7"
    value_: bytes | None = field(default_factory=lambda: json.dumps(DOCUMENT).encode())
    headers_: list[tuple[str, bytes | None]] | None = field(
        default_factory=lambda: [("n", b"5"), ("n", b"7"), ("null", None), ("a.b", b"x y")]
    )

    def topic(self):
        return "orders"

    def partition(self):
        return 3

    def offset(self):
        return 42

    def timestamp(self):
        return (1, 1_700_000_000_000)

    def key(self):
        return self.key_

    def value(self):
        return self.value_

    def headers(self):
        return self.headers_


def holds(text: str, message: Message | None = None) -> bool:
    return parse_filter(text).matches(FilteredMessage(message or Message()))


@pytest.mark.parametrize(
    "text",
    [
        "key=k7",
        "key == k7",
        "key='k7'",
        "key!=k8",
        "key<l",
        "key",
        "topic=orders",
        "topic~^ord",
        "partition=3",
        "partition>=3 and partition<=3",
        "offset>41",
        "offset<43",
        "timestamp=1700000000000",
        "timestamp>@2020-01-01T00:00:00+00:00",
        "timestamp<2030-01-01",
        "timestamp<@-1h",
        "value~Ada",
        'value~"Ada\\sL"',
        "value!~Bob",
        "header.n=5",
        "header.n=7",
        "header.n>6",
        "header.a.b='x y'",
        'header."a.b"="x y"',
        "header.null=null",
        "header.missing=null",
        "not header.missing",
        "header.missing!=x",
        ".user.id==42",
        ".user.id>41.5",
        ".user.age='42'",
        ".user.name='Ada L'",
        ".user.name~^Ada",
        ".user.name>=Ad",
        ".user.admin",
        ".user.admin=true",
        ".user.score",
        ".user.score=0",
        ".user.none=null",
        ".no.such.path=null",
        ".items[0].price=9.5",
        ".items[-2]=2",
        '."odd name"."a.b"=1',
        "key=x or key=k7",
        "key=x||key=k7",
        "key=k7&&partition=3",
        "!key=x",
        "!(key=x)",
        "not (key=x or (partition=4))",
        "key=x and key=y or key=k7",
        "key=k7 or key=x and key=y",
        "not key=x and partition=3",
        "  key  =  k7  ",
    ],
)
def test_it_holds(text):
    assert holds(text)


@pytest.mark.parametrize(
    "text",
    [
        "key=k",
        "key=null",
        "key='K7'",
        "header.missing",
        "header.null",
        "header.missing=x",
        "header.n=6",
        "partition<3",
        ".user.id=43",
        ".user.id='42'",
        ".user.age=42",
        ".user.admin=1",
        ".user.admin=false",
        ".user.score=false",
        ".user.none",
        ".user.id<Z",
        ".user.id~4",
        ".items[3]",
        ".items.price",
        ".user[0]",
        ".user.name~^L",
        "(key=x or key=k7) and partition=4",
        "not not key=x",
    ],
)
def test_it_does_not_hold(text):
    assert not holds(text)


@pytest.mark.parametrize("value", [None, b"", b"{", b"\xff\xfe", b"[" * 100_000, b"1" * 9_000])
def test_a_value_that_is_no_json_has_no_paths(value):
    assert not holds(".a=1", Message(value_=value))
    assert holds(".a=null and .a!=1", Message(value_=value))


def test_a_message_without_anything_has_none_of_it():
    nothing = Message(key_=None, value_=None, headers_=None)
    assert holds("key=null and value=null and header.n=null", nothing)
    assert not holds("key or value or header.n or key~. or key<z or key<5", nothing)


def test_null_in_quotes_is_a_word():
    assert holds("key='null'", Message(key_=b"null"))
    assert not holds("key=null", Message(key_=b"null"))


@pytest.mark.parametrize(
    ("text", "column", "why"),
    [
        ("", 1, "expected one of key, value"),
        ("key=", 5, "expected a value after ="),
        ("key= ", 6, "expected a value after ="),
        ("nothing=1", 1, "unknown field 'nothing'"),
        ("key=a and", 10, "expected one of"),
        ("key=a nd key=b", 7, "expected 'and', 'or' or the end"),
        ("(key=a", 7, "expected ')' for the '(' in column 1"),
        ("key=a)", 6, "expected 'and', 'or' or the end"),
        ("key='a", 5, "the ' is not closed"),
        ("partition=x", 11, "must be an integer"),
        ("offset=1.5", 8, "must be an integer"),
        ("partition~3", 10, "is a number"),
        ("partition", 10, "always present"),
        ("timestamp>soon", 11, "expected milliseconds"),
        ("value~[", 7, "invalid regular expression"),
        ("value~(a)", 7, "with brackets in quotes"),
        ("value~'a{99999999999}'", 7, "invalid regular expression"),
        ("value~" + "a" * (PATTERN_CHARACTERS_MAX + 1), 7, "longer than"),
        ("header.=1", 8, "the name of a header"),
        (".a[x]=1", 3, "expected [NUMBER]"),
        (".=1", 2, "a name after the dot"),
        (".a<true", 4, "cannot be compared with"),
        ("(" * (DEPTH_MAX + 1), DEPTH_MAX + 1, "nested deeper"),
        ("not " * (DEPTH_MAX + 1) + "key", 4 * DEPTH_MAX + 1, "nested deeper"),
        ("k" * (FILTER_CHARACTERS_MAX + 1), FILTER_CHARACTERS_MAX + 1, "longer than"),
    ],
)
def test_an_error_says_why_and_points_at_the_column(text, column, why):
    with pytest.raises(FilterError) as caught:
        parse_filter(text)
    assert caught.value.column == column
    assert f"column {column}: " in str(caught.value)
    assert why in str(caught.value)
    assert caught.value.code == ExitCode.USAGE
    shown, mark = caught.value.hint.split("\n")
    # Printed behind "hint:  ", the mark stands below what is wrong.
    place = len(mark) - 1 - len("hint:  ")
    assert mark.endswith("^")
    assert (shown + " ")[place] == (text + " ")[column - 1]


@given(st.text(alphabet="key.headrofst=!<>~&|()'\"\\[]0123 and", max_size=60) | st.text())
def test_any_text_is_a_filter_or_refused_with_a_column(text):
    refused = None
    try:
        assert holds(text) in (True, False)
    except FilterError as error:
        refused = error
    if refused is not None:
        assert 1 <= refused.column <= len(text) + 1
        assert len(refused.hint.splitlines()) == 2


_ORDERS = {
    "=": operator.eq,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def quoted(text: str, mark: str) -> str:
    return mark + text.replace("\\", "\\\\").replace(mark, "\\" + mark) + mark


@st.composite
def terms(draw):
    """A term as text, and whether it holds of the message."""
    sign = draw(st.sampled_from(sorted(_ORDERS)))
    space = draw(st.sampled_from(["", " ", "  "]))
    match draw(st.sampled_from(["partition", "offset", "json", "key"])):
        case "key":
            text = draw(st.text(alphabet="k7a\"'\\ ()\n", max_size=4))
            literal, found, wanted = (
                quoted(text, draw(st.sampled_from("\"'"))),
                b"k7",
                text.encode(),
            )
            return f"key{space}{sign}{space}{literal}", _ORDERS[sign](found, wanted)
        case "json":
            wanted = draw(st.integers(40, 44) | st.floats(-100, 100).map(lambda x: round(x, 3)))
            return f".user.id{space}{sign}{space}{wanted}", _ORDERS[sign](42, wanted)
        case name:
            wanted = draw(st.integers(-1, 50))
            return (
                f"{name}{space}{sign}{space}{wanted}",
                _ORDERS[sign]({"partition": 3, "offset": 42}[name], wanted),
            )


def _joined(words, combine):
    def join(pairs, word):
        texts, truths = zip(*pairs, strict=True)
        return f"({f' {word} '.join(texts)})", combine(truths)

    return lambda children: st.builds(
        join, st.lists(children, min_size=1, max_size=3), st.sampled_from(words)
    )


def _denied(children):
    return st.builds(
        lambda pair, word: (f"{word} {pair[0]}", not pair[1]),
        children,
        st.sampled_from(["not", "!"]),
    )


@given(
    st.recursive(
        terms(),
        lambda children: (
            _joined(["and", "&&"], all)(children)
            | _joined(["or", "||"], any)(children)
            | _denied(children)
        ),
        max_leaves=8,
    )
)
def test_terms_and_their_combinations_mean_what_they_say(pair):
    text, expected = pair
    assert holds(text) is expected


@given(st.lists(st.tuples(st.sampled_from(["and", "or"]), st.booleans()), min_size=1, max_size=8))
def test_and_binds_closer_than_or_as_in_python(parts):
    words = {True: "key=k7", False: "key=no"}
    text = " ".join(f"{word} {words[truth]}" for word, truth in parts).partition(" ")[2]
    truth = eval(" ".join(f"{word} {truth}" for word, truth in parts).partition(" ")[2])
    assert holds(text) is truth


@given(st.text(max_size=500))
def test_what_is_in_quotes_is_taken_word_by_word(text):
    message = Message(key_=text.encode())
    assert holds(f"key={quoted(text, chr(34))}", message)
    assert holds(f"key={quoted(text, chr(39))}", message)
