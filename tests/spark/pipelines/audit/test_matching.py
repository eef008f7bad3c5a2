"""What records are matched by."""

import pytest

from moldau.client.errors import InvalidArgumentError
from moldau.spark.pipelines.audit.matching import expression


def test_terms_become_sql() -> None:
    assert expression("key") == "key"
    assert expression("sql:upper(key)") == "upper(key)"
    assert "h.key = 'it\\'s'" in expression("header:it's")
    assert "'$[\\'a\\'][\\'b\\']'" in expression("field:a.b")


@pytest.mark.parametrize("term", ["", "offset", "header:", "field:", "regexp:x", "field:a'b"])
def test_what_says_nothing_is_refused(term: str) -> None:
    with pytest.raises(InvalidArgumentError):
        expression(term)
