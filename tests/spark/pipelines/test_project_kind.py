"""A project as a kind of pipeline."""

import pytest

from moldau.spark.pipelines.project_kind import failure


@pytest.mark.parametrize(
    ("lines", "said", "hint"),
    [
        (["error: no Java", "hint:  install one"], "no Java", "install one"),
        (["2026-11-15T08:00:00Z: x", "ValueError: odd", "  more"], "ValueError: odd", ""),
        (["something", ""], "something", ""),
        ([], "without a word", ""),
    ],
)
def test_a_project_that_failed_says_what_is_known(lines, said, hint):
    error = failure("/x/my-project", 1, lines)
    assert str(error) == f"project my-project ended with code 1: {said}"
    assert error.hint == hint
