"""From what Spark raises to what a person can use."""

import pytest

from moldau.spark.pipelines.spark_errors import from_text, readable

OF_A_SOURCE = """[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: [PYTHON_…]
Traceback (most recent call last):
  File "x.py", line 1, in latestOffset
moldau.client.errors.UnreachableError: cannot reach b:1
The above exception was the direct cause of the following exception:
Traceback (most recent call last):
  File "x.py", line 3, in initialOffset
moldau.client.errors.NotFoundError: topic clicks does not exist
hint: create it: moldau topic create clicks
 SQLSTATE: XXKST
"""


def test_an_error_of_ours_and_its_hint_are_found_inside():
    error = from_text(OF_A_SOURCE)
    assert str(error) == "topic clicks does not exist"
    assert error.hint == "create it: moldau topic create clicks"


def test_an_error_of_anybodys_python_is_the_last_one():
    error = from_text("[X] boom\nTraceback …\nValueError: first\nmore\nKeyError: 'second'\n")
    assert str(error) == "KeyError: 'second'"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[TABLE_NOT_FOUND] no table t. SQLSTATE: 1\nPlan:\n…", "no table t. SQLSTATE: 1"),
        ("", "Spark failed without a message"),
        ("x" * 600, "x" * 499 + "…"),
    ],
)
def test_else_it_is_the_first_line_of_what_spark_says(text, said):
    assert str(from_text(text)) == said


def test_errors_that_are_not_sparks_are_left_alone():
    assert readable(ValueError("x")) is None
    error = type("StreamingQueryException", (Exception,), {"__module__": "pyspark.errors"})
    assert str(readable(error(OF_A_SOURCE))) == "topic clicks does not exist"


def test_a_missing_package_is_reported_with_the_extra_that_brings_it():
    missing = readable(ModuleNotFoundError("…", name="pyarrow.parquet"))
    assert missing is not None
    assert str(missing) == "the Python package pyarrow is not installed"
    assert "moldau[spark]" in missing.hint


def test_a_machine_that_is_too_busy_for_spark_is_reported_as_such():
    error = from_text("Python worker failed to connect back.\n=== Streaming Query ===\n…")
    assert str(error) == "Python worker failed to connect back."
    assert "busy" in error.hint
