"""Failed connections: each reason is logged once a minute and address."""

import logging

import pytest

from moldau.net.failure_log import FailureLog
from moldau.testing.replicas import ManualClock


@pytest.fixture
def lines(caplog):
    caplog.set_level(logging.WARNING, "moldau.net.failure_log")
    return lambda: [record.getMessage() for record in caplog.records]


def test_a_reason_is_logged_again_only_after_a_minute(lines):
    clock = ManualClock()
    failures = FailureLog(clock, "public")
    for port in range(100):
        failures.warn(f"10.0.0.1:{port}", "no TLS")
    assert lines() == ["connection from 10.0.0.1:0 to the listener public closed: no TLS"]
    failures.warn("10.0.0.1:1", "another reason")
    failures.warn("10.0.0.2:1", "no TLS")
    assert len(lines()) == 3
    clock.steady += 61.0
    failures.warn("10.0.0.1:1", "no TLS")
    assert len(lines()) == 4
    assert lines()[-1].endswith("no TLS (99 more lines were left out)")
    assert failures.failures_total == 103


def test_an_address_with_a_new_reason_each_time_gets_some_lines(lines):
    clock = ManualClock()
    failures = FailureLog(clock)
    for number in range(100):
        failures.warn(f"10.0.0.1:{number}", f"request of {number} bytes")
    assert len(lines()) == 8
    # Another one is logged all the same.
    failures.warn("10.0.0.2:1", "no TLS")
    assert len(lines()) == 9
    clock.steady += 61.0
    failures.warn("10.0.0.1:1", "no TLS")
    assert lines()[-1].endswith("(92 more lines were left out)")


def test_a_flood_of_addresses_fills_neither_the_log_nor_the_memory(lines):
    clock = ManualClock()
    failures = FailureLog(clock)
    for number in range(5000):
        failures.warn(f"10.0.{number}:1", "no TLS")
    assert len(lines()) == len(failures._logged) == 1024
    clock.steady += 61.0
    failures.warn("10.1.1.1:1", "no TLS")
    assert len(lines()) == 1025
    assert lines()[-1].endswith(f"({5000 - 1024} more lines were left out)")
    assert len(failures._logged) == 1


def test_addresses_of_one_ipv6_network_share_their_lines(lines):
    failures = FailureLog(ManualClock())
    for number in range(100):
        failures.warn(f"2001:db8::{number:x}:1234", "no TLS")
    failures.warn("2001:db8:0:1::1:1234", "no TLS")
    # With the address as it is.
    assert [line.split()[2] for line in lines()] == ["2001:db8::0:1234", "2001:db8:0:1::1:1234"]
