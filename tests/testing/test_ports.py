"""Free ports: none is handed out twice, and test processes side by side take different ones."""

import subprocess
import sys

from moldau.testing.ports import free_ports


def test_no_port_is_handed_out_again_while_its_broker_may_be_down() -> None:
    ports = [port for _ in range(200) for port in free_ports(4)]
    assert len(set(ports)) == len(ports)


def test_test_processes_side_by_side_take_from_ranges_of_their_own() -> None:
    code = "from moldau.testing.ports import free_ports; print(*free_ports(300))"
    taken = [
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTEST_XDIST_WORKER": worker},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout.split()
        for worker in ("gw0", "gw1")
    ]
    assert not set(taken[0]) & set(taken[1])
