"""The time that handshakes may take, by a clock that the test sets."""

import pytest

from moldau.net.tls.handshake_time import HandshakeTime
from moldau.testing.replicas import ManualClock


def test_one_second_has_a_share_that_comes_back_with_time():
    clock = ManualClock()
    time = HandshakeTime(clock, share_max=0.2)
    for _ in range(19):
        time.took(0.01)
        assert time.wait_seconds() == 0
    time.took(0.01)
    wait = time.wait_seconds()
    assert 0 < wait < 0.1
    clock.steady += wait
    assert time.wait_seconds() == 0


def test_a_long_step_is_paid_for_afterwards():
    clock = ManualClock()
    time = HandshakeTime(clock, share_max=0.2)
    time.took(0.4)
    assert time.wait_seconds() == pytest.approx(1.0, rel=0.02)
    clock.steady += 0.5
    assert time.wait_seconds() == pytest.approx(0.5, rel=0.02)


@pytest.mark.parametrize("cost", [0.0002, 0.0066, 0.05])
def test_no_flood_takes_more_than_the_share(cost):
    clock = ManualClock()
    time = HandshakeTime(clock, share_max=0.2)
    begin, used = clock.steady, 0.0
    while clock.steady - begin < 60:
        wait = time.wait_seconds()
        if wait:
            clock.steady += wait
        else:
            clock.steady += cost
            time.took(cost)
            used += cost
    assert used / 60 < 0.21
    assert used / 60 > 0.15


def test_a_quiet_time_saves_no_more_than_one_second():
    clock = ManualClock()
    time = HandshakeTime(clock, share_max=0.2)
    clock.steady += 3600
    time.took(0.2)
    assert time.wait_seconds() > 0
