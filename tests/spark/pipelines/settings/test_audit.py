"""What an audit is told, and what records are matched by."""

from typing import Any

import pytest

from moldau.client.errors import InvalidArgumentError
from moldau.spark.pipelines.settings.audit import AuditSettings, expression


def test_terms_become_sql() -> None:
    assert expression("key") == "key"
    assert expression("sql:upper(key)") == "upper(key)"
    assert "h.key = 'it\\'s'" in expression("header:it's")
    assert "'$[\\'a\\'][\\'b\\']'" in expression("field:a.b")


@pytest.mark.parametrize("term", ["", "offset", "header:", "field:", "regexp:x", "field:a'b"])
def test_what_says_nothing_is_refused(term: str) -> None:
    with pytest.raises(InvalidArgumentError):
        expression(term)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "none given"),
        ({"table": "/t", "against_topic": "b"}, "both given"),
        ({"against_topic": "a"}, "compared with itself"),
        ({"table": "/t", "through": "group"}, "needs a group"),
        ({"table": "/t", "through": "lake"}, "--through must be one of now, group"),
        ({"table": "/t", "ignored": ("offset",)}, "--ignore must be one of key"),
        ({"table": "/t", "match": ("key",)}, "--match needs"),
        ({"against_topic": "b", "match": ("offset",)}, "is not a valid term of --match"),
        ({"table": "/t", "value_format": "json"}, "needs a schema"),
    ],
)
def test_what_does_not_fit_together_is_said(values: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        AuditSettings(name="n", bootstrap="b:1", home="", topics=("a",), **values).check()
