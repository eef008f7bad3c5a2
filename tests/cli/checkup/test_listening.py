"""Who listens at a port is found."""

import os
import socket
import sys

import pytest

from moldau.cli.check_result import CheckStatus
from moldau.cli.checkup.listening import program_at
from moldau.cli.doctor import check_shared_port
from moldau.model.topology import Endpoint

pytestmark = [
    pytest.mark.inprocess,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc"),
]


@pytest.mark.parametrize("bound", ["127.0.0.1", "0.0.0.0"])
def test_the_process_at_a_port_is_named(bound):
    with socket.create_server((bound, 0)) as server:
        address = Endpoint("127.0.0.1", server.getsockname()[1])
        found = program_at(address)
        assert found is not None
        assert found.pid == os.getpid()
        assert "python" in found.command
        (same,) = check_shared_port("http.addr", address, address)
        assert same.verdict is CheckStatus.OK
    assert program_at(address) is None


def test_another_address_of_the_port_is_not_meant():
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert program_at(Endpoint("127.0.0.2", server.getsockname()[1])) is None
