"""Hints reach those who see an error as the trace of another process."""

import traceback

import pytest

from moldau.client.errors import ClientError
from moldau.spark.hints import shows_hints


@shows_hints()
def fail(message: str, hint: str) -> None:
    raise ClientError(message, hint=hint)


def test_a_trace_shows_the_hint() -> None:
    with pytest.raises(ClientError) as caught:
        fail("no topic", "make one")
    trace = "".join(traceback.format_exception_only(caught.value))
    assert trace.endswith("ClientError: no topic\nhint: make one\n")


def test_a_hint_is_not_said_twice() -> None:
    with pytest.raises(ClientError) as caught:
        fail("no topic: make one", "make one")
    assert "".join(traceback.format_exception_only(caught.value)).count("make one") == 1
