"""What a filter matches, and that no match is left out for want of a needle."""

import json

import msgspec
import pytest
from effort import EXAMPLES
from hypothesis import given, settings
from hypothesis import strategies as st

from moldau.data.search.filters import JsonTerm, Matcher, SearchFilter
from moldau.model.ids import Offset, TimestampMs
from moldau.records.record import Record

DOCUMENT = {
    "user": {"id": 9007199254740993, "name": "Zoë/x", "tags": ["a", "b"], "0": "zero"},
    "price": 5.0,
    "big": 18446744073709551615,
    "huge": 10**30,
    "flag": True,
    "none": None,
    "list": [{"x": 1}],
    "odd (name) = 1": {"a": "x=y"},
}


def record(value: bytes | None, key: bytes | None = None, headers: object = ()) -> Record:
    return Record(Offset(0), TimestampMs(0), key, value, list(headers))  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("text", "is_match"),
    [
        ("user.id=9007199254740993", True),
        ("user.id=9007199254740992", False),
        ("user.id", True),
        ("user.nix", False),
        ("user.name=Zoë/x", True),
        ("user.tags[1]=b", True),
        ("user.tags.1=b", True),
        ("user.tags[2]", False),
        ("user.0=zero", True),
        ("list[0].x=1", True),
        ("price=5.0", True),
        ("price=5", False),
        ("list[0].x=1.0", True),
        ("big=18446744073709551615", True),
        ("huge=1" + "0" * 30, True),
        ("flag=true", True),
        ("flag=1", False),
        ("none=null", True),
        ("none", True),
        ("none=", False),
        ("user=x", False),
        ("user.id.x", False),
        (".user.id", True),
        ('"user"."na\\u006de"=Zoë/x', True),
        ('"odd (name) = 1".a=x=y', True),
        ('"odd (name) = 1".a=x', False),
        ("user.tags[1]", True),
    ],
)
def test_json_by_path(text: str, is_match: bool) -> None:
    term = JsonTerm.parse(text)
    assert term is not None
    matcher = Matcher(SearchFilter(json=[term]))
    # Once with what is not ASCII as it is, once as escapes.
    for value in (msgspec.json.encode(DOCUMENT), json.dumps(DOCUMENT).encode()):
        assert matcher.matches(record(value)) == is_match
        if is_match:
            assert matcher.needle_in(b"\x10" + value + b"\x00") is not None


@pytest.mark.parametrize(
    "text",
    [
        *("", "=x", "a..b", "a.", ".", "[0]x.", "[0]x", "a[x]", "a[", '"a"b', '""', '"a', r'"\x"'),
        *(
            "nonsense(",
            "amount>5",
            "amount >= 5",
            "a!=b",
            "user.id = 42",
            "a b",
            '"\ud800"',
        ),
    ],
)
def test_what_is_no_path_is_refused(text: str) -> None:
    assert JsonTerm.parse(text) is None


@pytest.mark.parametrize("value", [None, b"", b"{", b"\xff", b"[" * 100_000])
def test_what_is_not_json_matches_no_path(value: bytes | None) -> None:
    assert not Matcher(SearchFilter(json=[JsonTerm(["a"], None)])).matches(record(value))


texts = st.text(st.characters(codec="utf-8"), max_size=6) | st.sampled_from(["a", "5", "true", "/"])
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.floats() | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=EXAMPLES * 8)
@given(st.dictionaries(texts.filter(bool), values, min_size=1), st.booleans(), st.data())
def test_a_batch_with_a_match_has_the_needle(
    document: dict[str, object], is_ascii: bool, data: st.DataObject
) -> None:
    name = data.draw(st.sampled_from(sorted(document)))
    wanted = document[name]
    text = wanted if isinstance(wanted, str) else json.dumps(wanted)
    term = JsonTerm([name], data.draw(st.sampled_from([None, text])))
    try:
        body = json.dumps(document, ensure_ascii=is_ascii, allow_nan=False).encode()
    except (ValueError, UnicodeEncodeError):
        return
    matcher = Matcher(SearchFilter(json=[term]))
    if matcher.matches(record(body)):
        needle = matcher.needle_in(body)
        assert needle is not None
        assert needle in body
    else:
        assert term.equals is not None


def test_key_value_and_headers_must_all_match() -> None:
    wanted = SearchFilter(key=b"k", contains=b"ell", headers=[(b"h", None), (b"\xff", b"1")])
    matcher = Matcher(wanted)
    headers = [("h", b"x"), ("\udcff", b"1")]
    assert matcher.matches(record(b"hello", b"k", headers))
    assert not matcher.matches(record(b"hello", b"kk", headers))
    assert not matcher.matches(record(b"help", b"k", headers))
    assert not matcher.matches(record(None, b"k", headers))
    assert not matcher.matches(record(b"hello", b"k", headers[:1]))
    assert not matcher.matches(record(b"hello", b"k", [("h", b"x"), ("\udcff", b"2")]))
    assert matcher.needle_in(b"..k..hello..h..\xff1") == b"ell"
    assert matcher.needle_in(b"..k..help..h..\xff1") is None
