"""Calls that are made at the same time."""

import threading
from functools import partial

import pytest

from moldau.cli.in_parallel import in_parallel

pytestmark = pytest.mark.inprocess


def test_calls_in_parallel_keep_their_order_and_raise():
    calls = {number: partial(pow, number, 2) for number in range(100)}
    assert in_parallel(calls) == {number: number**2 for number in range(100)}
    assert in_parallel({}) == {}
    with pytest.raises(ZeroDivisionError):
        in_parallel({1: lambda: 1 / 0})


def test_they_do_not_wait_for_each_other():
    together = threading.Barrier(4)
    calls = {number: partial(together.wait, 10) for number in range(4)}
    assert sorted(in_parallel(calls).values()) == [0, 1, 2, 3]
