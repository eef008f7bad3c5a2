r"""Regular expressions of Java, in Python: the same topics, or an error.

What is expected here was answered by java.util.regex.
"""

import re

import pytest

from moldau.client.errors import InvalidArgumentError
from moldau.spark.source.java_pattern import python_pattern

NAMES = [
    *("orders", "Orders", "ORDERS", "orders-1", "orders.eu", "orders_eu", "order", "rders"),
    *("a", "b", "c", "A", "ab", "aab", "a.b", "axb", "7", "a7", "-", "]", "[", "&", "x-y.z"),
]


def matched(pattern: str) -> list[str]:
    translated = re.compile(python_pattern(pattern, "subscribePattern"))
    return [name for name in NAMES if translated.fullmatch(name)]


@pytest.mark.parametrize(
    ("pattern", "wanted"),
    [
        ("order", ["order"]),
        ("order|orders", ["orders", "order"]),
        ("orders.*", ["orders", "orders-1", "orders.eu", "orders_eu"]),
        ("^orders[-.].*$", ["orders-1", "orders.eu"]),
        (r"\Aorders\z", ["orders"]),
        (r"\Qa.b\E", ["a.b"]),
        (r"\Qa.b", ["a.b"]),
        (r"\Qa\E+b", ["ab", "aab"]),
        (r"a*+b", ["b", "ab", "aab"]),
        (r"a*+ab", []),
        (r"(?>a|ab)b", ["ab"]),
        (r"\p{Upper}\p{Alpha}+", ["Orders", "ORDERS"]),
        (r"(?<first>a)7", ["a7"]),
        (r"[\w.-]+", [n for n in NAMES if n not in "][&"]),
        ("(?i)ORDERS", ["orders", "Orders", "ORDERS"]),
        ("(?i)[^a]", ["b", "c", "7", "-", "]", "[", "&"]),
        ("(?i:o)rders", ["orders", "Orders"]),
        ("(?!orders).*s", ["Orders", "rders"]),
    ],
)
def test_a_pattern_matches_what_java_matches(pattern: str, wanted: list[str]) -> None:
    assert matched(pattern) == wanted


@pytest.mark.parametrize(
    "pattern",
    [
        *("(", "[a", "*", "a**", "a{,2}", "a{", "\\", r"\h", r"\R", r"\G", r"\cA", r"\y", r"\x6"),
        *(r"\p{Greek}", r"\p{}", "(?x)a b", "a(?i)b", "(?#c)a", "(?P<n>a)", "(?<=a*)b", r"\10"),
        *("[&&a]", "[a&&]", "[b-a]", r"[a-\d]", r"\1", r"\b{g}a", "[a-c&&[^b]]", "[a[c-d]]"),
        *("[a&b]", "]", r"\P{Alnum}", r"\pN", "(?-i:o)", "(?iu)a", r"\x2e", r"\u0061", r"[\w-.]"),
    ],
)
def test_what_cannot_be_the_same_is_refused(pattern: str) -> None:
    with pytest.raises(InvalidArgumentError, match="option subscribePattern"):
        python_pattern(pattern, "subscribePattern")
