"""A project as a kind of pipeline."""

import pytest

from moldau.spark.pipelines.project_kind import failure, steps_of


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


def test_a_plan_has_what_is_taken_of_a_project_and_nothing_of_javas_talk():
    lines = [
        "WARNING: Using incubator modules: jdk.incubator.vector",
        "26/11/15 16:42:44 WARN NativeCodeLoader: Unable to load native-hadoop library",
        "2026-11-15 16:42:45: Creating Spark session...",
        "2026-11-15 16:42:46: Importing /x/p/transformations/write.py...",
        "2026-11-15 16:42:46: Registering SQL file /x/p/transformations/count.sql...",
        "2026-11-15 16:42:47: Run is COMPLETED.",
    ]
    assert steps_of("/x/p", lines) == [
        "take what transformations/count.sql declares",
        "take what transformations/write.py declares",
        "bring it up to date, in the order that Spark finds; Spark has checked it",
    ]
    # Another version of Spark may say it in other words: then these, without their times.
    assert steps_of("/x/p", lines[:3]) == ["Creating Spark session..."]
