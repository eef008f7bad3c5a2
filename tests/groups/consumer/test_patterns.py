"""Patterns are matched as Python matches them, and no pattern takes long."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.groups.consumer import patterns
from moldau.groups.consumer.patterns import Budget, Pattern, PatternError

names = st.text("ab1._-A", max_size=6)
atoms = st.sampled_from(
    [
        "a",
        "b",
        "A",
        ".",
        "[ab]",
        "[^a]",
        "[a-c1]",
        r"\d",
        r"\w",
        r"\.",
        r"\D",
        "^",
        "$",
        "-",
        "[]a]",
    ]
)
texts = st.recursive(
    atoms,
    lambda inner: st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map("|".join),
        st.tuples(
            inner, st.sampled_from(["*", "+", "?", "{2}", "{1,2}", "{0}", "{2,}", "*?", "+?"])
        ).map(lambda pair: f"(?:{pair[0]}){pair[1]}"),
        inner.map(lambda text: f"({text})"),
        inner.map(lambda text: f"(?i:{text})"),
    ),
    max_leaves=6,
)


@given(texts, st.lists(names, min_size=1, max_size=8))
def test_names_match_as_python_says(text, some):
    pattern = Pattern(text)
    # Python alone would let $ match before a final line break; names have none.
    expected = {name for name in some if re.fullmatch(text, name)}
    assert pattern.matching(some, Budget(len(some))) == expected


@pytest.mark.parametrize(
    ("text", "yes", "no"),
    [
        (r"\Qa.b\E.*", "a.b-1", "axb-1"),
        (r"\Qa.b", "a.b", "aab"),
        (r"(?P<first>a)b", "ab", "a"),
        (r"(?<first>a)b", "ab", "a"),
        (r"(?i)Abc", "aBC", "abd"),
        (r"a(?i)b(?-i)c", "aBc", "aBC"),
        (r"[[:alpha:]_]+", "a_B", "a1"),
        (r"[[:^digit:]]+", "a-b", "a1"),
        (r"\x61\x2e", "a.", "b."),
        (r"\Aab\z", "ab", "aab"),
        ("", "", "a"),
    ],
)
def test_what_re2_knows_and_python_writes_otherwise(text, yes, no):
    pattern = Pattern(text)
    assert pattern.matches(yes, Budget(1))
    assert not pattern.matches(no, Budget(1))


@pytest.mark.parametrize(
    "text",
    [
        *("(", "a)", "[", "[a", "*", "a**", "a{3,2}", "a{1001}", "\\", "(?<1>a)", "[b-a]"),
        *(r"\1", r"\b", "(?=a)", "(?!a)", r"\x4", r"\xzz", "[[:no:]]", r"\pL", "a" * 2_049),
        *("(" * 60 + ")" * 60, "((a{99}){99}){99}", "((((){999}){999}){999}){999}"),
    ],
    ids=lambda text: text[:12],
)
def test_what_is_not_a_pattern_is_refused(text):
    with pytest.raises(PatternError):
        Pattern(text)


def test_the_work_of_a_round_is_bounded(monkeypatch):
    monkeypatch.setattr(patterns, "WORK_BASE", 1_000)
    hard = Pattern("(a|b)*a" + "(a|b)" * 12)
    with pytest.raises(PatternError, match="too expensive"):
        hard.matching(
            [f"{n:b}".replace("0", "a").replace("1", "b") for n in range(5_000)], Budget(1)
        )


def test_what_ruins_a_backtracking_matcher_is_nothing_special():
    # 2^200 ways to fail, for one that tries them.
    assert not Pattern("(a*)*(a*)*(a|a)*b").matches("a" * 200, Budget(1))
