"""Receive buffers: their sizes, and how they grow."""

import os

import pytest

from moldau.net.buffers import STEP_BYTES, BufferPool


def test_a_buffer_that_was_given_back_is_taken_again() -> None:
    pool = BufferPool()
    buffer = pool.take(100_000)
    assert len(buffer) == 1 << 17
    pool.give_back(buffer)
    assert pool.take(1 << 17) is buffer
    assert pool.take(1 << 17) is not buffer


@pytest.mark.parametrize("wanted", [70_000, STEP_BYTES, STEP_BYTES + 1, 5 * STEP_BYTES + 7])
def test_a_buffer_grows_in_bounded_steps_and_keeps_its_content(wanted: int) -> None:
    pool = BufferPool()
    buffer = pool.take(1 << 16)
    buffer[:] = content = os.urandom(1 << 16)
    while len(buffer) < wanted:
        before = len(buffer)
        buffer = pool.grow(buffer, wanted)
        assert before < len(buffer) <= before + STEP_BYTES
        assert buffer[: 1 << 16] == content
    assert len(buffer) < 2 * wanted


def test_a_large_buffer_grows_where_it_is() -> None:
    pool = BufferPool()
    large = pool.grow(pool.take(STEP_BYTES), 10 * STEP_BYTES)
    assert pool.grow(large, 10 * STEP_BYTES) is large


def test_a_buffer_of_the_pool_grows_while_somebody_has_a_view_of_it() -> None:
    pool = BufferPool()
    buffer = pool.take(STEP_BYTES)
    view = memoryview(buffer)
    assert len(pool.grow(buffer, 10 * STEP_BYTES)) == 2 * STEP_BYTES
    assert len(view) == STEP_BYTES
