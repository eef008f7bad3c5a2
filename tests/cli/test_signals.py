"""How Ctrl-C reaches commands that spend their time inside librdkafka."""

import signal
import time

import pytest

from moldau.cli.signals import deferrable_interrupts, stop_signals

pytestmark = pytest.mark.inprocess


def interrupt():
    # To this thread: another one of the process might take it, later.
    signal.raise_signal(signal.SIGINT)
    # The handler runs between two bytecodes.
    time.sleep(0)


def test_an_interrupt_within_a_held_block_is_raised_at_its_end():
    reached = []

    def work(interrupts):
        with interrupts:
            interrupt()
            reached.append("the end")

    with deferrable_interrupts() as interrupts:
        with pytest.raises(KeyboardInterrupt):
            work(interrupts)
        with interrupts:
            pass
    assert reached == ["the end"]


def test_an_interrupt_outside_of_a_held_block_is_raised_at_once():
    with deferrable_interrupts() as interrupts:
        with interrupts:
            pass
        with pytest.raises(KeyboardInterrupt):
            interrupt()


def test_a_first_interrupt_sets_the_flag_and_a_second_one_is_raised():
    with stop_signals() as stop:
        interrupt()
        assert stop
        with pytest.raises(KeyboardInterrupt):
            interrupt()


@pytest.mark.parametrize("held", [deferrable_interrupts, stop_signals])
def test_the_handler_of_before_comes_back(held):
    before = signal.getsignal(signal.SIGINT)
    with held():
        assert signal.getsignal(signal.SIGINT) != before
    assert signal.getsignal(signal.SIGINT) == before
