"""Whether a broker is well, it is asked itself, at the addresses that clients get."""

import pytest

from moldau.cli.errors import ExitCode
from moldau.testing.broker import Broker
from moldau.testing.ports import free_ports

pytestmark = pytest.mark.system


def status(cli, broker: Broker):
    return cli("broker", "status", "--http", broker.http_address)


def test_a_broker_without_trouble_is_well(cli, moldau_session_broker):
    outcome = status(cli, moldau_session_broker)
    assert (outcome.code, "problem" in outcome.err) == (0, False), outcome.err


def test_an_unresponsive_address_for_clients_is_reported(cli):
    nowhere = f"127.0.0.1:{free_ports(1)[0]}"
    with Broker(settings={"KAFKA__ADVERTISED": nowhere}) as broker:
        outcome = status(cli, broker)
    assert outcome.code == ExitCode.FAILED
    wanted = f"problem: broker 1: does not respond at {nowhere}, its advertised address"
    assert wanted in outcome.err


def test_a_broker_that_refuses_writes_is_reported(cli):
    # More than any disk has, so that there is always too little.
    with Broker(settings={"LOG__DISK_RESERVE_BYTES": str(1 << 60)}) as broker:
        outcome = status(cli, broker)
    assert outcome.code == ExitCode.FAILED
    assert "broker 1: the disk is full: writes are rejected until there is space" in outcome.err
