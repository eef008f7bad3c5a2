"""The interval at which threads take turns, while some of them are polite."""

import sys
import threading

import pytest

from moldau.model.polite_thread import SWITCH_SECONDS, politely
from moldau.testing.waiting import wait_seconds_max

pytestmark = pytest.mark.inprocess


def test_the_interval_is_short_until_the_last_has_ended() -> None:
    usual = sys.getswitchinterval()
    assert usual > SWITCH_SECONDS * 2
    inside, may_end = threading.Event(), threading.Event()

    def wait() -> bool:
        inside.set()
        return may_end.wait(wait_seconds_max())

    other = threading.Thread(target=politely, args=(wait,))
    other.start()
    assert inside.wait(wait_seconds_max())
    assert politely(sys.getswitchinterval) == pytest.approx(SWITCH_SECONDS)
    assert sys.getswitchinterval() == pytest.approx(SWITCH_SECONDS)
    may_end.set()
    other.join()
    assert sys.getswitchinterval() == pytest.approx(usual)


def test_an_error_restores_it_too() -> None:
    usual = sys.getswitchinterval()
    with pytest.raises(ZeroDivisionError):
        politely(lambda: 1 // 0)
    assert sys.getswitchinterval() == pytest.approx(usual)
